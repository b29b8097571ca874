"""Any bytes in any file of a run folder: it is read as before, or refused with a ValueError or an OSError."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import session
from support.runs import quiet, small_recipe

from duality.models.folder import read_recipe
from duality.models.model import load
from duality.recipes.derive import derive_distillation
from duality.runs.corpus import sequences_of_run
from duality.training.distillation import DCD
from duality.training.loop import StepRecord

Change = Callable[[bytes], bytes]
JSON_FILES = ("recipe.json", "corpus.json", "tokenizer.json", "base.json", "state.json", "manifest.json")
FILES = (*JSON_FILES, "metrics.jsonl", "env.json", "model.safetensors", "ema.safetensors", "teacher.safetensors")


@pytest.fixture(scope="module")
def distillation(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    """A finished distillation: it has every kind of file; two checkpoints and two rounds."""
    place = tmp_path_factory.mktemp("bytes")
    base = small_recipe(english, "training.steps=2", "data.length=16")
    session.train(base, place / "base", report=quiet)
    recipe = derive_distillation(base, DCD(rounds=2, round_steps=2, delta=1 / 16), 2)
    session.distill(place / "base", recipe, place / "few", report=quiet)
    return place / "few"


@contextmanager
def copy_of(run: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(shutil.copytree(run, Path(scratch) / "few"))


def flipped(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[place % len(changed)] ^= 1 << bit
    return bytes(changed)


CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(lambda new: lambda data: new, st.binary(max_size=64)),
    st.builds(lambda part: lambda data: data[: int(part * len(data))], st.floats(0, 0.999)),
    st.builds(lambda place, bit: lambda data: flipped(data, place, bit), st.integers(0, 1 << 30), st.integers(0, 7)),
    st.builds(lambda new: lambda data: new + data, st.binary(min_size=1, max_size=8)),
    st.builds(lambda new: lambda data: data + new, st.binary(min_size=1, max_size=8)),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=5), st.just("../x")
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def found(run: Path, name: str) -> Path:
    """The file of that name: in the folder, or in the newest checkpoint."""
    return run / name if (run / name).exists() else run / "checkpoints" / "step-00000004" / name


def weights(model: Any) -> list[torch.Tensor]:
    return list(model.denoiser.parameters())


def stop_soon(record: StepRecord) -> None:
    if record.step > 6:
        raise ValueError("enough")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), change=CHANGES)
def test_loading_and_measuring(distillation: Path, name: str, change: Change) -> None:
    """A changed tensor file is never used: the weights are those of before, or of the checkpoint before, or none."""
    kept = {4: weights(load(distillation)), 2: weights(load(distillation, round=1))}
    with copy_of(distillation) as run:
        file = found(run, name)
        before = file.read_bytes()
        file.write_bytes(change(before))
        with suppress(ValueError, OSError):
            model = load(run)
            sequences_of_run(model, run).rows(torch.tensor([0]).numpy())
            assert name != "ema.safetensors" or change(before) == before or model.step == 2
            assert all(map(torch.equal, weights(model), kept[model.step]))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(group=st.sampled_from(["ema", "model"]), place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_one_bit_of_a_tensor_file(distillation: Path, group: Literal["ema", "model"], place: int, bit: int) -> None:
    with copy_of(distillation) as run:
        file = found(run, f"{group}.safetensors")
        file.write_bytes(flipped(file.read_bytes(), place, bit))
        messages: list[str] = []
        assert load(run, messages.append, weights=group).step == 2
        assert messages == [
            f"checkpoint {file.parent} is damaged ({file.name} does not match its checksum); trying the one before it"
        ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), change=CHANGES)
def test_resuming(distillation: Path, name: str, change: Change) -> None:
    with copy_of(distillation) as run:
        file = found(run, name)
        before = file.read_bytes()
        file.write_bytes(change(before))
        messages: list[str] = []
        base, say = distillation.parent / "base", messages.append
        with suppress(ValueError, OSError):
            assert session.distill(base, read_recipe(run), run, resume=True, report=say, watch=stop_soon).signal == 0
            if name.endswith(".safetensors") and change(before) != before:
                assert any("is damaged" in message for message in messages)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of JSON data are."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """JSON data with another value at a place."""
    if not path:
        return new
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(JSON_FILES), place=st.integers(0, 1 << 20), new=VALUES)
def test_any_value_in_a_json_file(distillation: Path, name: str, place: int, new: Any) -> None:
    """The checksums agree with the changed file, as in a folder that somebody made."""
    with copy_of(distillation) as run:
        file = found(run, name)
        data = json.loads(file.read_text())
        all_places = list(places(data))
        file.write_text(json.dumps(replaced(data, all_places[place % len(all_places)], new)))
        if name == "state.json":
            manifest = file.with_name("manifest.json")
            lines = json.loads(manifest.read_text())
            content = file.read_bytes()
            lines[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            manifest.write_text(json.dumps(lines))
        for round in (None, 1):
            with suppress(ValueError, OSError):
                load(run, round=round)

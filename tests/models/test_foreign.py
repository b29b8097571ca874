"""A run folder of somebody else is data: whatever its files say, loading reads nothing else and ends in one line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import session
from support.runs import quiet, small_recipe

from duality.models import folder as folders
from duality.models.model import load
from duality.models.size import Outline
from duality.runs.corpus import sequences_of_run
from duality.training import checkpoint
from duality.training.metrics import read_metrics


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    run = tmp_path_factory.mktemp("foreign") / "run"
    session.train(small_recipe(english, "training.steps=4", "training.save_every=2"), run, report=quiet)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-00000004"


def relist(path: Path, **extra: Any) -> None:
    """Write a manifest that agrees with the files, and further lines."""
    files = [file for file in path.iterdir() if file.name != "manifest.json"]
    lines = {
        file.name: {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in files
    }
    (path / "manifest.json").write_text(json.dumps({**lines, **extra}))


def entry(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/file", "..", ".", "", "a\\b", "x\0y"])
def test_a_manifest_names_files_of_its_folder_only(run: Path, name: str) -> None:
    (run / "checkpoints" / "secret").write_text("secret")
    relist(newest(run), **{name: entry(run / "checkpoints" / "secret")})
    problem = checkpoint.damage(newest(run))
    assert problem is not None
    assert "not the name of a file in this folder" in problem
    messages: list[str] = []
    assert load(run, messages.append).step == 2
    assert "step-00000004 is damaged" in messages[0]


def test_a_link_that_leaves_the_folder_is_not_followed(run: Path) -> None:
    outside = run.parent / "ema.safetensors"
    (newest(run) / "ema.safetensors").rename(outside)
    (newest(run) / "ema.safetensors").symlink_to(outside)
    relist(newest(run))
    assert checkpoint.damage(newest(run)) == "ema.safetensors is a link that leaves the folder"
    assert load(run).step == 2


def test_tensors_that_the_manifest_does_not_list_are_not_loaded(run: Path) -> None:
    save_file({"w": torch.ones(1)}, newest(run) / "extra.safetensors")
    assert checkpoint.damage(newest(run)) == "extra.safetensors is not in manifest.json"
    lines = json.loads((newest(run) / "manifest.json").read_text())
    (newest(run) / "extra.safetensors").unlink()
    (newest(run) / "manifest.json").write_text(json.dumps({k: v for k, v in lines.items() if k != "ema.safetensors"}))
    assert checkpoint.damage(newest(run)) == "ema.safetensors is not in manifest.json"
    assert load(run).step == 2


def test_a_model_is_loaded_without_the_state_of_its_optimizer(run: Path) -> None:
    """It is neither read nor verified; training needs it and verifies everything."""
    for step in (2, 4):
        (run / "checkpoints" / f"step-{step:08d}" / "optimizer.safetensors").write_bytes(b"damaged")
        (run / "checkpoints" / f"step-{step:08d}" / "model.safetensors").unlink()
    assert load(run).step == 4
    with pytest.raises(ValueError, match=r"no checkpoint in .* is intact \(tried 2"):
        load(run, weights="model")
    recipe = folders.read_recipe(run)
    with pytest.raises(ValueError, match=r"no checkpoint in .* is intact"):
        session.train(recipe, run, resume=True, report=quiet)


def test_all_files_have_the_permissions_that_the_user_has_chosen(tmp_path: Path) -> None:
    for mask, mode in ((0o022, 0o644), (0o027, 0o640), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            path = checkpoint.save(tmp_path / oct(mask), 1, {"model": {"w": torch.ones(1)}}, {})
        finally:
            os.umask(before)
        assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {mode}


def rewritten(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((run / "recipe.json").read_text())
    change(data)
    (run / "recipe.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 1 << 20, "heads": 1}, "does not fit the network"),
        ({"width": 1 << 40, "heads": 1}, r"does not fit the network|cannot be built"),
        ({"width": 1 << 62, "heads": 1}, "cannot be built"),
        ({"width": 1 << 90, "heads": 1}, r"below 2\*\*63"),
        ({"depth": 10**9}, "the depth at most 1000"),
        ({"mlp_ratio": 10**9}, "does not fit the network"),
        ({"time_width": 10**9}, "does not fit the network"),
        ({"conv": 10**9 + 1}, "does not fit the network"),
    ],
    ids=str,
)
def test_a_network_that_is_not_that_of_the_file_takes_no_memory(
    run: Path, fields: dict[str, int], message: str
) -> None:
    rewritten(run, lambda data: data["backbone"].update(fields))
    with pytest.raises(ValueError, match=message):
        load(run)
    with pytest.raises(ValueError, match=message):
        session.train(folders.read_recipe(run), run, resume=True, report=quiet)


def test_shapes_are_those_of_the_network_itself(run: Path) -> None:
    from duality.methods import METHODS
    from duality.models.model import network
    from duality.protocols import Vocabulary

    recipe = folders.read_recipe(run)
    for method in METHODS.values():
        chosen, vocabulary = replace(recipe, method=method()), Vocabulary(20)
        built = network(chosen, vocabulary).named_parameters()
        assert Outline(chosen, vocabulary).shapes() == {name: tuple(value.shape) for name, value in built}


DEEP = "[" * 100_000
WRONG: list[tuple[str, bytes, str]] = [
    ("recipe.json", b"{}", r"recipe.json: the recipe has format None"),
    ("recipe.json", b"[]", r"recipe.json: this is a tuple, not a recipe"),
    ("recipe.json", b"\xff", r"recipe.json is damaged \(byte 0 is not UTF-8"),
    ("recipe.json", DEEP.encode(), r"recipe.json is damaged \(it is nested too deeply"),
    ("recipe.json", b"[" * 500 + b"]" * 500, r"recipe.json is damaged \(it is nested"),
    ("recipe.json", b" " * (1 << 21), r"recipe.json has more than 1,048,576 bytes"),
    ("corpus.json", b"{}", r"corpus.json is damaged \(it needs"),
    ("corpus.json", b"[]", r"corpus.json is damaged \(it needs"),
    ("corpus.json", b"{", r"corpus.json is damaged"),
    ("corpus.json", b'{"tokenizer": "", "train": [1], "validation": []}', r"corpus.json is damaged \(it needs"),
    ("corpus.json", DEEP.encode(), r"corpus.json is damaged \(it is nested"),
    ("tokenizer.json", b"[]", r"tokenizer.json is damaged"),
    ("tokenizer.json", b"{}", r"tokenizer.json is damaged"),
    ("tokenizer.json", b"\xff", r"tokenizer.json is damaged"),
    ("tokenizer.json", DEEP.encode(), r"tokenizer.json is damaged"),
    ("tokenizer.json", b'{"kind": "bpe", "bpe": {}}', r"tokenizer.json is damaged"),
    ("tokenizer.json", b'{"kind": "bpe", "bpe": 3}', r"tokenizer.json is damaged"),
    ("tokenizer.json", b'{"kind": "wordpiece", "wordpiece": []}', r"tokenizer.json is damaged"),
    ("tokenizer.json", b'{"kind": "characters", "alphabet": 3}', r"tokenizer.json is damaged"),
    ("tokenizer.json", b'{"kind": "numbers", "num_values": "x"}', r"tokenizer.json is damaged"),
    ("tokenizer.json", b'{"kind": "numbers", "num_values": 4294967295}', r"trained with a vocabulary of 257"),
    ("tokenizer.json", b'{"kind": "characters", "alphabet": "ab"}', r"trained with a vocabulary of 257"),
]


@pytest.mark.parametrize(("name", "data", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_named(run: Path, name: str, data: bytes, message: str) -> None:
    (run / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        load(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{}", "is of|no step"),
        (b"[]", "no step"),
        (b'{"step": "4"}', "no step"),
        (b'{"step": -4}', "no step"),
        (b'{"step": 3}', "state.json is of step 3"),
        (DEEP.encode(), "nested too deeply"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_state_is_damage_though_its_checksum_is_right(run: Path, data: bytes, message: str) -> None:
    for step in (2, 4):
        path = run / "checkpoints" / f"step-{step:08d}"
        (path / "state.json").write_bytes(data)
        relist(path)
    with pytest.raises(ValueError, match=rf"no checkpoint in .* is intact.*({message})"):
        load(run)


def test_a_state_without_a_tokenizer_is_named(run: Path) -> None:
    (newest(run) / "state.json").write_text('{"step": 4}')
    relist(newest(run))
    with pytest.raises(ValueError, match=r"state.json does not say which tokenizer"):
        load(run)


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"3",
        b"[]",
        b'{"step": "3"}',
        b'{"step": 3, "loss": "x", "phase": "a"}',
        b'{"step": 3, "loss": 1.0}',
        b'{"step": 3, "validation_nats": 2.0}',
        b'{"step": 3, "loss": 1' + b"0" * 400 + b', "phase": "a"}',
        b"\xff",
        DEEP.encode(),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_line_of_metrics_is_named(run: Path, line: bytes) -> None:
    path = run / "metrics.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1, is damaged .*: restore or delete the line"):
        read_metrics(run)
    with pytest.raises(ValueError, match=r"line 1, is damaged"):
        session.train(folders.read_recipe(run), run, resume=True, report=quiet)


def test_optimizer_state_of_another_shape_is_refused(run: Path) -> None:
    from safetensors.torch import load_file

    file = newest(run) / "optimizer.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("exp_avg"))
    save_file({**tensors, name: torch.zeros(1)}, file)
    relist(newest(run))
    with pytest.raises(ValueError, match=r"optimizer.safetensors does not fit the network"):
        session.train(folders.read_recipe(run), run, resume=True, report=quiet)
    file.unlink()
    relist(newest(run))
    with pytest.raises(ValueError, match=r"has no optimizer.safetensors"):
        session.train(folders.read_recipe(run), run, resume=True, report=quiet)


def test_the_file_that_a_recipe_names_is_not_read_for_a_run_without_a_sound_corpus(
    run: Path, tmp_path: Path, own_cache: Path
) -> None:
    private = tmp_path / "private.txt"
    private.write_text("A text of this machine. " * 500)
    rewritten(run, lambda data: data["data"].update(corpus=str(private)))
    model = load(run)
    stores = sorted(own_cache.rglob("*"))
    identity = (run / "corpus.json").read_text()
    for data in ("{}", identity.replace(json.loads(identity)["tokenizer"], "another")):
        (run / "corpus.json").write_text(data)
        with pytest.raises(ValueError, match=r"corpus.json is"):
            sequences_of_run(model, run)
    assert sorted(own_cache.rglob("*")) == stores
    (run / "corpus.json").write_text(identity)
    messages: list[str] = []
    with pytest.raises(ValueError, match="has changed since the run began"):
        sequences_of_run(model, run, report=messages.append)
    assert f"is read at {private}" in messages[0]
    assert sorted(own_cache.rglob("*")) == stores  # nothing of it is tokenized


def test_a_run_of_an_older_version_has_no_checksum_of_its_text(run: Path) -> None:
    path = run / "corpus.json"
    identity = json.loads(path.read_text())
    assert len(identity.pop("text")) == 64
    path.write_text(json.dumps(identity))
    assert len(sequences_of_run(load(run), run)) > 0
    path.write_text(json.dumps({**identity, "text": 5}))
    with pytest.raises(ValueError, match=r"corpus.json is damaged"):
        sequences_of_run(load(run), run)

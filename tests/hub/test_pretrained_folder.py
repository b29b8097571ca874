"""A model alone in a folder: nothing is lost on the way there and back, and a folder of somebody else is data."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.faults import faults
from support.pretrained import rewrite, train_kinds

import duality
from duality.cli.main import main
from duality.files import atomic as files
from duality.hub import package as pretrained_folder
from duality.hub.publish import _public_recipe
from duality.models.model import Model, load

KINDS = ("duo", "mdlm", "ar", "labels", "molecules")
FILES = ["README.md", "config.json", "corpus.json", "duality_tokenizer.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, english: Path) -> dict[str, Model]:
    return train_kinds(tmp_path_factory.mktemp("kinds"), english)


@pytest.fixture(scope="module")
def saved(kinds: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("saved")
    return {name: model.save_pretrained(place / name) for name, model in kinds.items()}


@pytest.fixture
def folder(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved["duo"], tmp_path / "model"))


@pytest.mark.parametrize("name", KINDS)
def test_a_model_comes_back_as_it_was(
    name: str, kinds: dict[str, Model], saved: dict[str, Path], tmp_path: Path
) -> None:
    before, after = kinds[name], Model.from_pretrained(saved[name])
    own, other = before.denoiser.state_dict(), after.denoiser.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in own.items())
    label = "austen" if before.label_names else None
    text = "CCO" if name == "molecules" else "A text."
    assert before.sample(2, steps=None if name == "ar" else 3, label=label) == after.sample(
        2, steps=None if name == "ar" else 3, label=label
    )
    assert before.log_likelihood(text, label=label) == after.log_likelihood(text, label=label)
    assert after.tokenizer.encode(text).tolist() == before.tokenizer.encode(text).tolist()
    assert (after.step, after.label_names) == (before.step, before.label_names)
    assert after.recipe == _public_recipe(before.recipe)
    again = after.save_pretrained(tmp_path / "again")
    for file in ("model.safetensors", "config.json", "duality_tokenizer.json", "tokenizer.json", "corpus.json"):
        assert (again / file).read_bytes() == (saved[name] / file).read_bytes(), file


def test_the_origin_is_recorded(kinds: dict[str, Model], saved: dict[str, Path]) -> None:
    run, alone = kinds["duo"].origin, duality.load(saved["duo"]).origin
    assert run is not None
    assert alone is not None
    ema = run.folder / "checkpoints" / "step-00000002" / "ema.safetensors"
    assert run.sha256 == hashlib.sha256(ema.read_bytes()).hexdigest()
    assert alone.sha256 == hashlib.sha256((saved["duo"] / "model.safetensors").read_bytes()).hexdigest()
    assert (alone.place, alone.commit, alone.weights) == (str(saved["duo"]), None, "ema")


def test_raw_weights_are_called_so(kinds: dict[str, Model], tmp_path: Path) -> None:
    origin = kinds["duo"].origin
    assert origin is not None
    raw = load(origin.folder, weights="model")
    place = raw.save_pretrained(tmp_path / "raw")
    assert "Not measured." in (place / "README.md").read_text(encoding="utf-8")  # the averaged weights were
    with pytest.raises(ValueError, match="has the weights 'model' alone, and 'ema' were asked for"):
        load(place)
    assert torch.equal(next(load(place, weights="model").denoiser.parameters()), next(raw.denoiser.parameters()))


def test_no_path_of_this_machine_is_published(saved: dict[str, Path], kinds: dict[str, Model]) -> None:
    for name in KINDS:
        assert sorted(path.name for path in saved[name].iterdir()) == [*FILES, "tokenizer_config.json"]
        corpus = Path(kinds[name].recipe.data.corpus)
        assert corpus.is_absolute()
        for path in saved[name].iterdir():
            assert str(corpus.parent).encode() not in path.read_bytes(), path


def test_the_card_says_what_was_measured(kinds: dict[str, Model], tmp_path: Path) -> None:
    place = kinds["mdlm"].save_pretrained(tmp_path / "mine", license="apache-2.0", datasets=["owner/texts"])
    card = (place / "README.md").read_text(encoding="utf-8")
    front = card.split("---\n")[1]
    fields = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in front.splitlines())}
    assert (fields["license"], fields["datasets"], fields["library_name"]) == ("apache-2.0", ["owner/texts"], "duality")
    origin = kinds["mdlm"].origin
    assert origin is not None
    rows = [json.loads(line) for line in (origin.folder / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "validation_nats" in row][-1]
    assert f"{last['validation_nats']:.4f} ± {last['validation_stderr']:.4f}" in card
    assert f"| bound | {last['validation_tokens']:,} |" in card
    assert "duality sample mine" in card
    assert "@inproceedings{sahoo2025diffusion" in card
    assert card.count("```text") == 2


@pytest.mark.parametrize("license", ["", "two\nlines", "a: b", "x" * 9 + '"'])
def test_a_licence_is_an_identifier(license: str, kinds: dict[str, Model], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give an identifier of the hub, such as apache-2.0"):
        kinds["duo"].save_pretrained(tmp_path / "new", license=license)
    assert not (tmp_path / "new").exists()


def test_nothing_is_replaced(kinds: dict[str, Model], tmp_path: Path) -> None:
    place = tmp_path / "full"
    place.mkdir()
    (place / "mine.txt").write_text("needed")
    with pytest.raises(ValueError, match=r"holds other files \(mine.txt\): give a new or an empty folder"):
        kinds["duo"].save_pretrained(place)
    with pytest.raises(ValueError, match="is a file: give a new folder"):
        kinds["duo"].save_pretrained(place / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    (tmp_path / "empty").mkdir()
    assert load(kinds["duo"].save_pretrained(tmp_path / "empty")).step == 2


def test_what_is_killed_leaves_no_model(kinds: dict[str, Model], tmp_path: Path) -> None:
    """A real process is killed before each flush and each rename; the next attempt clears away what it left."""
    target = tmp_path / "model"

    def save(die_at: int) -> None:
        count, flush, rename = 0, files.flush_to_disk, os.replace

        def counted(call: Callable[..., None], *arguments: Any) -> None:
            nonlocal count
            count += 1
            if count == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            call(*arguments)

        vars(files)["flush_to_disk"] = lambda path: counted(flush, path)
        vars(os)["replace"] = lambda *paths: counted(rename, *paths)
        kinds["duo"].save_pretrained(target)

    killed = 0
    for die_at in range(1, 30):
        child = os.fork()
        if child == 0:
            save(die_at)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        if target.exists():
            break
        assert os.WIFSIGNALED(status)
        for leftover in tmp_path.iterdir():
            assert leftover.name.startswith(".")
    assert killed >= 8
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert load(target).step == 2


def test_a_disk_that_refuses_leaves_nothing(kinds: dict[str, Model], tmp_path: Path) -> None:
    with faults(tmp_path) as tally:
        kinds["duo"].save_pretrained(tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    for place in range(1, tally.count):  # the last operation is after the rename
        with faults(tmp_path, fail_at=place, number=errno.ENOSPC), pytest.raises(OSError, match="No space left"):
            kinds["duo"].save_pretrained(tmp_path / "model")
        assert list(tmp_path.iterdir()) == []


CONFIG: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda data: data.pop("recipe"), r"config.json lacks recipe"),
    (lambda data: data.pop("step"), r"config.json lacks step"),
    (lambda data: data.update(steps=3), r"config.json has the unknown field 'steps'.*did you mean step"),
    (lambda data: data.update(step="3"), r"config.json: step is '3': it must be a whole number"),
    (lambda data: data.update(step=-1), r"config.json: step is -1"),
    (lambda data: data.update(num_tokens=0), r"num_tokens 0"),
    (lambda data: data.update(num_tokens=10**30), r"num_tokens is 1000"),
    (lambda data: data.update(num_tokens=300), r"a vocabulary of 300 tokens .* has 257"),
    (lambda data: data.update(label_names=[3]), r"it must be a list of text"),
    (lambda data: data.update(label_names=["a"]), r"1 missing: denoiser.backbone.label.weight"),
    (lambda data: data.update(format=2), r"has format 2, and this version reads 1"),
    (lambda data: data.update(model_type="gpt2"), r"a model of the type 'gpt2'"),
    (lambda data: data.update(weights="raw"), r"weights is 'raw': it must be one of 'ema', 'model'"),
    (lambda data: data.update(tokenizer_sha256="0" * 64), r"put back the file that belongs to it"),
    (lambda data: data.update(weights_sha256="0" * 64), r"is not the file that config.json was written for"),
    (lambda data: data["recipe"].update(colour=3), r"Recipe has no field 'colour'"),
    (lambda data: data["recipe"]["method"].update(type="os"), r"unknown component 'os'"),
    (lambda data: data["recipe"]["backbone"].update(width=1 << 40, heads=1), r"do not fit|cannot be built"),
    (lambda data: data["recipe"]["backbone"].update(depth=10**9), r"the depth at most 1000"),
    (lambda data: data["recipe"]["backbone"].update(depth=3), r"\d+ missing: denoiser.backbone.blocks.2"),
    (lambda data: data["recipe"]["backbone"].update(depth=1), r"\d+ unknown: denoiser.backbone.blocks.1"),
    (
        lambda data: data["recipe"]["backbone"].update(mlp_ratio=2),
        r"of another shape: .*mlp.0.bias \(128,\) instead of",
    ),
    (
        lambda data: data.update(dict.fromkeys(pretrained_folder._RELEASED, 1)),
        r"import it with `duality import FOLDER --out RUN`",
    ),
]


@pytest.mark.parametrize(("change", "message"), CONFIG, ids=[message for _, message in CONFIG])
def test_a_wrong_config_is_named(folder: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    rewrite(folder / "config.json", change)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def lying(shape: list[int], end: int) -> bytes:
    """A safetensors file whose header does not tell the truth about its bytes."""
    header = json.dumps({"denoiser.x": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 16


DEEP = b"[" * 100_000
BYTES = [
    ("config.json", b"[]", "holds no object"),
    ("config.json", b"\xff", "is not UTF-8"),
    ("config.json", DEEP, "nested too deeply"),
    ("config.json", b" " * (1 << 21), "more than 1,048,576 bytes"),
    ("duality_tokenizer.json", b"{}", "is damaged"),
    ("duality_tokenizer.json", DEEP, "nested too deeply"),
    ("duality_tokenizer.json", b'{"kind": "characters", "alphabet": "ab"}', "a vocabulary of 257 tokens .* has 3"),
    ("model.safetensors", b"", "is no valid safetensors file"),
    ("model.safetensors", b"\x80\x04N.", "is no valid safetensors file"),  # a pickle
    ("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}", "is no valid safetensors file"),
    ("model.safetensors", lying([1 << 40], 1 << 42), "is no valid safetensors file"),
    ("model.safetensors", lying([100], 16), "is no valid safetensors file"),
]


@pytest.mark.parametrize(("name", "data", "message"), BYTES, ids=[f"{name} {data[:12]!r}" for name, data, _ in BYTES])
def test_wrong_bytes_are_named(folder: Path, name: str, data: bytes, message: str) -> None:
    (folder / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert str(folder / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["duality_tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ValueError, match=re.escape(name)):
        load(folder)


def test_all_wrong_tensors_are_named_and_none_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head, bias = "denoiser.backbone.head.weight", "denoiser.backbone.head.bias"
    del tensors["denoiser.backbone.norm.weight"]
    save_file({**tensors, head: tensors[head].T.contiguous(), bias: tensors[bias].long(), "other": torch.ones(1)}, path)
    monkeypatch.setattr("duality.models.trained.load_file", lambda path: pytest.fail("the tensors were read"))
    with pytest.raises(ValueError, match="do not fit the network") as caught:
        load(folder)
    for words in (
        "1 missing: denoiser.backbone.norm.weight",
        "1 unknown: other",
        f"1 of another shape: {head} (32, 257) instead of (257, 32)",
        f"1 no numbers that weights can be: {bias} I64",
    ):
        assert words in str(caught.value)


def test_one_changed_bit_is_found(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"is not the file that config.json was written for \(sha256\)"):
        load(folder)


def test_half_precision_is_read_as_single(folder: Path) -> None:
    """As `transformers` may have saved it; without the checksum of the file as it was."""
    path = folder / "model.safetensors"
    before = load_file(path)
    save_file({name: value.bfloat16() for name, value in before.items()}, path)
    rewrite(folder / "config.json", lambda data: data.pop("weights_sha256"))
    found = dict(load(folder).denoiser.named_parameters())
    for name, value in before.items():
        torch.testing.assert_close(found[name.removeprefix("denoiser.")].data, value.bfloat16().float(), atol=0, rtol=0)


def test_what_only_runs_have_is_refused(folder: Path) -> None:
    for wrong in ({"step": 1}, {"round": 0}):
        with pytest.raises(ValueError, match="neither rounds nor other steps"):
            load(folder, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is a path: only models of the Hugging Face hub have revisions"):
        load(folder, revision="main")


def test_a_model_in_memory_has_no_corpus(kinds: dict[str, Model], tmp_path: Path) -> None:
    place = replace(kinds["duo"], origin=None).save_pretrained(tmp_path / "memory")
    assert not (place / "corpus.json").exists()
    assert "Not measured." in (place / "README.md").read_text(encoding="utf-8")
    from duality.runs.corpus import sequences_of_run

    with pytest.raises(ValueError, match="does not say which text it was trained on"):
        sequences_of_run(load(place), place)


def test_eval_needs_the_corpus_that_it_was_trained_on(
    saved: dict[str, Path],
    kinds: dict[str, Model],
    english: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # where no file is called as the corpus is
    few = ["--limit", "4", "--draws", "1", "--json"]
    assert main(["eval", str(saved["duo"]), *few]) == 2
    assert "which is not here: say where it is (--corpus PATH" in capsys.readouterr().err
    assert main(["eval", str(saved["duo"]), *few, "--corpus", str(english)]) == 0
    alone = json.loads(capsys.readouterr().out)
    origin = kinds["duo"].origin
    assert origin is not None
    assert main(["eval", str(origin.folder), *few]) == 0
    assert alone | {"run": ""} == json.loads(capsys.readouterr().out) | {"run": ""}
    (tmp_path / "other.txt").write_text("Another text than that one. " * 400)
    assert main(["eval", str(saved["duo"]), *few, "--corpus", "other.txt"]) == 2
    assert "has another text than" in capsys.readouterr().err
    assert main(["eval", str(saved["duo"]), *few, "--data", "other.txt"]) == 0


@pytest.mark.slow
def test_a_distillation_begins_from_a_model_alone(saved: dict[str, Path], english: Path, tmp_path: Path) -> None:
    alone, out = saved["duo"], tmp_path / "few"
    found = duality.distill(alone, corpus=english, out=out, rounds=1, round_steps=2)
    assert found.step == 2
    digest = hashlib.sha256((alone / "model.safetensors").read_bytes()).hexdigest()
    record = json.loads((out / "base.json").read_text())
    assert record == {"run": str(alone), "step": 2, "commit": None, "model": digest, "ema": digest}
    first = load(out, round=0)
    for name, value in load(alone).denoiser.named_parameters():
        assert torch.equal(first.denoiser.get_parameter(name), value)
    with pytest.raises(ValueError, match=r"is a distillation of step 2 of .* are others"):
        duality.distill(saved["mdlm"], out=out, resume=True, method="dcd")
    duality.distill(alone, out=out, resume=True, rounds=2)


def test_samples_of_a_model_alone_are_measured_and_it_can_judge(
    saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--num", "2", "--steps", "2", "--out", "out", "--json"]
    assert main(["quality", str(saved["duo"]), "--judge", str(saved["ar"]), *few]) == 0
    output = capsys.readouterr()
    (row,) = json.loads(output.out)
    assert row["judge"].startswith("ar (step 2")
    assert "no real text: LICENSE, the corpus of duo, is not here" in output.err

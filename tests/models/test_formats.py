"""Folders and files that an earlier version wrote are read: runs, a distillation, a published model, a trace, a store.

tests/golden/formats.tar.gz was written by commit ec5516c: a training of four steps on a text of 1 765 bytes, its
distillation, the model alone, samples, and the prepared tokens of the cache.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from support.runs import quiet

import duality
from duality.cli.main import main
from duality.data.store import TokenStore
from duality.models.model import load
from duality.models.trace import read_trace


@pytest.fixture
def formats(tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the archive, in the current directory."""
    with tarfile.open(golden / "formats.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / "cache"))
    return tmp_path


def tokens_in(path: Path) -> list[list[int]]:
    return [json.loads(line)["tokens"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("source", ["run", "published"])
def test_a_model_writes_what_it_wrote(formats: Path, source: str) -> None:
    samples = load(source, quiet).sample(2, steps=4, seed=0)
    assert [list(sample.tokens) for sample in samples] == tokens_in(formats / "samples.jsonl")


def test_a_distillation_writes_what_it_wrote(formats: Path) -> None:
    samples = load("distilled", quiet).sample(2, seed=0)
    assert [list(sample.tokens) for sample in samples] == tokens_in(formats / "samples-distilled.jsonl")


@pytest.mark.parametrize(("run", "kept"), [("run", "eval.json"), ("distilled", "eval-distilled.json")])
def test_its_likelihood_is_what_it_was(formats: Path, run: str, kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((formats / kept).read_text(encoding="utf-8"))
    assert main(["eval", run, "--draws", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= before.keys()  # nothing that a reader may ask for is gone
    assert found["nats_per_token"] == pytest.approx(before["nats_per_token"], rel=1e-6)


def test_prepared_tokens_are_read(formats: Path) -> None:
    (folder,) = (formats / "cache" / "stores").iterdir()
    tokens = load("run", quiet).tokenizer
    parts = [tokens.decode(TokenStore.open(folder / part)[:-1].tolist()) for part in ("train", "validation")]
    assert "".join(parts) == (formats / "english.txt").read_text(encoding="utf-8")


@pytest.mark.usefixtures("formats")
def test_a_training_goes_on() -> None:
    """With two more steps than it was planned for, and again after a copy: the same weights."""
    shutil.copytree("run", "copy")
    first = duality.train("duo-laptop", out="run", steps=6, resume=True, report=quiet)
    second = duality.train("duo-laptop", out="copy", steps=6, resume=True, report=quiet)
    assert first.step == second.step == 6
    pairs = zip(first.denoiser.state_dict().values(), second.denoiser.state_dict().values(), strict=True)
    assert all(bool((a == b).all()) for a, b in pairs)


def test_a_trace_is_read(formats: Path) -> None:
    assert read_trace(formats / "trace.json")

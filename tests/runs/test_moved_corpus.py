"""The corpus of a run: moved, changed, or damaged in the cache. Its content decides, not its path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support import session
from support.checkpoints import load_newest
from support.runs import small_recipe

from duality.cli.main import main
from duality.evaluation.requests import SweepRequest
from duality.evaluation.sweep import measure_runs
from duality.models.folder import read_recipe, write_recipe
from duality.training.metrics import read_metrics

SMALL = ("training.steps=6", "training.save_every=3")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text(cache: Path, english: Path) -> Path:
    """The corpus, where it is at first."""
    path = cache.parent / "old" / "corpus.txt"
    path.parent.mkdir()
    shutil.copy(english, path)
    return path


@pytest.fixture
def run(text: Path, tmp_path: Path) -> Path:
    """A finished run on the corpus."""
    session.train(small_recipe(text, *SMALL), tmp_path / "run")
    return tmp_path / "run"


def moved(text: Path, tmp_path: Path, cache: Path, change: str = "") -> Path:
    """The corpus in another place, its tokens not in the cache."""
    path = tmp_path / "new.txt"
    shutil.move(text, path)
    path.write_text(path.read_text() + change)
    shutil.rmtree(cache)
    return path


def nats(capsys: pytest.CaptureFixture[str], *arguments: str) -> float:
    """What `eval --json` says."""
    capsys.readouterr()
    assert main(["eval", *arguments, "--json"]) == 0
    return float(json.loads(capsys.readouterr().out)["nats_per_token"])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("duality: error:")
    return message


def weights(run: Path) -> dict[str, torch.Tensor]:
    saved = load_newest(run / "checkpoints", print)
    assert saved is not None
    return saved.groups["model"]


def test_damaged_tokens_in_the_cache_do_not_change_a_likelihood(
    run: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = nats(capsys, str(run))
    (shard,) = cache.glob("stores/*/validation/shard-00000.bin")
    shard.write_bytes(np.full(shard.stat().st_size // 2, 7, dtype="<u2").tobytes())
    assert main(["eval", str(run), "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["nats_per_token"] == expected
    assert f"{shard} is damaged: its sha256 has changed; it is prepared again" in found.err


def test_a_stopped_run_goes_on_after_its_corpus_was_moved(run: Path, text: Path, tmp_path: Path, cache: Path) -> None:
    whole = weights(run)
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    new = moved(text, tmp_path, cache)
    assert main(["train", "duo-laptop", "--out", str(run), "--resume", "--data", str(new), "--device", "cpu"]) == 0
    assert all(torch.equal(value, whole[name]) for name, value in weights(run).items())
    assert read_recipe(run).data.corpus == str(new)
    changes = [row["changed"] for row in read_metrics(run) if "changed" in row]
    assert changes == [[f"data.corpus: {str(text)!r} -> {str(new)!r}"]]


@pytest.mark.parametrize("more", [[], ["--set", "training.seed=5"]], ids=["data", "data and another field"])
def test_another_text_is_refused_and_nothing_is_changed(
    more: list[str], run: Path, text: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    new = moved(text, tmp_path, cache, "One more line.\n" if not more else "")
    arguments = ("train", "duo-laptop", "--out", str(run), "--resume", "--data", str(new), *more)
    message = refused(capsys, *arguments)
    assert f"{new} has another text than {run} was trained on" in message or "training.seed" in message
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_every_command_says_what_to_do_when_the_corpus_is_gone(
    run: Path, text: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved(text, tmp_path, cache)
    out = str(tmp_path / "out")
    for arguments in (
        ("train", "duo-laptop", "--out", str(run), "--resume"),
        ("eval", str(run)),
        ("distill", str(run), "--out", out),
        ("quality", str(run), "--judge", "none", "--out", out),
        ("variance", str(run), "--out", out),
    ):
        message = refused(capsys, *arguments)
        assert f"the corpus of {run} is not at {text} any more" in message
        assert f"duality train duo-laptop --out {run} --resume --data PATH" in message
        assert "--corpus PATH" in message
    assert not list(Path(out).glob("*.json"))  # no run, no table


def test_eval_of_a_moved_corpus(
    run: Path, text: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = nats(capsys, str(run))
    new = moved(text, tmp_path, cache)
    assert nats(capsys, str(run), "--corpus", str(new)) == expected
    assert nats(capsys, str(run), "--data", str(new)) != expected
    assert read_recipe(run).data.corpus == str(text)
    assert "--corpus" in refused(capsys, "eval", str(run), "--corpus", str(new), "--data", str(new))
    new.write_text(new.read_text() + "x")
    assert f"{new} has another text than {run} was trained on" in refused(
        capsys, "eval", str(run), "--corpus", str(new)
    )


def test_distill_and_measure_a_run_whose_corpus_was_moved(run: Path, text: Path, tmp_path: Path, cache: Path) -> None:
    new, few = moved(text, tmp_path, cache), tmp_path / "few"
    distill = ["distill", str(run), "--rounds", "1", "--round-steps", "2", "--out", str(few), "--device", "cpu"]
    assert main([*distill, "--corpus", str(new)]) == 0
    assert read_recipe(few).data.corpus == str(new)
    newer = new.with_name("newer.txt")
    shutil.move(new, newer)
    assert main([*distill, "--resume", "--corpus", str(newer)]) == 0
    assert read_recipe(few).data.corpus == str(newer)
    sweep = SweepRequest(steps=(2,), num=2)
    assert measure_runs([run], sweep, out=tmp_path / "q", device="cpu", corpus=newer)
    quality = ["quality", str(run), "--judge", "none", "--steps", "2", "--num", "2", "--out", str(tmp_path / "q2")]
    assert main([*quality, "--corpus", str(newer), "--device", "cpu"]) == 0
    variance = ["variance", str(run), "--draws", "12", "--groups", "6", "--out", str(tmp_path / "v"), "--device", "cpu"]
    assert main([*variance, "--corpus", str(newer), "--objectives", "plain"]) == 0


def test_a_run_that_was_made_by_hand_is_checked_too(run: Path, text: Path, tmp_path: Path) -> None:
    """A recipe that names another file has other tokens."""
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().upper())
    write_recipe(small_recipe(other, *SMALL), run)
    with pytest.raises(ValueError, match="has changed since the run began"):
        session.train(small_recipe(other, *SMALL), run, resume=True)

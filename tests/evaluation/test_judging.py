"""Runs as judges: the exact likelihood of an autoregressive run; and the training texts that scorers may ask for."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe

from duality.evaluation.judge import find_judge
from duality.evaluation.requests import SweepRequest
from duality.evaluation.scorers import _context_of
from duality.evaluation.sweep import measure_runs
from duality.fused.lazy import belief_of
from duality.models.model import Model, load
from duality.tokenizers.tokenizer import CharTokenizer

WORDS = [f"{first}{second}{third}" for first in "abc" for second in "abcd" for third in "abcdef"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Autoregressive runs on words, one for each packing, and a Duo run."""
    folder = tmp_path_factory.mktemp("judges")
    corpus = folder / "words.txt"
    corpus.write_text("".join(f"{word}\n" for word in WORDS))
    lines = ("data.documents=lines", "data.tokenizer=characters", "data.length=8", "training.steps=3")
    for name, packing in (("ar", "document"), ("wrap", "wrap"), ("duo", "document")):
        recipe = "duo-laptop" if name == "duo" else "ar-laptop"
        session.train(small_recipe(corpus, *lines, f"data.packing={packing}", name=recipe), folder / name, report=quiet)
    return {name: folder / name for name in ("ar", "wrap", "duo")}


def by_definition(model: Model, ids: list[int]) -> float:
    """-log p of ids, one token after the other, each from the belief after those before it."""
    total = 0.0
    for place, token in enumerate(ids):
        row = torch.tensor([[*ids[:place], 0]])  # what stands at the last place is not read
        log_p = belief_of(model.denoiser, row, torch.ones(1, dtype=torch.float64)).log_probs()
        total -= float(log_p[0, -1, token])
    return total


@pytest.mark.parametrize("name", ["ar", "wrap"])
def test_the_nats_are_those_of_the_run(runs: dict[str, Path], name: str) -> None:
    """Of documents the end-of-text is a part, of pieces of a stream it is not; neighbours change nothing."""
    model, judge = load(runs[name], device="cpu"), find_judge(str(runs[name]))
    ending = [model.tokenizer.separator] if name == "ar" else []
    texts = ["abc", "", "ffffff", "b"]
    for text, (nats, count) in zip(texts, judge.nats(texts)):
        ids = [*model.tokenizer.encode(text).tolist(), *ending]
        assert count == len(ids)
        assert nats == pytest.approx(by_definition(model, ids), abs=1e-4)
    if name == "wrap":
        assert judge.nats(["abc"])[0][0] == pytest.approx(model.log_likelihood("abc").nats, abs=1e-4)


def test_all_short_texts_together_have_the_right_probability(runs: dict[str, Path]) -> None:
    """Texts of at most one letter and their end, and the rest of the probability: p sums to 1."""
    model, judge = load(runs["ar"], device="cpu"), find_judge(str(runs["ar"]))
    letters = model.tokenizer.vocab_size - 1
    assert isinstance(model.tokenizer, CharTokenizer)
    ended = sum(math.exp(-nats) for nats, _ in judge.nats(["", *model.tokenizer.alphabet]))
    pairs = torch.tensor([[first, 0] for first in range(letters)])
    log_p = belief_of(model.denoiser, pairs, torch.ones(letters, dtype=torch.float64)).log_probs()
    longer = (log_p[:, 0].gather(1, pairs[:, :1])[:, 0] + log_p[:, 1, :letters].logsumexp(1)).exp().sum()
    assert ended + float(longer) == pytest.approx(1, abs=1e-5)


def test_texts_longer_than_a_sequence_are_read_in_windows(runs: dict[str, Path]) -> None:
    judge = find_judge(str(runs["ar"]))
    assert judge.context == 9
    ((nats, count),) = judge.nats(["abcdefabcdef"])
    assert count == 13
    assert nats > 0


def test_what_is_no_judge_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a run of Duo and no judge.*name an autoregressive run"):
        find_judge(str(runs["duo"]))
    with pytest.raises(ValueError, match="no judge at"):
        find_judge(str(tmp_path / "absent.gguf"))
    with pytest.raises(ValueError, match=r"the judge 'ar .*' cannot read text 1, 'abZ': the character 'Z'"):
        find_judge(str(runs["ar"])).nats(["abc", "abZ"])


def test_other_weights_are_another_judge(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name = find_judge(str(runs["ar"])).name
    assert name.startswith("ar (step 3, ")
    other = replace(load(runs["ar"], device="cpu"), step=4)
    monkeypatch.setattr("duality.evaluation.judge.load", lambda *_, **__: other)
    assert find_judge(str(runs["ar"])).name != name


def test_training_texts_are_the_documents(runs: dict[str, Path]) -> None:
    """All words but those for validation, each once and without an end-of-text."""
    texts = _context_of(runs["ar"]).training_texts()
    assert len(texts) == len(set(texts))
    assert set(texts) < set(WORDS)
    assert len(texts) > 0.8 * len(WORDS)
    context = _context_of(runs["ar"])
    assert context.training_texts() == texts
    assert context.training_id == _context_of(runs["duo"]).training_id
    assert len(context.training_id) > 40


def test_other_texts_than_those_of_the_training_are_refused(runs: dict[str, Path]) -> None:
    """A folder in the current one that has the name of the run's corpus is such a case."""
    corpus = runs["ar"].parent / "words.txt"
    before, times = corpus.read_text(), corpus.stat()
    try:
        corpus.write_text("other words\n" * 40)
        with pytest.raises(ValueError, match=r"the corpus of .* has changed"):
            _context_of(runs["ar"]).training_texts()
        with pytest.raises(ValueError, match=r"the corpus of .* has changed"):
            measure_runs([runs["ar"]], SweepRequest(steps=(None,), num=2), out=runs["ar"].parent / "x", device="cpu")
    finally:
        corpus.write_text(before)
        os.utime(corpus, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_run_judges_a_sweep_with_scorers(runs: dict[str, Path], tmp_path: Path) -> None:
    """Rows with Gen PPL and scores, the frontier, and the same rows a second time."""
    settings = SweepRequest(steps=(None,), temperature=(0.5, 1.0), num=4)
    folders, out = [runs["duo"], runs["ar"]], tmp_path / "out"
    rows = measure_runs(folders, settings, judge=str(runs["ar"]), scorers=[SPEC], out=out, device="cpu")
    assert [row.temperature for row in rows if not row.real] == [0.5, 1.0, 0.5, 1.0]
    assert all(row.judge is not None and row.judge.startswith("ar (step 3") and row.gen_ppl for row in rows)
    assert all(0 <= (row.scores["known"].value or 0) <= 1 for row in rows)
    for name in ("quality.png", "frontiers.png", "frontiers.md", "frontiers.json"):
        assert (out / name).is_file()
    again = measure_runs(folders, settings, judge=str(runs["ar"]), scorers=[SPEC], out=out, device="cpu")
    assert again == rows


SPEC = "support.scorers:Known"

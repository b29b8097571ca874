"""The scorer of tales: what it says of stories of the language, of broken ones, and of other texts."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import pytest

from duality.data.tales.corpus import Tales, is_held_out
from duality.data.tales.language import language
from duality.data.tales.reading import read
from duality.evaluation.scorers import Drawing, ScorerContext, find_scorer, score_texts, summary
from duality.evaluation.tales import TalesScorer, mark_mistakes


def means(texts: list[str], corpus: str = "tales:easy") -> dict[str, tuple[float, float, float]]:
    """Each column's mean and interval."""
    found = score_texts(find_scorer("tales", ScorerContext(tuple, corpus=corpus)), texts)
    scores = {name: summary("", column) for name, column in found.items()}
    known = {name: score for name, score in scores.items() if score.value is not None}
    return {name: (score.value or 0.0, score.low or 0.0, score.high or 0.0) for name, score in known.items()}


@pytest.mark.parametrize("level", ["easy", "hard"])
def test_stories_of_the_language_are_right(level: str) -> None:
    texts = list(islice(Tales(level, seed=5).draw(), 3000))
    found = means(texts, f"tales:{level}")
    assert [found[name] for name in ("grammatical", "consistent")] == [(1, 1, 1)] * 2
    assert all(value == (0, 0, 0) for name, value in found.items() if name.startswith("broken"))
    assert {name for name in found if name.startswith("broken")} == {f"broken {each}" for each in language(level).kinds}
    low, high = found["language nats"][1:]
    assert low < language(level).entropy() < high
    assert found["divergence"][1] < 0.02
    assert found["divergence"][2] > -0.02
    held_out = {text for text in texts if is_held_out(text)}
    assert found["coverage"][0] == pytest.approx(len(held_out) / 3000)
    assert found["coverage"][1] < 0.1 < found["coverage"][2]


def test_frequencies_that_are_not_those_of_the_language_diverge() -> None:
    """Only the stories of one weekday: the divergence grows by the log of its probability."""
    texts = [text for text in islice(Tales(seed=5).draw(), 8000) if "Monday" in text]
    chance = language("easy").chances("day", {})["Monday"]
    value, low, high = means(texts)["divergence"]
    assert low < -math.log(chance) < high
    assert value > 1


def test_repeated_stories_cover_less() -> None:
    texts = [text for text in islice(Tales(seed=5).draw(), 4000) if is_held_out(text)][:200]
    assert means(texts)["coverage"] == (1, 1, 1)
    assert means([text for text in texts[:50] for _ in range(4)])["coverage"][0] == 0.25
    assert means([text for text in texts[:50] for _ in range(4)])["uniqueness"][0] == 0.25


def test_a_wrong_word_is_counted_under_its_kind() -> None:
    texts = list(islice(Tales(seed=5).draw(), 400))
    spoken = language("easy")
    wrong = []
    for text in texts:
        kept = next(each for each in read(spoken, text).dependencies if each.kind == "kinship")
        wrong.append(text[: kept.word.start] + {"girl": "boy", "boy": "girl"}[kept.found] + text[kept.word.stop :])
    found = means(wrong)
    assert (found["grammatical"][0], found["consistent"][0], found["broken kinship"][0]) == (1, 0, 1)
    assert found["broken pronoun"][0] == found["broken article"][0] == 0
    assert "language nats" not in found


def test_other_texts_have_no_numbers_that_need_a_story() -> None:
    found = means(["", "no story", "Emma."])
    assert [found[name] for name in ("grammatical", "consistent", "coverage")] == [(0, 0, 0)] * 3
    assert not {"language nats", "divergence", "uniqueness"} & set(found)


def test_the_page_underlines_what_is_wrong(tmp_path: Path) -> None:
    scorer = TalesScorer(language("easy"))
    assert isinstance(scorer, Drawing)
    text = "Emma was a tall boy who came to the park every <Sunday>. There she bought a red hat."
    (page,) = scorer.draw([text], tmp_path / "tales")
    content = page.read_text(encoding="utf-8")
    assert "&lt;Sunday&gt;" in content
    assert '<u title="no sentence of the language">' in content
    pieces = mark_mistakes(read(language("easy"), text), text)
    assert "".join(piece for piece, _ in pieces) == text


def test_runs_of_another_corpus_are_refused() -> None:
    with pytest.raises(ValueError, match="the first run was trained on qm9: train one with --data tales"):
        find_scorer("tales", ScorerContext(tuple, corpus="qm9"))

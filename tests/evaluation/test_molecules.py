"""Molecules: the measures against brute force, their intervals against a simulation, the pictures as files."""

from __future__ import annotations

import itertools
import math
import random
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rdkit", reason="needs the extra molecules: pip install 'diffusion-duality[molecules]'")

from duality.data.conversions import rdkit
from duality.evaluation.molecules import Molecules, _canonical, _diversity
from duality.evaluation.scorers import Drawing, Scorer, ScorerContext, find_scorer, score_texts, summary

TEXTS = ["CCO", "OCC", "C1CC", "", "c1ccccc1", "not a molecule", "CC#N", "CC(N)=O"]


def chains(number: int) -> list[str]:
    """Different molecules: chains of carbon, nitrogen and oxygen."""
    letters = itertools.chain.from_iterable(itertools.product("CNO", repeat=length) for length in range(1, 9))
    found = dict.fromkeys(_canonical("".join(word)) for word in letters)
    return [text for text in itertools.islice(found, number) if text is not None]


def similarity(one: str, other: str) -> float:
    """Tanimoto similarity from the definition: common bits divided by all bits."""
    read = rdkit("rdkit.Chem").MolFromSmiles
    generator = rdkit("rdkit.Chem.rdFingerprintGenerator").GetMorganGenerator(radius=2, fpSize=2048)
    first, second = (set(generator.GetFingerprint(read(text)).GetOnBits()) for text in (one, other))
    return len(first & second) / len(first | second)


def test_canonical_texts() -> None:
    assert _canonical("OCC") == _canonical("C(C)O") == "CCO"
    for bad in ("", "C1CC", "not a molecule", "C(C)(C)(C)(C)C", " ", "\n"):
        assert _canonical(bad) is None


def test_the_measures_of_known_texts(capfd: pytest.CaptureFixture[str]) -> None:
    """Five are molecules, two of them the same; two of the five are in the training texts, one in another spelling."""
    context = ScorerContext(lambda: ["OCC", "N", "no molecule"], held_out_texts=lambda: ["CCO", "C(#N)C", "c1ccccc1"])
    found = score_texts(find_scorer("molecules", context), TEXTS)
    values = {name: summary("", column) for name, column in found.items()}
    assert list(found) == ["validity", "coverage", "uniqueness", "novelty", "diversity"]
    assert found["validity"] == [1, 1, 0, 0, 1, 0, 1, 1]
    assert found["novelty"] == [0, 0, None, None, 1, None, 1, 1]
    assert values["uniqueness"].value == pytest.approx(4 / 5)
    assert values["coverage"].value == pytest.approx(2 / 8)  # of the held-out molecules, one is a training text too
    assert {name: score.count for name, score in values.items()} == {
        "validity": 8, "coverage": 8, "uniqueness": 5, "novelty": 5, "diversity": 5,
    }  # fmt: skip
    assert capfd.readouterr() == ("", "")  # RDKit's own messages are silent


def test_without_training_texts_there_is_no_novelty() -> None:
    scorer = Molecules()
    assert list(score_texts(scorer, TEXTS)) == list(scorer.columns) == ["validity", "uniqueness", "diversity"]
    assert isinstance(scorer, Scorer)
    assert isinstance(scorer, Drawing)


@pytest.mark.parametrize("texts", [["C1CC", ""], ["CCO", "("]])
def test_sets_without_pairs(texts: list[str]) -> None:
    found = score_texts(Molecules(ScorerContext(tuple)), texts)
    assert found["diversity"] == [None, None]
    assert [value is None for value in found["uniqueness"]] == [value == 0 for value in found["validity"]]


def test_a_molecule_whose_canonical_form_cannot_be_read_again(tmp_path: Path) -> None:
    """RDKit reads this text, and cannot read what it writes for it: the text is a molecule all the same."""
    odd = "CC1n2c(OC=2)n1"
    written = _canonical(odd)
    assert written is not None
    assert _canonical(written) is None
    found = Molecules()([odd, "CCO", "CC", "no molecule"])
    assert list(found["validity"]) == [1.0, 1.0, 1.0, 0.0]
    assert all(value is not None and 0 < value < 2 for value in found["diversity"][:3])
    assert len(Molecules().draw([odd, "CCO"], tmp_path / "molecules")) == 2


def test_diversity_is_the_mean_over_pairs() -> None:
    texts = [*chains(12), "CCO", "CCO"]
    pairs = [1 - similarity(one, other) for one, other in itertools.combinations(texts, 2)]
    found = _diversity(texts)
    assert sum(value for value in found if value is not None) / len(texts) == pytest.approx(sum(pairs) / len(pairs))


def test_the_interval_of_the_diversity_is_its_spread() -> None:
    """Sets of 60 molecules drawn from 300 with unequal weights: the error of one set against the spread over many."""
    pool, source = chains(300), random.Random(0)
    weights = [1 / (1 + number) for number in range(len(pool))]
    values, errors = [], []
    for _ in range(40):
        numbers = np.array(_diversity(source.choices(pool, weights, k=60)))
        values.append(numbers.mean())
        errors.append(numbers.std() / math.sqrt(60))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.25)


def test_training_texts_are_made_canonical_once() -> None:
    """The molecules of the training texts are kept in the cache by the identifier of the texts."""
    read: list[int] = []

    def training() -> list[str]:
        read.append(1)
        return ["OCC", "C1CC", "OC"]

    for _ in range(2):
        assert Molecules(ScorerContext(training, "training texts of this test")).known == {"CCO", "CO"}
    assert read == [1]
    assert Molecules(ScorerContext(lambda: ["N"], "other training texts")).known == {"N"}
    one, other = (Molecules(ScorerContext(tuple, name)).version for name in ("one", "other"))
    assert one != other


@pytest.mark.parametrize("change", [b"CCO\nN\n", b"\xff", b""])
def test_changed_training_molecules_in_the_cache_are_made_again(
    change: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path))
    context = ScorerContext(lambda: ["OCC", "OC"], "the same training texts")
    assert Molecules(context).known == {"CCO", "CO"}
    (path,) = (tmp_path / "molecules").iterdir()
    path.write_bytes(change)
    assert Molecules(context).known == {"CCO", "CO"}


def test_pictures_are_files(tmp_path: Path) -> None:
    """Of 12 texts at most, one beside the other; what is no molecule is drawn too, whatever its letters are."""
    paths = Molecules().draw([*TEXTS, "<&>\u00e9\n", "x" * 200, *chains(20)], tmp_path / "molecules.of.a.run")
    assert [path.name for path in paths] == ["molecules.of.a.run.svg", "molecules.of.a.run.png"]
    root = xml.etree.ElementTree.fromstring(paths[0].read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    small = Molecules().draw(["C"], tmp_path / "one")
    assert small[1].stat().st_size < paths[1].stat().st_size
    assert Molecules().draw(["C1CC"], tmp_path / "invalid")
    with pytest.raises(ValueError, match="nothing to draw"):
        Molecules().draw([], tmp_path / "none")


def test_the_extra_is_named_when_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(ValueError, match=r"pip install .*\[molecules\]"):
        find_scorer("molecules")

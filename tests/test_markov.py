"""What Markov models say of a text: entropies that are known, and gains that add up to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import markov


def test_an_order_that_fits_has_the_entropy_of_the_chain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A symbol repeats the one before it in nine of ten cases: 0.469 bits, and 1 bit by frequencies."""
    flips = np.random.default_rng(0).random(40_000) < 0.1
    (tmp_path / "a.fa").write_text(">a\n" + "".join("AC"[each] for each in flips.cumsum() % 2) + "\n")
    symbols, alphabet = markov.read_symbols(str(tmp_path / "a.fa"))
    assert alphabet == "AC"
    for order, expected in ((0, 1.0), (1, 0.469), (3, 0.469)):
        assert markov.bits(markov.fit(symbols, order, 2), symbols, order) == pytest.approx(expected, abs=0.01)
    markov.main([str(tmp_path / "a.fa")])
    assert "order  1: 0.4" in capsys.readouterr().out


def test_the_gains_add_up_to_the_mutual_information_of_the_text() -> None:
    """An exact belief makes the bound the entropy, for both kinds of noise."""
    counts = np.array([[0.9, 0.1], [0.1, 0.9]])
    expected = np.log(2) + 0.9 * np.log(0.9) + 0.1 * np.log(0.1)  # of every symbol but the first
    found = markov.gains(counts, 60, 400).mean(0)
    assert found == pytest.approx(expected, rel=0.05)
    assert markov.gains(np.ones((3, 3)), 4, 50) == pytest.approx(0, abs=1e-12)


def test_the_belief_does_not_see_its_own_position() -> None:
    chain = markov.Chain(np.array([[0.9, 0.1], [0.2, 0.8]]))
    evidence = np.random.default_rng(0).random((2, markov.LENGTH, 2)) + 0.1
    changed = evidence.copy()
    changed[:, 7] = (0.5, 0.01)
    before, after = chain.beliefs(evidence), chain.beliefs(changed)
    assert np.allclose(before[:, 7], after[:, 7], atol=1e-12)
    assert not np.allclose(before[:, 8], after[:, 8], atol=1e-3)

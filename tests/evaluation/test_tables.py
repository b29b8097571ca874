"""Tables: rows as in the paper, settings that differ in the column heads, a dash for missing values."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sweep_rows import REAL, row

from duality.evaluation.samples import REAL_TEXT, Score
from duality.evaluation.tables import all_tables, columns, full_table, remarks, several_temperatures, short_table


def lines_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_has_the_papers_shape() -> None:
    """Rows in descending order of steps; a pair of columns for each model; real text is below the table."""
    rows = [row("duo", 8, 198.27, 5.57), row("duo", 16, 122.78, 5.58), row("ar", 16, 40.0, 5.6), REAL]
    assert lines_of(short_table(rows)) == [
        ["steps", "duo: Gen PPL", "duo: entropy", "ar: Gen PPL", "ar: entropy"],
        ["---"] * 5,
        ["16", "122.8 [120.8, 125.8]", "5.58", "40.0 [38.0, 43.0]", "5.60"],
        ["8", "198.3 [196.3, 201.3]", "5.57", "–", "–"],
    ]
    assert remarks(rows)[-1] == "Real text, cut alike (8 pieces of 64): Gen PPL 30.0 [28.0, 33.0], entropy 5.50."
    assert "under j" in remarks(rows)[1]


def test_rounds_are_blocks_of_the_table() -> None:
    """A label may name its round or not; the model without distillation is round 0."""
    rows = [
        row("duo", 8, 100.0, 5.0),
        row("duo, round 1", 8, 90.0, 5.1, round=1),
        row("duo", 8, 80.0, 5.2, round=2),
        row("duo", 16, 70.0, 5.2, round=2),
    ]
    assert [line[:4] for line in lines_of(short_table(rows))[2:]] == [
        ["0", "8", "100.0 [98.0, 103.0]", "5.00"],
        ["1", "8", "90.0 [88.0, 93.0]", "5.10"],
        ["2", "16", "70.0 [68.0, 73.0]", "5.20"],
        ["2", "8", "80.0 [78.0, 83.0]", "5.20"],
    ]


def test_settings_that_differ_are_named() -> None:
    rows = [row("duo", 8, 1.0, 5.0), row("duo", 8, 1.0, 5.0, tail="greedy"), row("ar", 8, 1.0, 5.0)]
    assert list(columns(rows)) == ["duo, ancestral tail", "duo, greedy tail", "ar, ancestral tail"]
    rows = [row("duo", 8, 1.0, 5.0, sampler="psi", eta=0.02), row("duo", 8, 1.0, 5.0), REAL]
    assert list(columns(rows)) == ["duo, psi sampler, eta 0.02", "duo, own sampler"]
    other = [row("duo", 8, 1.0, 5.0), row("duo", 8, 1.0, 5.0, judge="k")]
    assert list(columns(other)) == ["duo, read by j", "duo, read by k"]
    with pytest.raises(ValueError, match="a label of its own"):
        columns([row("duo", 8, 1.0, 5.0), row("duo", 8, 2.0, 5.0, run=Path("another"))])


def test_without_a_judge_there_is_entropy() -> None:
    rows = [row("duo", 8, None, 5.0), row(REAL_TEXT, 0, None, 5.5)]
    assert lines_of(short_table(rows))[2] == ["8", "–", "5.00"]
    assert remarks(rows)[-1].endswith("64): entropy 5.50.")
    assert not any("Gen PPL" in line for line in remarks(rows))


def scored(**values: float | None) -> dict[str, Score]:
    return {name: Score(value, 0.25, 0.75, 8, "molecules (1)") for name, value in values.items()}


def test_temperatures_are_lines_of_the_table() -> None:
    rows = [row(name, 8, 10.0 * t, 5.0, temperature=t) for name in ("duo", "ar") for t in (0.5, 1.0)]
    assert lines_of(short_table(rows))[0][:3] == ["steps", "temperature", "duo: Gen PPL"]
    assert [line[:3] for line in lines_of(short_table(rows))[2:]] == [
        ["8", "0.5", "5.0 [3.0, 8.0]"],
        ["8", "1.0", "10.0 [8.0, 13.0]"],
    ]
    assert several_temperatures(rows)
    assert list(columns(rows)) == [f"{name}, temperature {t}" for name in ("duo", "ar") for t in (0.5, 1.0)]
    assert not several_temperatures([row("duo", 8, 1.0, 5.0), row(REAL_TEXT, 0, 1.0, 5.0, temperature=0.5)])


def test_scores_are_columns() -> None:
    """Without a judge in the short table; of several scorers the first one's. With a judge in the details."""
    other = {"length": Score(3.0, None, None, 1, "other")}
    rows = [
        row("duo", 8, None, 5.0, scores={**scored(validity=0.5, novelty=None), **other}),
        row(REAL_TEXT, 0, None, 5.5, scores=scored(validity=1.0)),
    ]
    assert lines_of(short_table(rows))[0] == ["steps", "duo: validity", "duo: novelty"]
    assert lines_of(short_table(rows))[2] == ["8", "0.500 [0.250, 0.750]", "–"]
    head, _, first, real = lines_of(full_table(rows))
    assert dict(zip(head, first))["length"] == "3.000"
    assert dict(zip(head, real))["novelty"] == "–"
    assert remarks(rows)[-1].endswith("entropy 5.50, validity 1.000 [0.250, 0.750].")
    assert any("Scores by molecules (1); other" in line for line in remarks(rows))
    judged = [row("duo", 8, 1.0, 5.0, scores=scored(validity=0.5))]
    assert lines_of(short_table(judged))[0] == ["steps", "duo: Gen PPL", "duo: entropy"]


def test_details_contain_every_value() -> None:
    head, _, first, real = lines_of(full_table([row("duo, round 2", 8, 10.0, 5.0, round=2, mauve=0.5), REAL]))
    found = dict(zip(head, first))
    assert found["model"] == "duo"
    assert (found["round"], found["Gen PPL"], found["standard error"]) == ("2", "10.0 [8.0, 13.0]", "1.2")
    assert (found["entropy"], found["MAUVE"], found["NFE"]) == ("5.000 [4.900, 5.100]", "0.500", "8.0")
    assert (found["distinct-3"], found["self-repetition"], found["eta"]) == ("0.300", "0.040", "–")
    assert dict(zip(head, real))["MAUVE"] == "–"


def test_what_is_printed_leaves_out_what_all_rows_share_and_no_row_has() -> None:
    """Real text has no settings: they are compared among samples."""
    rows = [row("duo", steps, 10.0, 5.0, scores=scored(validity=None)) for steps in (8, 16)]
    table = all_tables([*rows, REAL], differing=True).rpartition("\n\n")[2]
    head, _, first, second, real = lines_of(table)
    for name in ("sampler", "tail", "seed", "round", "eta", "judge", "MAUVE", "validity"):
        assert name not in head
        assert name in lines_of(full_table(rows))[0]
    assert head[:4] == ["model", "steps", "Gen PPL", "standard error"]
    assert [line[1] for line in (first, second)] == ["8", "16"]
    assert dict(zip(head, real))["Gen PPL"] == "30.0 [28.0, 33.0]"

"""The index of the paper is that of its source: every table, figure, row, heading and number; its recipes exist."""

from __future__ import annotations

import re

import pytest
from support import latex
from support.runs import ROOT

from duality.papers.duo.page import FIGURES, NONE, REMARKS, TABLES, Table, _trainings, table
from duality.recipes.catalogue import recipe, recipe_names

PAPER = [name for name in recipe_names() if name.endswith(("-lm1b", "-owt", "-small"))]
SOURCE = ROOT.parent / "shared" / "paper" / "diffusion-duality.tex"


@pytest.fixture(scope="module")
def source() -> str:
    if not SOURCE.is_file():
        pytest.skip(f"the paper's LaTeX source is not beside the repository: {SOURCE} is missing")
    return SOURCE.read_text(encoding="utf-8")


# --- against the source


def test_every_table_and_figure_has_its_number(source: str) -> None:
    for name, index in (("table", TABLES), ("figure", FIGURES)):
        labels = {number: latex.label(each) for number, each in enumerate(latex.environments(source, name), 1)}
        assert {number: each.label for number, each in index.items()} == labels
        assert list(index) == list(range(1, len(labels) + 1))


def test_nothing_but_the_order_numbers_them(source: str) -> None:
    assert not re.search(r"\\(set|addto|step)counter\{(table|figure)\}|\\captionof|\\numberwithin", source)
    for name in ("table", "figure"):
        assert all(each.count("\\caption{") == 1 for each in latex.environments(source, name))


@pytest.mark.parametrize("number", TABLES)
def test_every_row_and_number_is_that_of_the_source(number: int, source: str) -> None:
    _, rows = latex.tabular(latex.environments(source, "table")[number - 1])
    assert len(rows) >= 3
    assert [(row.group, row.label, list(row.numbers)) for row in TABLES[number].rows] == rows


@pytest.mark.parametrize("number", TABLES)
def test_every_column_begins_with_its_headings(number: int, source: str) -> None:
    heading, rows = latex.tabular(latex.environments(source, "table")[number - 1])
    width = len(rows[0][2])
    assert len(TABLES[number].columns) == width
    for place, name in enumerate(TABLES[number].columns):
        words = list(dict.fromkeys(line[len(line) - width + place] for line in heading))
        assert name.startswith(", ".join(filter(None, words))), (name, words)


def test_the_captions_of_samples_have_these_numbers(source: str) -> None:
    found = latex.environments(source, "figure")
    with_numbers = [figure for figure in FIGURES.values() if figure.numbers]
    assert len(with_numbers) == 8
    for figure in with_numbers:
        caption = latex.caption(found[figure.number - 1])
        assert re.findall(r"PPL \$([\d.]+)\$ and entropy \$=([\d.]+)\$", caption) == [figure.numbers]
        (steps,) = re.findall(r"\$T=(\d+)\$", caption)
        assert all(f"--steps {steps} " in command for command in figure.measure)


def test_figures_name_the_tables_that_their_captions_name(source: str) -> None:
    numbers = {each.label: each.number for each in TABLES.values()}
    for figure in FIGURES.values():
        caption = latex.caption(latex.environments(source, "figure")[figure.number - 1])
        named = {numbers[label] for label in re.findall(r"\\tab\{([^}]*)\}", caption)}
        assert named <= set(figure.tables), figure.number


def test_remarks_stand_in_the_text(source: str) -> None:
    for each in REMARKS:
        assert each.words in source
        assert each.number in each.words


# --- within the index


@pytest.mark.parametrize("chosen", TABLES.values(), ids=lambda each: str(each.number))
def test_every_number_has_one_series(chosen: Table) -> None:
    for number, row in enumerate(chosen.rows):
        assert len(row.numbers) == len(chosen.columns)
        covered = [chosen.numbers(each, number) for each in chosen.series]
        for place, value in enumerate(row.numbers):
            given = [line[place] for line in covered if line[place]]
            assert given == [value] or (value == NONE and not given), (row.label, chosen.columns[place])


def test_every_recipe_exists_and_every_row_of_a_recipe_is_its_own() -> None:
    assert {each.recipe for each in _trainings()} <= set(recipe_names())
    named = {
        (each.number, series.row, series.trainings[-1].recipe)
        for each in TABLES.values()
        for series in each.series
        if series.row is not None
    }
    for name in PAPER:
        for number, row in re.findall(r"Table (\d+), row (\d+)", recipe(name).source):
            if name != "duo-small":  # the network of a row on a user's own text
                assert (int(number), int(row) - 1, name) in named, recipe(name).source


def test_every_recipe_of_the_paper_is_in_the_index() -> None:
    assert set(PAPER) - {each.recipe for each in _trainings()} == {"duo-small"}


def test_a_folder_has_one_command() -> None:
    commands: dict[str, set[str]] = {}
    for each in _trainings():
        commands.setdefault(each.folder, set()).add(each.command)
    assert all(len(each) == 1 for each in commands.values()), commands


def test_a_figure_has_trainings_or_a_reason() -> None:
    for figure in FIGURES.values():
        assert bool(figure.trainings) != bool(figure.reason), figure.number


def test_tables_that_repeat_each_other_agree() -> None:
    base, rounds = TABLES[7].rows[:8], TABLES[7].rows[40:]
    assert [row.numbers[:2] for row in TABLES[5].rows] == [row.numbers[:2] for row in TABLES[6].rows]
    assert [row.numbers[2:4] for row in base] == [row.numbers[:2] for row in TABLES[5].rows]
    assert [row.numbers[:2] for row in base] == [row.numbers[4:6] for row in TABLES[5].rows]
    assert [row.numbers[2:4] for row in rounds] == [row.numbers[2:4] for row in TABLES[6].rows]
    assert [row.numbers[4:6] for row in rounds] == [row.numbers[6:8] for row in TABLES[6].rows]


def test_the_disagreements_that_the_page_names() -> None:
    assert [row.label for row in TABLES[2].rows if row.numbers[1] == "50.86"] == ["D3PM Absorb", "Plaid"]
    greedy = {row.label: row.numbers for row in TABLES[7].rows if row.group == "Base Model"}
    for number, steps in ((13, "8"), (14, "1024")):
        assert FIGURES[number].numbers[0] != greedy[steps][4]
        assert FIGURES[number].numbers[1] == greedy[steps][5]
    distilled = {row.label: row.numbers for row in TABLES[6].rows}
    for number, steps in ((15, "8"), (16, "1024")):
        assert FIGURES[number].numbers == distilled[steps][8:]
        assert FIGURES[number].numbers != distilled[steps][6:8]


def test_a_table_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert table(2).rows[7].numbers[0] == "89.35"
    with pytest.raises(ValueError, match="no table 9: its tables are 1, 2, 3, 4, 5, 6, 7"):
        table(9)

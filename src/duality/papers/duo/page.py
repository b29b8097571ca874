"""The page docs/paper.md: every table and figure of the paper, its recipes, commands and numbers, and ours.

    python -m duality.papers.duo.page > docs/paper.md      after the index or a recipe has changed

The paper's content is that of ``index``, the GPU-days are those of ``gpu_days``, and page.md has the text around them.
`duality recipes --table N` prints one table (``paper_lines``). What must hold: docs/paper.md is what ``_write_page``
gives, and every number of ours in it stands in the page that it links; tests compare them. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from duality.evaluation.tables import table as markdown_table
from duality.papers.duo.gpu_days import read_days, sum_days
from duality.papers.duo.index import DEVICES, FIGURES, REMARKS, TABLES, Table, Training


def _row_label(table: Table, number: int) -> str:
    """A row of a table by its number, from 0: numbered if it is a model, else below its heading."""
    row = table.rows[number]
    if table.by_rows:
        return f"{number + 1} {row.label}"
    return f"{row.group}, {row.label}" if row.group else row.label


def paper_lines(table: Table) -> tuple[list[str], list[list[str]]]:
    """The heading and the lines of a table: a line for each run of a row, or the rows as in the paper."""
    if table.by_rows:
        lines = []
        for each in table.series:
            assert each.row is not None
            recipe = each.trainings[-1].description
            lines.append([_row_label(table, each.row), recipe, *table.numbers(each, each.row)])
        return ["row", "recipe", *table.columns], lines
    return [table.rows_are, *table.columns], [
        [_row_label(table, number), *row.numbers] for number, row in enumerate(table.rows)
    ]


def column_lines(table: Table) -> list[list[str]]:
    """For a table whose series are columns: which columns, and the recipe of each."""
    return [
        ["; ".join(table.columns[column] for column in each.columns), each.trainings[-1].description]
        for each in table.series
    ]


# --- Markdown


def _write_table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return markdown_table([heading, *lines]).rstrip("\n")


def _fence(commands: Iterable[str]) -> str:
    """Commands in a block, each once."""
    return "\n".join(("```", *dict.fromkeys(commands), "```"))


def _state_need(trainings: Sequence[Training], days: dict[str, float]) -> str:
    """What stands in the place of our number."""
    return f"not run: needs {sum_days(trainings, days):.1f} GPU-days"


def _write_section(table: Table, days: dict[str, float]) -> Iterator[str]:
    """A table of the paper."""
    yield f"## Table {table.number}: {table.title}"
    heading, lines = paper_lines(table)
    ours = [_state_need(each.trainings, days) for each in table.series]
    if table.by_rows:
        full = [[line[0], f"`{line[1]}`", *line[2:], need] for line, need in zip(lines, ours, strict=True)]
        yield _write_table([*heading, "ours"], full)
    else:
        yield _write_table(heading, lines)
        runs = [[names, f"`{recipe}`", need] for (names, recipe), need in zip(column_lines(table), ours, strict=True)]
        yield _write_table(["columns", "recipe", "ours"], runs)
    notes = [table.note, *(f"{row.label}: {row.note}." for row in table.rows if row.note)]
    if any(notes):
        yield " ".join(filter(None, notes))
    yield _fence(command for each in table.series for command in each.commands)
    yield table.ours
    if table.small:
        yield _write_table(
            ["recipe", "PPL at small scale"], [[f"`{name}`", value] for name, value in table.small.items()]
        )


def _write_figures(days: dict[str, float]) -> Iterator[str]:
    """All figures of the paper, and the numbers of its text."""
    lines = []
    for figure in FIGURES.values():
        printed = [f"Gen PPL {figure.numbers[0]}, entropy {figure.numbers[1]}"] if figure.numbers else []
        printed += [f"Table {number}" for number in figure.tables]
        recipes = ", ".join(dict.fromkeys(f"`{each.description}`" for each in figure.trainings)) or "none"
        ours = _state_need(figure.trainings, days) if figure.trainings else figure.reason
        ours = "; ".join(filter(None, (ours, figure.note)))
        lines.append([str(figure.number), figure.title, recipes, "; ".join(printed) or "no numbers", ours])
    yield "## Figures"
    yield _write_table(["figure", "shows", "recipe", "the paper's numbers", "ours"], lines)
    for figure in FIGURES.values():
        if figure.commands:
            yield f"Figure {figure.number}:"
            yield _fence(figure.commands)
    yield "## Numbers of the text"
    lines = [
        [each.where, each.title, f"`{each.trainings[-1].recipe}`", each.number, _state_need(each.trainings, days)]
        for each in REMARKS
    ]
    yield _write_table(["where", "what", "recipe", "the paper's number", "ours"], lines)
    yield _fence(command for each in REMARKS for command in each.commands)


def _write_page() -> str:
    """The page."""
    days = read_days()
    around = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    return around.format(
        devices=DEVICES,
        everything=sum_days(
            (run for table in TABLES.values() for each in table.series for run in each.trainings), days
        ),
        tables="\n\n".join(part for each in TABLES.values() for part in _write_section(each, days)),
        figures="\n\n".join(_write_figures(days)),
    )


if __name__ == "__main__":
    print(_write_page(), end="")

"""The page docs/paper.md: every table and figure of the paper, its recipes, commands and numbers, and ours.

    python -m duality.papers.duo.page > docs/paper.md      after the index or a recipe has changed
    python -m duality.papers.duo.page days                 writes gpu_days.json again, after a recipe or the estimate

The paper's content is that of ``index``, and page.md has the text around it. `duality recipes --table N` prints one
table (``paper_tables``).

A GPU-day is a day of one device. The GPU-days of the index's trainings are kept in gpu_days.json, because counting the
networks takes a minute. The numbers are days x devices of the command `duality plan` that the index names for a
training (``index.DEVICES``: 8 devices of 80 GB, 989 T operations per second at their peak, of which 40 % are
reached). They do not include evaluation and sampling.

What must hold: docs/paper.md is what ``_write_page`` gives, every number of ours in it stands in the page that it
links, and gpu_days.json is what ``_compute_days`` gives; tests compare them. Nothing here imports torch but
``_compute_days``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from duality.evaluation.tables import table as markdown_table
from duality.papers.duo.index import DEVICES, FIGURES, REMARKS, TABLES, Table, Training, trainings

_DAYS_FILE = Path(__file__).with_name("gpu_days.json")
GPU_DAYS: dict[str, float] = json.loads(_DAYS_FILE.read_text(encoding="utf-8"))  # by the command `duality plan`


def _row_label(table: Table, number: int) -> str:
    """A row of a table by its number, from 0: numbered if it is a model, else below its heading."""
    row = table.rows[number]
    if table.by_rows:
        return f"{number + 1} {row.label}"
    return f"{row.group}, {row.label}" if row.group else row.label


def paper_tables(table: Table) -> list[tuple[list[str], list[list[str]]]]:
    """What shows a table of the paper, as headings with lines; the lines of the last one are the table's series.

    That is a line for each run of a row. For a table whose series are columns it is the rows as in the paper, and then
    which columns there are, and the recipe of each.
    """
    recipes = [(each, each.trainings[-1].description) for each in table.series]
    if table.by_rows:
        lines = [
            [_row_label(table, each.row), recipe, *table.numbers(each, each.row)]
            for each, recipe in recipes
            if each.row is not None
        ]
        return [(["row", "recipe", *table.columns], lines)]
    rows = [[_row_label(table, number), *row.numbers] for number, row in enumerate(table.rows)]
    columns = [["; ".join(table.columns[column] for column in each.columns), recipe] for each, recipe in recipes]
    return [([table.rows_are, *table.columns], rows), (["columns", "recipe"], columns)]


# --- GPU-days


def sum_days(needed: Iterable[Training]) -> float:
    """The GPU-days of all these trainings; one that is named twice is trained once."""
    return sum(GPU_DAYS[plan] for plan in {each.folder: each.plan for each in needed}.values())


def _compute_days() -> dict[str, float]:
    """GPU-days by the command `duality plan`, computed as that command does."""
    import torch

    from duality.models import plan as scaling
    from duality.recipes import catalogue

    devices, peak, mfu = (float(text.rstrip("T")) for text in DEVICES.split()[1::2] if not text.endswith("GB"))
    sizes: dict[str, scaling.Sizes] = {}  # the number of steps does not change a network
    found = {}
    for command, training in sorted({each.plan: each for each in trainings()}.items()):
        recipe = catalogue.recipe(training.recipe, training.changes)
        if training.base:
            recipe = scaling.plan_distillation(recipe, training.distill)
        if training.recipe not in sizes:
            sizes[training.recipe] = scaling.count_sizes(recipe, torch.device("cuda"))
        speed = scaling.estimate_speed(recipe, sizes[training.recipe], int(devices), peak * 1e12 * mfu)
        found[command] = round(speed.days * devices, 3)
    return found


# --- Markdown


def _write_table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return markdown_table([heading, *lines]).rstrip("\n")


def _fence(commands: Iterable[str]) -> str:
    """Commands in a block, each once."""
    return "\n".join(("```", *dict.fromkeys(commands), "```"))


def _state_need(needed: Iterable[Training]) -> str:
    """What stands in the place of our number."""
    return f"not run: needs {sum_days(needed):.1f} GPU-days"


def _write_section(table: Table) -> Iterator[str]:
    """A table of the paper."""
    yield f"## Table {table.number}: {table.title}"
    *others, (heading, lines) = paper_tables(table)
    for other in others:
        yield _write_table(*other)
    ours = [_state_need(each.trainings) for each in table.series]
    full = [[line[0], f"`{line[1]}`", *line[2:], need] for line, need in zip(lines, ours, strict=True)]
    yield _write_table([*heading, "ours"], full)
    notes = [table.note, *(f"{row.label}: {row.note}." for row in table.rows if row.note)]
    if any(notes):
        yield " ".join(filter(None, notes))
    yield _fence(command for each in table.series for command in each.commands)
    yield table.ours
    if table.small:
        lines = [[f"`{name}`", value] for name, value in table.small.items()]
        yield _write_table(["recipe", "PPL at small scale"], lines)


def _write_figures() -> Iterator[str]:
    """All figures of the paper, and the numbers of its text."""
    lines = []
    for figure in FIGURES.values():
        printed = [f"Gen PPL {figure.numbers[0]}, entropy {figure.numbers[1]}"] if figure.numbers else []
        printed += [f"Table {number}" for number in figure.tables]
        recipes = ", ".join(dict.fromkeys(f"`{each.description}`" for each in figure.trainings)) or "none"
        ours = _state_need(figure.trainings) if figure.trainings else figure.reason
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
        [each.where, each.title, f"`{each.trainings[-1].recipe}`", each.number, _state_need(each.trainings)]
        for each in REMARKS
    ]
    yield _write_table(["where", "what", "recipe", "the paper's number", "ours"], lines)
    yield _fence(command for each in REMARKS for command in each.commands)


def _write_page() -> str:
    """The page."""
    return (
        Path(__file__)
        .with_name("page.md")
        .read_text(encoding="utf-8")
        .format(
            devices=DEVICES,
            everything=sum_days(run for table in TABLES.values() for each in table.series for run in each.trainings),
            tables="\n\n".join(part for each in TABLES.values() for part in _write_section(each)),
            figures="\n\n".join(_write_figures()),
        )
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["days"]:
        _DAYS_FILE.write_text(json.dumps(_compute_days(), indent=0) + "\n", encoding="utf-8")
    else:
        print(_write_page(), end="")

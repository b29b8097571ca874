"""The index of the paper, its tables and figures with the trainings and commands that give ours, and docs/paper.md.

    _Training        a training, or the distillation of one: its commands, for the work itself and for `duality plan`
    _Row             a row of a table as the paper prints it
    _Series          the numbers of a table that one run gives: of one row, or of some columns in all rows
    Table, _Figure   by the number that LaTeX gives it
    _Remark          a number that stands in the text only

    python -m duality.papers.duo.page > docs/paper.md      after the index or a recipe has changed
    python -m duality.papers.duo.page days                 writes gpu_days.json again, after a recipe or the estimate

paper.json holds the content, with the fields of these classes. Its numbers are text, as printed, those of a row in one
string. Trainings are named by their folder; one that is not listed under "trainings" is the recipe of that name. The
corpora are datasets by name, as the recipes say. The judge of samples is GPT-2 Large; the paper does not say how many
samples it measured, and ``--num`` of `duality quality` is left at its default. page.md has the text around the tables.
`duality recipes --table N` prints one table (``Table.listings``).

Numbers of tables and figures are those of LaTeX: the environments ``table`` and ``table*``, and separately ``figure``
and ``figure*``, counted in the order of the source, main text and appendix in one count (each has one caption, nothing
sets the counters, and algorithms have a counter of their own). tests/papers/duo/test_paper_tables.py counts them again
and compares every label, heading and number with the source, where that is present.

A GPU-day is a day of one device. The GPU-days of the index's trainings are kept in gpu_days.json, because counting the
kernels of all steps takes minutes. The numbers are days x devices of the command `duality plan` that the index names
for a training (``DEVICES``: 8 H100). They are simulated, and do not include gradients over the network, evaluation and
sampling.

What must hold: docs/paper.md is what ``_write_page`` gives, every number of ours in it stands in the page that it
links, and gpu_days.json is what ``_compute_days`` gave; tests compare them. Nothing here imports torch but
``_compute_days``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from duality.evaluation.tables import table as markdown_table
from duality.papers.duo import Entry, read_entries

DEVICES = "--devices 8 --gpu H100"
NONE = "-"  # what the paper prints where it has no number


@dataclass(frozen=True)
class _Training:
    """A training: its folder, the recipe, and the fields that are changed; or a distillation of ``base``.

    ``distill`` is dcd or sdtt, followed by more options if there are any.
    """

    name: str
    recipe: str
    changes: tuple[str, ...] = ()
    base: str = ""
    distill: str = ""

    @property
    def folder(self) -> str:
        return f"runs/{self.name}"

    @property
    def command(self) -> str:
        if self.base:
            return f"duality distill runs/{self.base} --method {self.distill} --out {self.folder}"
        return f"duality train {self.recipe} --out {self.folder}{self._changed}"

    @property
    def plan(self) -> str:
        changed = f" --distill {self.distill.split()[0]}" if self.base else self._changed
        return f"duality plan {self.recipe} {DEVICES}{changed}"

    @property
    def description(self) -> str:
        """The recipe with what is changed in it, or how it is distilled."""
        return f"{self.recipe}, {self.distill}" if self.base else self.recipe + self._changed

    @property
    def _changed(self) -> str:
        return f" --set {' '.join(self.changes)}" if self.changes else ""


@dataclass(frozen=True)
class _Row:
    """A row: its label and numbers as printed, without marks; the heading above it; where the paper has it from."""

    label: str
    numbers: tuple[str, ...]
    group: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Numbers that the last of ``trainings`` gives, by the commands ``measure``."""

    trainings: tuple[_Training, ...] = ()
    measure: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        return (*(each.command for each in self.trainings), *self.measure)


@dataclass(frozen=True, kw_only=True)
class _Series(_Measured):
    """The numbers of a model in a table: in these columns, from 0, and in one row, from 0, or in all if it is None."""

    model: str
    columns: tuple[int, ...]
    row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper: its number, its label in LaTeX, what it shows, its columns, rows and series.

    ``ours`` says what there is of ours at small scale; ``small`` are perplexities of docs/results.md by recipe, none of
    which is comparable with the paper's.
    """

    number: int
    label: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[_Row, ...]
    series: tuple[_Series, ...]
    ours: str
    rows_are: str = "row"
    note: str = ""
    small: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_rows(self) -> bool:
        """Whether each series belongs to one row; otherwise each has columns of its own."""
        return all(each.row is not None for each in self.series)

    def numbers(self, series: _Series, row: int) -> tuple[str, ...]:
        """The numbers of a series in a row, one for each column of the table; empty where it has none."""
        shown = series.row is None or series.row == row
        printed = self.rows[row].numbers
        return tuple(value if shown and column in series.columns else "" for column, value in enumerate(printed))

    def rows_under(self, headings: list[str]) -> list[list[str]]:
        """The rows under these headings; rows that have none of them are left out."""
        columns = [self.columns.index(heading) for heading in headings]
        rows = [[f"paper: {row.label}", *(row.numbers[column] for column in columns)] for row in self.rows]
        return [row for row in rows if any(cell != NONE for cell in row[1:])]

    def row_label(self, number: int) -> str:
        """A row by its number, from 0: numbered if it is a model, else below its heading."""
        row = self.rows[number]
        return f"{number + 1} {row.label}" if self.by_rows else ", ".join(filter(None, (row.group, row.label)))

    def listings(self) -> list[tuple[list[str], list[list[str]]]]:
        """What shows the table, as headings with lines; the lines of the last one are the table's series.

        That is a line for each run of a row. For a table whose series are columns it is the rows as in the paper, and
        then which columns there are, and the recipe of each.
        """
        recipes = [(each, each.trainings[-1].description) for each in self.series]
        if self.by_rows:
            lines = [
                [self.row_label(each.row), recipe, *self.numbers(each, each.row)]
                for each, recipe in recipes
                if each.row is not None
            ]
            return [(["row", "recipe", *self.columns], lines)]
        rows = [[self.row_label(number), *row.numbers] for number, row in enumerate(self.rows)]
        columns = [["; ".join(self.columns[column] for column in each.columns), recipe] for each, recipe in recipes]
        return [([self.rows_are, *self.columns], rows), (["columns", "recipe"], columns)]


@dataclass(frozen=True, kw_only=True)
class _Figure(_Measured):
    """A figure of the paper; ``numbers`` are those of its caption, ``tables`` those that print what it draws.

    Without trainings ``reason`` says why.
    """

    number: int
    title: str
    label: str = ""
    numbers: tuple[str, ...] = ()
    tables: tuple[int, ...] = ()
    reason: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class _Remark(_Measured):
    """A number that stands in the text only: where, what, and the words around it in LaTeX."""

    where: str
    title: str
    number: str
    words: str


def table(number: int) -> Table:
    """A table of the paper by its number."""
    if number not in TABLES:
        raise ValueError(f"the paper has no table {number}: its tables are {', '.join(map(str, TABLES))}")
    return TABLES[number]


def _trainings() -> Iterator[_Training]:
    """All trainings of the index, several times those of several tables."""
    series = (each for found in TABLES.values() for each in found.series)
    for measured in (*series, *FIGURES.values(), *REMARKS):
        yield from measured.trainings


def _with_trainings(entry: Entry) -> Entry:
    """The fields of an object of paper.json; the names of trainings are these trainings."""
    found = (_LISTED.get(name) or _Training(name, name) for name in entry.get("trainings", ()))
    return {**entry, "trainings": tuple(found)}


def _table(entry: Entry) -> Table:
    """A table of paper.json."""
    rows = tuple(_Row(**{**row, "numbers": tuple(row["numbers"].split())}) for row in entry["rows"])
    series = tuple(_Series(**_with_trainings(each)) for each in entry["series"])
    return Table(**{**entry, "rows": rows, "series": series})


_CONTENT = read_entries("paper.json")
_LISTED = {name: _Training(name, **entry) for name, entry in _CONTENT["trainings"].items()}
TABLES: dict[int, Table] = {entry["number"]: _table(entry) for entry in _CONTENT["tables"]}
FIGURES: dict[int, _Figure] = {entry["number"]: _Figure(**_with_trainings(entry)) for entry in _CONTENT["figures"]}
REMARKS = tuple(_Remark(**_with_trainings(entry)) for entry in _CONTENT["remarks"])
_DAYS_FILE = Path(__file__).with_name("gpu_days.json")
GPU_DAYS: dict[str, float] = json.loads(_DAYS_FILE.read_text(encoding="utf-8"))  # by the command `duality plan`


# --- GPU-days


def _sum_days(needed: Iterable[_Training]) -> float:
    """The GPU-days of all these trainings; one that is named twice is trained once."""
    return sum(GPU_DAYS[plan] for plan in {each.folder: each.plan for each in needed}.values())


def _compute_days() -> dict[str, float]:
    """GPU-days by the command `duality plan`, computed as that command does."""
    import torch

    from duality.models.plan import Sizes, find_speed
    from duality.models.roofline import GPUS
    from duality.recipes import catalogue
    from duality.recipes.derive import derive_distillation

    number, name = DEVICES.split()[1::2]
    devices, gpu, device = int(number), GPUS[name], torch.device("cuda")
    seconds: dict[tuple[str, ...], float] = {}  # what is set of a training changes no step of these
    found = {}
    for command, training in sorted({each.plan: each for each in _trainings()}.items()):
        recipe = catalogue.recipe(training.recipe, training.changes)
        if training.base:
            recipe = derive_distillation(recipe, training.distill.split()[0], recipe.training.steps)
        step = (recipe.name, *(each for each in training.changes if not each.startswith("training.")))
        if step not in seconds:
            sizes = Sizes.of(recipe, device)
            rows = list(sizes.try_strategies(recipe, devices, gpu.memory, device))
            speed = find_speed(recipe, sizes, next(row for row in rows if row.is_within(gpu.memory)), gpu)
            assert speed is not None
            seconds[step] = speed.step_seconds
        found[command] = round(recipe.training.steps * seconds[step] / 86_400 * devices, 3)
    return found


# --- Markdown


def _write_table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return markdown_table([heading, *lines]).rstrip("\n")


def _fence(commands: Iterable[str]) -> str:
    """Commands in a block, each once."""
    return "\n".join(("```", *dict.fromkeys(commands), "```"))


def _state_need(needed: Iterable[_Training]) -> str:
    """What stands in the place of our number."""
    return f"not run: needs {_sum_days(needed):.1f} GPU-days"


def _write_section(table: Table) -> Iterator[str]:
    """A table of the paper."""
    yield f"## Table {table.number}: {table.title}"
    *others, (heading, lines) = table.listings()
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
        [each.where, each.title, f"`{each.trainings[-1].description}`", each.number, _state_need(each.trainings)]
        for each in REMARKS
    ]
    yield _write_table(["where", "what", "recipe", "the paper's number", "ours"], lines)
    yield _fence(command for each in REMARKS for command in each.commands)


def _write_page() -> str:
    """The page."""
    around = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    return around.format(
        devices=DEVICES,
        everything=_sum_days(run for table in TABLES.values() for each in table.series for run in each.trainings),
        tables="\n\n".join(part for each in TABLES.values() for part in _write_section(each)),
        figures="\n\n".join(_write_figures()),
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["days"]:
        _DAYS_FILE.write_text(json.dumps(_compute_days(), indent=0) + "\n", encoding="utf-8")
    else:
        print(_write_page(), end="")

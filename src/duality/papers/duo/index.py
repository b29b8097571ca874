"""The index of the paper: tables and figures, their numbers, and the trainings and commands that give ours.

    Training         a training, or the distillation of one: its commands, for the work itself and for `duality plan`
    _Row             a row of a table as the paper prints it
    _Series          the numbers of a table that one run gives: of one row, or of some columns in all rows
    Table, Figure    by the number that LaTeX gives it
    _Remark          a number that stands in the text only

paper.json holds the content, with the fields of these classes. Its numbers are text, as printed, those of a row in one
string. Trainings are named by their folder; one that is not listed under "trainings" is the recipe of that name. The
corpora are datasets by name, as the recipes say. The judge of samples is GPT-2 Large; the paper does not say how many
samples it measured, and ``--num`` of `duality quality` is left at its default.

Numbers of tables and figures are those of LaTeX: the environments ``table`` and ``table*``, and separately ``figure``
and ``figure*``, counted in the order of the source, main text and appendix in one count (each has one caption, nothing
sets the counters, and algorithms have a counter of their own). tests/papers/duo/test_paper_tables.py counts them again
and compares every label, heading and number with the source, where that is present. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from duality.papers.duo import Entry, read_entries

DEVICES = "--devices 8 --memory 80GB --peak 989T --mfu 0.4"
NONE = "-"  # what the paper prints where it has no number


@dataclass(frozen=True)
class Training:
    """A training: its folder, the recipe, and the fields that are changed; or a distillation of ``base``.

    ``distill`` is dcd or sdtt, with more options if there are any.
    """

    name: str
    recipe: str
    changes: tuple[str, ...] = ()
    base: str = ""
    distill: str = ""
    options: str = ""

    @property
    def folder(self) -> str:
        return f"runs/{self.name}"

    @property
    def command(self) -> str:
        if self.base:
            return f"duality distill runs/{self.base} --method {self._method} --out {self.folder}"
        return f"duality train {self.recipe} --out {self.folder}{self._changed}"

    @property
    def plan(self) -> str:
        return f"duality plan {self.recipe} {DEVICES}{f' --distill {self.distill}' if self.base else self._changed}"

    @property
    def description(self) -> str:
        """The recipe with what is changed in it, or how it is distilled."""
        return f"{self.recipe}, {self._method}" if self.base else self.recipe + self._changed

    @property
    def _changed(self) -> str:
        return f" --set {' '.join(self.changes)}" if self.changes else ""

    @property
    def _method(self) -> str:
        return f"{self.distill} {self.options}".rstrip()


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

    trainings: tuple[Training, ...] = ()
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


def published_rows(number: int, headings: list[str]) -> list[list[str]]:
    """The rows of a table of the paper under these headings; rows that have none of them are left out."""
    found = table(number)
    columns = [found.columns.index(heading) for heading in headings]
    rows = [[f"paper: {row.label}", *(row.numbers[column] for column in columns)] for row in found.rows]
    return [row for row in rows if any(cell != NONE for cell in row[1:])]


def trainings() -> Iterator[Training]:
    """All trainings of the index, several times those of several tables."""
    series = (each for found in TABLES.values() for each in found.series)
    for measured in (*series, *FIGURES.values(), *REMARKS):
        yield from measured.trainings


def _with_trainings(entry: Entry) -> Entry:
    """The fields of an object of paper.json; the names of trainings are these trainings."""
    found = (_LISTED.get(name) or Training(name, name) for name in entry.get("trainings", ()))
    return {**entry, "trainings": tuple(found)}


def _table(entry: Entry) -> Table:
    """A table of paper.json."""
    rows = tuple(_Row(**{**row, "numbers": tuple(row["numbers"].split())}) for row in entry["rows"])
    return Table(
        **{**entry, "rows": rows, "series": tuple(_Series(**_with_trainings(each)) for each in entry["series"])}
    )


_CONTENT = read_entries("paper.json")
_LISTED = {name: Training(name, **entry) for name, entry in _CONTENT["trainings"].items()}
TABLES: dict[int, Table] = {entry["number"]: _table(entry) for entry in _CONTENT["tables"]}
FIGURES: dict[int, _Figure] = {entry["number"]: _Figure(**_with_trainings(entry)) for entry in _CONTENT["figures"]}
REMARKS = tuple(_Remark(**_with_trainings(entry)) for entry in _CONTENT["remarks"])

"""What the index of the paper is made of: tables and figures, their numbers, and the runs and commands that give ours.

    Run, Distilled   a training, or the distillation of one: its commands, for the work itself and for `duality plan`
    Row              a row of a table as the paper prints it
    Series           the numbers of a table that one run gives: of one row, or of some columns in all rows
    Table, Figure    by the number that LaTeX gives it
    Remark           a number that stands in the text only

``recipes.tables``, ``recipes.sample_tables`` and ``recipes.paper_figures`` hold the paper's content. Nothing here
imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

DEVICES = "--devices 8 --memory 80GB --peak 989T --mfu 0.4"
NONE = "-"  # what the paper prints where it has no number


@dataclass(frozen=True)
class Run:
    """A training: the recipe, the fields that are changed, the folder if not the recipe's."""

    recipe: str
    changes: tuple[str, ...] = ()
    name: str = ""

    @property
    def folder(self) -> str:
        return f"runs/{self.name or self.recipe}"

    @property
    def changed(self) -> str:
        return f" --set {' '.join(self.changes)}" if self.changes else ""

    @property
    def command(self) -> str:
        return f"duality train {self.recipe} --out {self.folder}{self.changed}"

    @property
    def plan(self) -> str:
        return f"duality plan {self.recipe} {DEVICES}{self.changed}"


@dataclass(frozen=True)
class Distilled:
    """The distillation of a training, by dcd or sdtt, with more options if there are any."""

    base: Run
    kind: str
    options: str = ""
    suffix: str = ""

    @property
    def recipe(self) -> str:
        return self.base.recipe

    @property
    def folder(self) -> str:
        return f"{self.base.folder}-{self.kind}{self.suffix}"

    @property
    def command(self) -> str:
        return f"duality distill {self.base.folder} --method {self.kind}{self.options} --out {self.folder}"

    @property
    def plan(self) -> str:
        return f"duality plan {self.base.recipe} {DEVICES} --distill {self.kind}"


Training = Run | Distilled


@dataclass(frozen=True)
class Row:
    """A row: its label and numbers as printed, without marks; the heading above it; where the paper has it from."""

    label: str
    numbers: tuple[str, ...]
    group: str = ""
    note: str = ""


@dataclass(frozen=True)
class Series:
    """The numbers of a table that the last of ``trainings`` gives, by the commands ``measure``.

    They are in these columns, from 0, and in one row, from 0, or in all if ``row`` is None.
    """

    model: str
    columns: tuple[int, ...]
    trainings: tuple[Training, ...]
    measure: tuple[str, ...]
    row: int | None = None

    @property
    def recipe(self) -> str:
        return self.trainings[-1].recipe

    @property
    def described(self) -> str:
        """The recipe with what is changed in it, or how it is distilled."""
        last = self.trainings[-1]
        if isinstance(last, Distilled):
            return f"{last.recipe}, {last.kind}{last.options}"
        return last.recipe + last.changed

    @property
    def commands(self) -> tuple[str, ...]:
        return (*(each.command for each in self.trainings), *self.measure)


@dataclass(frozen=True)
class Table:
    """A table of the paper: its number, its label in LaTeX, what it shows, its columns, rows and series."""

    number: int
    label: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    series: tuple[Series, ...]
    rows_are: str = "row"
    note: str = ""

    @property
    def by_rows(self) -> bool:
        """Whether each series belongs to one row; otherwise each has columns of its own."""
        return all(each.row is not None for each in self.series)

    def numbers(self, series: Series, row: int) -> tuple[str, ...]:
        """The numbers of a series in a row, one for each column of the table; empty where it has none."""
        shown = series.row is None or series.row == row
        printed = self.rows[row].numbers
        return tuple(value if shown and column in series.columns else "" for column, value in enumerate(printed))


@dataclass(frozen=True)
class Figure:
    """A figure of the paper; ``numbers`` are those of its caption, ``tables`` those that print what it draws.

    Without trainings ``reason`` says why.
    """

    number: int
    label: str
    title: str
    trainings: tuple[Training, ...] = ()
    measure: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    tables: tuple[int, ...] = ()
    reason: str = ""
    note: str = ""

    @property
    def commands(self) -> tuple[str, ...]:
        return (*(each.command for each in self.trainings), *self.measure)


@dataclass(frozen=True)
class Remark:
    """A number that stands in the text only: where, what, and the words around it in LaTeX."""

    where: str
    title: str
    number: str
    words: str
    trainings: tuple[Training, ...]
    measure: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        return (*(each.command for each in self.trainings), *self.measure)


def rows_of(text: str, group: str = "") -> tuple[Row, ...]:
    """A row for each line, which is a label, a colon and numbers.

    >>> rows_of("1024: 77.69 5.55")
    (Row(label='1024', numbers=('77.69', '5.55'), group='', note=''),)
    """
    split = [line.partition(":") for line in text.strip().splitlines()]
    return tuple(Row(label.strip(), tuple(numbers.split()), group) for label, _, numbers in split)

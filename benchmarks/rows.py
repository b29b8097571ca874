"""A row of the table: what was measured, against what, at which size, and its bar.

Most values are ratios of times (``unit`` "x"); a few are seconds, rates or errors. A bar is the largest
allowed value; a value without a bar is only shown. Wall time is compared with the bar; CPU time is shown beside it,
as other programs may use the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.timing import Spread, Timings

RATIO = "x"
MEBI = 2.0**20

Report = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """K, batch and length of a measurement; 0 where it has none."""

    states: int = 0
    batch: int = 0
    length: int = 0

    def __str__(self) -> str:
        parts = [spaced(self.states)] if self.states else []
        return ", ".join([*parts, f"{self.batch} x {self.length}"] if self.batch else parts)


@dataclass(frozen=True)
class Row:
    """One row."""

    section: str
    name: str
    against: str
    size: Size
    value: Spread
    unit: str = RATIO
    cpu: Spread | None = None
    bar: float | None = None
    note: str = ""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Whether the value is within its bar, if it has one."""
        return "" if self.bar is None else "within" if self.value.median <= self.bar else "above"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def in_sections(rows: Sequence[Row]) -> list[Row]:
    """The rows of a section together, sections in the order in which they began."""
    places = {section: place for place, section in enumerate(dict.fromkeys(row.section for row in rows))}
    return sorted(rows, key=lambda row: places[row.section])


def single(value: float) -> Spread:
    """A value that was measured once."""
    return Spread.of([value])


def time_row(
    section: str, timings: Timings, name: str, baseline: str, against: str, size: Size, bar: float | None = None
) -> Row:
    """The ratio of two runners' times; the note gives both times."""
    wall, cpu = timings.ratios(name, baseline)
    mine, other = timings.seconds(name), timings.seconds(baseline)
    details = {"seconds": mine, "against_seconds": other}
    return Row(section, name, against, size, wall, RATIO, cpu, bar, f"{mine:.3g} s / {other:.3g} s", details)


def memory_row(
    section: str, timings: Timings, name: str, baseline: str, against: str, size: Size, bar: float | None = None
) -> Row:
    """The ratio of two runners' peaks."""
    mine, other = timings.peaks[name] / MEBI, timings.peaks[baseline] / MEBI
    note = f"{figure_of(mine, 'MiB')} MiB / {figure_of(other, 'MiB')} MiB"
    details = {"mebibytes": mine, "against_mebibytes": other}
    return Row(section, name, against, size, single(mine / other), RATIO, None, bar, note, details)


def spaced(number: int) -> str:
    """30 522 instead of 30522."""
    return f"{number:,}".replace(",", " ")


def figure_of(value: float, unit: str) -> str:
    """The text of a value in the table."""
    if unit == RATIO:
        return f"{value:.3f}" if value < 10 else f"{value:.3g}"
    return spaced(round(value)) if value >= 1000 else f"{value:.3g}"


def quartiles_of(row: Row) -> str:
    """The quartiles; empty for a single value."""
    low, high = (figure_of(value, row.unit) for value in (row.value.low, row.value.high))
    return f"{low} to {high}" if len(row.value.values) > 1 else ""


def cells(row: Row) -> Sequence[str]:
    """The cells of the table."""
    unit = "" if row.unit == RATIO else f" {row.unit}"
    cpu = "" if row.cpu is None else figure_of(row.cpu.median, RATIO)
    bar = "" if row.bar is None else f"{row.bar:g}"
    value = f"{figure_of(row.value.median, row.unit)}{unit}"
    return (row.name, str(row.size), row.against, value, quartiles_of(row), cpu, bar, row.verdict, row.note)


HEADINGS = ("what", "K, batch x length", "against", "value", "quartiles", "CPU", "bar", "", "")

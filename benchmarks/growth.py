"""Whether Duo's overhead grows: its step over the bare network's, at growing vocabulary, length and batch.

At the largest vocabulary the batch is smaller, as its row shows: the network itself would take most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.models import BARE, Scale
from benchmarks.objectives import DUO, Group, runners_of
from benchmarks.rows import Report, Row, Size, spaced, time_row
from benchmarks.timing import take_turns

SECTIONS = {"states": "growth with K", "length": "growth with L", "batch": "growth with batch"}


def sizes(scale: Scale) -> Iterator[tuple[str, Size]]:
    """The sizes that are measured, each with the name of what grows. Long sequences have the smallest batch."""
    first, least = scale.vocabularies[0], scale.growth_batches[0]
    for states in scale.growth_states:
        yield "states", Size(states, least if states >= scale.large_states else scale.batch, scale.length)
    for length in scale.growth_lengths:
        yield "length", Size(first, least, length)
    for batch in scale.growth_batches:
        yield "batch", Size(first, batch, scale.length)


def section(scale: Scale, report: Report) -> Iterator[Row]:
    """Both phases of Duo at every size; a size that several sections share is measured once."""
    wanted = list(sizes(scale))
    found: dict[Size, list[Row]] = {}
    for size in dict.fromkeys(size for _, size in wanted):
        report(f"K = {spaced(size.states)}, {size.batch} x {size.length}")
        runners = runners_of(Group(BARE, (DUO,)), scale, size)
        timings = take_turns(runners, scale.few)
        found[size] = [time_row("growth", timings, runner.name, BARE, BARE, size) for runner in runners[1:]]
    for grows, size in wanted:
        yield from (replace(row, section=SECTIONS[grows]) for row in found[size])

"""The figure: every ratio that has a bar, as a dot with its quartiles and the bar, and how overheads grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import SECTIONS as GROWTH
from benchmarks.rows import RATIO, Row, in_sections, spaced

COLOURS = {"within": "C2", "above": "C3"}


def draw(rows: Sequence[Row], target: Path) -> bool:
    """Bars, growth and the plain implementation side by side, where there are rows. False if there are none."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    held = [row for row in in_sections(rows) if row.bar is not None and row.unit == RATIO]
    panels = [(axis, title) for axis, title in GROWTH.items() if any(row.section == title for row in rows)]
    if any(row.section == "noise and T" for row in rows):
        panels.append(("states", "noise and T"))
    plain = [row for row in rows if row.section.startswith("fused / plain")]
    columns = [bool(held), bool(panels), bool(plain)]
    if not any(columns):
        return False
    height = max(4.0, 0.27 * len(held) + 1.5, 2.4 * len(panels))
    figure = pyplot.figure(figsize=(6.0 * sum(columns), height), layout="constrained")
    parts = iter(figure.subfigures(1, sum(columns), squeeze=False)[0])
    if held:
        draw_bars(next(parts), held)
    if panels:
        for axes, (axis, title) in zip(next(parts).subplots(len(panels), squeeze=False)[:, 0], panels):
            draw_growth(axes, axis, title, [row for row in rows if row.section == title])
    if plain:
        draw_plain(next(parts).subplots(), plain)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)
    return True


def label(row: Row) -> str:
    kind = ", memory" if row.section == "memory" else ""
    return f"{row.name}{kind} ({spaced(row.size.states)})"


def draw_bars(part: Any, rows: Sequence[Row]) -> None:
    """One line for each ratio: dot, quartiles, CPU time as a ring, bar as a stroke."""
    axes = part.subplots()
    for place, row in enumerate(rows):
        assert row.bar is not None
        colour = COLOURS[row.verdict]
        axes.plot([row.value.low, row.value.high], [place, place], color=colour, lw=2, alpha=0.5)
        axes.plot(row.value.median, place, "o", color=colour, ms=5)
        if row.cpu is not None:
            axes.plot(row.cpu.median, place, "o", color="0.35", ms=6, mfc="none")
        axes.plot([row.bar, row.bar], [place - 0.4, place + 0.4], color="black", lw=1.4)
    axes.plot([], [], "o", color=COLOURS["within"], label="within its bar (black stroke)")
    axes.plot([], [], "o", color=COLOURS["above"], label="above it")
    axes.plot([], [], "o", color="0.35", mfc="none", label="ratio of CPU times")
    axes.set_yticks(range(len(rows)), [label(row) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(1.0, color="0.8", lw=0.8, zorder=0)
    axes.set(xlabel="ratio to what it is measured against (K in brackets)", title="Ratios and their bars")
    axes.grid(axis="x", alpha=0.3)
    part.legend(fontsize=8, loc="outside lower center", ncols=3)


def draw_growth(axes: Any, axis: str, title: str, rows: Sequence[Row]) -> None:
    """A line for each objective."""
    for number, name in enumerate(dict.fromkeys(row.name for row in rows)):
        line = [row for row in rows if row.name == name]
        across = [getattr(row.size, axis) for row in line]
        axes.plot(across, [row.value.median for row in line], "o-", ms=4, color=f"C{number}", label=name)
        low, high = [row.value.low for row in line], [row.value.high for row in line]
        axes.fill_between(across, low, high, color=f"C{number}", alpha=0.15, lw=0)
    ticks = sorted({getattr(row.size, axis) for row in rows})
    axes.set_xscale("log")
    # labels of vocabularies of similar size would overlap
    axes.set_xticks(ticks, [spaced(tick) for tick in ticks], fontsize=8, rotation=25 if axis == "states" else 0)
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.axhline(1.0, color="0.8", lw=0.8, zorder=0)
    axes.set_title(f"{title} (over {rows[0].against})", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw_plain(axes: Any, rows: Sequence[Row]) -> None:
    """Time and memory of the library's step over the plain dense one: below 1 it is cheaper."""
    names = list(dict.fromkeys(row.name for row in rows))
    for number, kind in enumerate(dict.fromkeys(row.section for row in rows)):
        chosen = {row.name: row for row in rows if row.section == kind}
        places = [place + (number - 0.5) * 0.38 for place in range(len(names))]
        axes.barh(places, [chosen[name].value.median for name in names], 0.36, color=f"C{number}", label=kind)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.axvline(1.0, color="black", lw=0.8)
    axes.set(xlabel="ratio to the plain dense implementation", title="Library / plain")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)

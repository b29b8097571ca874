"""The command of the benchmark: costs as ratios, measured side by side in one run.

    python -m benchmarks.bench [--json FILE] [--figure FILE] [--repeats 5] [--only SECTION ...] [--quick]

    objectives   every objective: a training step over the bare network, in time and in peak memory
    samplers     every sampler: a step over the bare forward pass, in time and in peak memory
    dense        the library over the same methods as plain dense tensors (reference.py)
    growth       Duo's overhead at growing vocabulary, length and batch
    latents      noise and T per step against the vocabulary; T for a new vocabulary, and its error
    data         text to token store; loading a batch
    training     tokens per second
    precision    the laptop recipes in bfloat16 over float32: a training step, a likelihood, generation
    generation   sequences per second, against an autoregressive model with a cache of keys and values

A value is the median; quartiles and the same ratio of CPU times are beside it. "within" and "above" compare it with
its bar, the largest allowed value. The exit code does not depend on that: a busy machine is no error. ``--quick`` uses
sizes at which the ratios have no meaning, to show that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import data, dense, growth, latents, objectives, precision, samplers, throughput
from benchmarks.figure import draw
from benchmarks.models import FULL, QUICK, Scale
from benchmarks.rows import HEADINGS, Report, Row, cells, in_sections

Section = Callable[[Scale, Report], Iterator[Row]]

SECTIONS: dict[str, Section] = {
    "objectives": objectives.section,
    "samplers": samplers.section,
    "dense": dense.section,
    "growth": growth.section,
    "latents": latents.section,
    "data": data.section,
    "training": throughput.training,
    "precision": precision.section,
    "generation": throughput.generation,
}


def cpu_name() -> str:
    """The name of the processor, where the system gives it."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """The machine of the measurement; nothing that identifies its owner."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def measure(names: Sequence[str], scale: Scale, say: Report) -> list[Row]:
    """The rows of some sections, in the order of the sections."""
    rows: list[Row] = []
    start = time.monotonic()
    for name in (each for each in SECTIONS if each in names):

        def report(what: str, name: str = name) -> None:
            say(f"{time.monotonic() - start:5.0f} s  {name}: {what}")

        rows += SECTIONS[name](scale, report)
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """One table, with the rows of each section together."""
    table = Table(*HEADINGS, title="value: median; quartiles and the ratio of CPU times beside it")
    begun = ""
    for row in in_sections(rows):
        if row.section != begun:
            table.add_section()
            table.add_row(f"[bold]{row.section}[/bold]")
            begun = row.section
        style = {"within": "green", "above": "red", "": ""}[row.verdict]
        table.add_row(*(f"[{style}]{cell}[/{style}]" if cell and cell == row.verdict else cell for cell in cells(row)))
    return table


def show(rows: Sequence[Row], found: dict[str, Any]) -> None:
    """The table and the machine, on stdout; without a terminal, the width of the table is used."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=170)
    console.print(table_of(rows))
    console.print(", ".join(f"{name} {value}" for name, value in found.items()))
    held = [row for row in rows if row.bar is not None]
    if held:
        console.print(f"{sum(row.verdict == 'within' for row in held)} of {len(held)} values are within their bars")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the ratios and the growth here, as a PNG")
    parser.add_argument("--repeats", type=int, help=f"turns that count (default {FULL.repeats})")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="small sizes: it runs, the ratios mean nothing")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}: it must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    scale = QUICK if options.quick else FULL
    if options.repeats is not None:
        scale = replace(scale, repeats=options.repeats)
    stderr = Console(stderr=True, highlight=False)
    rows = measure(options.only, scale, lambda line: stderr.print(line, markup=False))
    found = machine()
    show(rows, found)
    if options.json is not None:
        content = {"machine": found, "scale": asdict(scale), "rows": [row.to_json() for row in rows]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    if options.figure is not None:
        options.figure.parent.mkdir(parents=True, exist_ok=True)
        if not draw(rows, options.figure):
            stderr.print("no figure: these sections have neither bars nor growth nor a plain counterpart")


if __name__ == "__main__":
    main()

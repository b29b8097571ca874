"""The commands `reproduce` and `variance`, and the tables of the paper: what ``duality.papers.duo`` does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from tyro.conf import Positional, arg

from duality.cli.console import print_table, say
from duality.cli.options import Device, Flag, Folders

_Number = TypeVar("_Number", int, float)
_CHECKPOINTS: dict[str, Literal["last", "all"]] = {"last": "last", "all": "all"}
Claims = Annotated[tuple[str, ...], Positional, arg(metavar="[CLAIM ...]")]


def reproduce(
    claims: Claims = (),
    /,
    budget: Literal["quick", "full"] = "quick",
    domains: tuple[Literal["molecules", "prose"], ...] = (),
    seeds: int | None = None,
    base_seeds: int | None = None,
    judge: str | None = None,
    out: Path = Path("runs/reproduction"),
    workers: int = 2,
    threads: int = 1,
) -> int:
    """Try the paper's claims: what is needed is trained and sampled, and OUT/report.html says what shows.

    Args:
        claims: perplexity, curriculum, variance, distillation, speedup, tails, rounds, teacher, sdtt, crossover, psi,
            speed; all if not given.
        budget: quick is molecules, about 40 minutes on two cores; full adds prose and more seeds, and takes hours.
        domains: those of the budget's domains that are wanted; all if not given.
        seeds: seeds of every training and distillation, instead of the budget's own numbers.
        base_seeds: seeds of the models that are sampled and distilled, the most costly ones, if other than seeds; with
            one, every distillation begins from the same model.
        judge: the language model that reads prose, instead of smollm2: another name or file, or smollm2@bfloat16,
            which is faster on processors that have bfloat16; samples that were written are read again.
        out: a folder for runs, samples, scores and the report; what it holds already is used again.
        workers: processes at the same time.
        threads: threads of each process; the digits of the report depend on it.
    """
    from duality.papers.duo.reproduce import run
    from duality.papers.duo.reproduce.domains import budget_named

    chosen, show = budget_named(budget, seeds, domains, base_seeds, judge), partial(say.working, "reproducing")
    found = run.reproduce(out, chosen, claims, workers=workers, threads=threads, report=say, show=show)
    print(run.verdict_table(found))
    say(f"the report is {out / 'report.html'} (and report.md)")
    return 0


def variance(
    runs: Folders,
    /,
    objectives: str = "",
    draws: int = 400,
    batch: int | None = None,
    micro_batch: int = 0,
    groups: int = 20,
    step: str = "last",
    weights: Literal["model", "ema"] = "model",
    window: str = "",
    seed: int = 0,
    limit_seconds: float | None = None,
    corpus: str | None = None,
    out: Path = Path("runs/variance"),
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the variance of the gradient and of the loss of runs, for several objectives on the same draws.

    Args:
        runs: run folders.
        objectives: names with commas, the first is compared with: plain, window (the curriculum with tau -> 0),
            tau=0.001, udlm, mdlm, own; each may have times: plain/log-linear, tau=0.01/polynomial. Those that fit the
            run if not given.
        draws: minibatches, each with fresh sequences, times and noise; a multiple of the groups.
        batch: sequences in a minibatch; the run's own batch size if not given.
        micro_batch: sequences at a time, to save memory; 0 is the whole minibatch. The result does not depend on it.
        groups: groups of draws for the jackknife; memory is 16 bytes for each weight and group.
        step: the last checkpoint, all that the run has kept, or some, with commas.
        weights: raw weights (model), at which training computes gradients, or averaged ones (ema).
        window: the range of alpha of window and tau, such as 0.05,0.95 (the paper's); the run's own if not given.
        seed: seed of sequences, times and noise.
        limit_seconds: take fewer draws if these would take longer.
        corpus: where the corpus of the runs is now, if it was moved.
        out: a folder for variance.json, variance.md and variance.png.
        json: print the rows as JSON instead of the tables.
    """
    from duality.files.atomic import json_text
    from duality.papers.duo.variance.draws import VarianceSettings
    from duality.papers.duo.variance.study import measure_variance

    wrong = f"--step is {step!r}: it is last, all, or steps with commas, such as 1000,2000"
    settings = VarianceSettings(
        objectives=tuple(part.strip() for part in objectives.split(",") if part.strip()),
        num_draws=draws,
        batch=batch,
        micro_batch=micro_batch,
        groups=groups,
        steps=_CHECKPOINTS.get(step) or _numbers(step, int, wrong),
        weights=weights,
        window=_range_of(window),
        seed=seed,
        limit_seconds=limit_seconds,
    )
    show = partial(say.working, "gradients")
    rows = measure_variance(runs, settings, out=out, device=device, corpus=corpus, report=say, show=show)
    print(json_text([row.to_json() for row in rows]) if json else (out / "variance.md").read_text(encoding="utf-8"))
    say(f"tables and figure are in {out}")
    return 0


def _range_of(window: str) -> tuple[float, float] | None:
    """The range of alpha that ``--window`` names; None if it is not given."""
    wrong = f"--window is {window!r}: it is two levels of alpha with a comma, such as 0.05,0.95"
    found = _numbers(window, float, wrong) if window else ()
    if window and len(found) != 2:
        raise ValueError(wrong)
    return (found[0], found[1]) if window else None


def _numbers(text: str, kind: Callable[[str], _Number], message: str) -> tuple[_Number, ...]:
    """The numbers between commas; another text is refused with a message."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(message) from None


def show_table(number: int) -> None:
    """Print a table of the paper: rows, recipes, numbers, commands."""
    from duality.papers.duo.index import table as table_numbered
    from duality.papers.duo.page import column_lines, paper_lines

    chosen = table_numbered(number)
    print(f"Table {number} of the paper: {chosen.title}\n")
    heading, lines = paper_lines(chosen)
    tables = [(heading, lines)] if chosen.by_rows else [(heading, lines), (["columns", "recipe"], column_lines(chosen))]
    for names, rows in tables:
        print_table(names, rows)
        print()
    for each in chosen.series:
        where = each.model if each.row is None else f"row {each.row + 1}, {each.model}"
        print(f"{where}: {', '.join(chosen.columns[column] for column in each.columns)}")
        print("\n".join(f"  {command}" for command in each.commands))

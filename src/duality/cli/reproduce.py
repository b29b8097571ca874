"""The command `reproduce`: train what the paper's claims need, measure, decide, and write the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

Claims = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[CLAIM ...]")]


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
    from functools import partial

    from duality.cli.console import counting_display, say
    from duality.papers.duo.reproduce import run
    from duality.papers.duo.reproduce.domains import budget_named

    settings = run.Settings(out, budget_named(budget, seeds, domains, base_seeds, judge), claims, workers, threads)
    found = run.reproduce(settings, say, partial(counting_display, "reproducing"))
    print(run.verdict_table(found))
    say(f"the report is {out / 'report.html'} (and report.md)")
    return 0

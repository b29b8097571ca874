"""The commands `recipes`, `reproduce` and `variance`: recipes, the tables of the paper, what shows its claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from duality.cli.console import print_table, say
from duality.cli.options import Device, Folders, Precision, make_flags
from duality.files.atomic import json_text
from duality.papers.duo.variance.settings import VarianceSettings

_DRAWS = {"num_draws": Annotated[int, arg(name="draws")], "steps": Annotated[str, arg(name="step")]}
_VarianceFlags = make_flags(VarianceSettings, objectives=str, window=str, **_DRAWS)
_VARIANCE = _VarianceFlags()


def recipes(table: Annotated[int | None, arg(metavar="N")] = None) -> None:
    """List the recipes, or the rows of a table of the paper with their recipes and commands.

    Args:
        table: a table of the paper by its number: its rows, the recipe of each, the paper's numbers and the commands
            that give ours.
    """
    from importlib import resources
    from json import loads

    if table is not None:
        from duality.papers.duo import page

        chosen = page.table(table)
        print(f"Table {table} of the paper: {chosen.title}\n")
        for names, lines in chosen.listings():
            print_table(names, lines)
            print()
        for each in chosen.series:
            where = each.model if each.row is None else f"row {each.row + 1}, {each.model}"
            print(f"{where}: {', '.join(chosen.columns[column] for column in each.columns)}")
            print("\n".join(f"  {command}" for command in each.commands))
        return
    # The list is kept, because building the networks takes seconds; docs/site/generate.py writes it.
    rows = []
    for each in loads(resources.files("duality.runs").joinpath("recipe_list.json").read_text(encoding="utf-8")):
        size = f"{each['parameters'] / 1e6:.1f} M"
        steps = f"{each['steps']:,} x {each['batch_size']} x {each['length']}"
        rows.append((each["name"], size, steps, each["summary"], each["source"]))
    print_table(("recipe", "parameters", "steps x batch x length", "summary", "source"), rows)


def reproduce(
    claims: Annotated[tuple[str, ...], Positional, arg(metavar="[CLAIM ...]")] = (),
    budget: Literal["quick", "full"] = "quick",
    domains: tuple[Literal["molecules", "prose"], ...] = (),
    seeds: int | None = None,
    base_seeds: int | None = None,
    judge: str | None = None,
    precision: Precision = "auto",
    out: Path = Path("runs/reproduction"),
    workers: int = 2,
    threads: int = 1,
) -> None:
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
    from duality.papers.duo.reproduce import report, run
    from duality.papers.duo.reproduce.claims import read_domains

    chosen = read_domains(budget, seeds, domains, base_seeds, judge, precision)
    found = run.reproduce(out, budget, chosen, claims, workers=workers, threads=threads, report=say)
    print(report.verdict_table(found))
    say(f"the report is {out / 'report.html'} (and report.md)")


def variance(
    runs: Folders,
    request: Annotated[VarianceSettings, arg(name="", constructor=_VarianceFlags)] = _VARIANCE,
    corpus: str | None = None,
    out: Path = Path("runs/variance"),
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Measure the variance of the gradient and of the loss of runs, for several objectives on the same draws.

    Args:
        runs: run folders.
        request: what is measured, and on how many draws.
        corpus: where the corpus of the runs is now, if it was moved.
        out: a folder for variance.json, variance.md and variance.png.
        json: print the rows as JSON instead of the tables.
    """
    from duality.papers.duo.variance.study import measure_variance

    rows = measure_variance(runs, request, out=out, device=device, corpus=corpus, report=say)
    print(json_text([row.to_json() for row in rows]) if json else (out / "variance.md").read_text(encoding="utf-8"))
    say(f"tables and figure are in {out}")

"""A sweep over runs: every combination of samplers, tails, numbers of steps and temperatures, for each run and round.

    measure_runs([Path("runs/demo")], SweepSettings(steps=(8, 32)), judge="smollm2", out=Path("runs/quality"))

A run of a distillation has its rounds; any other run has one model. ``eta`` belongs to some samplers only; the cases of
the others are without it. The real text is that of the first run's corpus, in sequences as long as its samples. With
more than one temperature the frontiers are drawn and compared too (``frontier_report``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from duality.data.places import is_there
from duality.evaluation.figures import draw
from duality.evaluation.frontier_report import has_frontiers, write_frontiers
from duality.evaluation.judge import Judge
from duality.evaluation.judging import judge_named, scorers_named
from duality.evaluation.scorers import Drawing, Scorer
from duality.evaluation.sweep.cases import Case, Row, label_of, run_names
from duality.evaluation.sweep.samples import Samples, stored_samples
from duality.evaluation.sweep.sampling import RunSampler, held_out_text
from duality.evaluation.sweep.sweep import Advance, Sweep, check, sample_path
from duality.files.atomic import output_folder
from duality.files.progress import Reporter, silent
from duality.hub.sources import model_folder
from duality.models.folder import read_recipe, rounds_saved
from duality.noise import check_seed
from duality.ranks import job
from duality.registry import suggestion
from duality.runs.start import is_model_alone
from duality.samplers import SAMPLERS
from duality.training.devices import device_named

OWN = "own"
SAMPLER_NAMES = (OWN, *SAMPLERS)
Rounds = Literal["last", "all"] | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What a sweep measures of every run. In ``steps``, None is the model's own number of steps.

    ``rounds`` of a distillation are the last, all that are saved, or the given ones. ``checkpoint`` is a training step
    whose weights every run has kept; None is the newest. ``length`` None is that of the
    run's training.
    """

    steps: tuple[int | None, ...]
    samplers: tuple[str, ...] = (OWN,)
    tails: tuple[str, ...] = ("ancestral",)
    rounds: Rounds = "last"
    num: int = 64
    length: int | None = None
    seed: int = 0
    eta: float | None = None
    grid: str | None = None
    top_p: float = 1.0
    temperatures: tuple[float, ...] = (1.0,)
    checkpoint: int | None = None

    def __post_init__(self) -> None:
        for name in self.samplers:
            if name not in SAMPLER_NAMES:
                raise ValueError(f"no sampler {name!r}: {suggestion(name, SAMPLER_NAMES)}")
        if self.eta is not None and not any(has_eta(name) for name in self.samplers):
            raise ValueError(
                f"eta is {self.eta}, and no sampler of {', '.join(self.samplers)} has one: leave it out, or choose a "
                "psi sampler"
            )
        check_seed(self.seed)
        if not self.temperatures or not all(0 < each < math.inf for each in self.temperatures):
            raise ValueError(f"temperatures are {self.temperatures}: give at least one, each above 0")


def has_eta(sampler: str) -> bool:
    """Whether a sampler has the setting ``eta``."""
    return sampler != OWN and "eta" in inspect.signature(SAMPLERS[sampler]).parameters


def hidden_progress(_total: int) -> AbstractContextManager[Advance]:
    """A display of progress that shows nothing."""
    return nullcontext(lambda count: None)


def measure_runs(
    runs: Sequence[Path],
    settings: SweepSettings,
    *,
    out: Path,
    judge: Judge | str | None = None,
    scorers: Sequence[Scorer | str] = (),
    device: torch.device | str = "auto",
    batch_size: int = 16,
    corpus: str | Path | None = None,
    report: Reporter = silent,
    show: Callable[[int], AbstractContextManager[Advance]] = hidden_progress,
) -> list[Row]:
    """Measure the samples of runs into the folder ``out``: rows, tables and figures.

    ``judge`` may be a name for ``judge_named``, and ``scorers`` may be names for ``scorer_named``. ``corpus`` is where
    the corpus of the first run is now, if it was moved. ``show(total)`` is a context whose value is called with the
    number of steps that are done.
    """
    where = device_named(device)
    cases = cases_of(runs, settings)
    check(cases)
    source = RunSampler(where, report, batch_size)
    source.check(cases)
    # rank 0 of a job scores for all
    found = scorers_named(scorers, cases[0].run, report, corpus) if job().first else []
    reader = judge_named(judge, where, report) if isinstance(judge, str) and job().first else judge
    job().once(lambda: output_folder(out))
    text = text_of_run(cases[0], corpus, report)
    with show(source.total_steps(cases)) as advance:
        sweep = Sweep(out, source, report, None if isinstance(reader, str) else reader, text, found)
        rows = sweep.measure(cases, advance)
    job().once(lambda: draw_all(rows, found, cases[-1], out))
    return rows


def text_of_run(case: Case, corpus: str | Path | None, report: Reporter) -> Samples | None:
    """Real text of the corpus of a case's run; None for a model alone whose corpus is not on this machine."""
    recipe = read_recipe(case.run)
    if is_model_alone(case.run) and corpus is None and not is_there(recipe.data.corpus):
        report(
            f"no real text: {recipe.data.corpus}, the corpus of {case.label}, is not here; --corpus says where it is"
        )
        return None
    return held_out_text(recipe, case.num, case.length, report, case.run, corpus)


def draw_all(rows: Sequence[Row], scorers: Sequence[Scorer], last: Case, out: Path) -> None:
    """The figures of a sweep; scorers that draw get the samples of its last case."""
    draw(rows, out / "quality.png", out / "rounds.png")
    if has_frontiers(rows):
        write_frontiers(dict.fromkeys(rows, out), out)
    for scorer in scorers:
        if isinstance(scorer, Drawing):
            scorer.draw(stored_samples(sample_path(out, last), last).texts, out / scorer.name)


def cases_of(runs: Sequence[Path], settings: SweepSettings) -> list[Case]:
    """All cases of a sweep over runs."""
    if not runs:
        raise ValueError("nothing to measure: name run folders, such as runs/demo")
    names = run_names(runs)
    return [case for run in runs for case in cases_of_run(model_folder(run), names[run], settings)]


def cases_of_run(run: Path, name: str, settings: SweepSettings) -> Iterator[Case]:
    """The cases of one run, which has this name in tables."""
    recipe = read_recipe(run)
    length = recipe.data.length if settings.length is None else settings.length
    # a sampler's own number of steps does not depend on the vocabulary
    own_steps = recipe.method.sampler(2).steps(length)
    for number in rounds_of(settings, rounds_saved(run, recipe)):
        for sampler in settings.samplers:
            for tail in settings.tails:
                for steps, temperature in product(settings.steps, settings.temperatures):
                    yield Case(
                        label=label_of(name, number, settings.checkpoint),
                        run=run,
                        steps=own_steps if steps is None else steps,
                        num=settings.num,
                        length=length,
                        seed=settings.seed,
                        round=number,
                        sampler=sampler,
                        eta=settings.eta if has_eta(sampler) else None,
                        tail=tail,
                        grid=settings.grid,
                        top_p=settings.top_p,
                        temperature=temperature,
                        checkpoint=settings.checkpoint,
                    )


def rounds_of(settings: SweepSettings, saved: list[int]) -> Sequence[int | None]:
    """The rounds to measure of a run with these ``saved`` ones; None is the newest weights."""
    if settings.rounds == "last" or not saved:
        return [None]
    return saved if settings.rounds == "all" else settings.rounds

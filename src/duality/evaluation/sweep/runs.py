"""A sweep over runs: every combination of samplers, tails, numbers of steps and temperatures, for each run and round.

    measure_runs([Path("runs/demo")], SweepSettings(steps=(8, 32)), judge="smollm2", out=Path("runs/quality"))

A run of a distillation has its rounds; any other run has one model. ``eta`` belongs to some samplers only; the cases of
the others are without it. The real text is that of the first run's corpus, in sequences as long as its samples. With
more than one temperature the frontiers are drawn and compared too (``frontier_report``).

``RunSampler`` is the sweep's source of samples (``sweep.SampleSource``) for cases that name run folders: runs are
loaded, sampled as a case says, and the network calls are counted. ``held_out_text`` is the real text that they are
compared with. What must hold: both commands that measure samples, `duality quality` and `duality compare`, use these
two and nothing else.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from duality.data.places import is_there
from duality.denoisers.wrapping import network_of
from duality.evaluation.figures import draw
from duality.evaluation.frontier_report import has_frontiers, write_frontiers
from duality.evaluation.judge import Judge, judge_named, weights_id
from duality.evaluation.scorers import Drawing, Scorer, scorers_named
from duality.evaluation.sweep.samples import Case, Row, Samples, label_of, real_text, run_names, stored_samples
from duality.evaluation.sweep.sweep import Advance, Sweep, check, sample_path
from duality.files.atomic import output_folder
from duality.files.progress import Reporter, silent
from duality.hub.fetch import model_source
from duality.models.folder import read_recipe, rounds_saved
from duality.models.model import Model, load
from duality.models.sampling import transform
from duality.models.size import check_sampling
from duality.noise import Noise, check_seed
from duality.protocols import Latent, Network, Tail
from duality.ranks import job
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.recipe import Recipe
from duality.registry import suggestion
from duality.runs.corpus import corpus_of_run
from duality.runs.start import is_model_alone
from duality.samplers import SAMPLERS
from duality.samplers.choice import grid_named
from duality.training.devices import device_named

OWN = "own"
SAMPLER_NAMES = (OWN, *SAMPLERS)
Rounds = Literal["last", "all"] | tuple[int, ...]
_TAILS: dict[str, Tail] = {tail: tail for tail in get_args(Tail)}


@dataclass
class Calls:
    """How many sequences a network was called with."""

    sequences: int = 0


@contextmanager
def count_calls(network: Network, check: Callable[[], None] = lambda: None) -> Iterator[Calls]:
    """Count the sequences that the network is called with, for the duration of a ``with`` block.

    ``check`` runs before every call and ends the work by an error. Every call goes through ``hidden``, and not every
    one through the head. A wrapper around the denoiser would not see that a memo saves calls or that guidance doubles
    them.
    """
    calls, hidden = Calls(), network.hidden

    def counted(
        z: Latent,
        condition: Tensor,
        valid: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        check()
        vectors = hidden(z, condition, valid, dropout, labels)
        calls.sequences += len(vectors)
        return vectors

    own = vars(network).get("hidden")  # not None inside another such block
    vars(network)["hidden"] = counted
    try:
        yield calls
    finally:
        if own is None:
            del vars(network)["hidden"]
        else:
            vars(network)["hidden"] = own


def _tail_of(case: Case) -> Tail:
    """The tail of a case; one that does not exist is refused."""
    if case.tail not in _TAILS:
        raise ValueError(f"--tail {case.tail!r}: choose from {', '.join(_TAILS)}, several with commas")
    return _TAILS[case.tail]


def sample_case(model: Model, case: Case, batch_size: int, advance: Advance) -> Samples:
    """The samples of a case; ``advance(1)`` is called after every step of every batch."""
    with count_calls(network_of(model.denoiser)) as calls:
        start = time.perf_counter()
        found = model.sample(
            case.num,
            steps=case.steps,
            length=case.length,
            tail=_tail_of(case),
            sampler=case.sampler,
            eta=case.eta,
            grid=case.grid,
            top_p=case.top_p,
            temperature=case.temperature,
            seed=case.seed,
            batch_size=batch_size,
            watch=lambda frame: advance(1) if frame.step else None,  # frame 0 is the start, before any step
        )
        seconds = time.perf_counter() - start
    tokens = torch.tensor([sample.tokens for sample in found])
    texts = [sample.text for sample in found]
    called = sum(job().all_of(calls.sequences))  # each rank of a job has written some of the samples
    return Samples(tokens, texts, seconds / case.num, called / case.num, weights_id(model))


class RunSampler:
    """Samples of cases that name run folders. One model is loaded at a time."""

    def __init__(self, device: torch.device | str, report: Reporter, batch_size: int = 16):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        self.device, self.report, self.batch_size = device, report, batch_size
        self._loaded: tuple[tuple[Path, int | None, int | None], Model, str] | None = None

    def model(self, case: Case) -> Model:
        """The model of a case."""
        return self._model_and_weights(case)[0]

    def weights(self, case: Case) -> str:
        """The identifier of the weights of a case's model."""
        return self._model_and_weights(case)[1]

    def sample(self, case: Case, advance: Advance) -> Samples:
        """The samples of a case."""
        return sample_case(self.model(case), case, self.batch_size, advance)

    def check(self, cases: Sequence[Case]) -> None:
        """Refuse, before anything is sampled, what does not exist or cannot be: a run, a round, a sampler, a length."""
        for case in cases:
            model = self.model(case)
            check_sampling(model.denoiser, min(case.num, self.batch_size), case.length, model.device)
            transform(model.denoiser, case.top_p, case.temperature)
            model.named_sampler(case.sampler, case.eta)
            grid_named(case.grid, case.sampler)
            _tail_of(case)

    def total_steps(self, cases: Sequence[Case]) -> int:
        """How many steps the samples of all cases take, over all batches."""
        return sum(case.steps * -(-case.num // self.batch_size) for case in cases)

    def _model_and_weights(self, case: Case) -> tuple[Model, str]:
        """The model of a case and the identifier of its weights; loaded unless it is the last one used."""
        name = (case.run, case.round, case.checkpoint)
        if self._loaded is None or self._loaded[0] != name:
            model = load(case.run, self.report, self.device, round=case.round, step=case.checkpoint)
            self._loaded = (name, model, weights_id(model))
        return self._loaded[1:]


def held_out_text(
    recipe: Recipe,
    num: int,
    length: int,
    report: Reporter,
    run: Path | None = None,
    moved_to: str | Path | None = None,
) -> Samples | None:
    """Real text of the recipe's validation set, in whole sequences of ``length`` tokens; None if there is none.

    The corpus must be that of the training of ``run``, if one is given; ``moved_to`` is where it is now.
    """
    corpus = job().in_turn(
        lambda: prepare_corpus(recipe, report) if run is None else corpus_of_run(run, recipe, report, moved_to)
    )
    found = real_text(make_sequences(recipe.data, corpus.validation, corpus.tokenizer, length), corpus.tokenizer, num)
    if found is None:
        report(f"no real text: no sequence of the validation set of {recipe.data.corpus} has {length} tokens")
    return found


# --- the cases of runs


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


def _hide_progress(_total: int) -> AbstractContextManager[Advance]:
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
    show: Callable[[int], AbstractContextManager[Advance]] = _hide_progress,
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
    text = _text_of_run(cases[0], corpus, report)
    with show(source.total_steps(cases)) as advance:
        sweep = Sweep(out, source, report, None if isinstance(reader, str) else reader, text, found)
        rows = sweep.measure(cases, advance)
    job().once(lambda: _draw_all(rows, found, cases[-1], out))
    return rows


def _text_of_run(case: Case, corpus: str | Path | None, report: Reporter) -> Samples | None:
    """Real text of the corpus of a case's run; None for a model alone whose corpus is not on this machine."""
    recipe = read_recipe(case.run)
    if is_model_alone(case.run) and corpus is None and not is_there(recipe.data.corpus):
        report(
            f"no real text: {recipe.data.corpus}, the corpus of {case.label}, is not here; --corpus says where it is"
        )
        return None
    return held_out_text(recipe, case.num, case.length, report, case.run, corpus)


def _draw_all(rows: Sequence[Row], scorers: Sequence[Scorer], last: Case, out: Path) -> None:
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
    return [case for run in runs for case in _cases_of_run(model_source(run).folder, names[run], settings)]


def _cases_of_run(run: Path, name: str, settings: SweepSettings) -> Iterator[Case]:
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

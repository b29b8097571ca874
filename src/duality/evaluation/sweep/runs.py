"""A sweep over runs: every combination of samplers, tails, numbers of steps and temperatures, for each run and round.

    measure_runs([Path("runs/demo")], SweepRequest(steps=(8, 32)), judge="smollm2", out=Path("runs/quality"))

A run of a distillation has its rounds; any other run has one model. ``eta`` belongs to some samplers only; the cases of
the others are without it. The real text is that of the first run's corpus, in sequences as long as its samples. With
more than one temperature the frontiers are drawn and compared too (``frontier_report``).

``RunSampler`` is the sweep's source of samples (``sweep.Sweep.source``) for cases that name run folders: runs are
loaded, sampled as a case says, and the network calls are counted. ``held_out_text`` is the real text that they are
compared with. What must hold: both commands that measure samples, `duality quality` and `duality compare`, use these
two and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import get_args

import torch

from duality.data.corpus import Corpus
from duality.data.places import is_there
from duality.denoisers.wrapping import count_calls, network_of
from duality.evaluation.figures import draw
from duality.evaluation.frontier_report import has_frontiers, write_frontiers
from duality.evaluation.judge import Judge, find_judge, weights_id
from duality.evaluation.requests import SweepRequest, has_eta
from duality.evaluation.scorers import Drawing, Scorer, find_scorers
from duality.evaluation.sweep.samples import (
    Case,
    Row,
    Samples,
    cut_real_text,
    label_of,
    read_samples,
    run_names,
    sample_path,
)
from duality.evaluation.sweep.sweep import Advance, Sweep, check_cases
from duality.files.atomic import output_folder
from duality.files.progress import Reporter, silent, working
from duality.hub.fetch import model_source
from duality.models.folder import list_rounds, read_recipe
from duality.models.model import Model, load
from duality.models.sampling import transform
from duality.models.size import check_sampling
from duality.noise import check_seed
from duality.protocols import Tail
from duality.ranks import job
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.recipe import Recipe
from duality.runs.corpus import corpus_of_run
from duality.runs.start import is_model_alone
from duality.samplers.choice import grid_named
from duality.training.devices import device_named

_TAILS: dict[str, Tail] = {tail: tail for tail in get_args(Tail)}


def _read_tail(case: Case) -> Tail:
    """The tail of a case; one that does not exist is refused."""
    if case.tail not in _TAILS:
        raise ValueError(f"--tail {case.tail!r}: choose from {', '.join(_TAILS)}, several with commas")
    return _TAILS[case.tail]


def _sample_case(model: Model, case: Case, batch_size: int, advance: Advance) -> Samples:
    """The samples of a case; ``advance(1)`` is called after every step of every batch."""
    with count_calls(network_of(model.denoiser)) as calls:
        start = time.perf_counter()
        found = model.sample(
            case.num,
            steps=case.steps,
            length=case.length,
            tail=_read_tail(case),
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
        self.batch_size = batch_size

        @lru_cache(maxsize=1)
        def load_once(run: Path, number: int | None, step: int | None) -> tuple[Model, str]:
            model = load(run, report, device, round=number, step=step)
            return model, weights_id(model)

        self._load = load_once

    def model(self, case: Case) -> Model:
        """The model of a case."""
        return self._load(case.run, case.round, case.checkpoint)[0]

    def weights(self, case: Case) -> str:
        """The identifier of the weights of a case's model."""
        return self._load(case.run, case.round, case.checkpoint)[1]

    def sample(self, case: Case, advance: Advance) -> Samples:
        """The samples of a case."""
        return _sample_case(self.model(case), case, self.batch_size, advance)

    def check(self, cases: Sequence[Case]) -> None:
        """Refuse, before anything is sampled, what does not exist or cannot be: a run, a round, a sampler, a length."""
        for case in cases:
            model = self.model(case)
            check_sampling(model.denoiser, min(case.num, self.batch_size), case.length, model.device)
            transform(model.denoiser, case.top_p, case.temperature)
            model.named_sampler(case.sampler, case.eta)
            grid_named(case.grid, case.sampler)
            _read_tail(case)

    def total_steps(self, cases: Sequence[Case]) -> int:
        """How many steps the samples of all cases take, over all batches."""
        return sum(case.steps * -(-case.num // self.batch_size) for case in cases)


def held_out_text(
    recipe: Recipe,
    num: int,
    length: int,
    report: Reporter,
    run: Path | None = None,
    moved_to: str | Path | None = None,
) -> Samples | None:
    """Real text of the recipe's validation set, in whole sequences of ``length`` tokens; None if there is none.

    The corpus must be that of the training of ``run``, if one is given; ``moved_to`` is where it is now. The corpus of
    a model alone may not be on this machine.
    """
    name, data = recipe.data.corpus, recipe.data
    if run is not None and moved_to is None and is_model_alone(run) and not is_there(name):
        report(f"no real text: {name}, the corpus of {run.name}, is not here; --corpus says where it is")
        return None

    def read() -> Corpus:
        return prepare_corpus(recipe, report) if run is None else corpus_of_run(run, recipe, report, moved_to)

    corpus = job().in_turn(read)
    found = cut_real_text(make_sequences(data, corpus.validation, corpus.tokenizer, length), corpus.tokenizer, num)
    if found is None:
        report(f"no real text: no sequence of the validation set of {name} has {length} tokens")
    return found


# --- the cases of runs


def measure_runs(
    runs: Sequence[Path],
    request: SweepRequest,
    *,
    out: Path,
    judge: Judge | str | None = None,
    scorers: Sequence[Scorer | str] = (),
    device: torch.device | str = "auto",
    batch_size: int = 16,
    corpus: str | Path | None = None,
    report: Reporter = silent,
) -> list[Row]:
    """Measure the samples of runs into the folder ``out``: rows, tables and figures.

    ``judge`` may be a name for ``find_judge``, and ``scorers`` may be names for ``find_scorers``. ``corpus`` is where
    the corpus of the first run is now, if it was moved.
    """
    where, first = device_named(device), job().first
    cases = _cases_of(runs, request)
    check_cases(cases)
    source = RunSampler(where, report, batch_size)
    source.check(cases)
    # rank 0 of a job scores for all
    scored = find_scorers(scorers, cases[0].run, report, corpus) if first else []
    reader = (find_judge(judge, where, report) if first else None) if isinstance(judge, str) else judge
    job().once(lambda: output_folder(out))
    text = held_out_text(read_recipe(cases[0].run), cases[0].num, cases[0].length, report, cases[0].run, corpus)
    with working(report, "sampling", source.total_steps(cases), "steps") as advance:
        rows = Sweep(out, source, report, reader, text, scored).measure(cases, advance)

    def draw_rows() -> None:
        draw(rows, out / "quality.png", out / "rounds.png")
        if has_frontiers(rows):
            write_frontiers(dict.fromkeys(rows, out), out)
        for scorer in scored:
            if isinstance(scorer, Drawing):
                scorer.draw(read_samples(sample_path(out, cases[-1]), cases[-1]).texts, out / scorer.name)

    job().once(draw_rows)
    return rows


def _cases_of(runs: Sequence[Path], request: SweepRequest) -> list[Case]:
    """All cases of a sweep over runs."""
    if not runs:
        raise ValueError("nothing to measure: name run folders, such as runs/demo")
    check_seed(request.seed)
    names, cases = run_names(runs), list[Case]()
    for each in runs:
        run = model_source(each).folder
        recipe = read_recipe(run)
        length = recipe.data.length if request.length is None else request.length
        # a sampler's own number of steps does not depend on the vocabulary
        own_steps = recipe.method.sampler(2).steps(length)
        rounds = request.rounds_of(list_rounds(run, recipe))
        for number, (sampler, tail, steps, temperature) in product(rounds, request.combinations()):
            case = Case(
                label=label_of(names[each], number, request.checkpoint),
                run=run,
                steps=own_steps if steps is None else steps,
                num=request.num,
                length=length,
                seed=request.seed,
                round=number,
                sampler=sampler,
                eta=request.eta if has_eta(sampler) else None,
                tail=tail,
                grid=request.grid,
                top_p=request.top_p,
                temperature=temperature,
                checkpoint=request.checkpoint,
            )
            cases.append(case)
    return cases

"""``train`` and ``distill``: a recipe or a run in, a trained model out. The commands of the same names call this.

    model = duality.train("duo-laptop", data=["A text.", "Another text."], out="runs/mine", steps=500)
    tuned = duality.train(start="runs/mine", data="other.txt", out="runs/tuned")
    few = duality.distill("runs/mine", rounds=3, round_steps=100)

A plan (``TrainingPlan``) is what a call resolves to: the recipe with all changes, and its run folder. ``data`` may be
a path, the name of a corpus, texts (a list, a generator) or tensors of ids. What is in memory is written into ``data/``
of the run folder and trained on from there, so that a run can be resumed and measured without the program that started
it.

What must hold: the same arguments with ``resume=True`` continue a run that was stopped, and give the model that an
uninterrupted call gives; data that is in a run folder already is never replaced; other data for the same run is
refused.
"""

from __future__ import annotations

import filecmp
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from duality.data import TEXT_COLUMN
from duality.data.memory import write_corpus
from duality.diffusion import Compare, Divergence
from duality.files.atomic import atomic_folder
from duality.files.bars import Bars
from duality.files.lock import locked
from duality.files.progress import Reporter, silent
from duality.hub.fetch import model_source
from duality.hub.package import PretrainedConfig
from duality.models.folder import DATA, exists, read_recipe
from duality.models.model import Model, load
from duality.ranks import job
from duality.recipes import catalogue
from duality.recipes.config import build
from duality.recipes.derive import derive_distillation, derive_finetuning
from duality.recipes.recipe import Recipe
from duality.runs.corpus import DataInMemory, TrainingData
from duality.runs.requests import DistillRequest, RoundChanges, TrainRequest
from duality.runs.resume import TrainingPlan, check_folder
from duality.runs.session import Outcome, Watch, show_training
from duality.runs.start import DistillationBase, FinetuningSource
from duality.runs.trackers.tracker import Tracker
from duality.training import DISTILLATIONS, Growth, TeacherCopy, checkpoint
from duality.training.distillation import distillation_named, suited_distillation


class TrainingStopped(RuntimeError):
    """A signal stopped a training, which has been saved: at ``step``, by ``signal``."""

    def __init__(self, folder: Path, outcome: Outcome):
        super().__init__(
            f"training in {folder} was stopped by {signal.Signals(outcome.signal).name} at step {outcome.step} and "
            "saved: the same call with resume=True continues it"
        )
        self.step, self.signal = outcome.step, outcome.signal


def _train_and_load(
    plan: TrainingPlan,
    device: torch.device | str,
    report: Reporter,
    watch: Watch | None,
    log: Sequence[str | Tracker],
    progress: bool,
) -> Model:
    """Train until the last step and load the result; ``TrainingStopped`` if a signal came first."""
    progress = progress and job().first
    report = Bars.beside(report, progress)
    with show_training(report, plan.recipe.training.steps, watch) if progress else nullcontext(watch) as see:
        outcome = plan.run(device=device, report=report, watch=see, log=log)
    if outcome.signal:
        raise TrainingStopped(plan.folder, outcome)
    return load(plan.folder, report, device)


def plan_training(request: TrainRequest) -> TrainingPlan:
    """What ``train`` does for a request; data from memory is written into the run folder here."""
    data, resume, start, changes = request.data, request.resume, request.start, request.changes()
    source = None if start is None else FinetuningSource.read(start)
    base, folder = _first_recipe(request, source)
    if source is not None and request.recipe is None and data is None and not (resume and exists(folder)):
        raise ValueError(f"nothing to finetune {start} on: give a text with --data (data=), or name a recipe")
    chosen = catalogue.modify(base, changes)
    if source is not None:
        chosen = source.fit(chosen)
    if data is None or isinstance(data, (str, Path)):
        chosen = catalogue.modify(chosen, (), chosen.data.corpus if data is None else data, request.column)
        return TrainingPlan(chosen, folder, resume, source)
    if request.column is not None:
        raise ValueError(f"column={request.column!r} belongs to files; data from memory has no columns: leave it out")
    first = data[0] if isinstance(data, Sequence) and len(data) else data
    if source is not None and not source.reads_ids and isinstance(first, torch.Tensor):
        raise ValueError(f"data is ids, and {start} reads text: give texts, which its own tokenizer makes into ids")
    check_folder(folder, resume)
    with locked(folder):
        chosen = _with_data(chosen, data, folder)
    if source is not None:  # ids have a tokenizer of their own, which the source has already
        chosen = replace(chosen, data=replace(chosen.data, tokenizer=source.tokenizer))
    return TrainingPlan(chosen, folder, resume, source)


def _with_data(recipe: Recipe, data: DataInMemory, folder: Path) -> Recipe:
    """The recipe on data from memory, which is written into ``folder``."""
    target = folder / DATA
    with atomic_folder(target) as temporary:  # what is there already stays
        written, tokenizer = write_corpus(data, temporary)
        path = target / written.name
        if target.exists() and not (path.is_file() and filecmp.cmp(written, path, shallow=False)):
            raise ValueError(f"{target} holds other data than was given: give the same, or choose another out folder")
    own = replace(recipe.data, column=TEXT_COLUMN)  # of the file that was written
    if tokenizer is not None:
        own = replace(own, tokenizer=tokenizer)
    return catalogue.modify(replace(recipe, data=own), corpus=path)


def _first_recipe(request: TrainRequest, source: FinetuningSource | None) -> tuple[Recipe, Path]:
    """The recipe before any changes, and its run folder: by name, as it is, of the run that is there, or of a source.

    A finetuning has the last phase of its method alone, unless its recipe divides the phases.
    """
    recipe, out = request.recipe, None if request.out is None else Path(request.out).expanduser()
    if recipe is None and source is None and not (request.resume and out is not None and exists(out)):
        raise ValueError(
            "nothing to train: name a RECIPE (`duality recipes` lists them), a model to begin from (--from, start=), "
            "or with --resume the --out folder of a run"
        )
    base = recipe if isinstance(recipe, Recipe) else None
    if recipe is None and source is not None:
        asked = catalogue.modify(derive_finetuning(source.recipe, source.step), request.changes()).training
        base = derive_finetuning(source.recipe, source.step, asked.steps, adapters=asked.lora > 0)
    name = recipe if isinstance(recipe, str) else None if base is None else base.name
    folder = out if out is not None else Path("runs") / str(name)
    goes_on = not isinstance(recipe, Recipe) and request.resume and exists(folder)
    if goes_on:
        base = read_recipe(folder)
    elif base is None:
        base = catalogue.recipe(str(name))
    assert base is not None, "it is read, derived or named"
    if name is not None and base.name != name:
        raise ValueError(f"{folder} holds a run of {base.name}, not of {name}: resume it by its name")
    if source is not None and not goes_on and base.training.phase_steps is None:
        base = replace(base, training=replace(base.training, phase_steps=0))
    return base, folder


def train(
    recipe: str | Recipe | None = None,
    *,
    start: Path | str | None = None,
    data: TrainingData | None = None,
    column: str | None = None,
    out: Path | str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    set: Sequence[str] = (),
    resume: bool = False,
    device: torch.device | str = "auto",
    report: Reporter = silent,
    watch: Watch | None = None,
    log: Sequence[str | Tracker] = (),
    progress: bool = True,
) -> Model:
    """Train a recipe into the run folder ``out`` (``runs/<name>`` if not given) and load the model.

    ``recipe`` is a name (``duality recipes`` lists them) or a ``Recipe``. ``data`` replaces its corpus: a path, a named
    corpus, texts or tensors of ids. ``column`` is the key of a .jsonl file, or the column of a .csv or .tsv file, that
    holds the text. ``set`` changes fields, such as ``set=["training.batch_size=8", "backbone=mini"]``; ``steps`` and
    ``seed`` are short for two of them. With ``resume`` a run that is in ``out`` continues. ``report`` is called with
    messages, ``watch`` with the ``StepRecord`` of every step. On a terminal and in a notebook a bar shows the
    ``progress``, unless it is False. A signal (Ctrl-C) saves the run and raises
    ``TrainingStopped``.

    With ``start`` the training begins from the model of a run, or of whatever else ``load`` reads, with its tokenizer:
    a finetuning. Without a ``recipe`` it has that of the source, with less training (``derive.derive_finetuning``).
    ``log`` are trackers, by name ("tensorboard", "wandb") or as objects (``trackers.Tracker``).
    """
    request = TrainRequest(recipe, start, out, data, column, steps, seed, set, resume)
    return _train_and_load(plan_training(request), device, report, watch, log, progress)


def plan_distillation(request: DistillRequest) -> TrainingPlan:
    """What ``distill`` does for a request."""
    source = model_source(request.run)
    folder, base = source.folder, read_recipe(source.folder)
    if request.out is None and source.commit is not None:
        raise ValueError(f"a distillation of {source.place} needs a place: say where with --out (out=)")
    # without a distillation that fits, the first one says why
    name = request.method or suited_distillation(base.method) or next(iter(DISTILLATIONS))
    out = folder.with_name(f"{folder.name}-{name}") if request.out is None else Path(request.out).expanduser()
    goes_on = request.resume and exists(out)
    given = request.changes.given_fields(build(distillation_named(name), {}))
    fields = (*(() if request.seed is None else (f"training.seed={request.seed}",)), *request.set)
    if goes_on:
        chosen = read_recipe(out)
        old, rounds = chosen.distillation, given.get("rounds")
        if old is not None and rounds is not None and rounds != old.rounds:  # and what follows from it
            new, generation = replace(old, rounds=rounds), chosen.generation  # type: ignore[type-var]  # a dataclass
            if generation.steps == old.sampling_steps:
                generation = replace(generation, steps=new.sampling_steps)
            summary = chosen.summary.replace(f"for {old.rounds} rounds", f"for {rounds} rounds")
            training = replace(chosen.training, steps=new.steps)
            chosen = replace(chosen, summary=summary, distillation=new, training=training, generation=generation)
        fields = (*(f"distillation.{field}={value}" for field, value in given.items()), *fields)
    else:
        checkpoints = folder / "checkpoints"
        step = checkpoint.latest_step(checkpoints) if exists(folder) else PretrainedConfig.read(folder).step
        chosen = derive_distillation(base, name, step, given)
    chosen = catalogue.modify(chosen, fields, request.corpus)
    return TrainingPlan(chosen, out, request.resume, DistillationBase(source.pinned))


def distill(
    run: Path | str,
    *,
    method: str | None = None,
    rounds: int | None = None,
    round_steps: int | None = None,
    delta: float | None = None,
    growth: Growth | None = None,
    teacher: TeacherCopy | None = None,
    divergence: Divergence | None = None,
    compare: Compare | None = None,
    for_steps: int | None = None,
    out: Path | str | None = None,
    corpus: Path | str | None = None,
    seed: int | None = None,
    set: Sequence[str] = (),
    resume: bool = False,
    device: torch.device | str = "auto",
    report: Reporter = silent,
    watch: Watch | None = None,
    log: Sequence[str | Tracker] = (),
    progress: bool = True,
) -> Model:
    """Distill what ``load`` takes into a model that needs fewer steps, in the run folder ``out``, and load it.

    ``method`` is a name of ``duality.training.DISTILLATIONS``; the one that suits the model's noise if not given. The
    next seven arguments are fields of the distillation (``duality.DCD``, ``duality.SDTT``). If not given,
    ``round_steps`` is a hundredth of the run's own steps, but at least 150, and ``out`` is ``<run>-<method>``.
    ``for_steps`` chooses ``rounds`` and ``delta`` for a model that will be sampled with so many steps. ``corpus`` is
    where the corpus of the run is now, if it was moved. The rest is as for ``train``.
    """
    changes = RoundChanges(rounds, round_steps, teacher, delta, growth, divergence, compare, for_steps)
    request = DistillRequest(run, method, changes, out, corpus, seed, set, resume)
    return _train_and_load(plan_distillation(request), device, report, watch, log, progress)

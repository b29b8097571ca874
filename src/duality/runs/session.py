"""Training into a run folder: a new run, one that goes on, a distillation or a finetuning.

``steps`` has the steps themselves, ``starting`` what they begin from. In a job of several processes (``ranks``) all of
them call this, and rank 0 alone writes. What must hold: an interrupted and resumed training equals an uninterrupted one
bit for bit; what cannot be trained leaves no run behind.

A checkpoint in parts (``training.checkpoint=sharded``) made into one of whole files.

What must hold: the tensors are the same, bit for bit; at every moment the checkpoint is there, in one of its forms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from duality.data.corpus import Corpus
from duality.data.stream import StreamLoader
from duality.files.lock import locked
from duality.files.progress import Reporter, silent
from duality.hub.fetch import model_source
from duality.models.folder import (
    check_base,
    check_folder,
    check_no_distillation,
    continued,
    create,
    exists,
    open_folder,
    read_recipe,
)
from duality.models.provenance import code_version, corpus_facts
from duality.models.size import trained_words
from duality.ranks import job
from duality.recipes import catalogue
from duality.recipes.recipe import Recipe
from duality.runs.corpora import corpus_of_run, facts, loader, prepared
from duality.runs.start import begin_finetuning, begin_from, check_checkpoint, check_source
from duality.runs.start import layout_for as layout_for  # these were defined here
from duality.runs.start import untrained as untrained
from duality.runs.steps import Outcome as Outcome
from duality.runs.steps import Session
from duality.runs.steps import Watch as Watch
from duality.runs.steps import ignore as ignore
from duality.runs.steps import phases_of as phases_of
from duality.runs.trackers.tracker import NO_TRACKERS, Trackers
from duality.training import checkpoint
from duality.training.adapters import is_adapter
from duality.training.parallel import layout_of
from duality.training.state import TrainState


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    report: Reporter = silent,
    watch: Watch = ignore,
    may_be_longer: bool = False,
    trackers: Trackers = NO_TRACKERS,
) -> Outcome:
    """Train ``recipe`` into ``folder``, which is locked; with ``resume``, continue the run that is there.

    With ``may_be_longer`` that run may have another number of steps (``longer.longer`` has the rule).
    """
    agree(recipe)
    with ExitStack() as held:
        job().once(lambda: lock(folder, resume, held, report))
        return train_locked(recipe, folder, resume, device, report, watch, may_be_longer, trackers)


def lock(folder: Path, resume: bool, held: ExitStack, report: Reporter) -> None:
    """Lock a folder that may be trained into until ``held`` is left."""
    check_folder(folder, resume)
    held.enter_context(locked(folder, report))


def agree(recipe: Recipe) -> None:
    """Refuse a job whose ranks were given different recipes, or have different versions of the code."""
    if job().alone:
        return
    written = json.dumps(catalogue.to_json(recipe), sort_keys=True)
    facts = {
        "recipe": hashlib.sha256(written.encode("utf-8")).hexdigest()[:12],
        "version of the code": code_version(),
        "version of torch": torch.__version__,
    }
    job().agree(facts, "start all ranks with the same command, and install the same versions on all machines")


def train_locked(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    device: torch.device | str,
    report: Reporter,
    watch: Watch,
    may_be_longer: bool,
    trackers: Trackers,
) -> Outcome:
    """``train`` in a folder that this process, or rank 0 of its job, has locked."""
    place = job()
    place.share(recipe.training.batch_size)  # refuses a number of processes that does not divide the batch
    before = place.once(lambda: open_folder(recipe, folder, resume, may_be_longer))
    if before is None and recipe.training.lora:
        raise ValueError(
            f"training.lora is {recipe.training.lora}, and an untrained network has nothing to adapt: name the model "
            "to begin from with --from (start=), or leave the adapters out"
        )
    corpus = place.in_turn(lambda: corpus_to_train(recipe, folder, before, report))
    place.agree(corpus_facts(corpus), "give all ranks the same text")
    batches = loader(recipe, corpus, folder)
    for line in facts(recipe, corpus):
        report(line)
    path = place.once(lambda: checkpoint.newest_intact(folder / "checkpoints", report))
    if path is not None:
        check_checkpoint(path, recipe, corpus, folder)
    state = untrained(recipe, corpus, device, layout_for(recipe, corpus, torch.device(device)))
    if before is None:
        if recipe.distillation is not None:
            raise ValueError(f"{recipe.name} begins from a trained run: start it with `duality distill RUN`")
        place.once(lambda: create(recipe, folder, corpus))  # only now: what cannot be trained leaves no run behind
    say_trained(recipe, state, report)
    if path is not None:
        parts = checkpoint.parts_of(path)
        saved = checkpoint.load(path, None if parts is None else ())
        state.restore(saved, parts)
        check_round(recipe, saved.state, folder)
    changes: tuple[str, ...] = ()
    if before is not None:
        recipe = place.once(lambda: continued(before, recipe, folder, state.step, report))
        changes = tuple(catalogue.differences(before, recipe))
        if state.step:
            report(f"resuming at step {state.step} of {recipe.training.steps}")
    with batches if isinstance(batches, StreamLoader) else nullcontext():
        return Session(recipe, folder, corpus, state, device, watch, trackers, changes).run(batches, report)


def say_trained(recipe: Recipe, state: TrainState, report: Reporter) -> None:
    """Say how many of the weights are trained, if not all are."""
    weights = dict(state.model.named_parameters())
    count = sum(value.numel() for name, value in weights.items() if not is_adapter(name))
    words = trained_words(recipe, count, sum(value.numel() for value in weights.values() if value.requires_grad))
    if words is not None:
        report(f"{count:,} parameters; {words}")


def corpus_to_train(recipe: Recipe, folder: Path, before: Recipe | None, report: Reporter) -> Corpus:
    """The corpus of a new run, or that of the run in ``folder``, which was trained as ``before``."""
    if before is None:
        check_no_distillation(folder)
        return prepared(recipe, report)
    moved_to = None if recipe.data.corpus == before.data.corpus else recipe.data.corpus
    return corpus_of_run(folder, recipe, report, moved_to)


def check_round(recipe: Recipe, state: checkpoint.State, folder: Path) -> None:
    """Refuse a teacher of another round or another delta than the recipe has at this step."""
    if recipe.distillation is None:
        return
    number = recipe.distillation.round_of(state["step"])
    expected = {"round": number, "delta": recipe.distillation.delta_of_round(number)}
    found = {name: state.get(name) for name in expected}
    if found != expected:
        raise ValueError(
            f"the checkpoint of {folder} at step {state['step']} is of {found}, its recipe says {expected}: "
            "restore the recipe.json that it was started with"
        )


def distill(
    base: Path,
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    report: Reporter = silent,
    watch: Watch = ignore,
    may_be_longer: bool = False,
    trackers: Trackers = NO_TRACKERS,
) -> Outcome:
    """Distill the run or model ``base`` into ``folder`` as ``recipe`` (``recipes.recipe.distilled``) says."""
    with begun(
        recipe,
        folder,
        resume,
        report,
        begin=lambda: begin_from(base, recipe, folder, report),
        check=lambda: check_base(folder, recipe.name, model_source(base).folder, report),
    ):
        return train_locked(recipe, folder, True, device, report, watch, may_be_longer, trackers)


def finetune(
    place: str,
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    report: Reporter = silent,
    watch: Watch = ignore,
    may_be_longer: bool = False,
    trackers: Trackers = NO_TRACKERS,
) -> Outcome:
    """Train the model of the source at ``place`` (``starting.place_of``) as ``recipe`` says, into ``folder``."""
    with begun(
        recipe,
        folder,
        resume,
        report,
        begin=lambda: begin_finetuning(place, recipe, folder, report),
        check=lambda: check_source(folder, place, report),
    ):
        return train_locked(recipe, folder, True, device, report, watch, may_be_longer, trackers)


@contextmanager
def begun(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    report: Reporter,
    begin: Callable[[], None],
    check: Callable[[], None],
) -> Iterator[None]:
    """Lock a folder in which rank 0 has begun a run, or checked that the one that is there began in the same manner."""
    agree(recipe)
    job().share(recipe.training.batch_size)  # what the ranks cannot do is refused before the run is begun
    if job().alone:
        layout_of(recipe.parallel, job(), torch.device("cpu"), 0, 0)

    def begin_or_check(held: ExitStack) -> None:
        lock(folder, resume, held, report)
        (check if exists(folder) else begin)()

    with ExitStack() as held:
        job().once(lambda: begin_or_check(held))
        yield


# --- checkpoints in parts


def consolidate(folder: Path, step: int | None = None, report: Reporter = silent) -> Path:
    """Put the parts of a run's checkpoint together, the newest or that of a ``step``; it must fit into memory."""
    read_recipe(folder)  # which says what to do if it is no run
    checkpoints = folder / "checkpoints"
    with locked(folder, report):
        found = (
            checkpoint.newest_intact(checkpoints, report) if step is None else checkpoint.kept_step(checkpoints, step)
        )
        if found is None:
            raise ValueError(f"{folder} has no checkpoint yet: there is nothing to put together")
        if checkpoint.parts_of(found) is None:
            raise ValueError(f"{found} has whole files already: there is nothing to put together")
        saved = checkpoint.load(found)
        state = {name: value for name, value in saved.state.items() if name not in ("step", "parts")}
        return checkpoint.save(checkpoints, saved.step, saved.groups, state, keep=1 << 30)

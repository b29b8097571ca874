"""How a run is begun or resumed: which folder may be trained into, and with which recipe a run that is there goes on.

``TrainingPlan.run`` locks the folder and begins a run in it (``start``) or finds the one that goes on. Its ``Session``
then takes the steps. In a job of several processes (``ranks``) all of them call this, and rank 0 alone writes.

A run goes on as it began. What may change is how it is optimised, logged and sampled from there on, how it is divided
over ranks, the place of its corpus, and the number of its steps or rounds. A precision that the recipe leaves to the
machine ("auto") is that of the machine on which the run began.

The rule for another number of steps. From the step where the run is, learning rate and phases are those of the new
number of steps, as if it had been planned from the start; so the rate of a run that had cooled down rises again. A
phase that has ended does not begin again: if the new number would put the run back into one, the phases stay divided as
they were (``training.phase_steps``) and the last one goes on. A distillation gets further rounds, each with its own
delta, and is then sampled with the steps of its new last round. Fewer steps than were taken are refused.

What must hold: what cannot be trained leaves no run behind; nothing that is in a folder is overwritten; a start that
crashed can be started again; what a run does from a step on depends on its recipe and its checkpoint alone, so that a
longer training that is killed and resumed equals one that was not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import get_args

import torch

from duality.data.corpus import Corpus
from duality.data.stream import StreamLoader
from duality.files.atomic import PARTIAL, no_empty_folder, write_atomically
from duality.files.lock import LOCK, locked
from duality.files.progress import Reporter, silent
from duality.models import folder as folders
from duality.ranks import job
from duality.recipes import catalogue
from duality.recipes.corpus import describe_corpus, make_loader, prepare_corpus
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Recipe
from duality.runs.corpus import corpus_of_run
from duality.runs.session import Outcome, Session, Watch
from duality.runs.start import DistillationBase, FinetuningSource, check_checkpoint, make_state
from duality.runs.trackers.tracker import Tracker, trackers_named
from duality.training import Precision, checkpoint
from duality.training.metrics import append_metrics, rewind_metrics
from duality.training.parallel import layout_of
from duality.training.precision import precision_on, slowness
from duality.training.settings import device_named

# What a start that crashed may leave before the recipe is written.
_BEFORE_RECIPE: tuple[str, ...] = ("tokenizer.json", "env.json", "corpus.json", "checkpoints", LOCK)
_BEFORE_RECIPE += (folders.ROUNDS, folders.DATA, folders.STREAM, folders.RECIPE, folders.BASE)

# What of the training may change when a run goes on: how it is optimised from here on and how it is logged.
_CHANGEABLE: tuple[str, ...] = ("learning_rate", "clip", "warmup", "micro_batch", "precision", "recompute", "compile")
_CHANGEABLE += ("log_every", "eval_every", "save_every", "keep", "checkpoint")


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that must not be trained into; a new folder is made."""
    if folders.exists(folder):
        if not resume:
            raise ValueError(
                f"{folder} already holds a run: continue it with --resume (resume=True), or choose another --out (out=)"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "the run folder cannot be written", str(folder))
    partial = tuple(f"{PARTIAL}{name}." for name in _BEFORE_RECIPE)  # what was being written when a start crashed
    names = (path.name for path in folder.iterdir())
    foreign = sorted(name for name in names if name not in _BEFORE_RECIPE and not name.startswith(partial))
    if foreign:
        raise ValueError(f"{folder} holds other files ({', '.join(foreign[:3])}): choose an empty --out (out=)")


@dataclass(frozen=True)
class TrainingPlan:
    """A training that is ready to start: its recipe and its run folder.

    ``source`` is the model that it begins from, None for a new network. With ``resume`` the run that is in the folder
    goes on; with ``may_be_longer`` it may have another number of steps.
    """

    recipe: Recipe
    folder: Path
    resume: bool = False
    source: DistillationBase | FinetuningSource | None = None
    may_be_longer: bool = True

    def run(
        self,
        *,
        device: torch.device | str = "auto",
        report: Reporter = silent,
        watch: Watch | None = None,
        log: Sequence[str | Tracker] = (),
    ) -> Outcome:
        """Train until the last step or a signal."""
        recipe, folder, place = self.recipe, self.folder, job()
        trackers = place.together(lambda: trackers_named(log, report))
        if not place.alone:
            versions = {"version of the code": _code_version(), "version of torch": torch.__version__}
            remedy = "start all ranks with the same command, and install the same versions on all machines"
            place.agree({"recipe": catalogue.to_json(recipe), **versions}, remedy)
        place.share(recipe.training.batch_size)  # refuses a number of processes that does not divide the batch
        where = device_named(device)
        if place.alone:
            layout_of(recipe.parallel, place, where, 0, 0)  # which refuses what needs several processes
        with ExitStack() as held:
            before = place.once(lambda: self._enter(held, report))

            def read_corpus() -> Corpus:
                """The corpus of a new run, or that of the run in the folder, which may have been moved."""
                if before is None:
                    return prepare_corpus(self.recipe, report)
                name = self.recipe.data.corpus
                return corpus_of_run(folder, self.recipe, report, None if name == before.data.corpus else name)

            corpus = place.in_turn(read_corpus)
            place.agree({"corpus": corpus.checksums()}, "give all ranks the same text")
            batches = make_loader(recipe, corpus, folder / folders.STREAM)
            for line in describe_corpus(recipe, corpus):
                report(line)
            path = place.once(lambda: checkpoint.newest_intact(folder / "checkpoints", report))
            if path is not None:
                check_checkpoint(path, recipe, corpus, folder)
            precision = place.once(lambda: self._choose_precision(path, where, report))
            state = make_state(_in_precision(recipe, precision), corpus, where, report=report)
            if before is None:
                # only now: what cannot be trained leaves no run
                place.once(lambda: folders.write_facts(recipe, folder, corpus.tokenizer, corpus.checksums()))
            if path is not None:
                self._check_round(state.restore(path))
            recipe, changes = place.once(lambda: self._continue(before, state.step, report))
            if isinstance(batches, StreamLoader):
                held.enter_context(batches)
            recipe = _in_precision(recipe, precision)
            return Session(recipe, folder, corpus, state, where, watch, trackers, changes).run(batches, report)

    def _enter(self, held: ExitStack, report: Reporter) -> Recipe | None:
        """Lock the folder until ``held`` is left; the recipe of the run in it, None if that is to be new.

        A distillation or a finetuning begins its run here; one that is there is compared with what it began from. New
        weights are refused where one was begun and not completed: its weights are there.
        """
        recipe, folder = self.recipe, self.folder
        held.enter_context(no_empty_folder(folder))
        check_folder(folder, self.resume)
        held.enter_context(locked(folder, report))
        checkpoint.undo_replacement(folder / "checkpoints")
        if self.source is not None and folders.exists(folder):
            self.source.check(folder, report)
        elif self.source is not None:
            corpus, state, began = self.source.begin(recipe, folder, report)
            # the checkpoint that the run begins with, then what says that it is a run
            write_atomically(folder / folders.BASE, json.dumps(began, indent=1))
            session = Session(recipe, folder, corpus, state, torch.device("cpu"))
            if recipe.distillation is not None:
                session.save_round()
            session.save()
            session.saver.wait()
            folders.write_facts(recipe, folder, corpus.tokenizer, corpus.checksums())
        if folders.exists(folder):
            return self._check_recipe()
        record = folders.read_base(folder)
        if record is not None:
            kind, how = ("finetuning", "train --from") if "weights" in record else ("distillation", "distill")
            raise ValueError(
                f"{folder} holds the beginning of a {kind}: complete it with `duality {how}`, choose another --out "
                "(out=), or delete it"
            )
        if recipe.training.lora:
            raise ValueError(
                f"training.lora is {recipe.training.lora}, and an untrained network has nothing to adapt: name the "
                "model to begin from with --from (start=), or leave the adapters out"
            )
        if recipe.distillation is not None:
            raise ValueError(f"{recipe.name} begins from a trained run: start it with `duality distill RUN`")
        return None

    def _check_recipe(self) -> Recipe:
        """The recipe of the run in the folder; it is refused if it may not go on as this plan says."""
        recipe, folder = self.recipe, self.folder
        before = folders.read_recipe(folder)
        changeable = (*_CHANGEABLE, *(("steps",) if self.may_be_longer else ()))
        # The corpus may be in another place: its tokens are compared by corpus.corpus_of_run.
        may = ("generation.", "parallel.", "data.corpus:", *(f"training.{name}:" for name in changeable))
        if self.may_be_longer:
            may = (*may, "distillation.rounds:", "summary:")
        changes = catalogue.differences(before, _lengthen(before, recipe, 0))
        fixed = [change for change in changes if not change.startswith(may)]
        if fixed:
            raise ValueError(
                f"{folder} was started with another recipe ({'; '.join(fixed[:4])}): a run continues as it began, but "
                f"for generation, parallel and training.{{{', '.join(changeable)}}}; leave the changed flags out, or "
                "choose another --out (out=)"
            )
        step = checkpoint.latest_step(folder / "checkpoints")
        if recipe.training.steps < step:
            rounds = "" if recipe.distillation is None else f" ({recipe.distillation.rounds} rounds)"
            raise ValueError(
                f"training.steps is {recipe.training.steps}{rounds}, and the run has taken {step} steps: give at least "
                "as many, or choose another --out (out=)"
            )
        return before

    def _choose_precision(self, path: Path | None, device: torch.device, report: Reporter) -> Precision:
        """What the run computes in: what the recipe says, or what "auto" meant when the run began, wherever it goes on.

        The checkpoint at ``path`` says so; one that does not is of a run that has taken no step yet, or an old one.
        """
        chosen = self.recipe.training.precision
        if chosen == "auto" and path is not None:
            kept = checkpoint.load(path, ()).state.get("precision", chosen)
            chosen = next((name for name in get_args(Precision) if name == kept), chosen)
        if (slow := slowness(chosen, device)) is not None:
            report(f"training.precision is {chosen}: {slow}; float32 is another one that a run may go on with")
        return precision_on(chosen, device)

    def _check_round(self, state: checkpoint.State) -> None:
        """Refuse a teacher of another round or another delta than the recipe has at this step."""
        if (distillation := self.recipe.distillation) is None:
            return
        expected = distillation.round_at(state["step"])
        found = {name: state.get(name) for name in expected}
        if found != expected:
            raise ValueError(
                f"the checkpoint of {self.folder} at step {state['step']} is of {found}, its recipe says {expected}: "
                "restore the recipe.json that it was started with"
            )

    def _continue(self, before: Recipe | None, step: int, report: Reporter) -> tuple[Recipe, tuple[str, ...]]:
        """The recipe with which a run that was ``before`` goes on from ``step``, and its changes; they are recorded."""
        if before is None:
            return self.recipe, ()
        recipe = _lengthen(before, self.recipe, step)
        changes = catalogue.differences(before, recipe)
        if changes:
            rewind_metrics(self.folder, step)  # a line that was cut short by a crash would swallow the next one
            append_metrics(self.folder, {"step": step, "changed": changes})
            folders.write_recipe(recipe, self.folder)
        training = recipe.training
        if training.steps != before.training.steps:
            kept, ended = training.phase_steps, "except that a phase that has ended does not begin again"
            report(
                f"training.steps changes from {before.training.steps} to {training.steps}: from step {step + 1} on, "
                f"learning rate ({training.rate(step):.3g} there) and phases are those of {training.steps} steps"
                + ("" if kept is None else f", {ended} (phase_steps {kept})")
            )
        if step:
            report(f"resuming at step {step} of {training.steps}")
        return recipe, tuple(changes)


def _in_precision(recipe: Recipe, precision: Precision) -> Recipe:
    """The recipe in this precision."""
    return replace(recipe, training=replace(recipe.training, precision=precision))


def _lengthen(before: Recipe, wanted: Recipe, step: int) -> Recipe:
    """``wanted``, which may have another number of steps than ``before``, for a run that has taken ``step`` steps."""
    if wanted.training.phase_steps is None:  # phases that were kept as they were stay so
        wanted = replace(wanted, training=replace(wanted.training, phase_steps=before.training.phase_steps))
    # how many phases have ended, of which the last one never does; their ends do not depend on the vocabulary
    ended = [sum(phase.until <= step for phase in method_phases(each, 2)[:-1]) for each in (before, wanted)]
    if wanted.distillation is not None or ended[1] >= ended[0]:
        return wanted
    return replace(wanted, training=replace(wanted.training, phase_steps=before.training.steps))


def _code_version() -> str:
    """The version of this library and a checksum of its source files."""
    digest, root = hashlib.sha256(), Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode("utf-8") + b"\0" + path.read_bytes())
    return f"{metadata.version('diffusion-duality')} {digest.hexdigest()[:12]}"

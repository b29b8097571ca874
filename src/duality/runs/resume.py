"""How a run is resumed: which folder may be trained into, and with which recipe the run that is there goes on.

A run goes on as it began. What may change is how it is optimised, logged and sampled from there on, how it is divided
over ranks, the place of its corpus, and the number of its steps or rounds. A distillation or a finetuning goes on with
the model that it began from, wherever that is now, which is compared by the checksums in base.json.

The rule for another number of steps. From the step where the run is, learning rate and phases are those of the new
number of steps, as if it had been planned from the start; so the rate of a run that had cooled down rises again. A
phase that has ended does not begin again: if the new number would put the run back into one, the phases stay divided as
they were (``training.phase_steps``) and the last one goes on. A distillation gets further rounds, each with its own
delta, and is then sampled with the steps of its new last round. Fewer steps than were taken are refused.

What must hold: nothing that is in a folder is overwritten; a start that crashed can be started again; what a run does
from a step on depends on its recipe and its checkpoint alone, so that a longer training that is killed and resumed
equals one that was not.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from duality.files.atomic import file_sha256
from duality.files.lock import LOCK
from duality.files.progress import Reporter
from duality.hub import package
from duality.models.folder import (
    BASE,
    DATA,
    RECIPE,
    ROUNDS,
    STREAM,
    WEIGHTS,
    checksums,
    exists,
    hash_parameters,
    read_base,
    read_recipe,
    write_recipe,
)
from duality.models.model import load
from duality.recipes import catalogue
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Recipe
from duality.training import checkpoint
from duality.training.metrics import append_metrics, rewind_metrics

# What a start that crashed may leave before the recipe is written.
_BEFORE_RECIPE = ("tokenizer.json", "env.json", "corpus.json", "checkpoints", ROUNDS, DATA, STREAM, RECIPE, BASE, LOCK)

# What of the training may change when a run goes on: how it is optimised from here on and how it is logged.
_CHANGEABLE = (
    "learning_rate",
    "clip",
    "warmup",
    "micro_batch",
    "precision",
    "recompute",
    "compile",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
    "checkpoint",
)


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that must not be trained into; a new folder is made."""
    if exists(folder):
        if not resume:
            raise ValueError(
                f"{folder} already holds a run: continue it with --resume (resume=True), or choose another --out (out=)"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "the run folder cannot be written", str(folder))
    # ".corpus.json.123" is a file that was being written when a start crashed
    names = [path.name for path in folder.iterdir()]
    foreign = sorted(
        name
        for name in names
        if name not in _BEFORE_RECIPE and not (name.startswith(".") and name[1:].startswith(_BEFORE_RECIPE))
    )
    if foreign:
        raise ValueError(f"{folder} holds other files ({', '.join(foreign[:3])}): choose an empty --out (out=)")


def check_new_weights(folder: Path) -> None:
    """Refuse new weights where a distillation or a finetuning was begun and not completed: its weights are there."""
    record = read_base(folder)
    if record is not None:
        kind, how = ("finetuning", "train --from") if "weights" in record else ("distillation", "distill")
        raise ValueError(
            f"{folder} holds the beginning of a {kind}: complete it with `duality {how}`, choose another --out (out=), "
            "or delete it"
        )


def check_recipe(recipe: Recipe, folder: Path, may_be_longer: bool) -> Recipe:
    """The recipe of the run in ``folder``; it is refused if it may not go on as ``recipe``.

    With ``may_be_longer`` it may have another number of steps, or of rounds.
    """
    before = read_recipe(folder)
    changeable = (*_CHANGEABLE, *(("steps",) if may_be_longer else ()))
    # The corpus may be in another place: its tokens are compared by corpus.corpus_of_run.
    may = ("generation.", "parallel.", "data.corpus:", *(f"training.{name}:" for name in changeable))
    if may_be_longer:
        may = (*may, "distillation.rounds:", "summary:")
    changes = catalogue.differences(before, _lengthen(before, recipe, 0))
    fixed = [change for change in changes if not change.startswith(may)]
    if fixed:
        raise ValueError(
            f"{folder} was started with another recipe ({'; '.join(fixed[:4])}): a run continues as it began, but for "
            f"generation, parallel and training.{{{', '.join(changeable)}}}; leave the changed flags out, or choose "
            "another --out (out=)"
        )
    step = checkpoint.latest_step(folder / "checkpoints")
    if recipe.training.steps < step:
        rounds = "" if recipe.distillation is None else f" ({recipe.distillation.rounds} rounds)"
        raise ValueError(
            f"training.steps is {recipe.training.steps}{rounds}, and the run has taken {step} steps: give at least as "
            "many, or choose another --out (out=)"
        )
    return before


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


def continue_recipe(before: Recipe, recipe: Recipe, folder: Path, step: int, report: Reporter) -> Recipe:
    """The recipe with which a run that was ``before`` goes on from ``step``; changes are recorded."""
    recipe = _lengthen(before, recipe, step)
    changes = catalogue.differences(before, recipe)
    if changes:
        rewind_metrics(folder, step)  # a line that was cut short by a crash would swallow the next one
        append_metrics(folder, {"step": step, "changed": changes})
        write_recipe(recipe, folder)
    training = recipe.training
    if training.steps != before.training.steps:
        kept, ended = training.phase_steps, "except that a phase that has ended does not begin again"
        report(
            f"training.steps changes from {before.training.steps} to {training.steps}: from step {step + 1} on, "
            f"learning rate ({training.rate(step):.3g} there) and phases are those of {training.steps} steps"
            + ("" if kept is None else f", {ended} (phase_steps {kept})")
        )
    return recipe


# --- another number of steps


def _phases_ended(recipe: Recipe, step: int) -> int:
    """How many phases have ended before ``step``; the last one does not end."""
    phases = method_phases(recipe, 2)  # their ends do not depend on the vocabulary
    return sum(phase.until <= step for phase in phases[:-1])


def _lengthen(before: Recipe, wanted: Recipe, step: int) -> Recipe:
    """``wanted``, which may have another number of steps than ``before``, for a run that has taken ``step`` steps."""
    if wanted.training.phase_steps is None:  # phases that were kept as they were stay so
        wanted = replace(wanted, training=replace(wanted.training, phase_steps=before.training.phase_steps))
    if wanted.distillation is not None or _phases_ended(wanted, step) >= _phases_ended(before, step):
        return wanted
    return replace(wanted, training=replace(wanted.training, phase_steps=before.training.steps))


def with_rounds(before: Recipe, rounds: int) -> Recipe:
    """A distillation with another number of rounds, and what follows from it."""
    old = before.distillation
    if old is None or rounds == old.rounds:
        return before
    new, generation = replace(old, rounds=rounds), before.generation  # type: ignore[type-var]  # all are dataclasses
    if generation.steps == old.sampling_steps:
        generation = replace(generation, steps=new.sampling_steps)
    return replace(
        before,
        summary=before.summary.replace(f"for {old.rounds} rounds", f"for {rounds} rounds"),
        distillation=new,
        training=replace(before.training, steps=new.steps),
        generation=generation,
    )


# --- what it began from


def check_base(folder: Path, name: str, base: Path, report: Reporter) -> None:
    """Refuse to continue the distillation ``name`` in ``folder`` with another base than it began from."""
    record = read_base(folder)
    if record is None:
        report(f"{folder} has no base.json, which says what it began from: {base} is not compared with it")
        return
    if "weights" in record:
        raise ValueError(f"{folder} is a finetuning of {record.get('source')}, no distillation: choose another --out")
    began = {group: record.get(group) for group in WEIGHTS}
    kept = base / "checkpoints" / f"step-{record['step']:08d}"
    where = f"step {record['step']} of {record.get('run')}"
    alone = base / package.WEIGHTS
    if kept.is_dir() or alone.is_file():
        if (dict.fromkeys(WEIGHTS, file_sha256(alone)) if alone.is_file() else checksums(kept)) == began:
            return
        found = f"the weights of {base} at that step are others"
    elif record.get("run") == str(base.resolve()):
        report(f"{folder} began from {where}, which is not kept any more and is not compared")
        return
    else:
        found = f"{base} has no checkpoint of that step"
    raise ValueError(
        f"{folder} is a distillation of {where}, and {found}: give the run that it began from, or choose another "
        f"--out (out=) for a new distillation; `duality train {name} --out {folder} --resume` "
        "continues it without its base"
    )


def check_source(folder: Path, place: str, report: Reporter) -> None:
    """Refuse to continue the finetuning in ``folder`` from another model than it began from."""
    record = read_base(folder)
    if record is None or "weights" not in record:
        raise ValueError(
            f"{folder} did not begin as a finetuning: continue it without --from (start=), or choose another --out "
            "(out=)"
        )
    step, where = record["step"], f"step {record['step']} of {record.get('source')}"
    assert isinstance(step, int)
    there = checkpoint.steps_saved(Path(place) / "checkpoints") if exists(Path(place)) else []
    if exists(Path(place)) and step not in there and record.get("source") == place:
        report(f"{folder} began from {where}, which is not kept any more and is not compared")
        return
    model = load(place, report, "cpu", step=step) if step in there else load(place, report, "cpu")
    if hash_parameters(model.denoiser) != record["weights"]:
        raise ValueError(
            f"{folder} is a finetuning of {where}, and the weights of {place} are others: give the source that it "
            "began from, continue it without --from (start=), or choose another --out (out=)"
        )

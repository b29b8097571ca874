"""The commands `train` and `distill`: a recipe, or a trained run, becomes a run folder with a model."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from duality.cli.common import Assignments, Column, Device, DistillationName, Flag, Folder, Log, MaybeName, Start
from duality.ranks import job
from duality.training.round_changes import RoundChanges

if TYPE_CHECKING:
    from duality.runs.train import TrainingPlan


_UNCHANGED = RoundChanges()


def train(
    recipe: MaybeName = None,
    /,
    start: Start = None,
    out: Path | None = None,
    data: str | None = None,
    column: Column = None,
    steps: int | None = None,
    seed: int | None = None,
    assignments: Assignments = (),
    resume: Flag = False,
    device: Device = "auto",
    log: Log = (),
    dry_run: Flag = False,
) -> int:
    """Train a recipe into a run folder, from new weights or from those of a trained model.

    Args:
        recipe: a name that `duality recipes` lists. With --from it may be left out: then it is the recipe of SOURCE,
            with a tenth of its steps and a fifth of its learning rate. With --resume it may be left out too.
        start: finetune: begin from the model in this run folder, with its tokenizer. Network, tokenizer and labels stay
            as they are; --data and all settings of training may be others.
        out: the run folder; runs/RECIPE if not given.
        data: a text file, a .jsonl file with a document per line, a .csv or .tsv file with one per row, a folder of
            such files, or a source that `duality data list` names. A text file is one document; with --set
            data.documents=lines every line of it is one. With --set data.packing=document a sequence never has two
            documents. With --resume it is where the run's own text is now, if it was moved.
        column: where the text is: the key of a .jsonl file, the column of a .csv or .tsv file; text if not given. Short
            for --set data.column=NAME.
        steps: number of training steps; short for --set training.steps=N. With --resume a run that is there goes on to
            this number of steps.
        seed: seed of weights, data order and noise; short for --set training.seed=N.
        assignments: change a field of the recipe, such as --set training.learning_rate=1e-3 or --set backbone=mini;
            can be repeated.
        resume: continue the run in --out where its last checkpoint is, with the settings it was started with; start it
            if there is none. A job that torchrun starts again after a failure does so without being told.
        device: where to compute; auto takes a GPU if there is one.
        log: show the training in TensorBoard (tensorboard) or Weights & Biases (wandb, which is offline; wandb:online),
            or in a tracker of yours (module:Class); can be repeated.
        dry_run: print the recipe as it would run, with its parameters and memory, and stop.
    """
    from duality.runs.train import plan_training

    resume = resume or job().restarts > 0
    plan = plan_training(
        recipe,
        start=start,
        data=data,
        column=column,
        out=out,
        steps=steps,
        seed=seed,
        set=assignments,
        resume=resume,
    )
    return carried_out(plan, device, dry_run, log)


def distill(
    run: Folder,
    /,
    method: DistillationName | None = None,
    changes: Annotated[RoundChanges, tyro.conf.arg(name="")] = _UNCHANGED,
    out: Path | None = None,
    corpus: str | None = None,
    seed: int | None = None,
    assignments: Assignments = (),
    resume: Flag = False,
    device: Device = "auto",
    log: Log = (),
    dry_run: Flag = False,
) -> int:
    """Distill a trained run into one that writes in few steps; the result is a run like any other.

    Args:
        run: the run folder of the trained model, a folder of `duality publish`, or a model of the hub (hf:OWNER/NAME).
        method: discrete consistency distillation (dcd, for uniform noise) or self-distillation through time (sdtt, for
            absorbing noise); what suits the model if not given.
        changes: the rounds.
        out: the new run folder; RUN-METHOD if not given.
        corpus: where the corpus of RUN is now, if it was moved; its text must be the one that RUN was trained on.
        seed: seed of data order and noise; short for --set training.seed=N.
        assignments: change a field of the recipe, such as --set training.learning_rate=1e-3; can be repeated.
        resume: continue the distillation in --out where its last checkpoint is; start it if there is none.
        device: where to compute; auto takes a GPU if there is one.
        log: show the training in TensorBoard (tensorboard) or Weights & Biases (wandb, which is offline; wandb:online),
            or in a tracker of yours (module:Class); can be repeated.
        dry_run: print the recipe as it would run, with its parameters and memory, and stop.
    """
    from duality.runs.train import plan_distillation

    resume = resume or job().restarts > 0
    plan = plan_distillation(
        run, changes, method=method, out=out, corpus=corpus, seed=seed, set=assignments, resume=resume
    )
    return carried_out(plan, device, dry_run, log)


def busy_remark(load: float) -> str | None:
    """What to say if other programs use the cores that this one is about to use.

    Two threads that wait for each other are slower than one as soon as one of them has to share its core.
    """
    import torch

    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    free = cores - load
    if torch.cuda.is_available() or threads == 1 or not job().alone or threads <= free + 0.5:
        return None
    return (
        f"other programs use {load:.1f} of the {cores} cores, and this training {threads} threads: it may be faster "
        f"with OMP_NUM_THREADS={max(1, int(free))}; the digits of a run depend on it, so it is not changed for you"
    )


def carried_out(plan: TrainingPlan, device: Device, dry_run: bool, log: Log) -> int:
    """Train as planned and show it, or only describe it; the exit code."""
    from duality.cli.console import say, training_display
    from duality.models.describe import describe

    if dry_run:
        print(describe(plan.recipe))
        return 0
    with suppress(OSError, AttributeError):  # not every system has it
        busy = busy_remark(os.getloadavg()[0])
        if busy is not None:
            say(busy)
    with training_display(plan.recipe.training.steps) as watch:
        outcome = plan.run(device=device, report=say, watch=watch, log=log)
    if outcome.signal:
        say(f"stopped by a signal at step {outcome.step}; saved. Continue with the same command and --resume")
        return 128 + outcome.signal
    print(plan.result())
    return 0

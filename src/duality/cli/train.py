"""Train a recipe; distil a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from duality.cli.common import Assignments, Device, Flag, Folder, Name, pick
from duality.runs import session

if TYPE_CHECKING:
    from duality.runs.session import Outcome


def train(
    recipe: Name,
    /,
    out: Path | None = None,
    data: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    assignments: Assignments = (),
    resume: Flag = False,
    device: Device = "auto",
    dry_run: Flag = False,
) -> int:
    """Train a recipe into a run folder.

    Args:
        recipe: a name that `duality recipes` lists.
        out: the run folder; runs/RECIPE if not given.
        data: a text file, a folder of text, or a source that `duality data list` names.
        steps: number of training steps; short for --set training.steps=N.
        seed: seed of weights, data order and noise; short for --set training.seed=N.
        assignments: change a field of the recipe, such as --set training.learning_rate=1e-3 or --set backbone=tiny;
            can be repeated.
        resume: continue the run in --out where its last checkpoint is, with the settings it was started with; start it
            if there is none.
        device: where to compute; auto takes a GPU if there is one.
        dry_run: print the recipe as it would run, with its parameters and memory, and stop.
    """
    from duality.cli.console import say, training_display
    from duality.recipes.catalogue import modified
    from duality.recipes.catalogue import recipe as find
    from duality.runs.describe import describe
    from duality.runs.folder import exists, read_recipe, with_corpus

    folder = out or Path("runs") / recipe
    shorthand = {"training.steps": steps, "training.seed": seed}
    changes = [f"{field}={value}" for field, value in shorthand.items() if value is not None]
    base = read_recipe(folder) if resume and exists(folder) else find(recipe)
    if base.name != recipe:
        raise ValueError(f"{folder} holds a run of {base.name}, not of {recipe}: resume it by its name")
    chosen = modified(base, (*changes, *assignments))
    chosen = with_corpus(chosen, data or chosen.data.corpus)
    if dry_run:
        describe(chosen)
        return 0
    with training_display(chosen.training.steps) as watch:
        outcome = session.train(chosen, folder, resume=resume, device=pick(device), report=say, watch=watch)
    return finished(folder, outcome)


def finished(folder: Path, outcome: Outcome) -> int:
    """Say how a training ended; the command's exit code."""
    from duality.cli.console import say
    from duality.runs.metrics import read_metrics

    if outcome.signal:
        say(f"stopped by a signal at step {outcome.step}; saved. Continue with the same command and --resume")
        return 128 + outcome.signal
    last = [row for row in read_metrics(folder) if "validation_nats" in row][-1]
    nats = f"{last['validation_nats']:.4f} ± {last['validation_stderr']:.4f} nats per token"
    print(f"{folder}: step {outcome.step}, validation {nats} ({last.get('validation_kind', 'bound')})")
    return 0


def distill(
    run: Folder,
    /,
    method: Literal["dcd", "sdtt"] | None = None,
    rounds: int | None = None,
    round_steps: int | None = None,
    teacher: Literal["weights", "ema"] | None = None,
    delta: float | None = None,
    growth: Literal["double", "linear"] | None = None,
    divergence: Literal["kl-backward", "kl-forward", "mse", "tvd"] | None = None,
    out: Path | None = None,
    seed: int | None = None,
    assignments: Assignments = (),
    resume: Flag = False,
    device: Device = "auto",
    dry_run: Flag = False,
) -> int:
    """Distil a trained run into one that writes in few steps; the result is a run like any other.

    Args:
        run: the run folder of the trained model.
        method: discrete consistency distillation (dcd, for uniform noise) or self-distillation through time (sdtt, for
            absorbing noise); what suits the model if not given.
        rounds: how often the teacher becomes a copy of the student; 5 if not given.
        round_steps: training steps of each round; a hundredth of the run's own steps if not given, as in the paper.
        teacher: whose copy teaches: the student's weights (the default) or their average (ema).
        delta: the first round's stride, as a share of the time from data to noise; 1/512 (dcd) or 1/1024 (sdtt).
        growth: from round to round the stride doubles, or grows linearly.
        divergence: what is made small between student and teacher; kl-backward is KL(student || teacher).
        out: the new run folder; RUN-METHOD if not given.
        seed: seed of data order and noise; short for --set training.seed=N.
        assignments: change a field of the recipe, such as --set training.learning_rate=1e-3; can be repeated.
        resume: continue the distillation in --out where its last checkpoint is; start it if there is none.
        device: where to compute; auto takes a GPU if there is one.
        dry_run: print the recipe as it would run, with its parameters and memory, and stop.
    """
    from duality.cli.console import say, training_display
    from duality.recipes.catalogue import modified
    from duality.recipes.recipe import distilled
    from duality.runs.describe import describe
    from duality.runs.folder import exists, read_recipe
    from duality.training import checkpoint
    from duality.training.distillation import DISTILLATIONS, suited

    base = read_recipe(run)
    kind = suited(base.method) if method is None else DISTILLATIONS[method]
    folder = out or run.with_name(f"{run.name}-{kind.__name__.lower()}")
    flags: dict[str, Any] = {
        "rounds": rounds,
        "round_steps": round_steps,
        "teacher": teacher,
        "delta": delta,
        "growth": growth,
        "divergence": divergence,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    changes = (*(() if seed is None else (f"training.seed={seed}",)), *assignments)
    if resume and exists(folder):
        told = (f"distillation.{name}={value}" for name, value in given.items())
        chosen = modified(read_recipe(folder), (*told, *changes))
    else:
        settings = kind(**{"round_steps": max(1, base.training.steps // 100), **given})
        chosen = modified(distilled(base, settings, checkpoint.latest_step(run / "checkpoints")), changes)
    if dry_run:
        describe(chosen)
        return 0
    with training_display(chosen.training.steps) as watch:
        outcome = session.distil(run, chosen, folder, resume=resume, device=pick(device), report=say, watch=watch)
    return finished(folder, outcome)

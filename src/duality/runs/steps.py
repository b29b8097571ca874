"""The steps of a training, and what is written between them.

A session writes metrics, checkpoints, the weights of a round that has ended, a validation likelihood and two samples,
and gives all but the weights to trackers (``trackers``). In a job of several processes (``ranks``) all of them call
this, and rank 0 alone writes. What must hold: the numbers of a training do not depend on what is written or tracked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from duality.data.corpus import Corpus
from duality.data.loader import Batches
from duality.files.atomic import flush_to_disk, write_atomically
from duality.files.progress import Reporter
from duality.models.folder import ROUNDS, is_finetuning
from duality.models.model import Model, network
from duality.models.plan import operations_per_second
from duality.protocols import Phase, Vocabulary
from duality.ranks import job, saving_group
from duality.recipes.longer import method_phases
from duality.recipes.recipe import Recipe
from duality.runs.corpora import sequences
from duality.runs.trackers.tracker import NO_TRACKERS, Trackers
from duality.training import checkpoint
from duality.training.adapters import merged
from duality.training.loop import StepRecord, fit, interruptible, phase_at
from duality.training.metrics import append_metrics, log_row, plot_losses, read_metrics, rewind_metrics
from duality.training.parallel import whole
from duality.training.saving import Groups, Saver
from duality.training.state import TrainState, load_weights

_EVAL_SEQUENCES = 256

Watch = Callable[[StepRecord], None]


def ignore(record: StepRecord) -> None:
    """A watcher that does nothing."""


@dataclass(frozen=True)
class Outcome:
    """How a training ended: at which step, and stopped by which signal; 0 is a complete training."""

    step: int
    signal: int


def phases_of(recipe: Recipe, corpus: Corpus, teacher: nn.Module | None) -> tuple[Phase, ...]:
    """The phases of training: the method's own, or a distillation's rounds."""
    num_tokens = corpus.tokenizer.vocab_size
    if recipe.distillation is None or teacher is None:
        return method_phases(recipe, num_tokens)
    return recipe.distillation.phases(recipe.method, num_tokens, teacher)


@dataclass(frozen=True)
class Session:
    """One call of ``train``: steps, and what is written between them."""

    recipe: Recipe
    folder: Path
    corpus: Corpus
    state: TrainState
    device: torch.device | str
    watch: Watch = ignore
    trackers: Trackers = NO_TRACKERS
    changes: tuple[str, ...] = ()
    """What of the recipe has changed since the run was last trained."""
    saver: Saver = field(default_factory=Saver)

    def run(self, batches: Batches, report: Reporter) -> Outcome:
        """Train until the recipe's last step or a signal; the last step is saved in both cases."""
        training, state, place = self.recipe.training, self.state, job()
        phases = phases_of(self.recipe, self.corpus, state.teacher)
        place.once(lambda: rewind_metrics(self.folder, state.step))
        peak = operations_per_second(self.recipe, torch.device(self.device))
        first, stopped = state.step, 0

        with self.saver, self.trackers.tracking(self.recipe, self.folder, first), interruptible() as request:
            if self.changes:
                self.trackers.metrics({"step": first, "changed": list(self.changes)})

            def after_step(record: StepRecord) -> bool:
                nonlocal stopped
                self.watch(record)
                last, stopped = record.step == training.steps, place.largest(request.signal)
                if last or stopped or record.step % training.log_every == 0:
                    elapsed = time.monotonic() - started
                    rate = record.num_tokens * (record.step - first) / elapsed
                    self.log(log_row(record, first, elapsed, rate, peak))
                if self.recipe.distillation is not None and record.step % self.recipe.distillation.round_steps == 0:
                    self.save_round()
                if record.step % training.save_every == 0:
                    self.save()
                if training.eval_every and record.step % training.eval_every == 0 and not (last or stopped):
                    self.evaluate()
                return not stopped

            if state.step == 0 and place.once(lambda: is_finetuning(self.folder) and not self.evaluated()):
                self.evaluate()  # what it begins from
            started = time.monotonic()
            if state.step < training.steps:
                phase = phase_at(phases, state.step)
                report(f"training {self.recipe.name} to step {training.steps}, phase {phase.name}, in {self.folder}")
                fit(state, batches, phases, training, after_step)
            place.together(self.saver.wait)
            if place.once(lambda: checkpoint.latest_step(self.folder / "checkpoints")) < state.step:
                self.save()
                place.together(self.saver.wait)
            if state.step == training.steps and not place.once(self.evaluated):
                self.evaluate()
            place.once(self.draw_losses)
            return Outcome(state.step, stopped if state.step < training.steps else 0)

    def log(self, row: dict[str, Any]) -> None:
        """Write a row of metrics."""
        if job().first:
            append_metrics(self.folder, row)
            self.trackers.metrics(row)

    def draw_losses(self) -> None:
        """Draw the loss curve."""
        target = self.folder / "loss.png"
        plot_losses(read_metrics(self.folder), target, self.recipe.name)
        self.trackers.figure(self.state.step, "loss", target)

    def evaluated(self) -> bool:
        """Whether the present step has its validation likelihood."""
        return any(row["step"] == self.state.step and "validation_nats" in row for row in read_metrics(self.folder))

    def save(self) -> None:
        """Write a checkpoint; all ranks must call it."""
        job().once(self.flush_metrics)
        self.keep(self.folder / "checkpoints", ("model", "ema", "teacher", "optimizer"), self.recipe.training.keep)

    def save_round(self) -> None:
        """Keep the weights of a round that has ended; all ranks must call it."""
        self.keep(self.folder / ROUNDS, ("model", "ema"), keep=1 << 30)

    def keep(self, folder: Path, names: Sequence[str], keep: int) -> None:
        """Write these groups of tensors as the recipe says: in whole files, or in the parts of the ranks."""
        step, about = self.state.step, self.description()
        if self.recipe.training.checkpoint == "sharded":
            place, connection, parts = job(), saving_group(), self.state.groups(names)

            def write(now: Groups) -> None:
                checkpoint.save_parts(folder, step, now, about, keep, connection)

            place.together(self.saver.wait)
            checkpoint.begin_parts(folder, step)
            place.together(lambda: self.saver.save(parts, write))
            return
        groups = self.state.groups_on_first(names)
        job().once(lambda: self.saver.save(groups, lambda now: checkpoint.save(folder, step, now, about, keep)))

    def flush_metrics(self) -> None:
        """Make the log survive a loss of power; a run that begins from another one has none yet."""
        if (self.folder / "metrics.jsonl").exists():
            flush_to_disk(self.folder / "metrics.jsonl")

    def description(self) -> checkpoint.State:
        """What a checkpoint holds beside its tensors."""
        tokenizer, distillation = self.corpus.tokenizer, self.recipe.distillation
        state: checkpoint.State = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
        if distillation is not None:
            number = distillation.round_of(self.state.step)
            state |= {"round": number, "delta": distillation.delta_of_round(number)}
        return state

    def evaluate(self) -> None:
        """Log the validation likelihood and write two samples, with the averaged weights."""
        names, tokenizer = self.corpus.label_names, self.corpus.tokenizer
        denoiser = network(self.recipe, Vocabulary(tokenizer.vocab_size, len(names)), self.device)
        averages = {name: whole(value) for name, value in self.state.ema.items()}
        load_weights(denoiser, merged(averages, self.recipe.training))
        model = Model(self.recipe, self.state.step, denoiser.requires_grad_(False), tokenizer, names)
        held_out = sequences(self.recipe.data, self.corpus.validation, tokenizer)
        result = model.likelihood(held_out, limit=_EVAL_SEQUENCES, num_draws=4, device=self.device)
        self.log(
            {
                "step": self.state.step,
                "validation_nats": result.nats_per_token,
                "validation_stderr": result.stderr,
                "validation_tokens": result.num_tokens,
                "validation_kind": result.kind,
                **({"validation_padding": result.padding} if result.num_padding else {}),
            }
        )
        rows = [sample.row(model.step) for sample in model.sample(2)]
        target = self.folder / "samples" / f"step-{self.state.step:08d}.jsonl"

        def write_samples() -> None:
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, "".join(json.dumps(row) + "\n" for row in rows))
            self.trackers.samples(self.state.step, [str(row["text"]) for row in rows])

        job().once(write_samples)

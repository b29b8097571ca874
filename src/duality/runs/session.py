"""The steps of a training in its run folder, and what is written between them.

A ``Session`` takes the steps, and writes metrics, checkpoints, the weights of a round that has ended, a validation
likelihood and two samples; trackers (``trackers``) get all but the weights.

In a job of several processes (``ranks``) all of them call this, and rank 0 alone writes. What must hold: an interrupted
and resumed training equals an uninterrupted one bit for bit; the numbers of a training do not depend on what is written
or tracked.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from duality.data.corpus import Corpus
from duality.data.frequencies import nats_of_counts
from duality.data.loader import Batches
from duality.data.packing import Sequences
from duality.files.atomic import flush_to_disk, own_process, write_atomically
from duality.files.lock import holder_of, locked
from duality.files.progress import Pace, Reporter, showing, silent
from duality.models.folder import BASE, ROUNDS, exists, read_recipe
from duality.models.model import Model, network
from duality.models.plan import operations_per_second
from duality.models.requests import SampleRequest
from duality.protocols import Vocabulary
from duality.ranks import job
from duality.recipes.corpus import make_sequences
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Recipe
from duality.runs.trackers.tracker import Trackers
from duality.training import checkpoint
from duality.training.adapters import merge_adapters
from duality.training.loop import StepRecord, TrainState, load_weights, own_batches, phase_at, take_step
from duality.training.metrics import (
    MARKS,
    METRICS,
    append_metrics,
    compare_with_counts,
    plot_losses,
    read_metrics,
    rewind_metrics,
)
from duality.training.parallel import gather, gather_on_first
from duality.training.precision import precision_on

_EVAL_SEQUENCES = 256

Watch = Callable[[StepRecord], None]


@dataclass(frozen=True)
class Outcome:
    """How a training ended: at which step, and stopped by which signal; 0 is a complete training."""

    step: int
    signal: int


@dataclass(frozen=True)
class Session:
    """The steps of one call of ``TrainingPlan.run`` (``resume``), and what is written between them."""

    recipe: Recipe
    folder: Path
    corpus: Corpus
    state: TrainState
    device: torch.device
    watch: Watch | None = None
    trackers: Trackers = field(default_factory=Trackers)
    changes: tuple[str, ...] = ()
    """What of the recipe has changed since the run was last trained."""
    saver: checkpoint.Saver = field(default_factory=checkpoint.Saver)

    def run(self, batches: Batches, report: Reporter) -> Outcome:
        """Train until the recipe's last step or a signal; the last step is saved in both cases."""
        training, state, place, folder = self.recipe.training, self.state, job(), self.folder
        distillation, first, stopped = self.recipe.distillation, state.step, 0
        phases = method_phases(self.recipe, self.corpus.tokenizer.vocab_size, state.teacher)
        peak = operations_per_second(self.recipe, self.device)
        evaluated = place.once(lambda: rewind_metrics(folder, first))

        def draw_losses() -> None:
            rows = read_metrics(folder)
            plot_losses(rows, folder / "loss.png", self.recipe.name)
            words = compare_with_counts(rows, training.learning_rate)
            # the bound of a model of few steps is not what it is trained for
            if words and state.step == training.steps and distillation is None:
                report(words)
            self.trackers.each(lambda tracker: tracker.figure(state.step, "loss", folder / "loss.png"))

        with self.saver, self.trackers.tracking(self.recipe, folder, first), _interruptible() as request:
            if self.changes:
                row = {"step": first, "changed": list(self.changes)}
                self.trackers.each(lambda tracker: tracker.metrics(row))
            finetuned = distillation is None and place.once(lambda: (folder / BASE).exists())
            if finetuned and first == 0 and first not in evaluated:
                self.evaluate()  # what it begins from
            started = time.monotonic()
            if first < training.steps:
                phase = phase_at(phases, first).name
                report(f"training {self.recipe.name} to step {training.steps}, phase {phase}, in {folder}")
            control = _Control(request, first, time.monotonic())
            with own_batches(state, batches, phases, training) as own:
                while state.step < training.steps and not stopped:
                    record = take_step(state, own, phases, training)
                    if self.watch is not None:
                        self.watch(record)
                    last, stopped = record.step == training.steps, control.signal_after(record.step)
                    if last or stopped or record.step % training.log_every == 0:
                        self.log(_log_row(record, first, time.monotonic() - started, peak))
                    if distillation is not None and record.step % distillation.round_steps == 0:
                        self.save_round()
                    if record.step % training.save_every == 0:
                        self.save()
                    if training.eval_every and record.step % training.eval_every == 0 and not (last or stopped):
                        self.evaluate()
            place.together(self.saver.wait)
            if place.once(lambda: checkpoint.latest_step(folder / "checkpoints")) < state.step:
                self.save()
                place.together(self.saver.wait)
            if state.step == training.steps and state.step not in evaluated:
                self.evaluate()
            place.once(draw_losses)
            return Outcome(state.step, stopped if state.step < training.steps else 0)

    def log(self, row: dict[str, object]) -> None:
        """Write a row of metrics; all ranks must call it."""
        job().once(self._check_folder)
        if job().first:
            append_metrics(self.folder, row)
            self.trackers.each(lambda tracker: tracker.metrics(row))

    def _check_folder(self) -> None:
        """Refuse to go on where the run is no more: what would be written there is no run, or that of another one."""
        holder = holder_of(self.folder)
        if not exists(self.folder) if holder is None else holder.process != own_process():
            raise ValueError(
                f"{self.folder} was deleted, moved or taken by another training before this one wrote to it at step "
                f"{self.state.step}: put it back and continue it with --resume, or train again elsewhere"
            )

    def save(self) -> None:
        """Write a checkpoint; all ranks must call it."""
        metrics = self.folder / METRICS  # a run that begins from another one has none yet
        job().once(lambda: flush_to_disk(metrics) if metrics.exists() else None)  # the log survives a loss of power
        self._write(self.folder / "checkpoints", None, self.recipe.training.keep)

    def save_round(self) -> None:
        """Keep the weights of a round that has ended; all ranks must call it."""
        self._write(self.folder / ROUNDS, ("model", "ema"), keep=1 << 30)

    def _write(self, folder: Path, names: Sequence[str] | None, keep: int) -> None:
        """Write these groups of tensors as the recipe says: in whole files, or in the parts of the ranks."""
        step, place, tokenizer, distillation = self.state.step, job(), self.corpus.tokenizer, self.recipe.distillation
        place.once(self._check_folder)
        about: checkpoint.State = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
        if (precision := self.recipe.training.precision) != "auto":
            about["precision"] = precision
        if distillation is not None:
            about |= distillation.round_at(step)
        if self.recipe.training.checkpoint == "sharded":
            parts, ranks = self.state.groups(names), place.saving
            place.together(self.saver.wait)
            place.once(lambda: checkpoint.begin(folder, step))
            place.together(
                lambda: self.saver.save(parts, lambda now: checkpoint.save_parts(folder, step, now, about, keep, ranks))
            )
            return
        # put together on rank 0 one tensor at a time: no other rank ever has more than its part and one tensor
        groups = {
            group: {name: made for name, value in tensors.items() if (made := gather_on_first(value)) is not None}
            for group, tensors in self.state.groups(names).items()
        }
        place.once(lambda: self.saver.save(groups, lambda now: checkpoint.save(folder, step, now, about, keep)))

    def _marks(self, held_out: Sequences) -> dict[str, float]:
        """What counts of the text give for it; computed once, and from then on those of the log."""
        for row in read_metrics(self.folder):
            if all(name in row for name in MARKS):
                return {name: row[name] for name in MARKS}
        train = make_sequences(self.recipe.data, self.corpus.train, self.corpus.tokenizer)
        return dict(zip(MARKS, nats_of_counts(train, held_out, _EVAL_SEQUENCES), strict=True))

    def evaluate(self) -> None:
        """Log the validation likelihood and write two samples, with the averaged weights."""
        names, tokenizer = self.corpus.label_names, self.corpus.tokenizer
        denoiser = network(self.recipe, Vocabulary(tokenizer.vocab_size, len(names)), self.device)
        averages = {name: gather(value) for name, value in self.state.ema.items()}
        load_weights(denoiser, merge_adapters(averages, self.recipe.training))
        precision = precision_on(self.recipe.training.precision, self.device)
        weights = denoiser.requires_grad_(False)
        model = Model(self.recipe, self.state.step, weights, tokenizer, names, precision=precision)
        held_out = make_sequences(self.recipe.data, self.corpus.validation, tokenizer)
        result = model.likelihood(held_out, limit=_EVAL_SEQUENCES, num_draws=4, device=self.device)
        row: dict[str, object] = {"step": self.state.step, "validation_nats": result.nats_per_token}
        row |= {"validation_stderr": result.stderr, "validation_tokens": result.num_tokens}
        row |= {"validation_kind": result.kind, **job().once(lambda: self._marks(held_out))}
        self.log(row | ({"validation_padding": result.padding} if result.num_padding else {}))
        rows = [sample.row(model.step) for sample in model.write(SampleRequest(2))]
        target = self.folder / "samples" / f"step-{self.state.step:08d}.jsonl"

        def write_samples() -> None:
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, "".join(json.dumps(row) + "\n" for row in rows))
            texts = [str(row["text"]) for row in rows]
            self.trackers.each(lambda tracker: tracker.samples(self.state.step, texts))

        job().once(write_samples)


@contextmanager
def show_training(report: Reporter, steps: int, watch: Watch | None = None) -> Iterator[Watch]:
    """The steps of a training, with loss, tokens per second and time left; ``watch`` gets them too."""
    with showing(report) as show:
        pace: Pace | None = None
        smooth = 0.0

        def show_step(record: StepRecord) -> None:
            nonlocal pace, smooth
            if pace is None:
                # The work begins with the first step of this call, so that neither reading the corpus nor steps that
                # were taken before count as speed.
                pace, smooth = Pace("training", steps, "steps", record.step), record.nats_per_token
            else:
                pace.add(record.step - pace.done, record.num_tokens)
                smooth += 0.05 * (record.nats_per_token - smooth)
            show(pace, f"{record.phase} loss {smooth:.3f}")
            if watch is not None:
                watch(record)

        yield show_step


def _log_row(record: StepRecord, since: int, seconds: float, peak: tuple[float, float] | None) -> dict[str, object]:
    """A step of the log; ``seconds`` count from step ``since``, where this session began. Figures are of the job.

    With ``peak`` (``operations_per_second``) the share of it that is reached (MFU) is logged too.
    """
    place, rate = job(), record.num_tokens * (record.step - since) / seconds
    per_rank = rate / place.size
    row: dict[str, object] = {"step": record.step, "phase": record.phase, "loss": record.loss}
    row |= {"learning_rate": record.rate, "gradient_norm": record.gradient_norm, "tokens_per_second": round(rate)}
    if record.nats_per_token != record.loss:  # padding is among the tokens
        row["nats_per_token"] = record.nats_per_token
    if not place.alone:
        row |= {"ranks": place.size, "per_rank": round(per_rank)}
    if peak is not None:
        row["mfu"] = round(per_rank * peak[0] / peak[1], 4)
    return row | {"seconds": round(seconds, 2), "since": since}


def consolidate(folder: Path, step: int | None = None, report: Reporter = silent) -> Path:
    """Put the parts of a run's checkpoint together, the newest or that of a ``step``; it must fit into memory.

    The tensors are the same, bit for bit; at every moment the checkpoint is there, in one of its forms.
    """
    read_recipe(folder)  # which says what to do if it is no run
    checkpoints = folder / "checkpoints"
    with locked(folder, report):
        found = checkpoint.newest_intact(checkpoints, report, step=step)
        if found is None:
            raise ValueError(f"{folder} has no checkpoint yet: there is nothing to put together")
        if checkpoint.load(found, ()).parts is None:
            raise ValueError(f"{found} has whole files already: there is nothing to put together")
        saved = checkpoint.load(found)
        state = {name: value for name, value in saved.state.items() if name not in ("step", "parts")}
        return checkpoint.save(checkpoints, saved.step, saved.groups, state, keep=1 << 30)


_LOOK_SECONDS = 0.5  # between two messages in which the ranks say whether they were asked to stop
_MOST_STEPS = 100  # between two of them, however short a step is


@dataclass
class _Control:
    """Which signal asks for a stop, in all ranks after the same step.

    A process that is alone knows it after every step. Ranks have to tell each other, for which all of them wait;
    they do so when ``_LOOK_SECONDS`` have passed in the slowest of them, as far as the steps before foretell it.
    """

    request: list[int]
    """The signals that came to this rank."""
    seen: int
    """The step after which the ranks looked last."""
    since: float
    """When they looked last."""
    every: int = 1
    """How many steps later they look again."""

    def signal_after(self, step: int) -> int:
        """The signal that asks for a stop after this step; 0 if there is none, or none has been looked for."""
        own = max(self.request, default=0)
        if job().alone:
            return own
        if step < self.seen + self.every:
            return 0
        now = time.monotonic()
        wanted = int((step - self.seen) * _LOOK_SECONDS / max(now - self.since, 1e-9))
        # the largest signal of the ranks and, if there is none, the smallest number of steps, in one message
        left_out = _MOST_STEPS - min(max(wanted, 1), _MOST_STEPS)
        number, most_left_out = divmod(job().largest(own * _MOST_STEPS + left_out), _MOST_STEPS)
        self.seen, self.every, self.since = step, _MOST_STEPS - most_left_out, now
        return number


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Turn the first SIGINT (Ctrl-C) or SIGTERM into a request to stop; a second one acts as usual.

    The request is the list of the signals that came, which is read between two steps, so that the last one is saved.
    """
    request, previous = list[int](), dict[int, Any]()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(number: int, _frame: object) -> None:
        request.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():  # no other one may handle signals
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, ask)
    try:
        yield request
    finally:
        restore()

"""Training into a run folder: from the folder's lock to the last step, and what is written between the steps.

``TrainingPlan.run`` locks the folder and begins a run in it (``start``) or finds the one that goes on (``resume``). Its
``Session`` then takes the steps, and writes metrics, checkpoints, the weights of a round that has ended, a validation
likelihood and two samples; trackers (``trackers``) get all but the weights.

In a job of several processes (``ranks``) all of them call this, and rank 0 alone writes. What must hold: an interrupted
and resumed training equals an uninterrupted one bit for bit; what cannot be trained leaves no run behind; the numbers
of a training do not depend on what is written or tracked.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from duality.data.corpus import Corpus
from duality.data.loader import Batches
from duality.data.stream import StreamLoader
from duality.files.atomic import flush_to_disk, no_empty_folder, write_atomically
from duality.files.lock import locked
from duality.files.progress import Reporter, silent
from duality.hub.fetch import model_source
from duality.models.folder import BASE, ROUNDS, STREAM, code_version, exists, read_recipe, write_facts
from duality.models.model import Model, network
from duality.models.plan import operations_per_second
from duality.models.size import Outline
from duality.protocols import Vocabulary
from duality.ranks import job, saving_group
from duality.recipes import catalogue
from duality.recipes.corpus import describe_corpus, make_loader, make_sequences, prepare_corpus
from duality.recipes.recipe import Recipe
from duality.runs import resume
from duality.runs.corpus import corpus_of_run
from duality.runs.start import (
    begin_distillation,
    begin_finetuning,
    check_checkpoint,
    make_state,
    phases_of,
)
from duality.runs.trackers.tracker import NO_TRACKERS, Tracker, Trackers, trackers_named
from duality.training import checkpoint
from duality.training.adapters import merge_adapters
from duality.training.devices import device_named
from duality.training.loop import StepRecord, fit, interruptible, phase_at
from duality.training.metrics import append_metrics, log_row, plot_losses, read_metrics, rewind_metrics
from duality.training.parallel import gather, layout_of
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


@dataclass(frozen=True)
class TrainingPlan:
    """A training that is ready to start: its recipe and its run folder.

    ``base`` is the run or model that is distilled, ``start`` where the model is that is finetuned
    (``StartingPoint.place``). With ``resume`` the run that is in the folder goes on; with ``may_be_longer`` it may have
    another number of steps.
    """

    recipe: Recipe
    folder: Path
    resume: bool = False
    base: Path | None = None
    start: str | None = None
    may_be_longer: bool = True

    def run(
        self,
        *,
        device: torch.device | str = "auto",
        report: Reporter = silent,
        watch: Watch = ignore,
        log: Sequence[str | Tracker] = (),
    ) -> Outcome:
        """Train until the last step or a signal."""
        recipe, folder, place, where = self.recipe, self.folder, job(), device_named(device)
        trackers = place.together(lambda: trackers_named(log, report))
        self._check_job()
        with ExitStack() as held:
            before = place.once(lambda: self._enter(held, report))
            corpus = place.in_turn(lambda: self._read_corpus(before, report))
            place.agree({"corpus": _shorten(corpus.checksums())}, "give all ranks the same text")
            batches = make_loader(recipe, corpus, folder / STREAM)
            for line in describe_corpus(recipe, corpus):
                report(line)
            path = place.once(lambda: checkpoint.newest_intact(folder / "checkpoints", report))
            if path is not None:
                check_checkpoint(path, recipe, corpus, folder)
            state = make_state(recipe, corpus, where)
            outline = Outline(recipe, Vocabulary(corpus.tokenizer.vocab_size, len(corpus.label_names)))
            words = outline.describe_trained()
            if words is not None:
                report(f"{outline.parameters:,} parameters; {words}")
            if before is None:
                # only now: what cannot be trained leaves no run
                place.once(lambda: write_facts(recipe, folder, corpus.tokenizer, corpus.checksums()))
            peak = operations_per_second(recipe, where)
            if path is not None:
                parts = checkpoint.parts_of(path)
                saved = checkpoint.load(path, None if parts is None else ())
                state.restore(saved, parts)
                resume.check_round(recipe, saved.state, folder)
            changes: tuple[str, ...] = ()
            if before is not None:
                recipe = place.once(lambda: resume.continue_recipe(before, self.recipe, folder, state.step, report))
                changes = tuple(catalogue.differences(before, recipe))
                if state.step:
                    report(f"resuming at step {state.step} of {recipe.training.steps}")
            if isinstance(batches, StreamLoader):
                held.enter_context(batches)
            session = Session(recipe, folder, corpus, state, where, watch, trackers, changes, peak)
            return session.run(batches, report)

    def _check_job(self) -> None:
        """Refuse a job that cannot train this recipe, or whose ranks do not have the same recipe and code."""
        recipe, place = self.recipe, job()
        if not place.alone:
            versions = {
                "recipe": _shorten(catalogue.to_json(recipe)),
                "version of the code": code_version(),
                "version of torch": torch.__version__,
            }
            remedy = "start all ranks with the same command, and install the same versions on all machines"
            place.agree(versions, remedy)
        place.share(recipe.training.batch_size)  # refuses a number of processes that does not divide the batch
        if place.alone:
            layout_of(recipe.parallel, place, torch.device("cpu"), 0, 0)

    def _enter(self, held: ExitStack, report: Reporter) -> Recipe | None:
        """Lock the folder until ``held`` is left; the recipe of the run in it, None if that is to be new.

        A distillation or a finetuning begins its run here; one that is there is compared with what it began from.
        """
        recipe, folder = self.recipe, self.folder
        held.enter_context(no_empty_folder(folder))
        resume.check_folder(folder, self.resume)
        held.enter_context(locked(folder, report))
        if self.base is not None and exists(folder):
            resume.check_base(folder, recipe.name, model_source(self.base).folder, report)
        elif self.start is not None and exists(folder):
            resume.check_source(folder, self.start, report)
        elif self.base is not None or self.start is not None:
            self._begin(report)
        if exists(folder):
            return resume.check_recipe(recipe, folder, self.may_be_longer)
        resume.check_new_weights(folder)
        if recipe.training.lora:
            raise ValueError(
                f"training.lora is {recipe.training.lora}, and an untrained network has nothing to adapt: name the "
                "model to begin from with --from (start=), or leave the adapters out"
            )
        if recipe.distillation is not None:
            raise ValueError(f"{recipe.name} begins from a trained run: start it with `duality distill RUN`")
        return None

    def _begin(self, report: Reporter) -> None:
        """Write the checkpoint that the run begins with, then what says that it is a run."""
        folder = self.folder
        if self.base is not None:
            found = begin_distillation(self.base, self.recipe, report)
        else:
            found = begin_finetuning(str(self.start), self.recipe, folder, report)
        write_atomically(folder / BASE, json.dumps(found.record, indent=1))
        session = Session(found.recipe, folder, found.corpus, found.state, "cpu")
        if found.recipe.distillation is not None:
            session.save_round()
        session.save()
        session.saver.wait()
        write_facts(found.recipe, folder, found.corpus.tokenizer, found.corpus.checksums())

    def _read_corpus(self, before: Recipe | None, report: Reporter) -> Corpus:
        """The corpus of a new run, or that of the run in the folder, which was trained as ``before``."""
        if before is None:
            return prepare_corpus(self.recipe, report)
        moved_to = None if self.recipe.data.corpus == before.data.corpus else self.recipe.data.corpus
        return corpus_of_run(self.folder, self.recipe, report, moved_to)


def _shorten(facts: object) -> str:
    """What all ranks of a job must have in common, in short: the beginning of a checksum."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8")).hexdigest()[:12]


@dataclass(frozen=True)
class Session:
    """The steps of one call of ``TrainingPlan.run``, and what is written between them."""

    recipe: Recipe
    folder: Path
    corpus: Corpus
    state: TrainState
    device: torch.device | str
    watch: Watch = ignore
    trackers: Trackers = NO_TRACKERS
    changes: tuple[str, ...] = ()
    """What of the recipe has changed since the run was last trained."""
    peak: tuple[float, float] | None = None
    """Operations of a token, and those of the device in a second, if they are known."""
    saver: Saver = field(default_factory=Saver)

    def run(self, batches: Batches, report: Reporter) -> Outcome:
        """Train until the recipe's last step or a signal; the last step is saved in both cases."""
        training, state, place = self.recipe.training, self.state, job()
        phases = phases_of(self.recipe, self.corpus, state.teacher)
        place.once(lambda: rewind_metrics(self.folder, state.step))
        first, stopped = state.step, 0

        with self.saver, self.trackers.tracking(self.recipe, self.folder, first), interruptible() as request:
            if self.changes:
                row = {"step": first, "changed": list(self.changes)}
                self.trackers.each(lambda tracker: tracker.metrics(row))

            def after_step(record: StepRecord) -> bool:
                nonlocal stopped
                self.watch(record)
                last, stopped = record.step == training.steps, place.largest(request.signal)
                if last or stopped or record.step % training.log_every == 0:
                    elapsed = time.monotonic() - started
                    rate = record.num_tokens * (record.step - first) / elapsed
                    self.log(log_row(record, first, elapsed, rate, self.peak))
                if self.recipe.distillation is not None and record.step % self.recipe.distillation.round_steps == 0:
                    self.save_round()
                if record.step % training.save_every == 0:
                    self.save()
                if training.eval_every and record.step % training.eval_every == 0 and not (last or stopped):
                    self.evaluate()
                return not stopped

            finetuned = self.recipe.distillation is None and (self.folder / BASE).exists()
            if state.step == 0 and place.once(lambda: finetuned and not self.is_evaluated()):
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
            if state.step == training.steps and not place.once(self.is_evaluated):
                self.evaluate()
            place.once(self.draw_losses)
            return Outcome(state.step, stopped if state.step < training.steps else 0)

    def log(self, row: dict[str, Any]) -> None:
        """Write a row of metrics."""
        if job().first:
            append_metrics(self.folder, row)
            self.trackers.each(lambda tracker: tracker.metrics(row))

    def draw_losses(self) -> None:
        """Draw the loss curve."""
        target = self.folder / "loss.png"
        plot_losses(read_metrics(self.folder), target, self.recipe.name)
        self.trackers.each(lambda tracker: tracker.figure(self.state.step, "loss", target))

    def is_evaluated(self) -> bool:
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
        averages = {name: gather(value) for name, value in self.state.ema.items()}
        load_weights(denoiser, merge_adapters(averages, self.recipe.training))
        model = Model(self.recipe, self.state.step, denoiser.requires_grad_(False), tokenizer, names)
        held_out = make_sequences(self.recipe.data, self.corpus.validation, tokenizer)
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
            texts = [str(row["text"]) for row in rows]
            self.trackers.each(lambda tracker: tracker.samples(self.state.step, texts))

        job().once(write_samples)


def consolidate(folder: Path, step: int | None = None, report: Reporter = silent) -> Path:
    """Put the parts of a run's checkpoint together, the newest or that of a ``step``; it must fit into memory.

    The tensors are the same, bit for bit; at every moment the checkpoint is there, in one of its forms.
    """
    read_recipe(folder)  # which says what to do if it is no run
    checkpoints = folder / "checkpoints"
    with locked(folder, report):
        if step is None:
            found = checkpoint.newest_intact(checkpoints, report)
        else:
            found = checkpoint.kept_step(checkpoints, step)
        if found is None:
            raise ValueError(f"{folder} has no checkpoint yet: there is nothing to put together")
        if checkpoint.parts_of(found) is None:
            raise ValueError(f"{found} has whole files already: there is nothing to put together")
        saved = checkpoint.load(found)
        state = {name: value for name, value in saved.state.items() if name not in ("step", "parts")}
        return checkpoint.save(checkpoints, saved.step, saved.groups, state, keep=1 << 30)

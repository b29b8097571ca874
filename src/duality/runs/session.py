"""Training into a run folder: from a new network, from the last checkpoint, or from another run (distillation).

Between the steps a session writes metrics, checkpoints, the weights of a round that has ended, a validation
likelihood and two samples. In a job of several processes (``ranks``) all of them call this, and rank 0 alone writes.
What must hold: an interrupted and resumed training equals an uninterrupted one bit for bit; what cannot be trained
leaves no run behind.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from duality.data.cache import silent
from duality.data.corpus import Corpus
from duality.data.files import flush_to_disk, write_atomically
from duality.data.loader import Batches
from duality.data.stream import StreamLoader
from duality.evaluation.loss_curve import plot_losses
from duality.protocols import Phase, Reporter, Vocabulary
from duality.ranks import job, saving_group
from duality.recipes import catalogue
from duality.recipes.recipe import Recipe
from duality.runs.base import check_base, write_base
from duality.runs.beginnings import beginning, checkpoint_of
from duality.runs.corpora import (
    check_present,
    corpus_of_run,
    facts,
    loader,
    prepared,
    sequences,
    vocabulary_of,
)
from duality.runs.folder import ROUNDS, check_folder, check_no_distillation, continued, create, exists, open_folder
from duality.runs.limits import check_training, memory_of, trained_bytes
from duality.runs.lock import locked
from duality.runs.longer import method_phases
from duality.runs.metrics import append_metrics, log_row, read_metrics, rewind_metrics
from duality.runs.model import Model, network
from duality.runs.model_sources import model_source
from duality.runs.provenance import check_tokenizer, code_version, corpus_facts
from duality.runs.scaling import operations_per_second
from duality.runs.shapes import parameter_shapes
from duality.training import checkpoint
from duality.training.interruption import interruptible
from duality.training.loop import StepRecord, fit, phase_at
from duality.training.parallel import SINGLE, Layout, layout_of, whole
from duality.training.saving import Groups, Saver
from duality.training.state import TrainState, copy_into, load_weights

_EVAL_SEQUENCES = 256

Watch = Callable[[StepRecord], None]


def ignore(record: StepRecord) -> None:
    """A watcher that does nothing."""


@dataclass(frozen=True)
class Outcome:
    """How a training ended: at which step, and stopped by which signal; 0 is a complete training."""

    step: int
    signal: int


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    report: Reporter = silent,
    watch: Watch = ignore,
    may_be_longer: bool = False,
) -> Outcome:
    """Train ``recipe`` into ``folder``, which is locked; with ``resume``, continue the run that is there.

    With ``may_be_longer`` that run may have another number of steps (``longer.longer`` has the rule).
    """
    agree(recipe)
    with ExitStack() as held:
        job().once(lambda: lock(folder, resume, held, report))
        return train_locked(recipe, folder, resume, device, report, watch, may_be_longer)


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
) -> Outcome:
    """``train`` in a folder that this process, or rank 0 of its job, has locked."""
    place = job()
    place.share(recipe.training.batch_size)  # refuses a number of processes that does not divide the batch
    before = place.once(lambda: open_folder(recipe, folder, resume, may_be_longer))
    corpus = place.in_turn(lambda: corpus_to_train(recipe, folder, before, report))
    place.agree(corpus_facts(corpus), "give all ranks the same text")
    batches = loader(recipe, corpus, folder)
    for line in facts(recipe, corpus):
        report(line)
    path = place.once(lambda: checkpoint.newest_intact(folder / "checkpoints", report))
    if path is not None:
        check_fits(path, recipe, corpus, folder)
    state = untrained(recipe, corpus, device, layout_for(recipe, corpus, torch.device(device)))
    if before is None:
        if recipe.distillation is not None:
            raise ValueError(f"{recipe.name} begins from a trained run: start it with `duality distill RUN`")
        place.once(lambda: create(recipe, folder, corpus))  # only now: what cannot be trained leaves no run behind
    if path is not None:
        parts = checkpoint.parts_of(path)
        saved = checkpoint.load(path, None if parts is None else ())
        state.restore(saved, parts)
        check_round(recipe, saved.state, folder)
    if before is not None:
        recipe = place.once(lambda: continued(before, recipe, folder, state.step, report))
        if state.step:
            report(f"resuming at step {state.step} of {recipe.training.steps}")
    with batches if isinstance(batches, StreamLoader) else nullcontext():
        return Session(recipe, folder, corpus, state, device, watch).run(batches, report)


def corpus_to_train(recipe: Recipe, folder: Path, before: Recipe | None, report: Reporter) -> Corpus:
    """The corpus of a new run, or that of the run in ``folder``, which was trained as ``before``."""
    if before is None:
        check_no_distillation(folder)
        return prepared(recipe, report)
    moved_to = None if recipe.data.corpus == before.data.corpus else recipe.data.corpus
    return corpus_of_run(folder, recipe, report, moved_to)


def layout_for(recipe: Recipe, corpus: Corpus, device: torch.device) -> Layout:
    """How the weights of a recipe lie on the ranks."""
    vocabulary = Vocabulary(corpus.tokenizer.vocab_size, len(corpus.label_names))
    return layout_of(recipe.parallel, job(), device, trained_bytes(recipe, vocabulary), memory_of(device))


def check_fits(path: Path, recipe: Recipe, corpus: Corpus, folder: Path) -> None:
    """Refuse a checkpoint of another tokenizer or network, before the network takes any memory."""
    check_tokenizer(checkpoint.load(path, ()), corpus.tokenizer, folder)
    shapes = parameter_shapes(recipe, Vocabulary(corpus.tokenizer.vocab_size, len(corpus.label_names)))
    checkpoint.check_shapes(checkpoint.shapes_of_group(path, "model"), shapes)


def untrained(recipe: Recipe, corpus: Corpus, device: torch.device | str, layout: Layout = SINGLE) -> TrainState:
    """The state before the first step; with a teacher's network, if the recipe is a distillation."""
    vocabulary = Vocabulary(corpus.tokenizer.vocab_size, len(corpus.label_names))
    check_training(recipe, vocabulary, device, layout.divided)
    model, teacher = network(recipe, vocabulary_of(recipe.data, corpus), device), None
    if recipe.distillation is not None:
        teacher = network(recipe, vocabulary, device)
    return TrainState.fresh(model, recipe.training, teacher, layout)


def begin_from(base: Path, recipe: Recipe, folder: Path, report: Reporter) -> None:
    """Create the run of ``recipe`` in ``folder``, with the weights of the run or model ``base`` and their average."""
    source = model_source(base)
    check_present(source.folder, recipe)
    open_folder(recipe, folder, resume=False)
    path = checkpoint_of(source, report)
    corpus = corpus_of_run(source.folder, recipe, report)
    if path is not None:
        check_fits(path, recipe, corpus, source.folder)
    start, state = beginning(source, path), untrained(recipe, corpus, "cpu")
    phases_of(recipe, corpus, state.teacher)  # what cannot be distilled leaves no run behind
    load_weights(state.model, start.model)
    copy_into(state.ema, start.ema)
    if state.teacher is not None:
        state.teach("weights")
    session = Session(recipe, folder, corpus, state, "cpu", ignore)
    write_base(folder, start.record)
    session.save_round()
    session.save()
    session.saver.wait()
    create(recipe, folder, corpus)


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


def phases_of(recipe: Recipe, corpus: Corpus, teacher: nn.Module | None) -> tuple[Phase, ...]:
    """The phases of training: the method's own, or a distillation's rounds."""
    num_tokens = corpus.tokenizer.vocab_size
    if recipe.distillation is None or teacher is None:
        return method_phases(recipe, num_tokens)
    return recipe.distillation.phases(recipe.method, num_tokens, teacher)


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
) -> Outcome:
    """Distill the run or model ``base`` into ``folder`` as ``recipe`` (``recipes.recipe.distilled``) says."""
    agree(recipe)

    def begin(held: ExitStack) -> None:
        lock(folder, resume, held, report)
        if exists(folder):
            check_base(folder, recipe.name, model_source(base).folder, report)
        else:
            begin_from(base, recipe, folder, report)

    with ExitStack() as held:
        job().once(lambda: begin(held))
        return train_locked(recipe, folder, True, device, report, watch, may_be_longer)


@dataclass(frozen=True)
class Session:
    """One call of ``train``: steps, and what is written between them."""

    recipe: Recipe
    folder: Path
    corpus: Corpus
    state: TrainState
    device: torch.device | str
    watch: Watch
    saver: Saver = field(default_factory=Saver)

    def run(self, batches: Batches, report: Reporter) -> Outcome:
        """Train until the recipe's last step or a signal; the last step is saved in both cases."""
        training, state, place = self.recipe.training, self.state, job()
        phases = phases_of(self.recipe, self.corpus, state.teacher)
        place.once(lambda: rewind_metrics(self.folder, state.step))
        peak = operations_per_second(self.recipe, torch.device(self.device))
        started, first, stopped = time.monotonic(), state.step, 0

        with self.saver, interruptible() as request:

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
            place.once(lambda: plot_losses(read_metrics(self.folder), self.folder / "loss.png", self.recipe.name))
            return Outcome(state.step, stopped if state.step < training.steps else 0)

    def log(self, row: dict[str, Any]) -> None:
        if job().first:
            append_metrics(self.folder, row)

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
        load_weights(denoiser, {name: whole(value) for name, value in self.state.ema.items()})
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

        job().once(write_samples)

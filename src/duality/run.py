"""A run folder: everything about one training, in files that people can read.

    recipe.json        the recipe as it runs         env.json       versions and machine
    tokenizer.json     the tokenizer                 corpus.json    which tokens it was trained on
    metrics.jsonl      one line per logged step      loss.png       the curve
    checkpoints/       step-00001000/, latest        samples/       what it wrote, by step

``recipe.json`` is written last when a run is created: with it the run exists, without it nothing has begun. ``train``
starts or resumes a run; ``load`` gives its averaged weights, ready to evaluate and to sample.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from duality import checkpoint, recipes
from duality.config import nearest
from duality.data import Corpus, Loader, Sequences, Tokenizer, TokenStore, load_tokenizer, prepare
from duality.denoiser import SubsDenoiser
from duality.evaluate import Likelihood, likelihood
from duality.files import flush_to_disk, write_atomically
from duality.generate import generate
from duality.metrics import append_metrics, read_metrics, rewind_metrics
from duality.protocols import Process, Reporter, Sampler, Schedule, Vocabulary
from duality.provenance import check_corpus, check_tokenizer, corpus_identity, environment, read_identity
from duality.recipes import Recipe
from duality.report.curves import plot_losses
from duality.samplers import SAMPLERS, Analytic, Ancestral
from duality.train import StepRecord, TrainState, fit, interruptible, load_weights, phase_at
from duality.wrappers import Memoized

_RECIPE = "recipe.json"
_BEFORE_RECIPE = ("tokenizer.json", "env.json", "corpus.json", _RECIPE)
# What may change when a run continues: how it is optimised from here on and how it is watched, not what it is.
_CHANGEABLE = (
    "learning_rate",
    "clip",
    "warmup",
    "micro_batch",
    "precision",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
)
_EVAL_SEQUENCES = 256


@dataclass(frozen=True)
class Model:
    """A trained model with all its parts."""

    recipe: Recipe
    step: int
    denoiser: nn.Module
    tokenizer: Tokenizer
    label_names: tuple[str, ...] = ()

    @property
    def schedule(self) -> Schedule:
        return self.recipe.method.schedule()

    @property
    def sampler(self) -> Sampler:
        return self.recipe.method.sampler(self.tokenizer.vocab_size)

    def process(self) -> Process:
        """The discrete process that the model reverses."""
        own = self.sampler
        if not isinstance(own, (Ancestral, Analytic)):
            raise ValueError(
                f"{type(self.recipe.method).__name__} is written by no sampler but its own ({type(own).__name__}): "
                "leave the sampler out"
            )
        return own.process

    def named_sampler(self, name: str) -> Sampler:
        """Its own sampler, or another one of its process by name."""
        if name == "own":
            return self.sampler
        kinds = {kind.__name__.lower(): kind for kind in SAMPLERS}
        if name not in kinds:
            raise ValueError(f"no sampler {name!r}: {nearest(name, ('own', *kinds))}")
        chosen: Sampler = kinds[name](self.process())
        return chosen

    def evaluate(self, sequences: Sequences, **options: Any) -> Likelihood:
        """Nats per token of ``sequences``, by the method's own measure; options as for ``evaluate.likelihood``."""
        return likelihood(self.denoiser, self.recipe.method.measure(self.tokenizer.vocab_size), sequences, **options)

    def generate(
        self,
        wrap: Callable[[Any], Any] = lambda denoiser: denoiser,
        sampler: Sampler | None = None,
        steps: int | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Tokens; options as for ``generate.generate``. ``wrap`` bends the belief (``wrappers``)."""
        chosen = sampler or self.sampler
        bent = wrap(self.denoiser)
        if isinstance(self.denoiser, SubsDenoiser) and not self.denoiser.depends_on_alpha:
            bent = Memoized(bent)
        count = chosen.default_steps(options["length"]) if steps is None else steps
        return generate(bent, self.schedule, chosen, steps=count, **options)


@dataclass(frozen=True)
class Outcome:
    """How a training ended: at which step, stopped by which signal (0: it is complete)."""

    step: int
    signal: int


def network(recipe: Recipe, vocabulary: Vocabulary, device: torch.device | str = "cpu") -> nn.Module:
    """The untrained network of a recipe; its first weights depend on the recipe's seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return recipe.method.network(recipe.backbone, vocabulary).to(device)


def exists(folder: Path) -> bool:
    """Whether a run has begun in ``folder``."""
    return (folder / _RECIPE).is_file()


def read_recipe(folder: Path) -> Recipe:
    """The recipe of the run in ``folder``."""
    path = folder / _RECIPE
    if not exists(folder):
        raise ValueError(f"{folder} is not a run: it has no {_RECIPE}; give the folder that `duality train --out` made")
    try:
        return recipes.from_json(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): restore it from a backup") from error


def load(folder: Path, report: Reporter, device: torch.device | str = "cpu", weights: str = "ema") -> Model:
    """The newest intact checkpoint of the run in ``folder``, with its averaged (``ema``) or raw (``model``) weights."""
    recipe = read_recipe(folder)
    tokenizer = load_tokenizer(folder)
    saved = checkpoint.load_newest(folder / "checkpoints", report)
    if saved is None:
        raise ValueError(
            f"{folder} has no checkpoint yet: train it first (duality train {recipe.name} --out {folder} --resume)"
        )
    check_tokenizer(saved.state, tokenizer, folder)
    names = tuple(read_identity(folder)["labels"])
    denoiser = network(recipe, Vocabulary(tokenizer.vocab_size, len(names)), device)
    load_weights(denoiser, saved.groups[weights])
    denoiser.requires_grad_(False)
    return Model(recipe, saved.step, denoiser, tokenizer, names)


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    report: Reporter = print,
    watch: Callable[[StepRecord], None] = lambda record: None,
) -> Outcome:
    """Train ``recipe`` into ``folder``; with ``resume``, continue the run that is there."""
    recipe, existing = open_folder(recipe, folder, resume)
    corpus = prepared(recipe, report)
    if existing:
        check_corpus(folder, corpus)
    sequences = Sequences(corpus.train, recipe.data.length, recipe.data.packing)
    loader = Loader(sequences, recipe.training.batch_size, recipe.training.seed)
    state = TrainState.fresh(network(recipe, vocabulary_of(corpus), device), recipe.training)
    if not existing:
        create(recipe, folder, corpus)  # only now: what cannot be trained leaves no run behind
    saved = checkpoint.load_newest(folder / "checkpoints", report)
    if saved is not None:
        check_tokenizer(saved.state, corpus.tokenizer, folder)
        state.restore(saved)
        report(f"resuming at step {state.step} of {recipe.training.steps}")
    return Session(recipe, folder, corpus, state, device, watch).run(loader, report)


def prepared(recipe: Recipe, report: Reporter) -> Corpus:
    """The corpus of a recipe."""
    data = recipe.data
    return prepare(
        data.corpus,
        data.tokenizer,
        validation=data.validation,
        split=data.split,
        labels=data.labels,
        progress=report,
    )


def vocabulary_of(corpus: Corpus) -> Vocabulary:
    """What a method is told of a corpus."""
    num_tokens = corpus.tokenizer.vocab_size
    return Vocabulary(num_tokens, len(corpus.label_names), lambda: token_counts(corpus.train, num_tokens))


def token_counts(store: TokenStore, num_tokens: int, block: int = 1 << 22) -> torch.Tensor:
    """How often each token occurs, read block by block."""
    counts = torch.zeros(num_tokens, dtype=torch.float64)
    for start in range(0, len(store), block):
        counts += torch.bincount(torch.from_numpy(store[start : start + block].astype("int64")), minlength=num_tokens)
    return counts


def open_folder(recipe: Recipe, folder: Path, resume: bool) -> tuple[Recipe, bool]:
    """The recipe to train and whether its run exists; nothing that is there is ever overwritten."""
    if not exists(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "the run folder cannot be written", str(folder))
        # ".corpus.json.123" is what a crash leaves of a file that was being written
        foreign = {path.name for path in folder.iterdir() if not path.name.lstrip(".").startswith(_BEFORE_RECIPE)}
        if foreign:
            raise ValueError(f"{folder} holds other files ({', '.join(sorted(foreign)[:3])}): choose an empty --out")
        return recipe, False
    if not resume:
        raise ValueError(f"{folder} already holds a run: continue it with --resume, or choose another --out")
    before = read_recipe(folder)
    changes = recipes.differences(before, recipe)
    fixed = [change for change in changes if not change.startswith(tuple(f"training.{name}:" for name in _CHANGEABLE))]
    if fixed:
        raise ValueError(
            f"{folder} was started with another recipe ({'; '.join(fixed[:4])}): a run continues as it began, but for "
            f"training.{{{', '.join(_CHANGEABLE)}}}; leave the changed flags out, or choose another --out"
        )
    if changes:
        write_recipe(recipe, folder)
        append_metrics(folder, {"step": checkpoint.latest_step(folder / "checkpoints"), "changed": changes})
    return recipe, True


def create(recipe: Recipe, folder: Path, corpus: Corpus) -> None:
    """Write what a run begins with; the recipe last."""
    corpus.tokenizer.save(folder)
    write_atomically(folder / "corpus.json", json.dumps(corpus_identity(corpus), indent=1))
    write_atomically(folder / "env.json", json.dumps(environment(), indent=1))
    write_recipe(recipe, folder)


def write_recipe(recipe: Recipe, folder: Path) -> None:
    """Write down what runs."""
    write_atomically(folder / _RECIPE, json.dumps(recipes.to_json(recipe), indent=1))


@dataclass(frozen=True)
class Session:
    """One sitting of training: steps, and what is written between them."""

    recipe: Recipe
    folder: Path
    corpus: Corpus
    state: TrainState
    device: torch.device | str
    watch: Callable[[StepRecord], None]

    def run(self, loader: Loader, report: Reporter) -> Outcome:
        """Train until the recipe's last step or a signal; what was learnt is saved either way."""
        training, state = self.recipe.training, self.state
        phases = self.recipe.method.phases(self.corpus.tokenizer.vocab_size, training.steps)
        rewind_metrics(self.folder, state.step)
        started, first = time.monotonic(), state.step

        with interruptible() as request:

            def after_step(record: StepRecord) -> bool:
                self.watch(record)
                last = record.step == training.steps
                if last or request.signal or record.step % training.log_every == 0:
                    elapsed = time.monotonic() - started
                    self.log(log_row(record, first, elapsed, record.num_tokens * (record.step - first) / elapsed))
                if record.step % training.save_every == 0:
                    self.save()
                if training.eval_every and record.step % training.eval_every == 0 and not (last or request.signal):
                    self.evaluate()
                return not request.signal

            if state.step < training.steps:
                phase = phase_at(phases, state.step)
                report(f"training {self.recipe.name} to step {training.steps}, phase {phase.name}, in {self.folder}")
                fit(state, loader, phases, training, after_step)
            if checkpoint.latest_step(self.folder / "checkpoints") < state.step:
                self.save()
            if state.step == training.steps and not self.evaluated():
                self.evaluate()
            plot_losses(read_metrics(self.folder), self.folder / "loss.png", self.recipe.name)
            return Outcome(state.step, request.signal if state.step < training.steps else 0)

    def log(self, row: dict[str, Any]) -> None:
        append_metrics(self.folder, row)

    def evaluated(self) -> bool:
        """Whether the present step has its validation bound."""
        return any(row["step"] == self.state.step and "validation_nats" in row for row in read_metrics(self.folder))

    def save(self) -> None:
        flush_to_disk(self.folder / "metrics.jsonl")
        state = {"vocab_size": self.corpus.tokenizer.vocab_size, "tokenizer": self.corpus.tokenizer.fingerprint}
        checkpoint.save(
            self.folder / "checkpoints", self.state.step, self.state.groups(), state, self.recipe.training.keep
        )

    def evaluate(self) -> None:
        """Validation bound and two samples, with the averaged weights."""
        names, tokenizer = self.corpus.label_names, self.corpus.tokenizer
        denoiser = network(self.recipe, Vocabulary(tokenizer.vocab_size, len(names)), self.device)
        load_weights(denoiser, self.state.ema)
        model = Model(self.recipe, self.state.step, denoiser.requires_grad_(False), tokenizer, names)
        held_out = Sequences(self.corpus.validation, self.recipe.data.length, self.recipe.data.packing)
        result = model.evaluate(held_out, limit=_EVAL_SEQUENCES, num_draws=4, device=self.device)
        self.log(
            {
                "step": self.state.step,
                "validation_nats": result.nats_per_token,
                "validation_stderr": result.stderr,
                "validation_tokens": result.num_tokens,
                "validation_kind": result.kind,
            }
        )
        length = self.recipe.data.length
        tokens = model.generate(num=2, length=length, device=self.device)
        steps = model.sampler.default_steps(length)
        rows = [sample_row(model, row.tolist(), index, steps, "ancestral", 0) for index, row in enumerate(tokens)]
        target = self.folder / "samples" / f"step-{self.state.step:08d}.jsonl"
        target.parent.mkdir(exist_ok=True)
        write_atomically(target, "".join(json.dumps(row) + "\n" for row in rows))


def sample_row(model: Model, tokens: list[int], index: int, steps: int, tail: str, seed: int) -> dict[str, Any]:
    """A sample with what made it."""
    return {
        "index": index,
        "seed": seed,
        "steps": steps,
        "tail": tail,
        "trained_steps": model.step,
        "text": model.tokenizer.decode(tokens),
        "tokens": tokens,
    }


def log_row(record: StepRecord, since: int, seconds: float, tokens_per_second: float) -> dict[str, Any]:
    """A step of the log; ``seconds`` count from step ``since``, where this sitting began."""
    return {
        "step": record.step,
        "phase": record.phase,
        "loss": record.loss,
        "learning_rate": record.rate,
        "gradient_norm": record.gradient_norm,
        "tokens_per_second": round(tokens_per_second),
        "seconds": round(seconds, 2),
        "since": since,
    }


def with_corpus(recipe: Recipe, corpus: str) -> Recipe:
    """The recipe on another corpus; a path is made absolute so that the run can be resumed from anywhere."""
    path = Path(corpus).expanduser()
    return replace(recipe, data=replace(recipe.data, corpus=str(path.resolve()) if path.exists() else corpus))

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
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from duality import checkpoint, recipes
from duality.data import Corpus, Loader, Sequences, Tokenizer, load_tokenizer, prepare
from duality.denoiser import MeanDenoiser
from duality.evaluate import Likelihood, likelihood
from duality.files import flush_to_disk, write_atomically
from duality.generate import generate
from duality.metrics import append_metrics, read_metrics, rewind_metrics
from duality.protocols import Denoiser, Process, Reporter, Sampler, Schedule
from duality.recipes import Recipe
from duality.report.curves import plot_losses
from duality.train import StepRecord, TrainState, fit, interruptible, load_weights, phase_at

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
    denoiser: MeanDenoiser
    process: Process
    schedule: Schedule
    sampler: Sampler
    tokenizer: Tokenizer

    def evaluate(self, sequences: Sequences, **options: Any) -> Likelihood:
        """The likelihood bound on ``sequences``; options as for ``evaluate.likelihood``."""
        bound = self.recipe.method.bound(self.process)
        return likelihood(self.denoiser, bound, self.process, self.schedule, sequences, **options)

    def generate(
        self, wrap: Callable[[Denoiser], Denoiser] = lambda denoiser: denoiser, **options: Any
    ) -> torch.Tensor:
        """Tokens; options as for ``generate.generate``."""
        return generate(wrap(self.denoiser), self.process, self.schedule, self.sampler, **options)


@dataclass(frozen=True)
class Outcome:
    """How a training ended: at which step, stopped by which signal (0: it is complete)."""

    step: int
    signal: int


def network(recipe: Recipe, num_states: int, device: torch.device | str = "cpu") -> MeanDenoiser:
    """The untrained denoiser of a recipe; its first weights depend on the recipe's seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return MeanDenoiser(recipe.backbone.build(num_states)).to(device)


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
    process = recipe.method.process(tokenizer.vocab_size)
    denoiser = network(recipe, process.vocab_size, device)
    load_weights(denoiser, saved.groups[weights])
    denoiser.requires_grad_(False)
    return Model(recipe, saved.step, denoiser, process, recipe.method.schedule(), recipe.method.sampler(), tokenizer)


def check_tokenizer(state: dict[str, Any], tokenizer: Tokenizer, where: Path) -> None:
    """Refuse a checkpoint whose tokens mean something else."""
    if (state["vocab_size"], state["tokenizer"]) != (tokenizer.vocab_size, tokenizer.fingerprint):
        raise ValueError(
            f"the checkpoint in {where} was trained with a vocabulary of {state['vocab_size']} tokens "
            f"(fingerprint {state['tokenizer'][:12]}), but the tokenizer there has {tokenizer.vocab_size} "
            f"({tokenizer.fingerprint[:12]}): put back the tokenizer.json that belongs to it"
        )


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
    corpus = prepare(
        recipe.data.corpus,
        recipe.data.tokenizer,
        validation=recipe.data.validation,
        split=recipe.data.split,
        progress=report,
    )
    if existing:
        check_corpus(folder, corpus)
    loader = Loader(Sequences(corpus.train, recipe.data.length), recipe.training.batch_size, recipe.training.seed)
    if not existing:
        create(recipe, folder, corpus)
    process = recipe.method.process(corpus.tokenizer.vocab_size)
    state = TrainState.fresh(network(recipe, process.vocab_size, device), recipe.training)
    saved = checkpoint.load_newest(folder / "checkpoints", report)
    if saved is not None:
        check_tokenizer(saved.state, corpus.tokenizer, folder)
        state.restore(saved)
        report(f"resuming at step {state.step} of {recipe.training.steps}")
    return Session(recipe, folder, corpus, process, state, device, watch).run(loader, report)


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


def corpus_identity(corpus: Corpus) -> dict[str, Any]:
    """Checksums of the very tokens."""
    stores = {"train": corpus.train, "validation": corpus.validation}
    return {
        "tokenizer": corpus.tokenizer.fingerprint,
        **{name: [shard.sha256 for shard in store.index.shards] for name, store in stores.items()},
    }


def check_corpus(folder: Path, corpus: Corpus) -> None:
    """Refuse to continue on other tokens than the run began with."""
    if json.loads((folder / "corpus.json").read_text(encoding="utf-8")) != corpus_identity(corpus):
        raise ValueError(f"the corpus of {folder} has changed since the run began: restore it, or start a new run")


def environment() -> dict[str, Any]:
    """Versions that may change numbers."""
    packages = ("diffusion-duality", "torch", "numpy", "tokenizers", "safetensors")
    versions = {name: metadata.version(name) for name in packages if _installed(name)}
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "packages": versions,
        "commit": source_commit(),
    }


def source_commit() -> str | None:
    """The commit of this library's own repository, if it runs from one and git is there."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return result.stdout.strip() or None


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class Session:
    """One sitting of training: steps, and what is written between them."""

    recipe: Recipe
    folder: Path
    corpus: Corpus
    process: Process
    state: TrainState
    device: torch.device | str
    watch: Callable[[StepRecord], None]

    def run(self, loader: Loader, report: Reporter) -> Outcome:
        """Train until the recipe's last step or a signal; what was learnt is saved either way."""
        training, state = self.recipe.training, self.state
        phases = self.recipe.method.phases(self.process, training.steps)
        rewind_metrics(self.folder, state.step)
        started, first = time.monotonic(), state.step

        with interruptible() as request:

            def after_step(record: StepRecord) -> bool:
                self.watch(record)
                last = record.step == training.steps
                if last or record.step % training.log_every == 0:
                    elapsed = time.monotonic() - started
                    self.log(log_row(record, elapsed, record.num_tokens * (record.step - first) / elapsed))
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
        denoiser = network(self.recipe, self.process.vocab_size, self.device)
        load_weights(denoiser, self.state.ema)
        method = self.recipe.method
        model = Model(
            self.recipe,
            self.state.step,
            denoiser,
            self.process,
            method.schedule(),
            method.sampler(),
            self.corpus.tokenizer,
        )
        held_out = Sequences(self.corpus.validation, self.recipe.data.length)
        result = model.evaluate(held_out, limit=_EVAL_SEQUENCES, num_draws=4, device=self.device)
        self.log(
            {
                "step": self.state.step,
                "validation_nats": result.nats_per_token,
                "validation_stderr": result.stderr,
                "validation_tokens": result.num_tokens,
            }
        )
        tokens = model.generate(num=2, length=self.recipe.data.length, steps=32, device=self.device)
        rows = [sample_row(model, row.tolist(), index, 32, "ancestral", 0) for index, row in enumerate(tokens)]
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


def log_row(record: StepRecord, seconds: float, tokens_per_second: float) -> dict[str, Any]:
    return {
        "step": record.step,
        "phase": record.phase,
        "loss": record.loss,
        "learning_rate": record.rate,
        "gradient_norm": record.gradient_norm,
        "tokens_per_second": round(tokens_per_second),
        "seconds": round(seconds, 2),
    }


def with_corpus(recipe: Recipe, corpus: str) -> Recipe:
    """The recipe on another corpus; a path is made absolute so that the run can be resumed from anywhere."""
    path = Path(corpus).expanduser()
    return replace(recipe, data=replace(recipe.data, corpus=str(path.resolve()) if path.exists() else corpus))

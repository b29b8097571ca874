"""One training loop: ``fit`` takes steps until the last phase ends, or until it is told to stop.

A step is a pure function of the state and the step's number: which sequences, which times and which noise depend on
(seed, step, place in the global batch) only. Hence a resumed run repeats the uninterrupted one bit for bit, and
dividing the batch into micro-batches changes rounding, not noise. What has to be saved is weights, their moving
average, the optimizer's moments, the step, and a teacher's weights where there is one.

Loss = sum of nats over the real tokens of the global batch / their number.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from duality.backbones.dit import Network
from duality.checkpoint import Checkpoint, Tensors
from duality.data import Loader
from duality.data.loader import Prefetch
from duality.noise import Noise, stratified_times
from duality.protocols import Phase
from duality.wrappers import labelled

Precision = Literal["auto", "float32", "bfloat16"]
SignalHandler = Callable[[int, FrameType | None], Any] | int | None


@dataclass(frozen=True)
class Training:
    """How a recipe is optimised; defaults are the paper's.

    ``recompute`` and ``compile`` change how a step is computed, not what: the first saves memory by computing each
    block again in the backward pass, the second has ``torch.compile`` translate the blocks (see ``backbones/dit.py``).
    """

    steps: int = 1_000_000
    batch_size: int = 512
    micro_batch: int = 0
    learning_rate: float = 3e-4
    warmup: int = 2_500
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.9999
    label_dropout: float = 0.1
    seed: int = 1
    precision: Precision = "auto"
    recompute: bool = False
    compile: bool = False
    log_every: int = 100
    eval_every: int = 10_000
    save_every: int = 10_000
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}: it must be at least 1")
        if self.seed < 0:
            raise ValueError(f"training.seed is {self.seed}: it must not be negative")
        for name in ("micro_batch", "warmup", "eval_every", "weight_decay", "clip"):
            if getattr(self, name) < 0:
                raise ValueError(f"training.{name} is {getattr(self, name)}: it must not be negative (0 turns it off)")
        if not self.learning_rate > 0:
            raise ValueError(f"training.learning_rate is {self.learning_rate}: it must be positive")
        for name in ("decay", "ema", "label_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}: it must be in [0, 1]")

    def rate(self, step: int) -> float:
        """Learning rate at ``step``: linear warm-up, constant, linear to zero over the last ``decay`` of the steps."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        cooling = round(self.decay * self.steps)
        cool = min(1.0, (self.steps - step) / cooling) if cooling else 1.0
        return self.learning_rate * warm * cool


class TrainingDiverged(ValueError):
    """The loss or its gradient is no longer a number."""

    def __init__(self, step: int, loss: float, gradient_norm: float, rate: float):
        super().__init__(
            f"at step {step} the loss is {loss} and the norm of its gradient {gradient_norm}: training stopped, "
            "checkpoints before it are intact; continue from the last with "
            f"--resume --set training.learning_rate={rate / 3:.1g} (now {rate:.1g}), a smaller training.clip "
            "or a longer training.warmup, and check the data"
        )


def resolve_precision(precision: Precision, device: torch.device) -> torch.dtype:
    """bfloat16 where the device computes in it (a GPU), float32 elsewhere: on a CPU it is many times slower."""
    if precision == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def check_compiler(device: torch.device) -> None:
    """Refuse ``training.compile`` where there is nothing to compile with, before anything has begun."""
    if device.type != "cpu":
        return  # a GPU's comes with torch
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise ValueError(
            f"training.compile is true, and there is no C++ compiler {compiler!r} on this machine: install one, name "
            "it in the environment variable CXX, or leave training.compile=false (the same numbers up to rounding)"
        )


def prepare_networks(model: nn.Module, training: Training) -> None:
    """Tell every network in ``model`` how ``training`` wants it computed."""
    for network in (part for part in model.modules() if isinstance(part, Network)):
        network.recompute = training.recompute
        if training.compile:
            check_compiler(network.norm.weight.device)
            network.compile_blocks()


@dataclass
class TrainState:
    """Everything a step changes."""

    model: nn.Module
    optimizer: torch.optim.AdamW
    ema: Tensors
    step: int = 0
    teacher: nn.Module | None = None

    @staticmethod
    def fresh(model: nn.Module, training: Training, teacher: nn.Module | None = None) -> TrainState:
        for taught in (model, teacher):
            if taught is not None:
                prepare_networks(taught, training)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=training.learning_rate,
            betas=training.betas,
            weight_decay=training.weight_decay,
            fused=True,
        )
        ema = {name: value.detach().clone() for name, value in model.named_parameters()}
        return TrainState(model, optimizer, ema, 0, None if teacher is None else teacher.requires_grad_(False))

    def groups(self) -> dict[str, Tensors]:
        """What a checkpoint holds, as named tensors."""
        moments = {
            f"{name}.{key}": value
            for name, parameter in self.model.named_parameters()
            if parameter in self.optimizer.state
            for key, value in self.optimizer.state[parameter].items()
        }
        groups: dict[str, Tensors] = {"model": dict(self.model.named_parameters()), "ema": self.ema}
        if self.teacher is not None:
            groups["teacher"] = dict(self.teacher.named_parameters())
        return {**groups, "optimizer": moments}

    def restore(self, saved: Checkpoint) -> None:
        """Continue where ``saved`` was written."""
        load_weights(self.model, saved.groups["model"])
        for name, value in saved.groups["ema"].items():
            self.ema[name].copy_(value)
        for name, parameter in self.model.named_parameters():
            if f"{name}.step" not in saved.groups["optimizer"]:
                continue  # what is not trained has no moments
            self.optimizer.state[parameter] = {
                key: saved.groups["optimizer"][f"{name}.{key}"].to(parameter.device)
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
        if self.teacher is not None:
            load_weights(self.teacher, saved.groups["teacher"])
        self.step = saved.step

    def teach(self, source: Literal["weights", "ema"]) -> None:
        """The teacher becomes what the student, or the student's average, is now."""
        assert self.teacher is not None, "this phase learns from a teacher, and there is none"
        load_weights(self.teacher, self.ema if source == "ema" else dict(self.model.named_parameters()))

    def average(self, decay: float) -> None:
        """Move the average towards the weights, quickly at first: decay is at most (1 + n) / (10 + n)."""
        decay = min(decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.ema.values()), [value.detach() for value in self.model.parameters()], 1 - decay
            )


def load_weights(model: nn.Module, weights: Tensors) -> None:
    """Copy ``weights`` into ``model``; every name and shape must agree."""
    own = dict(model.named_parameters())
    differing = [
        name
        for name in own.keys() | weights.keys()
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    ]
    if differing:
        name = sorted(differing)[0]
        shapes = [tuple(tensors[name].shape) if name in tensors else "nothing" for tensors in (weights, own)]
        raise ValueError(
            f"the checkpoint does not fit the network: {name} is {shapes[0]} in the file and {shapes[1]} in the "
            f"network ({len(differing)} tensors differ); use the recipe and the tokenizer that it was trained with"
        )
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)


@dataclass(frozen=True)
class StepRecord:
    """What one step did."""

    step: int
    phase: str
    loss: float
    rate: float
    gradient_norm: float
    num_tokens: int


@dataclass
class Interruption:
    """Set by Ctrl-C or SIGTERM; the loop looks at it between steps."""

    signal: int = 0


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one acts as usual."""
    request, previous = Interruption(), dict[int, SignalHandler]()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(number: int, _frame: FrameType | None) -> None:
        request.signal = number
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, ask)
    try:
        yield request
    finally:
        restore()


def phase_at(phases: tuple[Phase, ...], step: int) -> Phase:
    """The phase that step ``step`` belongs to."""
    return next(phase for phase in phases if step < phase.until)


def begins(phases: tuple[Phase, ...], step: int) -> bool:
    """Whether ``step`` is the first of its phase."""
    return step == 0 or phase_at(phases, step) is not phase_at(phases, step - 1)


def micro_batches(training: Training) -> list[slice]:
    """Rows of the global batch, in order, at most ``micro_batch`` at a time."""
    size = training.micro_batch or training.batch_size
    return [slice(start, min(start + size, training.batch_size)) for start in range(0, training.batch_size, size)]


def gradients(state: TrainState, loader: Loader | Prefetch, phase: Phase, training: Training) -> tuple[Tensor, int]:
    """Accumulate the gradient of one global batch; returns the loss and the number of tokens."""
    device = next(state.model.parameters()).device
    dtype = resolve_precision(training.precision, device)
    times = stratified_times(training.seed, state.step, training.batch_size, device)
    batch = loader.batch(state.step)
    num_tokens = batch.ids.numel() if batch.mask is None else int(batch.mask.sum())
    batch = batch.to(device)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for rows in micro_batches(training):
        noise = Noise.of(training.seed, state.step, torch.arange(rows.start, rows.stop, device=device))
        real = None if batch.mask is None else batch.mask[rows]
        with torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext():
            told: Any = state.model
            if batch.labels is not None:
                told = forgetful(state.model, batch.labels[rows], training, noise)
            loss = phase.objective(told, batch.ids[rows], times[rows], noise, real, dropout=True)
        torch.autograd.backward(loss.total / num_tokens)
        total += loss.nats.sum()
    return total / num_tokens, num_tokens


def forgetful(model: nn.Module, labels: Tensor, training: Training, noise: Noise) -> Any:
    """The model told the classes, but for some of the samples: so it learns to write without one as well."""
    dropped = noise.uniform("label", 1)[:, 0] < training.label_dropout
    nobody: Any = model.backbone.num_labels  # type: ignore[union-attr]
    return labelled(model, torch.where(dropped, nobody, labels))


def take_step(
    state: TrainState, loader: Loader | Prefetch, phases: tuple[Phase, ...], training: Training
) -> StepRecord:
    """One optimizer step; raises ``TrainingDiverged`` before a non-finite gradient can reach the weights."""
    phase, rate = phase_at(phases, state.step), training.rate(state.step)
    if phase.teacher is not None and begins(phases, state.step):
        state.teach(phase.teacher)
    state.optimizer.zero_grad()
    loss, num_tokens = gradients(state, loader, phase, training)
    norm = nn.utils.get_total_norm([value.grad for value in state.model.parameters() if value.grad is not None])
    # One transfer per step: the two numbers decide whether the weights may be touched.
    values = torch.stack([loss, norm.to(loss.dtype)]).tolist()
    if not all(map(math.isfinite, values)):
        raise TrainingDiverged(state.step + 1, values[0], values[1], rate)
    # Torch's factor is min(1, this): a 1 would be a pass over all gradients that changes nothing.
    if training.clip and training.clip / (values[1] + 1e-6) < 1.001:
        nn.utils.clip_grads_with_norm_(state.model.parameters(), training.clip, norm)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.optimizer.step()
    state.step += 1
    state.average(training.ema)
    return StepRecord(state.step, phase.name, values[0], rate, values[1], num_tokens)


def fit(
    state: TrainState,
    loader: Loader,
    phases: tuple[Phase, ...],
    training: Training,
    after_step: Callable[[StepRecord], bool],
) -> None:
    """Step until the last phase ends, or until ``after_step`` returns False."""
    until, device = phases[-1].until, next(state.model.parameters()).device
    with Prefetch(loader.batch, until, pin=device.type == "cuda") as batches:
        while state.step < until and after_step(take_step(state, batches, phases, training)):
            pass

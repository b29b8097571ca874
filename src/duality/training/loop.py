"""What a training step changes, ``TrainState``, the step itself, ``take_step``, and the plain loop, ``fit``.

The state is weights, their moving average, the optimizer's moments, the number of the step, a teacher. A checkpoint
contains this; nothing else is needed to continue bit for bit.

A step is a pure function of the state and the step's number: which sequences, which times and which noise depend on
(seed, step, index in the global batch) only. Hence a resumed run repeats the uninterrupted one bit for bit, and
dividing the batch into micro-batches, or over processes (``ranks``), changes rounding, not noise.

Loss = sum of nats over the valid tokens of the global batch / their number. Where padding is modelled, a validation
counts the nats of all valid tokens and the number of real ones (``models.likelihood``); ``StepRecord.nats_per_token``
is the loss in that unit, which is shown: what is paid for light padding stands for all of it.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from duality.data.loader import Batches, Loader, Prefetch
from duality.denoisers.wrapping import num_labels_of
from duality.noise import Noise, stratified_times
from duality.protocols import Denoiser, Network, Phase
from duality.ranks import job
from duality.training.adapters import choose_trained
from duality.training.checkpoint import State, Tensors, check_shapes, load, shapes_of_group
from duality.training.muon import Muon
from duality.training.parallel import SINGLE, Layout, gather, local_part, put, read_parts
from duality.training.precision import computing, float32_products
from duality.training.settings import Training

MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum")  # AdamW's, and Muon's


@dataclass
class TrainState:
    """Everything a step changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: Tensors
    loss: nn.Module
    """``Step`` of the model, wrapped as the layout says."""
    step: int = 0
    teacher: nn.Module | None = None
    layout: Layout = SINGLE

    @staticmethod
    def fresh(
        model: nn.Module, training: Training, teacher: nn.Module | None = None, layout: Layout = SINGLE
    ) -> TrainState:
        """The state before the first step; the weights of ``model`` and ``teacher`` are divided as the layout says."""
        choose_trained(model, training)
        if teacher is not None:
            teacher.requires_grad_(False)
        device = next(model.parameters()).device
        compiled = training.compiles_on(device)
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        if compiled and device.type == "cpu" and shutil.which(compiler) is None:
            raise ValueError(
                f"training.compile is true, and there is no C++ compiler {compiler!r} on this machine: install one, "
                "name it in the environment variable CXX, or leave training.compile=false (the same numbers up to "
                "rounding)"
            )
        for network in (part for taught in (model, teacher) if taught is not None for part in taught.modules()):
            if isinstance(network, Network):
                try:
                    network.prepare(recompute=training.recompute, compile=compiled)
                except ValueError:  # it cannot be compiled, and need not be
                    if training.compile != "auto" or not compiled:
                        raise
                    network.prepare(recompute=training.recompute, compile=False)
        loss = layout.wrap(model, teacher, training.dtype_on(device))
        optimizer: torch.optim.Optimizer
        rate, betas, decay = training.learning_rate, training.betas, training.weight_decay
        if training.optimizer == "muon":
            optimizer = Muon(model, lr=rate, betas=betas, weight_decay=decay)
        else:
            trained = [value for value in model.parameters() if value.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=rate, betas=betas, weight_decay=decay, fused=True)
        ema = {name: value.detach().clone() for name, value in model.named_parameters()}
        return TrainState(model, optimizer, ema, loss, 0, teacher, layout)

    def groups(self, names: Sequence[str] | None = None) -> dict[str, Tensors]:
        """The content of a checkpoint, or these groups of it, as named tensors."""
        moments = {
            f"{name}.{key}": value
            for name, parameter in self.model.named_parameters()
            if parameter in self.optimizer.state
            for key, value in self.optimizer.state[parameter].items()
        }
        groups: dict[str, Tensors] = {"model": dict(self.model.named_parameters()), "ema": self.ema}
        if self.teacher is not None:
            groups["teacher"] = dict(self.teacher.named_parameters())
        groups["optimizer"] = moments
        return {name: group for name, group in groups.items() if names is None or name in names}

    def restore(self, path: Path) -> State:
        """Continue from the checkpoint at ``path``, group by group; returns its state.json.

        If ranks have written it in parts, those need not be the parts of these ranks.
        """
        saved = load(path, ())
        missing = [group for group in self.groups() if group not in saved.names]
        if missing:
            raise ValueError(
                f"{path} has no {missing[0]}.safetensors, so training cannot continue from it (a model that was "
                "imported has none: distill it): restore it from a backup, or train again into another folder"
            )
        there = {group: shapes_of_group(path, group) for group in self.groups()}
        for name, parameter in self.model.named_parameters():
            kept = [key for key in MOMENTS if f"{name}.{key}" in there["optimizer"]]
            moments = {key: torch.zeros_like(parameter, requires_grad=False) for key in kept}
            if "step" in moments:
                moments["step"] = torch.zeros((), device=parameter.device)
            if moments:  # a weight that is not trained has none
                self.optimizer.state[parameter] = moments
        own = self.groups()
        for group, tensors in own.items():
            check_shapes(there[group], _shapes_of(tensors), file=str(path / f"{group}.safetensors"))
        if saved.parts is not None:
            read_parts(path, own)
        for group, tensors in own.items() if saved.parts is None else ():
            load_weights(tensors, load(path, [group]).groups[group])
        self.step = saved.step
        return saved.state

    def teach(self, source: Literal["weights", "ema"]) -> None:
        """The teacher becomes a copy of the student, or of the student's average."""
        assert self.teacher is not None, "this phase learns from a teacher, and there is none"
        load_weights(self.teacher, self.ema if source == "ema" else dict(self.model.named_parameters()))

    def average(self, decay: float) -> None:
        """Move the average towards the weights, quickly at first: decay is at most (1 + n) / (10 + n)."""
        decay = min(decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
            averages = [local_part(self.ema[name]) for name in trained]
            torch._foreach_lerp_(averages, [local_part(value.detach()) for value in trained.values()], 1 - decay)


def _shapes_of(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """The shapes of named tensors."""
    return {name: tuple(value.shape) for name, value in tensors.items()}


def load_weights(target: nn.Module | Tensors, weights: Tensors) -> None:
    """Copy ``weights`` into a model, or into tensors by name; every name and shape must agree."""
    own: Tensors = dict(target.named_parameters()) if isinstance(target, nn.Module) else target
    check_shapes(_shapes_of(weights), _shapes_of(own))
    for name, value in weights.items():
        put(own[name], value)


# --- a step


class TrainingDiverged(ValueError):
    """The loss or its gradient is not finite."""

    def __init__(self, step: int, loss: float, gradient_norm: float, rate: float):
        super().__init__(
            f"at step {step} the loss is {loss} and the norm of its gradient {gradient_norm}: training stopped, "
            "checkpoints before it are intact; continue from the last with "
            f"--resume --set training.learning_rate={rate / 3:.1g} (now {rate:.1g}), a smaller training.clip "
            "or a longer training.warmup, and check the data"
        )


@dataclass(frozen=True)
class StepRecord:
    """The numbers of one training step."""

    step: int
    phase: str
    loss: float
    rate: float
    gradient_norm: float
    num_tokens: int
    nats_per_token: float
    """the loss for each real token, as a validation has it"""


def phase_at(phases: tuple[Phase, ...], step: int) -> Phase:
    """The phase that step ``step`` belongs to."""
    return next(phase for phase in phases if step < phase.until)


def gradients(
    state: TrainState, loader: Loader | Prefetch, phase: Phase, training: Training
) -> tuple[Tensor, Tensor, Tensor]:
    """Accumulate the gradient of one global batch; returns the loss, the number of tokens, and nats per real token.

    ``loader`` gives the rows of this rank. The ranks' gradients are averaged, so each is of the sum over its own rows,
    divided by its share of all tokens. The host counts its own tokens and waits for no device and no other rank.
    """
    device, place = next(state.model.parameters()).device, job()
    own = place.share(training.batch_size)
    times = stratified_times(training.seed, state.step, training.batch_size, device)[own]
    batch = loader.batch(state.step)
    # What pays for less than it sees has beliefs, and no teacher, whose loss is not that of a token.
    sees_all = batch.paid is not None and phase.teacher is None and isinstance(state.model, Denoiser)
    batch = batch if sees_all else replace(batch, paid=batch.valid)
    every = torch.ones_like(batch.ids, dtype=torch.bool)
    paid, padding = every if batch.paid is None else batch.paid, ~every if batch.padding is None else batch.padding
    counted = torch.stack([paid.sum(), (paid & padding).sum(), padding.sum()]).double()
    if device.type == "cuda":
        counted = counted.pin_memory().to(device, non_blocking=True)
    place.sum_(counted)
    num_tokens, paid_padding, num_padding = counted
    batch = batch.to(device)
    total, of_padding = torch.zeros(2, dtype=torch.float64, device=device)
    count = own.stop - own.start
    size = training.micro_batch or count
    for start in range(0, count, size):
        rows = slice(start, min(start + size, count))
        index = torch.arange(own.start + rows.start, own.start + rows.stop, device=device)
        noise = Noise.of(training.seed, state.step, index)
        own_paid = None if batch.paid is None else batch.paid[rows]
        labels = None if batch.labels is None else _drop_labels(state.model, batch.labels[rows], training, noise)
        with state.layout.accumulating(state.loss, last=rows.stop == count):
            with computing(training.precision, device):
                loss, nats = state.loss(
                    phase.objective, batch.ids[rows], times[rows], noise, own_paid, labels, sees_all
                )
            torch.autograd.backward(loss / (num_tokens / place.size))
        total += nats.sum()
        if batch.padding is not None:
            of_padding += torch.where(batch.padding[rows], nats, 0.0).sum()
    place.sum_(total, of_padding)
    more = of_padding * torch.where(paid_padding > 0, num_padding / paid_padding - 1, 0.0)
    return total / num_tokens, num_tokens, (total + more) / (num_tokens - paid_padding).clamp_min(1)


def _drop_labels(denoiser: nn.Module, labels: Tensor, training: Training, noise: Noise) -> Tensor:
    """The labels, with "no label" for some of the samples, so that the model also learns the text without labels."""
    dropped = noise.uniform("label", 1)[:, 0] < training.label_dropout
    return torch.where(dropped, num_labels_of(denoiser), labels)


def take_step(
    state: TrainState, loader: Loader | Prefetch, phases: tuple[Phase, ...], training: Training
) -> StepRecord:
    """One optimizer step; raises ``TrainingDiverged`` before a non-finite gradient can reach the weights."""
    phase, rate = phase_at(phases, state.step), training.rate(state.step)
    begins = state.step == 0 or phase_at(phases, state.step - 1) is not phase
    if phase.teacher is not None and begins:
        state.teach(phase.teacher)
    device = next(state.model.parameters()).device
    with float32_products(training.precision, device):  # those of the backward pass too
        loss, num_tokens, per_token = gradients(state, loader, phase, training)
    norm = gather(nn.utils.get_total_norm([value.grad for value in state.model.parameters() if value.grad is not None]))
    # One transfer per step: the first two numbers decide whether the weights may be changed.
    values = torch.stack([loss, norm.to(loss.dtype), per_token, num_tokens]).tolist()
    if not all(map(math.isfinite, values[:2])):
        raise TrainingDiverged(state.step + 1, values[0], values[1], rate)
    # Torch's factor is min(1, this): a factor of 1 would be a pass over all gradients without any effect.
    if training.clip and training.clip / (values[1] + 1e-6) < 1.001:
        nn.utils.clip_grads_with_norm_(state.model.parameters(), training.clip, norm)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    with computing(training.precision, device):  # the products of Muon
        state.optimizer.step()
    state.optimizer.zero_grad()  # whose memory a validation or the copy of a checkpoint can have
    state.step += 1
    state.average(training.ema)
    return StepRecord(state.step, phase.name, values[0], rate, values[1], int(values[3]), values[2])


def own_batches(state: TrainState, loader: Batches, phases: tuple[Phase, ...], training: Training) -> Prefetch:
    """The rows of this rank, made one step ahead."""
    own = partial(loader.batch, rows=job().share(training.batch_size))
    return Prefetch(own, phases[-1].until, pin=next(state.model.parameters()).is_cuda)


def fit(
    state: TrainState,
    loader: Batches,
    phases: tuple[Phase, ...],
    training: Training,
    after_step: Callable[[StepRecord], bool],
) -> None:
    """Step until the last phase ends, or until ``after_step``, which may log and save, returns False."""
    with own_batches(state, loader, phases, training) as batches:
        while state.step < phases[-1].until and after_step(take_step(state, batches, phases, training)):
            pass

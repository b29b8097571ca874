"""Everything that a training step changes: weights, their moving average, the optimizer's moments, the step, a teacher.

A checkpoint contains this; nothing else is needed to continue bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from duality.protocols import Network
from duality.training.adapters import choose_trained
from duality.training.checkpoint import Checkpoint, Tensors, check_shapes
from duality.training.muon import Muon
from duality.training.parallel import SINGLE, Layout, gather_on_first, local_part, put
from duality.training.settings import Training, check_compiler
from duality.training.sharded import read_parts, shapes_in_parts

MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum")  # AdamW's, and Muon's


def _optimizer_of(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """The optimizer that a recipe chooses."""
    rate, betas, decay = training.learning_rate, training.betas, training.weight_decay
    if training.optimizer == "muon":
        return Muon(model, lr=rate, betas=betas, weight_decay=decay)
    trained = [value for value in model.parameters() if value.requires_grad]
    return torch.optim.AdamW(trained, lr=rate, betas=betas, weight_decay=decay, fused=True)


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
        if training.compile:
            check_compiler(next(model.parameters()).device)
        for network in (part for taught in (model, teacher) if taught is not None for part in taught.modules()):
            if isinstance(network, Network):
                network.prepare(recompute=training.recompute, compile=training.compile)
        step = layout.divide(model, teacher)
        optimizer = _optimizer_of(model, training)
        ema = {name: value.detach().clone() for name, value in model.named_parameters()}
        return TrainState(model, optimizer, ema, layout.wrap(step), 0, teacher, layout)

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

    def groups_on_first(self, names: Sequence[str] | None = None) -> dict[str, Tensors]:
        """The content of a checkpoint, or these groups of it, put together on rank 0; all ranks must call it.

        One tensor at a time: no rank but the first ever has more than its part and one tensor.
        """
        return {
            group: {name: made for name, value in tensors.items() if (made := gather_on_first(value)) is not None}
            for group, tensors in self.groups(names).items()
        }

    def restore(self, saved: Checkpoint, parts: Sequence[str] | None = None) -> None:
        """Continue from the checkpoint ``saved``; ``parts`` are its groups if ranks have written them in parts.

        The parts of this rank need not be those of the ranks that wrote them.
        """
        needed = ("model", "ema", "optimizer", *(() if self.teacher is None else ("teacher",)))
        missing = [group for group in needed if group not in (saved.groups if parts is None else parts)]
        if missing:
            raise ValueError(
                f"{saved.path} has no {missing[0]}.safetensors, so training cannot continue from it (a model that was "
                "imported has none: distill it): restore it from a backup, or train again into another folder"
            )
        there = {
            group: shapes_in_parts(saved.path, group)
            if parts is not None
            else {name: (tuple(value.shape), value.dtype) for name, value in saved.groups[group].items()}
            for group in needed
        }
        for name, parameter in self.model.named_parameters():
            moments = {key: there["optimizer"].get(f"{name}.{key}") for key in MOMENTS}
            kept = {key: found for key, found in moments.items() if found is not None}
            if kept:  # a weight that is not trained has none
                self.optimizer.state[parameter] = {
                    key: torch.empty(shape, dtype=dtype, device=parameter.device)
                    if key == "step"
                    else torch.empty_like(parameter, dtype=dtype, requires_grad=False)
                    for key, (shape, dtype) in kept.items()
                }
        own = self.groups(needed)
        for group, found in there.items():
            shapes = {name: shape for name, (shape, _) in found.items()}
            check_shapes(shapes, _shapes_of(own[group]), file=str(saved.path / f"{group}.safetensors"))
        if parts is None:
            for group in needed:
                copy_into(own[group], saved.groups[group])
        else:
            with torch.no_grad():
                read_parts(saved.path, own)
        self.step = saved.step

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


def copy_into(own: Tensors, weights: Tensors) -> None:
    """Copy ``weights`` into tensors of the same names and shapes; any others are refused."""
    check_shapes(_shapes_of(weights), _shapes_of(own))
    for name, value in weights.items():
        put(own[name], value)


def load_weights(model: nn.Module, weights: Tensors) -> None:
    """Copy ``weights`` into ``model``; every name and shape must agree."""
    copy_into(dict(model.named_parameters()), weights)

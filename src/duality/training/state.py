"""Everything that a training step changes: weights, their moving average, the optimizer's moments, the step, a teacher.

A checkpoint contains this; nothing else is needed to continue bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from duality.protocols import Network
from duality.training.checkpoint import Checkpoint, Tensors, check_shapes
from duality.training.muon import Muon
from duality.training.settings import Training, check_compiler


def prepare_networks(model: nn.Module, training: Training) -> None:
    """Prepare every network in ``model`` for the options ``recompute`` and ``compile`` of ``training``."""
    if training.compile:
        check_compiler(next(model.parameters()).device)
    for network in (part for part in model.modules() if isinstance(part, Network)):
        network.prepare(recompute=training.recompute, compile=training.compile)


MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum")  # AdamW's, and Muon's


def optimizer_of(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """The optimizer that a recipe chooses."""
    rate, betas, decay = training.learning_rate, training.betas, training.weight_decay
    if training.optimizer == "muon":
        return Muon(model, lr=rate, betas=betas, weight_decay=decay)
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=betas, weight_decay=decay, fused=True)


@dataclass
class TrainState:
    """Everything a step changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: Tensors
    step: int = 0
    teacher: nn.Module | None = None

    @staticmethod
    def fresh(model: nn.Module, training: Training, teacher: nn.Module | None = None) -> TrainState:
        for taught in (model, teacher):
            if taught is not None:
                prepare_networks(taught, training)
        optimizer = optimizer_of(model, training)
        ema = {name: value.detach().clone() for name, value in model.named_parameters()}
        return TrainState(model, optimizer, ema, 0, None if teacher is None else teacher.requires_grad_(False))

    def groups(self) -> dict[str, Tensors]:
        """The content of a checkpoint, as named tensors."""
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
        """Continue from the checkpoint ``saved``."""
        needed = ("model", "ema", "optimizer", *(() if self.teacher is None else ("teacher",)))
        missing = [group for group in needed if group not in saved.groups]
        if missing:
            raise ValueError(
                f"{saved.path} has no {missing[0]}.safetensors, so training cannot continue from it: restore it from "
                "a backup, or train again into another folder"
            )
        load_weights(self.model, saved.groups["model"])
        copy_into(self.ema, saved.groups["ema"])
        for name, parameter in self.model.named_parameters():
            moments = {
                key: saved.groups["optimizer"][f"{name}.{key}"].to(parameter.device)
                for key in MOMENTS
                if f"{name}.{key}" in saved.groups["optimizer"]
            }
            for key, value in moments.items():
                if value.shape != (torch.Size() if key == "step" else parameter.shape):
                    raise ValueError(
                        f"{saved.path / 'optimizer.safetensors'} does not fit the network: {name}.{key} is "
                        f"{tuple(value.shape)}, the weight {tuple(parameter.shape)}; restore it from a backup"
                    )
            if moments:  # a weight that is not trained has none
                self.optimizer.state[parameter] = moments
        if self.teacher is not None:
            load_weights(self.teacher, saved.groups["teacher"])
        self.step = saved.step

    def teach(self, source: Literal["weights", "ema"]) -> None:
        """The teacher becomes a copy of the student, or of the student's average."""
        assert self.teacher is not None, "this phase learns from a teacher, and there is none"
        load_weights(self.teacher, self.ema if source == "ema" else dict(self.model.named_parameters()))

    def average(self, decay: float) -> None:
        """Move the average towards the weights, quickly at first: decay is at most (1 + n) / (10 + n)."""
        decay = min(decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.ema.values()), [value.detach() for value in self.model.parameters()], 1 - decay
            )


def shapes_of(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """The shapes of named tensors."""
    return {name: tuple(value.shape) for name, value in tensors.items()}


def copy_into(own: Tensors, weights: Tensors) -> None:
    """Copy ``weights`` into tensors of the same names and shapes; any others are refused."""
    check_shapes(shapes_of(weights), shapes_of(own))
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)


def load_weights(model: nn.Module, weights: Tensors) -> None:
    """Copy ``weights`` into ``model``; every name and shape must agree."""
    copy_into(dict(model.named_parameters()), weights)

"""Everything that a training step changes: weights, their moving average, the optimizer's moments, the step, a teacher.

A checkpoint contains this; nothing else is needed to continue bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from duality.protocols import Network
from duality.training.checkpoint import Checkpoint, Tensors
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
        load_weights(self.model, saved.groups["model"])
        for name, value in saved.groups["ema"].items():
            self.ema[name].copy_(value)
        for name, parameter in self.model.named_parameters():
            moments = {
                key: saved.groups["optimizer"][f"{name}.{key}"].to(parameter.device)
                for key in MOMENTS
                if f"{name}.{key}" in saved.groups["optimizer"]
            }
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

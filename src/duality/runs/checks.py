"""Numbers of a device compared with float64 on a CPU: noise, every loss with its gradients, a network with dropout.

What is used on the device is what is checked: where kernels run, they are compared with the formulas that they replace.

What must hold: a check that fails is a mistake of this package or of the machine, and never of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from duality.diffusion import closed_forms
from duality.fused.formulas import (
    AbsorbingScoreEntropy,
    BeliefDivergence,
    CrossEntropy,
    Formula,
    PosteriorDivergence,
    UniformBound,
    UniformDivergence,
    UniformScoreEntropy,
)
from duality.fused.lazy import LazyLogits
from duality.fused.loss import fused_loss
from duality.networks.dit import DiT
from duality.noise import Noise

_STATES, _WIDTH, _ROWS = 5_003, 64, 48
Run = Callable[[], tuple[float, float]]  # the largest error, and the largest that is allowed
_MakeFormula = Callable[[Tensor, Tensor, Tensor, nn.Linear], Formula]  # of x, z, alpha, and the head of a target


@dataclass(frozen=True)
class Check:
    """Whether a part agrees with its reference: the largest error, and the largest that rounding explains."""

    name: str
    error: float
    allowed: float
    problem: str = ""
    """why there is no error to compare"""

    @property
    def passed(self) -> bool:
        return not self.problem and self.error <= self.allowed


def list_checks(device: torch.device) -> Iterator[tuple[str, Run]]:
    """All checks by name."""
    yield "noise", lambda: _check_noise(device)
    for name, make in _formulas().items():
        yield f"loss, {name}", lambda make=make: _check_loss(make, device)  # type: ignore[misc]
    yield "network with dropout", lambda: _check_network(device)


def run_check(name: str, check: Run) -> Check:
    """A check, or why it could not be made."""
    try:
        return Check(name, *check())
    except Exception as error:  # whatever a driver or a compiler raises is what is to be reported
        return Check(name, float("nan"), 0.0, f"{type(error).__name__}: {error}".splitlines()[0])


def _check_noise(device: torch.device) -> tuple[float, float]:
    """The words of noise are the same numbers."""
    own, there = (Noise.of(1, 2, torch.arange(8, device=where)) for where in ("cpu", device))
    different = own.bits("doctor", 1000) != there.bits("doctor", 1000).cpu()
    return float(different.sum()), 0.0


def _formulas() -> dict[str, _MakeFormula]:
    """Formulas of tokens x and z, a level for each sequence, and the head of a target."""
    states = _STATES

    def slope(alpha: Tensor) -> Tensor:
        return -torch.ones_like(alpha)

    def target(head: nn.Linear) -> LazyLogits:
        return LazyLogits(_vectors(2, head.weight), head, states, states)

    def evidence(alpha: Tensor, x: Tensor) -> Tensor:
        return torch.log1p(states * alpha / (1 - alpha)).expand(x.shape)

    return {
        "cross-entropy": lambda x, z, a, head: CrossEntropy(x, closed_forms.absorbing_weight(a, slope(a))),
        "uniform bound": lambda x, z, a, head: UniformBound(x, z, a, slope(a), states),
        "uniform divergence": lambda x, z, a, head: UniformDivergence(x, z, a, a + (1 - a) * 0.3, states, 7),
        "uniform score entropy": lambda x, z, a, head: UniformScoreEntropy(x, z, a, slope(a), states),
        "absorbing score entropy": lambda x, z, a, head: AbsorbingScoreEntropy(x, a, slope(a)),
        "kl-backward": lambda x, z, a, head: BeliefDivergence(target(head), "kl-backward"),
        "kl-forward": lambda x, z, a, head: BeliefDivergence(target(head), "kl-forward"),
        "posterior kl-backward": lambda x, z, a, head: PosteriorDivergence(
            target(head), "kl-backward", z, evidence(a, x), z, evidence(a, x)
        ),
    }


def _vectors(seed: int, like: Tensor) -> Tensor:
    """Vectors of all positions, the same numbers on every device."""
    noise = Noise.of(seed, 0, torch.arange(4))
    return noise.normal("vectors", _ROWS // 4, _WIDTH).to(like.device, like.dtype)


def _check_loss(make: _MakeFormula, device: torch.device) -> tuple[float, float]:
    """Nats and gradients of a loss in float32, against float64 on a CPU, relative to the largest of them."""
    found = []
    for where, dtype in ((torch.device("cpu"), torch.float64), (device, torch.float32)):
        noise = Noise.of(0, 0, torch.arange(4))
        x, other = (noise.integers(tag, _STATES - 1, _ROWS // 4).to(where) for tag in ("x", "z"))
        z = torch.where(noise.uniform("same", _ROWS // 4).to(where) < 0.3, x, other)
        alpha = torch.tensor([[1e-4], [0.3], [0.9], [1 - 1e-4]], dtype=torch.float64, device=where)
        heads = [nn.Linear(_WIDTH, _STATES, device=where, dtype=dtype) for _ in range(2)]
        for seed, head in enumerate(heads):
            draw = Noise.of(seed + 5, 0, torch.arange(_STATES)).normal("head", _WIDTH + 1).to(where, dtype) / 8
            with torch.no_grad():
                head.weight.copy_(draw[:, 1:])
                head.bias.copy_(draw[:, 0])
        vectors = _vectors(1, heads[0].weight).requires_grad_()
        loss = fused_loss(LazyLogits(vectors, heads[0], _STATES, _STATES), make(x, z, alpha, heads[1]))
        torch.autograd.backward(loss.total)
        found.append([each.detach().cpu().double() for each in (loss.nats, vectors.grad, heads[0].weight.grad)])  # type: ignore[union-attr]
    errors = ((one - two).abs().max() / one.abs().max() for one, two in zip(*found, strict=True))
    return max(map(float, errors)), 2e-4


def _check_network(device: torch.device) -> tuple[float, float]:
    """A small network with dropout, forward and backward, in float32 against float64 on a CPU."""
    found = []
    for where, dtype in ((torch.device("cpu"), torch.float64), (device, torch.float32)):
        model = DiT(width=64, depth=2, heads=2, dropout=0.1).build(100).to(where, dtype)
        for place, value in enumerate(model.parameters()):
            draw = Noise.of(place, 0, torch.arange(len(value))).normal("weight", value[0].numel())
            with torch.no_grad():
                value.copy_(draw.view(value.shape).to(where, dtype) / 8)
        noise = Noise.of(0, 0, torch.arange(4, device=where))
        made = model(noise.integers("z", 100, 32), torch.ones(4, device=where, dtype=dtype), None, noise)
        made.square().mean().backward()
        found.append([made.detach().cpu().double(), model.embedding.grad.cpu().double()])  # type: ignore[union-attr]
    errors = ((one - two).abs().max() / one.abs().max() for one, two in zip(*found, strict=True))
    return max(map(float, errors)), 2e-4

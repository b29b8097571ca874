"""Muon (Jordan et al., 2024): the momentum of a weight matrix, made orthogonal, is the direction of its step.

The matrices between hidden vectors (those of attention and MLP) are trained in this manner, everything else
(embeddings, the output head, the conditioning on the noise level, biases, norms, adapters) by AdamW. A step of a matrix
has the size that AdamW's would have (a root mean square of 0.2), so that one learning rate serves both. At the budgets
of a laptop it reaches the same likelihood in fewer steps than AdamW alone (docs/results.md).

Why not ``torch.optim.Muon``: it computes in bfloat16 one matrix at a time, which on a CPU without bfloat16 units takes
as long as the rest of a training step; here all matrices of one shape are computed at once, in the precision of the
training (``take_step``): a GPU computes the directions in bfloat16.

In a job every rank computes the directions of some matrices, and the ranks exchange them (``parallel.divide_work``),
one shape at a time.

What must hold: one step agrees with ``torch.optim.Muon`` up to the rounding of bfloat16; all ranks have the same
directions, which are those of a single process; the state of every parameter is float32 and in ``state``, by parameter,
so that a checkpoint holds all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from duality.training.parallel import divide_work, local_part

MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.775, 2.0315)  # of the quintic iteration, by its authors
_ITERATIONS = 5
_RMS = 0.2  # of an AdamW step, in units of the learning rate


@runtime_checkable
class _HasMatrices(Protocol):
    """A network that says which of its weights are matrices between hidden vectors."""

    def hidden_matrices(self) -> list[nn.Parameter]: ...


def hidden_matrices(model: nn.Module, refusal: str) -> list[nn.Parameter]:
    """The matrices between hidden vectors; a model whose network names none is refused, in these words."""
    found = [each for part in model.modules() if isinstance(part, _HasMatrices) for each in part.hidden_matrices()]
    if not found:
        raise ValueError(refusal.format(f"no network of {type(model).__name__} has `hidden_matrices`"))
    return found


def _orthogonal(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices (N, a, b), a <= b, by the quintic iteration: singular values near 1."""
    first, second, third = _COEFFICIENTS
    x: Tensor = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=second, alpha=third), x, beta=first)
    return x


def _directions(matrices: Sequence[Tensor]) -> list[Tensor]:
    """The nearest semi-orthogonal matrices; all have the same two sizes, in either order."""
    wide = [each if each.shape[0] <= each.shape[1] else each.T for each in matrices]
    found = _orthogonal(torch.stack(wide))
    return [each if like.shape[0] <= like.shape[1] else each.T for each, like in zip(found, matrices, strict=True)]


class Muon(torch.optim.Optimizer):
    """Muon for the hidden matrices of a model, AdamW for the rest."""

    def __init__(self, model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float):
        refusal = "training.optimizer is muon, and {}: use adamw"
        matrices = [each for each in hidden_matrices(model, refusal) if each.requires_grad]
        chosen = {id(each) for each in matrices}
        rest = [each for each in model.parameters() if each.requires_grad and id(each) not in chosen]
        group = {"params": rest}  # in a list of its own: there may be nothing for AdamW
        self._adamw = torch.optim.AdamW([group], lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
        super().__init__([{"params": matrices}, {"params": rest}], {"lr": lr, "weight_decay": weight_decay})
        self._adamw.state = self.state  # one state for both, by parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        assert closure is None, "the loss is computed before the step"
        group, other = self.param_groups
        self._adamw.param_groups[0]["lr"] = other["lr"]
        self._adamw.step()
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in group["params"]:
            if matrix.grad is not None:
                shapes.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
        for alike in shapes.values():
            directions = divide_work(_directions, [self._momentum(matrix) for matrix in alike])
            for matrix, direction in zip(alike, directions, strict=True):
                size = _RMS * max(matrix.shape) ** 0.5
                own = local_part(matrix)
                own.mul_(1 - group["lr"] * group["weight_decay"])
                own.add_(direction, alpha=-group["lr"] * size)

    def _momentum(self, matrix: nn.Parameter) -> Tensor:
        """The gradient, moved towards its running mean (Nesterov)."""
        assert matrix.grad is not None
        if "momentum" not in self.state[matrix]:
            self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        mean: Tensor = self.state[matrix]["momentum"]
        mean.lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(mean, MOMENTUM)

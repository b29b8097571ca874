"""The losses of a token as formulas: one reduction over a row of logits, and its gradient.

    CrossEntropy            autoregressive, and every bound of absorbing noise
    UniformBound            Duo's and UDLM's
    UniformDivergence       D3PM's, uniform noise
    UniformScoreEntropy     SEDD's, uniform noise
    AbsorbingScoreEntropy   SEDD's, absorbing noise
    BeliefDivergence        from another belief: distillation
    PosteriorDivergence     the same between posteriors: both beliefs with the evidence of their noisy tokens

The divergences of a student's belief S from its teacher's T, per token:

    kl-backward   KL(student || teacher) = sum_v S_v (log S_v - log T_v): the paper's, and the default
    kl-forward    KL(teacher || student)
    mse           mean over the vocabulary of (log S_v - log T_v)^2
    tvd           1/2 sum_v |S_v - T_v|

The direction decides what is learnt when one input z_t has several targets, one per z_s: kl-forward is smallest at
their mean, which a calibrated model already is; kl-backward at their normalised geometric mean, which keeps only the
states that no target excludes. All are 0 exactly where the two beliefs are the same numbers. A state that both exclude
(-inf) adds nothing.

What is computed from the reduced numbers is in ``diffusion.closed_forms``; here a row of the vocabulary is reduced to
them, with the gradient of the logits in closed form. With p = softmax(logits), e_y the unit vector of state y:

    log p_y                     e_y - p
    R = sum_j log(1 + kappa p_j)   s_j - p_j sum_i s_i,   s_j = kappa p_j / (1 + kappa p_j)

For small kappa, s equals kappa p up to the second order, and only the second order is left of the difference: there u s
with u = kappa p is used instead, with the opposite sign (s = u - u s, and the part of u vanishes). Everything happens
in the memory of the logits and one more block of the same size, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from duality.diffusion import Divergence, closed_forms
from duality.fused.lazy import LazyLogits

Backward = Callable[..., object]


@dataclass(frozen=True)
class Formula:
    """Nats of a token as a function of its row of logits. Its tensors hold one number per token, except ``shared``.

    ``read`` reduces the rows to a few numbers each and returns them with a ``Backward``: given the derivatives
    (n, 1) of the nats with respect to these numbers, it replaces the logits by the gradient with respect to them.
    ``nats`` computes nats from the numbers, in float64; autograd differentiates it. A single number is the nats.
    """

    shared: ClassVar[tuple[str, ...]] = ()

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        raise NotImplementedError

    def nats(self, *numbers: Tensor) -> Tensor:
        (nats,) = numbers
        return nats

    def targets(self) -> list[LazyLogits]:
        """The other logits that are read with its own."""
        values = (getattr(self, each.name) for each in fields(self))
        return [value for value in values if isinstance(value, LazyLogits)]

    def flatten(self: F_, shape: torch.Size, certain: bool) -> F_:
        """The same with one number for each of the (B, L) tokens, flat; ``certain`` as in ``LazyLogits.as_logits``."""
        return self._each(lambda value: value.expand(shape).reshape(-1), lambda target: target.as_logits(certain))

    def with_buffer(self: F_, rows: int, lower: bool = False) -> F_:
        """The same with a buffer for ``rows`` rows of each target, see ``LazyLogits.with_buffer``."""
        return self._each(lambda value: value, lambda target: target.with_buffer(rows, lower))

    def at(self: F_, rows: Tensor | slice) -> F_:
        """The same for these tokens only; a target is projected for them."""
        return self._each(lambda value: value[rows], lambda target: target.logits(target.all_rows()[rows]))

    def _each(self: F_, tensor: Callable[[Tensor], Tensor], target: Callable[[LazyLogits], LazyLogits | Tensor]) -> F_:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in self.shared}
        tensors = {name: tensor(value) for name, value in values.items() if isinstance(value, Tensor)}
        targets = {name: target(value) for name, value in values.items() if isinstance(value, LazyLogits)}
        return replace(self, **tensors, **targets)


F_ = TypeVar("F_", bound=Formula)


def at(values: Tensor, states: Tensor) -> Tensor:
    """values (n, K) at one state per row, (n,)."""
    return values.gather(-1, states[:, None])[:, 0]


def _centre_(logits: Tensor) -> Tensor:
    """Subtract the largest logit of each row, in place: before anything is read, so that a shift costs no digits."""
    return logits.sub_(logits.amax(-1, keepdim=True))


def _exponentiate_(centred: Tensor) -> tuple[Tensor, Tensor]:
    """e = exp(centred logits) in place; returns c (n, 1), with which p = c e, and log c (n,).

    p itself is never computed: c is one number per row, and is multiplied into the next factor of the row.
    """
    total = centred.exp_().sum(-1, keepdim=True)
    return 1 / total, -total.log()[:, 0]


@dataclass(frozen=True)
class CrossEntropy(Formula):
    """-weight log p_x."""

    x: Tensor
    weight: Tensor

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        at_x = at(_centre_(logits), self.x)
        scale, log_scale = _exponentiate_(logits)

        def pull(slope: Tensor) -> None:
            logits.mul_(-slope * scale).scatter_add_(-1, self.x[:, None], slope)

        return (at_x + log_scale,), pull

    def nats(self, *numbers: Tensor) -> Tensor:
        (log_p_x,) = numbers
        return -self.weight * log_p_x


def _any(flags: Tensor) -> bool:
    """Whether any flag may be True. Only a CPU, which has the answer at once, is asked: others would be waited for."""
    return flags.device.type != "cpu" or bool(flags.any())


def _sum_log1p(u: Tensor, kappa: Tensor) -> Tensor:
    """sum_j log(1 + u_j) of rows (n, K); ``kappa`` (n,) is the sum of a row.

    On a CPU logarithms are slow and products fast: (1 + u)(1 + v) = 1 + (u + v + u v), four at a time, where it fits
    the numbers' range. A GPU takes as long as it takes to read the row.
    """
    if u.device.type != "cpu" or (float(kappa.max()) / 4) ** 4 > torch.finfo(u.dtype).max:
        return torch.log1p(u).sum(-1)
    rest = []
    for _ in range(2):
        half = u.shape[-1] // 2
        first, second = u[:, :half], u[:, half : 2 * half]
        rest.append(u[:, 2 * half :])
        u = (first + second).addcmul_(first, second)
    return u.log1p_().sum(-1) + torch.log1p(torch.cat(rest, -1)).sum(-1)


def _read_log_count(logits: Tensor, kappa: Tensor, z: Tensor, x: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
    """R = sum_j log(1 + kappa p_j), log p_z and log p_x."""
    _centre_(logits)
    at_z, at_x = at(logits, z), at(logits, x)
    scale, log_scale = _exponentiate_(logits)
    odds = kappa[:, None].to(logits.dtype)
    each = odds * scale  # u = each e = kappa p
    u = logits * each
    total = _sum_log1p(u, kappa).double()
    small_odds = kappa < closed_forms.SMALL_ODDS
    if _any(small_odds):
        total = torch.where(small_odds, kappa - closed_forms.second_order(u), total)

    def pull(slope: Tensor, slope_z: Tensor, slope_x: Tensor) -> None:
        share = torch.addcmul(torch.ones_like(each), logits, each)
        torch.div(logits, share, out=share)  # s = each times this
        few = odds <= 1
        if _any(few):  # s, or -u s where kappa is small
            small = few.to(logits.dtype)
            share.mul_(torch.addcmul(1 - small, logits, each * small, value=-1))
        mean = share.sum(-1, keepdim=True) * each
        logits.mul_(-(slope * mean + slope_z + slope_x) * scale).addcmul_(share, slope * each)
        logits.scatter_add_(-1, z[:, None], slope_z).scatter_add_(-1, x[:, None], slope_x)

    return (total, at_z + log_scale, at_x + log_scale), pull


@dataclass(frozen=True)
class UniformBound(Formula):
    """``closed_forms.uniform_bound``."""

    x: Tensor
    z: Tensor
    alpha: Tensor
    alpha_prime: Tensor
    num_states: int

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        return _read_log_count(logits, closed_forms.odds(self.alpha, self.num_states), self.z, self.x)

    def nats(self, *numbers: Tensor) -> Tensor:
        total, log_p_z, log_p_x = numbers
        equal = self.z == self.x
        return closed_forms.uniform_nats(total, log_p_z, log_p_x, equal, self.alpha, self.alpha_prime, self.num_states)


@dataclass(frozen=True)
class UniformDivergence(Formula):
    """``scale`` times ``closed_forms.uniform_divergence_nats``."""

    x: Tensor
    z: Tensor
    alpha_t: Tensor
    alpha_s: Tensor
    num_states: int
    scale: float = 1.0

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        return _read_log_count(logits, closed_forms.odds(self.alpha_s, self.num_states), self.z, self.x)

    def nats(self, *numbers: Tensor) -> Tensor:
        total, log_p_z, log_p_x = numbers
        return self.scale * closed_forms.uniform_divergence_nats(
            total, log_p_z, log_p_x, self.z == self.x, self.alpha_t, self.alpha_s, self.num_states
        )


@dataclass(frozen=True)
class UniformScoreEntropy(Formula):
    """``closed_forms.score_nats_uniform``; the log ratios are 0 at z, and have no gradient there."""

    x: Tensor
    z: Tensor
    alpha: Tensor
    alpha_prime: Tensor
    num_states: int

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        total, at_x = logits.sum(-1), at(logits, self.x)
        ratios = logits.exp_()
        positive = ratios.scatter_(-1, self.z[:, None], 0.0).sum(-1)

        def pull(slope_positive: Tensor, slope_total: Tensor, slope_x: Tensor) -> None:
            torch.addcmul(slope_total, ratios, slope_positive, out=ratios)
            ratios.scatter_add_(-1, self.x[:, None], slope_x).scatter_(-1, self.z[:, None], 0.0)

        return (positive, total, at_x), pull

    def nats(self, *numbers: Tensor) -> Tensor:
        positive, total, at_x = numbers
        equal = self.z == self.x
        return closed_forms.score_nats_uniform(
            positive, total, at_x, equal, self.alpha, self.alpha_prime, self.num_states
        )


@dataclass(frozen=True)
class AbsorbingScoreEntropy(Formula):
    """``closed_forms.score_nats_absorbing`` of mask tokens; the mask token is the last state."""

    x: Tensor
    alpha: Tensor
    alpha_prime: Tensor

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        at_x = at(logits, self.x)
        ratios = logits.exp_()
        ratios[:, -1] = 0.0
        positive = ratios.sum(-1)

        def pull(slope_positive: Tensor, slope_x: Tensor) -> None:
            ratios.mul_(slope_positive).scatter_add_(-1, self.x[:, None], slope_x)

        return (positive, at_x), pull

    def nats(self, *numbers: Tensor) -> Tensor:
        positive, at_x = numbers
        return closed_forms.score_nats_absorbing(positive, at_x, self.alpha, self.alpha_prime)


@dataclass(frozen=True)
class BeliefDivergence(Formula):
    """The divergence between the belief and that of ``target``, whose logits are read with its own."""

    target: LazyLogits | Tensor
    divergence: Divergence

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        assert isinstance(self.target, Tensor), "a lazy target becomes logits when its rows are chosen"
        return _read_divergence(self.divergence, logits, self.target, None)


@dataclass(frozen=True)
class PosteriorDivergence(BeliefDivergence):
    """``BeliefDivergence`` between two posteriors of the clean token: log_softmax(log belief + evidence one_hot(z)).

    ``evidence`` (``posterior.log_evidence``) belongs to the token ``z`` that the belief was given, ``target_evidence``
    to the ``target_z`` of the target. One logit of each row changes, by a constant: the gradient with respect to the
    logits is that of ``BeliefDivergence`` at the changed logits. The evidence must be finite.
    """

    z: Tensor
    evidence: Tensor
    target_z: Tensor
    target_evidence: Tensor

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        assert isinstance(self.target, Tensor), "a lazy target becomes logits when its rows are chosen"
        _add_at_(logits, self.z, self.evidence)
        _add_at_(self.target, self.target_z, self.target_evidence)
        return _read_divergence(self.divergence, logits, self.target, self.z)


def _add_at_(values: Tensor, states: Tensor, amount: Tensor) -> None:
    """Add ``amount`` (n,) to values (n, K) at one state per row, in place."""
    values.scatter_add_(-1, states[:, None], amount[:, None].to(values.dtype))


def _read_divergence(
    kind: Divergence, logits: Tensor, target: Tensor, near: Tensor | None
) -> tuple[tuple[Tensor, ...], Backward]:
    """The divergence between the softmax of ``logits`` (n, K), which are overwritten, and that of ``target``.

    ``near`` (n,) is a state of which the first may be nearly certain, None if there is none.
    """
    least = torch.finfo(logits.dtype).min / 4  # a state that both exclude (-inf) adds nothing
    named = min(logits.shape[-1], target.shape[-1])  # a state with a column in one of them only is excluded
    student = torch.log_softmax(logits, -1)[:, :named].clamp_min_(least)
    teacher = torch.log_softmax(target, -1)[:, :named].clamp_min_(least)
    logits[:, named:] = 0.0
    readers: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Backward]]] = {
        "kl-backward": partial(_read_kl_backward, near=near),
        "kl-forward": _read_kl_forward,
        "mse": _read_mse,
        "tvd": partial(_read_tvd, near=near),
    }
    total, pull = readers[kind](torch.exp(student, out=logits[:, :named]), student, teacher)
    return (total,), pull


# Each takes s (in the memory of the logits), log s and log t, and may overwrite all three. The gradient of a sum of s g
# is s (g - the sum), also if g is less by a constant: with g = 0 at a state of which s is nearly certain, what is left
# of the difference is not lost by rounding.


def _read_kl_backward(s: Tensor, student: Tensor, teacher: Tensor, near: Tensor | None) -> tuple[Tensor, Backward]:
    """sum s log(s / t); gradient s (log(s / t) - the sum)."""
    gap = student.sub_(teacher)
    if near is None:
        total = torch.mul(s, gap, out=teacher).sum(-1)
        return total, lambda slope: s.mul_(gap.sub_(total[:, None])).mul_(slope)
    at_near = at(gap, near)
    product = torch.mul(s, gap.sub_(at_near[:, None]), out=teacher)
    rest = product.sum(-1)
    return rest + at_near, lambda slope: s.mul_(-rest[:, None] * slope).addcmul_(product, slope)


def _read_kl_forward(s: Tensor, student: Tensor, teacher: Tensor) -> tuple[Tensor, Backward]:
    """sum t log(t / s); gradient s - t."""
    gap = torch.sub(teacher, student, out=student)
    t = teacher.exp_()
    return gap.mul_(t).sum(-1), lambda slope: s.sub_(t).mul_(slope)


def _read_mse(s: Tensor, student: Tensor, teacher: Tensor) -> tuple[Tensor, Backward]:
    """mean (log s - log t)^2 =: mean g^2; gradient 2/K (g - s sum g)."""
    least = torch.finfo(s.dtype).min / 4
    count = ((student > least) | (teacher > least)).sum(-1, keepdim=True)
    gap = student.sub_(teacher)
    total = gap.square().div_(count).sum(-1)

    def pull(slope: Tensor) -> None:
        s.mul_(-gap.sum(-1, keepdim=True)).add_(gap).mul_(2 * slope / count)

    return total, pull


def _read_tvd(s: Tensor, student: Tensor, teacher: Tensor, near: Tensor | None) -> tuple[Tensor, Backward]:
    """1/2 sum |s - t|; gradient s (g - sum s g) with g = sign(s - t) / 2."""
    gap = torch.sub(s, teacher.exp_(), out=student)
    total = torch.abs(gap, out=teacher).sum(-1) / 2

    def pull(slope: Tensor) -> None:
        side = gap.sign_().mul_(0.5)
        if near is not None:
            side.sub_(at(side, near)[:, None])
        s.mul_(side.sub_((s * side).sum(-1, keepdim=True))).mul_(slope)

    return total, pull

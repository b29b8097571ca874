"""What a network says of every position, before it is written out: vectors, and the head that projects them to states.

The vectors are (B, L, D), the states K = 50 000: written out, an answer is most of the memory and much of the time of a
step. So an answer is read a few rows (positions) at a time, and only the rows that somebody wants:

    belief.each(rows)            log beliefs for a sampler, as many rows at once as ``rows_of_a_product``
    belief.loss(formula, where)  sum over positions of a ``Formula``, with its gradient, in one pass

In ``loss`` each chunk is projected, reduced to a few numbers per row, turned into the gradient of the loss with respect
to the logits in place, and multiplied back into the gradients of vectors and head. Gradients are made where the logits
are, in the forward pass, so that nothing is projected twice; the loss may be differentiated once, and by a scalar.

Logits are as precise as the network makes them, and float32 from there on (float64 if the network is): a log-softmax in
bfloat16 is wrong by up to 0.075 nats.

What must hold: ``loss`` is the plain formula of ``log_probs()`` under autograd, in value and gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duality import functional
from duality.functional import rows_at_once
from duality.noise import Noise
from duality.protocols import Latent, Loss

Pull = Callable[..., object]
Bend = Callable[[Tensor, Tensor], Tensor]
A = TypeVar("A", bound="Answer")


def precise(logits: Tensor) -> Tensor:
    """At least float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def rows_of_a_product(num_states: int) -> int:
    """How many rows to project at a time: enough for a matrix product to be efficient, far fewer than a batch has.

    24 MB, as glibc gives 32 MB and more back to the system, and to get them again takes as long as to fill them.
    """
    return min(max((6 << 20) // num_states, 64), 4096)


@dataclass(frozen=True)
class Answer:
    """Vectors (B, L, D) and the head that projects them onto its first ``num_named`` states; None: they are logits."""

    vectors: Tensor
    head: nn.Linear | None
    num_named: int
    num_states: int

    @property
    def positions(self) -> int:
        return self.vectors.shape[0] * self.vectors.shape[1]

    def everything(self) -> Tensor:
        """All flat positions."""
        return torch.arange(self.positions, device=self.vectors.device)

    def project(self, rows: Tensor | slice) -> Tensor:
        """Logits (n, num_named) of some rows, which nobody else has, so that they may be worked on in place."""
        vectors = self.vectors.reshape(self.positions, -1)[rows]
        if self.head is None:
            # a slice is a view of what was given
            return precise(vectors[:, : self.num_named]).clone() if isinstance(rows, slice) else precise(vectors)
        weight, bias = self.head.weight[: self.num_named], self.head.bias[: self.num_named]
        return precise(F.linear(vectors, weight, bias))

    @torch.no_grad()
    def logits(self, rows: Tensor) -> Tensor:
        """What a formula reads."""
        return self.project(rows)

    def chunks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """``rows`` in parts of the size of one projection."""
        return torch.split(rows, rows_of_a_product(self.num_named)) if len(rows) else ()

    def put(self: A, rows: Tensor, other: A) -> A:
        """This answer with ``rows`` (flat positions) taken from ``other``, which has as many."""
        vectors = self.vectors.flatten(0, 1).index_copy(0, rows, other.vectors.flatten(0, 1))
        return replace(self, vectors=vectors.view(self.vectors.shape))

    def at(self: A, rows: Tensor) -> A:
        """Only these rows, as one sequence."""
        return replace(self, vectors=self.vectors.flatten(0, 1)[rows][None])

    def loss(self, formula: Formula, where: Tensor | None = None) -> Loss:
        """The sum of ``formula`` over the positions (B, L) that are True; its nats are 0 elsewhere."""
        shape = self.vectors.shape[:2]
        rows = self.everything() if where is None else where.flatten().nonzero()[:, 0]
        inputs = (self.vectors,) if self.head is None else (self.vectors, self.head.weight, self.head.bias)
        flat = formula.spread(shape)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            total, nats = _Fused.apply(self, flat, rows, *inputs)  # type: ignore[no-untyped-call]
        else:
            nats = _read(self, flat, rows, None)
            total = nats.sum()
        return Loss(total, nats.view(shape))


@dataclass(frozen=True)
class Belief(Answer):
    """The belief about each token: softmax of the logits, bent by ``bends``, or the state that is ``certain`` (B, L).

    ``certain`` is -1 where the network is asked. States from ``num_named`` on are never believed in.
    """

    certain: Tensor | None = None
    bends: tuple[Bend, ...] = ()

    @torch.no_grad()
    def rows(self, rows: Tensor) -> Tensor:
        """log of the belief (n, num_named) at flat positions ``rows``."""
        log_p = log_softmax_(self.project(rows))
        for bend in self.bends:
            log_p = bend(log_p, rows)
        if self.certain is None:
            return log_p
        state = self.certain.flatten()[rows]
        sure = (state >= 0).nonzero()[:, 0]
        log_p[sure] = -torch.inf
        log_p[sure, state[sure]] = 0.0
        return log_p

    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(some of ``rows``, their log beliefs), until all have been read."""
        for part in self.chunks(rows):
            yield part, self.rows(part)

    @torch.no_grad()
    def likeliest(self) -> Tensor:
        """The most likely states, (B, L); where one is certain nothing is read."""
        shape = self.vectors.shape[:2]
        best = torch.full_like(self.everything(), -1) if self.certain is None else self.certain.flatten().clone()
        for rows in self.chunks((best < 0).nonzero()[:, 0]):
            # the softmax changes no order
            best[rows] = functional.finite(self.rows(rows) if self.bends else self.project(rows)).argmax(-1)
        return best.view(shape)

    def log_probs(self) -> Tensor:
        """Written out: (B, L, K). Differentiable; without gradients it is made in one piece of memory."""
        shape = (*self.vectors.shape[:2], self.num_states)
        if not torch.is_grad_enabled():
            dtype = precise(self.vectors[:0]).dtype
            dense = torch.full((self.positions, self.num_states), -torch.inf, dtype=dtype, device=self.vectors.device)
            for rows, log_p in self.each(self.everything()):
                dense[rows[0] : rows[-1] + 1, : self.num_named] = log_p
            return dense.view(shape)
        log_p = torch.log_softmax(self.project(slice(None)), -1)
        for bend in self.bends:
            log_p = bend(log_p, self.everything())
        if self.certain is not None:
            state = self.certain.flatten()[:, None]
            sure = torch.full_like(log_p, -torch.inf).scatter(-1, state.clamp_min(0), 0.0)
            log_p = torch.where(state < 0, log_p, sure)
        return F.pad(log_p, (0, self.num_states - self.num_named), value=-torch.inf).view(shape)

    def put(self, rows: Tensor, other: Belief) -> Belief:
        mixed = super().put(rows, other)
        if self.certain is None or other.certain is None:
            return mixed
        certain = self.certain.flatten().index_copy(0, rows, other.certain.flatten())
        return replace(mixed, certain=certain.view(self.certain.shape))

    def at(self, rows: Tensor) -> Belief:
        part = super().at(rows)
        return part if self.certain is None else replace(part, certain=self.certain.flatten()[rows][None])

    def loss(self, formula: Formula, where: Tensor | None = None) -> Loss:
        """As for any answer; where the belief is bent or certain, of what has become of it."""
        sure = self.certain is not None and bool(
            (self.certain >= 0 if where is None else (self.certain >= 0) & where).any()
        )
        if self.bends or sure:
            return given(self.log_probs()[..., : self.num_named]).loss(formula, where)
        return super().loss(formula, where)


@dataclass(frozen=True)
class Ratios(Answer):
    """log q(y) / q(z): the logits, plus ``offset`` (B,), 0 at the states ``z`` (B, L) themselves."""

    z: Tensor
    offset: Tensor | None = None
    bends: tuple[Bend, ...] = ()

    @torch.no_grad()
    def logits(self, rows: Tensor) -> Tensor:
        logits = self.project(rows)
        if self.offset is not None:
            logits += self.offset.to(logits.dtype)[rows // self.z.shape[1], None]
        logits.scatter_(-1, self.z.flatten()[rows, None], 0.0)
        for bend in self.bends:
            logits = bend(logits, rows)
        return logits

    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(some of ``rows``, their log ratios), until all have been read."""
        for part in self.chunks(rows):
            yield part, self.logits(part)

    def log_ratios(self) -> Tensor:
        """Written out: (B, L, K). Differentiable."""
        logits = self.project(slice(None))
        if self.offset is not None:
            logits = logits + self.offset.to(logits.dtype).repeat_interleave(self.z.shape[1])[:, None]
        logits = logits.scatter(-1, self.z.flatten()[:, None], 0.0)
        for bend in self.bends:
            logits = bend(logits, self.everything())
        return logits.view(*self.z.shape, self.num_states)


def given(log_p: Tensor) -> Belief:
    """A belief (B, L, K) that has been written out already."""
    return Belief(log_p, None, log_p.shape[-1], log_p.shape[-1])


def log_softmax_(logits: Tensor) -> Tensor:
    """In place, a few rows at a time: a second tensor of that size would take as long to get as to fill."""
    for rows in torch.split(logits, rows_at_once(logits.shape[-1])):
        rows.copy_(torch.log_softmax(rows, -1))
    return logits


@runtime_checkable
class Believes(Protocol):
    """A denoiser whose answer need not be written out."""

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief: ...


@runtime_checkable
class Compares(Protocol):
    """A score model whose answer need not be written out."""

    def ratios(self, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Ratios: ...


def belief_of(
    denoiser: Any, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None, *labels: Tensor
) -> Belief:
    """A denoiser's belief, of one that can only write it out too; ``labels`` for one that is class-conditional."""
    if isinstance(denoiser, Believes):
        return denoiser.belief(z, alpha, mask, dropout, *labels)
    return given(denoiser.log_probs(z, alpha, mask, dropout, *labels))


def ratios_of(
    score: Any, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None, *labels: Tensor
) -> Ratios:
    """A score model's ratios, of one that can only write them out too."""
    if isinstance(score, Compares):
        return score.ratios(z, alpha, mask, dropout, *labels)
    log_ratios = score.log_ratios(z, alpha, mask, dropout, *labels)
    return Ratios(log_ratios, None, log_ratios.shape[-1], log_ratios.shape[-1], z)


def written_out(
    denoiser: Any, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None, *labels: Tensor
) -> Tensor:
    """log of the belief (B, L, K): the method ``log_probs`` of whoever has a ``belief``."""
    dense: Tensor = denoiser.belief(z, alpha, mask, dropout, *labels).log_probs()
    return dense


def ratios_written_out(
    score: Any, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None, *labels: Tensor
) -> Tensor:
    """log ratios (B, L, K): the method ``log_ratios`` of whoever has ``ratios``."""
    dense: Tensor = score.ratios(z, alpha, mask, dropout, *labels).log_ratios()
    return dense


@dataclass(frozen=True)
class Formula:
    """Nats of a token as a function of its row of logits. Its tensors are numbers per token, but for ``shared``.

    ``read`` reduces the rows to a few numbers each and returns with them a ``Pull``: given the derivatives
    (n, 1) of the nats with respect to these numbers, it leaves the gradient with respect to the logits in their place.
    ``nats`` makes nats of the numbers, in float64; autograd differentiates it.
    """

    shared: ClassVar[tuple[str, ...]] = ()

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Pull]:
        raise NotImplementedError

    def nats(self, *numbers: Tensor) -> Tensor:
        raise NotImplementedError

    def spread(self: F_, shape: torch.Size) -> F_:
        """With one number for each of (B, L) tokens, flat."""
        return self._each(lambda value: value.expand(shape).reshape(-1), lambda answer: answer)

    def at(self: F_, rows: Tensor | slice) -> F_:
        """For these tokens only; another answer is projected for them."""
        return self._each(lambda value: value[rows], lambda answer: answer.logits(rows))

    def _each(self: F_, tensor: Callable[[Tensor], Tensor], answer: Callable[[Any], Any]) -> F_:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.shared}
        changed = {name: tensor(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(
            self, **changed, **{name: answer(value) for name, value in values.items() if isinstance(value, Answer)}
        )


F_ = TypeVar("F_", bound=Formula)


class _Gradients:
    """Of the vectors and, if they learn, of the head's weight and bias; ``add`` takes those of a chunk of logits."""

    def __init__(self, answer: Answer):
        self.flat, self.head, self.num_named = answer.vectors.detach().flatten(0, 1), answer.head, answer.num_named
        self.vectors = torch.zeros_like(self.flat)
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if self.head is not None and self.head.weight.requires_grad:
            dtype = precise(self.head.weight[:0]).dtype
            self.weight, self.bias = (
                torch.zeros_like(each, dtype=dtype) for each in (self.head.weight, self.head.bias)
            )

    def add(self, rows: Tensor, slopes: Tensor) -> None:
        """``slopes``: the gradient with respect to the logits of ``rows``."""
        if self.head is None:
            self.vectors[rows] = slopes.to(self.vectors.dtype)
            return
        weight, low = self.head.weight[: self.num_named], slopes.to(self.flat.dtype)
        self.vectors[rows] = torch.mm(low, weight).to(self.vectors.dtype)
        if self.weight is None or self.bias is None:
            return
        if low.dtype == self.weight.dtype and not torch.is_autocast_enabled(low.device.type):
            self.weight[: self.num_named].addmm_(low.T, self.flat[rows])
        else:  # products in the network's precision, their sum in this one's
            self.weight[: self.num_named] += torch.mm(low.T, self.flat[rows])
        self.bias[: self.num_named] += slopes.sum(0)


def _read(answer: Answer, formula: Formula, rows: Tensor, gradients: _Gradients | None) -> Tensor:
    """Nats of all positions, 0 where nothing is read; ``gradients`` is added to."""
    nats = torch.zeros(answer.positions, dtype=torch.float64, device=rows.device)
    for part in answer.chunks(rows):
        nats[part] = _read_chunk(answer, formula.at(part), part, gradients)
    return nats


def _read_chunk(answer: Answer, formula: Formula, rows: Tensor, gradients: _Gradients | None) -> Tensor:
    """Nats of ``rows``, which ``formula`` is for. A function of its own so that its logits are gone before the next."""
    logits = answer.logits(rows)
    size = rows_at_once(logits.shape[-1])
    blocks = [slice(start, start + size) for start in range(0, len(rows), size)]
    reads = [formula.at(block).read(logits[block]) for block in blocks]
    numbers = [torch.cat(each).double() for each in zip(*(read for read, _ in reads))]
    if gradients is None:
        return formula.nats(*numbers)
    with torch.enable_grad():
        leaves = [number.requires_grad_() for number in numbers]
        nats = formula.nats(*leaves)
        slopes = torch.autograd.grad(nats.sum(), leaves, materialize_grads=True)
    for block, (_, pull) in zip(blocks, reads):
        pull(*(slope[block, None].to(logits.dtype) for slope in slopes))
    gradients.add(rows, logits)
    return nats.detach()


class _Fused(torch.autograd.Function):
    """``_read`` as a function of vectors, weight and bias."""

    @staticmethod
    def forward(ctx: Any, answer: Answer, formula: Formula, rows: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        gradients = _Gradients(answer)
        nats = _read(answer, formula, rows, gradients)
        ctx.gradients = gradients
        ctx.shape = answer.vectors.shape
        ctx.mark_non_differentiable(nats)
        return nats.sum(), nats

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor, _nats: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("this loss has been differentiated already: compute it again to do so again")
        made, ctx.gradients = ctx.gradients, None
        found = [made.vectors.view(ctx.shape), made.weight, made.bias][: len(ctx.needs_input_grad) - 3]
        # in place, as nobody else has them
        return (None, None, None, *(None if each is None else each.mul_(upstream.to(each.dtype)) for each in found))

"""The output head and a loss in one: projection, reduction over the vocabulary, gradient, a chunk of rows at a time.

    fused_loss(answer, formula, where)    sum over positions of a ``Formula``, with its gradient

Each chunk of an answer's rows is projected, reduced to a few numbers per row, turned in place into the gradient of the
loss with respect to the logits, and multiplied back into the gradients of vectors and head. The logits of a batch never
exist. Gradients are made where the logits are, in the forward pass, so that nothing is projected twice; hence a loss
can be differentiated once, and by a scalar.

What must hold: ``fused_loss`` is the plain formula of the answer written out, under autograd, in value and gradient
(tests/test_heads.py). Only positions that pay are projected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from duality.diffusion.draws import rows_at_once
from duality.fused.lazy import Answer, precise
from duality.protocols import Loss

Pull = Callable[..., object]


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

    def spread(self: F_, shape: torch.Size, where: Tensor | None) -> F_:
        """With one number for each of (B, L) tokens, flat; other answers to be read at the positions ``where``."""
        return self._each(lambda value: value.expand(shape).reshape(-1), lambda answer: answer.plain(where))

    def with_room(self: F_, rows: int) -> F_:
        """With room for so many rows of the other answers it reads."""
        return self._each(lambda value: value, lambda answer: answer.with_room(rows))

    def at(self: F_, rows: Tensor | slice) -> F_:
        """For these tokens only; another answer is projected for them."""
        return self._each(lambda value: value[rows], lambda answer: answer.logits(rows))

    def _each(self: F_, tensor: Callable[[Tensor], Tensor], answer: Callable[[Any], Any]) -> F_:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in self.shared}
        tensors = {name: tensor(value) for name, value in values.items() if isinstance(value, Tensor)}
        answers = {name: answer(value) for name, value in values.items() if isinstance(value, Answer)}
        return replace(self, **tensors, **answers)


F_ = TypeVar("F_", bound=Formula)


def fused_loss(answer: Answer, formula: Formula, where: Tensor | None = None) -> Loss:
    """The sum of ``formula`` over the positions (B, L) that are True; its nats are 0 elsewhere."""
    shape, answer = answer.vectors.shape[:2], answer.plain(where)
    rows = answer.everything() if where is None else where.flatten().nonzero()[:, 0]
    inputs = (answer.vectors,) if answer.head is None else (answer.vectors, answer.head.weight, answer.head.bias)
    flat = formula.spread(shape, where)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        total, nats = _Fused.apply(answer, flat, rows, *inputs)  # type: ignore[no-untyped-call]
    else:
        nats = _read(answer, flat, rows, None)
        total = nats.sum()
    return Loss(total, nats.view(shape))


class _Gradients:
    """Of the vectors and, if they learn, of the head's weight and bias; ``add`` takes those of a chunk of logits."""

    def __init__(self, answer: Answer):
        self.flat, self.head, self.num_named = answer.vectors.detach().flatten(0, 1), answer.head, answer.num_named
        self.vectors = torch.zeros_like(self.flat)
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, rows: Tensor, slopes: Tensor) -> None:
        """``slopes``: the gradient with respect to the logits of ``rows``."""
        if self.head is None:
            self.vectors[rows] = slopes.to(self.vectors.dtype)
            return
        low, seen = slopes.to(self.flat.dtype), self.flat[rows]
        self.vectors[rows] = torch.mm(low, self.head.weight[: self.num_named]).to(self.vectors.dtype)
        if not self.head.weight.requires_grad:
            return
        if self.weight is None or self.bias is None:
            # the first product is written, not added to zeros, which would have to be written before
            dtype = precise(self.head.weight[:0]).dtype
            self.weight, self.bias = (
                torch.empty_like(each, dtype=dtype) for each in (self.head.weight, self.head.bias)
            )
            self.weight[self.num_named :], self.bias[self.num_named :], kept = 0.0, 0.0, 0
        else:
            kept = 1
        weight, bias = self.weight[: self.num_named], self.bias[: self.num_named]
        if low.dtype == weight.dtype and not torch.is_autocast_enabled(low.device.type):
            weight.addmm_(low.T, seen, beta=kept)
        else:  # products in the network's precision, their sum in this one's
            weight.copy_(torch.mm(low.T, seen) + (weight if kept else 0))
        bias.copy_(slopes.sum(0) + (bias if kept else 0))


def _read(answer: Answer, formula: Formula, rows: Tensor, gradients: _Gradients | None) -> Tensor:
    """Nats of all positions, 0 where nothing is read; ``gradients`` is added to."""
    nats = torch.zeros(answer.positions, dtype=torch.float64, device=rows.device)
    reader, chunks = answer.in_chunks(rows, learning=gradients is not None)
    others = formula.with_room(len(chunks[0])) if chunks else formula
    for part in chunks:
        nats[part] = _read_chunk(reader, others.at(part), part, gradients)
    return nats


def _read_chunk(answer: Answer, formula: Formula, rows: Tensor, gradients: _Gradients | None) -> Tensor:
    """Nats of ``rows``, which ``formula`` is for. A function of its own so that its logits are gone before the next."""
    logits = answer.logits(rows)
    size = rows_at_once(logits.shape[-1], logits.device)
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
        if not len(rows) and len(inputs) > 1:  # nobody paid
            gradients.weight, gradients.bias = (torch.zeros_like(each) for each in inputs[1:])
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

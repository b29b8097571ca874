"""A loss fused with the output head: projection, reduction over the vocabulary, gradient, a chunk of rows at a time.

    fused_loss(lazy, formula, where)    sum over positions of a ``Formula``, with its gradient

Each chunk of rows is projected, reduced to a few numbers per row, turned in place into the gradient of the loss with
respect to the logits, and multiplied back into the gradients of vectors and head. The logits of a batch never exist
together. Gradients are computed in the forward pass, where the logits are, so that nothing is projected twice; hence a
loss can be differentiated once, and by a scalar.

What must hold: ``fused_loss`` equals the plain formula of the materialised logits under autograd, in value and gradient
(tests/fused/test_formulas.py). Only positions with a loss are projected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duality.diffusion.draws import block_rows
from duality.fused.head import HeadProduct
from duality.fused.lazy import LazyLogits, at_least_float32
from duality.fused.row_readers import RowReader, find_reader
from duality.protocols import Loss

if TYPE_CHECKING:
    from duality.fused.formulas import Formula


def fused_loss(lazy: LazyLogits, formula: Formula, where: Tensor | None = None) -> Loss:
    """The sum of ``formula`` over the positions (B, L) that are True; its nats are 0 elsewhere."""
    certain, rows = _choose_rows(lazy, formula, where)
    shape, lazy, flat = (
        lazy.vectors.shape[:2],
        lazy.as_logits(certain),
        formula.flatten(lazy.vectors.shape[:2], certain),
    )
    inputs = (lazy.vectors,) if lazy.head is None else (lazy.vectors, lazy.head.weight, lazy.head.bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        total, nats = _Fused.apply(lazy, flat, rows, *inputs)  # type: ignore[no-untyped-call]
    else:
        nats = _read(lazy, flat, rows, None)
        total = nats.sum()
    return Loss(total, nats.view(shape))


def _choose_rows(lazy: LazyLogits, formula: Formula, where: Tensor | None) -> tuple[bool, Tensor]:
    """Whether something is certain where a loss is read, and the flat positions of the loss.

    Both depend on numbers of the device: the host waits for them once, and not at all where it knows them.
    """
    found = (each.count_certain(where) for each in (lazy, *formula.targets()))
    counts = [count for count in found if count is not None]
    if where is None:
        return any(torch.stack(counts).tolist() if counts else ()), lazy.all_rows()
    num_rows, *certain = torch.stack([where.sum(), *counts]).tolist()
    return any(certain), torch.nonzero_static(where.flatten(), size=num_rows)[:, 0]


class _Gradients:
    """Gradients of the vectors and, if it is trained, of the head; ``add`` takes those of a chunk of logits."""

    def __init__(self, lazy: LazyLogits, num_rows: int):
        self.flat, self.head, self.num_outputs = lazy.vectors.detach().flatten(0, 1), lazy.head, lazy.num_outputs
        self.low = self.flat  # in the precision of the products
        self.vectors = torch.zeros_like(self.flat) if num_rows < lazy.positions else torch.empty_like(self.flat)
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, rows: Tensor, slopes: Tensor, product: HeadProduct | None, sums: Tensor | None) -> None:
        """``slopes``: the gradient with respect to the logits of ``rows``; ``sums``: parts of its sum over these."""
        if self.head is None:
            self.vectors[rows] = slopes.to(self.vectors.dtype)
        elif product is None:
            self._add_slopes(self.head, rows, slopes)
        else:
            self._add_padded(self.head, rows, slopes, product, sums)

    def _add_slopes(self, head: nn.Linear, rows: Tensor, slopes: Tensor) -> None:
        low, seen = slopes.to(self.flat.dtype), self.flat[rows]
        self.vectors[rows] = torch.mm(low, head.weight[: self.num_outputs]).to(self.vectors.dtype)
        if not head.weight.requires_grad:
            return
        if self.weight is None or self.bias is None:
            # the first product is written, not added to zeros, which would have to be written before
            dtype = at_least_float32(head.weight[:0]).dtype
            self.weight, self.bias = (torch.empty_like(each, dtype=dtype) for each in (head.weight, head.bias))
            self.weight[self.num_outputs :], self.bias[self.num_outputs :], kept = 0.0, 0.0, 0
        else:
            kept = 1
        weight, bias = self.weight[: self.num_outputs], self.bias[: self.num_outputs]
        if low.dtype == weight.dtype and not torch.is_autocast_enabled(low.device.type):
            weight.addmm_(low.T, seen, beta=kept)
        else:  # products in the network's precision, their sum in this one's
            weight.copy_(torch.mm(low.T, seen) + (weight if kept else 0))
        bias.copy_(slopes.sum(0) + (bias if kept else 0))

    def _add_padded(
        self, head: nn.Linear, rows: Tensor, slopes: Tensor, product: HeadProduct, sums: Tensor | None
    ) -> None:
        low = product.logits[: len(rows)]
        if not product.lower or slopes.dtype != low.dtype:  # elsewhere than in the memory of the product
            low[:, : self.num_outputs] = slopes
        self.low = self.low.to(low.dtype)
        seen = self.low[rows]
        self.vectors[rows] = torch.mm(low, product.weight).to(self.vectors.dtype)
        if not head.weight.requires_grad:
            return
        weight = _multiply(low.T, seen)[: len(head.weight)]
        bias = (slopes if sums is None else sums).sum(0, dtype=weight.dtype)
        bias = F.pad(bias, (0, len(head.bias) - len(bias)))
        self.weight, self.bias = (
            new if old is None else old.add_(new) for old, new in ((self.weight, weight), (self.bias, bias))
        )


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """The product, in float32 at least; of two of bfloat16 without rounding it to bfloat16 where the device can."""
    if a.device.type == "cuda" and torch.version.hip is None and a.dtype == torch.bfloat16:
        return torch.mm(a, b, out_dtype=torch.float32)
    return at_least_float32(torch.mm(a, b))


def _read(lazy: LazyLogits, formula: Formula, rows: Tensor, gradients: _Gradients | None) -> Tensor:
    """Nats of all positions, 0 where nothing is read; ``gradients`` is added to."""
    nats = torch.zeros(lazy.positions, dtype=torch.float64, device=rows.device)
    fast = find_reader(lazy, formula)
    chunked, chunks = lazy.in_chunks(rows, learning=gradients is not None, lower=fast is not None)
    others = formula.with_buffer(len(chunks[0]), lower=fast is not None) if chunks else formula
    for part in chunks:
        if fast is None:
            nats[part] = _read_chunk(chunked, others.at(part), part, gradients)
        else:
            nats[part] = _read_chunk_fast(fast, chunked, others.at(part), part, gradients)
    return nats


def _read_chunk(lazy: LazyLogits, formula: Formula, rows: Tensor, gradients: _Gradients | None) -> Tensor:
    """Nats of ``rows``, which ``formula`` is for. A function of its own so that its logits are gone before the next."""
    logits = lazy.logits(rows)
    size = block_rows(logits.shape[-1], logits.device)
    blocks = [slice(start, start + size) for start in range(0, len(rows), size)]
    reads = [formula.at(block).read(logits[block]) for block in blocks]
    numbers = [torch.cat(each).double() for each in zip(*(read for read, _ in reads))]
    if gradients is None:
        return formula.nats(*numbers)
    nats, slopes = _differentiate(formula, numbers)
    for block, (_, pull) in zip(blocks, reads):
        pull(*(slope[block, None].to(logits.dtype) for slope in slopes))
    gradients.add(rows, logits, lazy.product, None)
    return nats


def _read_chunk_fast(
    read: RowReader, lazy: LazyLogits, formula: Formula, rows: Tensor, gradients: _Gradients | None
) -> Tensor:
    """The same by kernels, which need no blocks and no more precise logits."""
    logits = lazy.logits(rows)
    trains_head = lazy.head is not None and lazy.head.weight.requires_grad
    numbers, pull = read(formula, logits, trains_head)
    if gradients is None:
        return formula.nats(*numbers)
    nats, slopes = _differentiate(formula, numbers)
    sums = pull(*slopes)
    gradients.add(rows, logits, lazy.product, sums)
    return nats


def _differentiate(formula: Formula, numbers: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Nats, and the derivatives of their sum with respect to the numbers."""
    with torch.enable_grad():
        leaves = [number.requires_grad_() for number in numbers]
        nats = formula.nats(*leaves)
        slopes = torch.autograd.grad(nats.sum(), leaves, materialize_grads=True)
    return nats.detach(), slopes


class _Fused(torch.autograd.Function):
    """``_read`` as a function of vectors, weight and bias."""

    @staticmethod
    def forward(ctx: Any, lazy: LazyLogits, formula: Formula, rows: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        gradients = _Gradients(lazy, len(rows))
        nats = _read(lazy, formula, rows, gradients)
        if not len(rows) and len(inputs) > 1:  # no position has a loss
            gradients.weight, gradients.bias = (torch.zeros_like(each) for each in inputs[1:])
        ctx.gradients = gradients
        ctx.shape = lazy.vectors.shape
        ctx.mark_non_differentiable(nats)
        return nats.sum(), nats

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor, _nats: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("this loss has been differentiated already: compute it again to do so again")
        made, ctx.gradients = ctx.gradients, None
        found = [made.vectors.view(ctx.shape), made.weight, made.bias][: len(ctx.needs_input_grad) - 3]
        # in place: no other code holds these tensors
        return (None, None, None, *(None if each is None else each.mul_(upstream.to(each.dtype)) for each in found))

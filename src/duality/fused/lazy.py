"""Lazy logits: what a network says of every position before it is projected to the vocabulary.

The vectors are (B, L, D), the states K = 50 000: materialised, they are most of the memory and much of the time of a
step. So it is read a few rows (positions) at a time, and only the rows that are needed: a sampler reads them with
``each``, a loss in ``fused.loss``. ``log_probs()`` and ``log_ratios()`` materialise all of it.

    Belief    log-softmax of the logits: a distribution over the clean token
    Ratios    logits that are log q(y) / q(z): a score model

Logits are as precise as the network makes them, and at least float32 from there on: a log-softmax in bfloat16 is wrong
by up to 0.075 nats.

A denoiser needs only ``log_probs``; one that also has ``belief`` is faster. ``belief_of`` asks either, and refuses
a model that gives no belief.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duality.devices import finite, positions, static_shapes
from duality.diffusion.draws import block_rows
from duality.fused.head import HeadProduct
from duality.protocols import AnyDenoiser, Denoiser, Dropout, Labels, Latent, Score, Valid

A = TypeVar("A", bound="LazyLogits")

_COLUMNS = 1024  # states projected at a time on a CPU, where a product with a very wide result is a fifth slower


class _LogitsTransform(Protocol):
    """A change of some rows of log-probabilities (n, K), at flat positions ``rows``; returns log-probabilities.

    ``linear`` says that transforming a mixture of logits is mixing transformed logits, up to a constant per row.
    """

    @property
    def linear(self) -> bool: ...
    def __call__(self, log_p: Tensor, rows: Tensor) -> Tensor: ...


def at_least_float32(logits: Tensor) -> Tensor:
    """float64 stays, everything else becomes float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def chunk_rows(num_states: int, device: torch.device, learning: bool = False, lower: bool = False) -> int:
    """How many rows to project at most at a time: enough for an efficient product, far fewer than a batch has.

    On a CPU the head's weights are read from memory once for each chunk, however many rows it has: 256 are worth that.
    Without activations that are kept for a backward pass there is memory for more. On other devices, a gigabyte; with
    ``lower``, where nothing else of that size is needed, four in bfloat16: 64 x 1024 tokens are then two products.
    """
    if device.type != "cpu":
        return max((1 << (31 if lower else 28)) // num_states, 1)
    return max(256 if learning else 420, min((6 << 20) // num_states, 4096))


def _even_chunks(rows: Tensor, most: int) -> tuple[Tensor, ...]:
    """``rows`` in as few chunks of at most ``most`` as possible, all of one size: a small one costs as a large one."""
    count = -(-len(rows) // most)
    return torch.split(rows, -(-len(rows) // count)) if count else ()


@dataclass(frozen=True)
class LazyLogits:
    """Vectors (B, L, D) and the head that projects them to its first ``num_outputs`` states.

    Without a head the vectors are the logits.
    """

    vectors: Tensor
    head: nn.Linear | None
    num_outputs: int
    num_states: int
    buffer: Tensor | None = field(default=None, kw_only=True)
    """Memory for a chunk of logits, see ``with_buffer``."""
    product: HeadProduct | None = field(default=None, kw_only=True)

    @property
    def positions(self) -> int:
        return self.vectors.shape[0] * self.vectors.shape[1]

    def all_rows(self) -> Tensor:
        """All flat positions."""
        return torch.arange(self.positions, device=self.vectors.device)

    def logits_type(self) -> torch.dtype:
        """The precision of the products that logits are."""
        kind = self.vectors.device.type
        if self.head is not None and torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
        return self.vectors.dtype

    def project(self, rows: Tensor | slice) -> Tensor:
        """Logits (n, num_outputs) of some rows: a tensor that the caller may overwrite."""
        vectors = self.vectors.reshape(self.positions, -1)[rows]
        if self.head is None:
            logits = at_least_float32(vectors[:, : self.num_outputs])
            # a slice is a view of the vectors
            return logits.clone() if isinstance(rows, slice) else logits
        if self.product is not None and not torch.is_grad_enabled():
            logits = self.product.project(vectors)
            return logits if self.product.lower else at_least_float32(logits)
        weight, bias = self.head.weight[: self.num_outputs], self.head.bias[: self.num_outputs]
        if self.buffer is None or torch.is_grad_enabled():
            return at_least_float32(F.linear(vectors, weight, bias))
        logits = self.buffer[: len(vectors)]
        for start in range(0, self.num_outputs, _COLUMNS):
            some = slice(start, start + _COLUMNS)
            torch.addmm(bias[some], vectors, weight[some].T, out=logits[:, some])
        return logits

    def with_buffer(self: A, rows: int, lower: bool = False) -> A:
        """The same with a buffer for up to ``rows`` rows of logits; a chunk is overwritten by the next one.

        The system takes large free blocks of memory back, and getting them again takes as long as filling them. On a
        CPU, a network of lower precision gets no buffer: its logits are another tensor than its products. On other
        devices, and with ``lower``, the head is prepared with it: once for all chunks.
        """
        dtype, device = self.vectors.dtype, self.vectors.device
        if self.head is None:
            return self
        if lower or device.type != "cpu":
            product = HeadProduct.of(self.head, self.num_outputs, self.logits_type(), rows, lower)
            return replace(self, product=product)
        if at_least_float32(self.vectors[:0]).dtype != dtype or torch.is_autocast_enabled(device.type):
            return self
        return replace(self, buffer=torch.empty(rows, self.num_outputs, dtype=dtype, device=device))

    def logits(self, rows: Tensor) -> Tensor:
        """The rows that a formula reads."""
        with torch.no_grad():
            return self.project(rows)

    def in_chunks(self: A, rows: Tensor, learning: bool = False, lower: bool = False) -> tuple[A, tuple[Tensor, ...]]:
        """The same with a buffer for a chunk, and ``rows`` in such chunks."""
        chunks = _even_chunks(rows, chunk_rows(self.num_outputs, rows.device, learning, lower))
        return (self.with_buffer(len(chunks[0]), lower) if chunks else self), chunks

    def put(self: A, rows: Tensor, other: A) -> A:
        """The same with ``rows`` (flat positions) taken from ``other``, which has as many rows."""
        vectors = self.vectors.flatten(0, 1).index_copy(0, rows, other.vectors.flatten(0, 1))
        return replace(self, vectors=vectors.view(self.vectors.shape))

    def where(self: A, chosen: Tensor, other: A) -> A:
        """The same at the positions ``chosen`` (B, L), those of ``other`` elsewhere."""
        return replace(self, vectors=torch.where(chosen[..., None], self.vectors, other.vectors))

    def count_certain(self, where: Tensor | None) -> Tensor | None:
        """At how many of the positions ``where`` (B, L) the network is not asked; None if it is asked everywhere."""
        return None

    def as_logits(self: A, certain: bool) -> LazyLogits:
        """Lazy logits whose ``logits`` hold everything that is known; ``certain``: also without the network."""
        return self


def _make_certain_(log_p: Tensor, state: Tensor) -> Tensor:
    """Log beliefs (n, K), in place: certain where a ``state`` (n,) is given, and as they are where it is negative."""
    if static_shapes(state.device):
        sure, column = (state >= 0)[:, None], state.clamp_min(0)[:, None]
        log_p.masked_fill_(sure, -torch.inf)
        return log_p.scatter_(-1, column, torch.where(sure, 0.0, log_p.gather(-1, column)))
    known = (state >= 0).nonzero()[:, 0]
    log_p[known] = -torch.inf
    log_p[known, state[known]] = 0.0
    return log_p


@dataclass(frozen=True)
class Belief(LazyLogits):
    """The belief about each token: softmax of the logits, changed by ``transforms``, or a state that is ``certain``.

    ``certain`` (B, L) holds that state, and -1 where the network is asked. States from ``num_outputs`` on have
    probability 0.
    """

    certain: Tensor | None = None
    transforms: tuple[_LogitsTransform, ...] = ()

    def with_transform(self, transform: _LogitsTransform) -> Belief:
        """The same, changed by one more transform where it is read."""
        return replace(self, transforms=(*self.transforms, transform))

    def rows(self, rows: Tensor) -> Tensor:
        """log of the belief (n, num_outputs) at flat positions ``rows``."""
        with torch.no_grad():
            log_p = self.project(rows)
            # in place, a few rows at a time: a second tensor of that size would take as long to allocate as to fill
            for some in torch.split(log_p, block_rows(log_p.shape[-1], log_p.device)):
                some.copy_(torch.log_softmax(some, -1))
            for transform in self.transforms:
                log_p = transform(log_p, rows)
            return log_p if self.certain is None else _make_certain_(log_p, self.certain.flatten()[rows])

    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield some of ``rows`` and their log beliefs, which are valid until the next are asked for."""
        reader, chunks = self.in_chunks(rows)
        for part in chunks:
            yield part, reader.rows(part)

    def argmax_states(self) -> Tensor:
        """The most likely states, (B, L). A position that is certain is not read."""
        with torch.no_grad():
            shape = self.vectors.shape[:2]
            best = torch.full_like(self.all_rows(), -1) if self.certain is None else self.certain.flatten().clone()
            reader, chunks = self.in_chunks(positions(best < 0))
            for rows in chunks:
                # the softmax changes no order
                most = (reader.rows(rows) if self.transforms else reader.project(rows)).max(-1)
                finite(most.values[:, None])
                best[rows] = torch.where(best[rows] < 0, most.indices, best[rows])
            return best.view(shape)

    def log_probs(self) -> Tensor:
        """Materialised: (B, L, K). Differentiable; without gradients it is made in one block of memory."""
        shape = (*self.vectors.shape[:2], self.num_states)
        if not torch.is_grad_enabled():
            dtype = at_least_float32(self.vectors[:0]).dtype
            dense = torch.full((self.positions, self.num_states), -torch.inf, dtype=dtype, device=self.vectors.device)
            first = 0
            for rows, log_p in self.each(self.all_rows()):
                dense[first : first + len(rows), : self.num_outputs] = log_p
                first += len(rows)
            return dense.view(shape)
        log_p = torch.log_softmax(self.project(slice(None)), -1)
        for transform in self.transforms:
            log_p = transform(log_p, self.all_rows())
        if self.certain is not None:
            state = self.certain.flatten()[:, None]
            sure = torch.full_like(log_p, -torch.inf).scatter(-1, state.clamp_min(0), 0.0)
            log_p = torch.where(state < 0, log_p, sure)
        return F.pad(log_p, (0, self.num_states - self.num_outputs), value=-torch.inf).view(shape)

    def put(self, rows: Tensor, other: Belief) -> Belief:
        mixed = super().put(rows, other)
        if self.certain is None or other.certain is None:
            return mixed
        certain = self.certain.flatten().index_copy(0, rows, other.certain.flatten())
        return replace(mixed, certain=certain.view(self.certain.shape))

    def where(self, chosen: Tensor, other: Belief) -> Belief:
        mixed = super().where(chosen, other)
        if self.certain is None or other.certain is None:
            return mixed
        return replace(mixed, certain=torch.where(chosen, self.certain, other.certain))

    def count_certain(self, where: Tensor | None) -> Tensor | None:
        if self.certain is None:
            return None
        return (self.certain >= 0 if where is None else (self.certain >= 0) & where).sum()

    def as_logits(self, certain: bool) -> Belief:
        """Materialised if there are transforms or certain positions: a formula then reads the belief itself."""
        if self.transforms or (certain and self.certain is not None):
            return _belief_from(self.log_probs()[..., : self.num_outputs])
        return self


@dataclass(frozen=True)
class Ratios(LazyLogits):
    """log q(y) / q(z): the logits, plus ``offset`` (B,), and 0 at the states ``z`` (B, L) themselves."""

    z: Tensor
    offset: Tensor | None = None
    transforms: tuple[Callable[[Tensor, Tensor], Tensor], ...] = ()

    def logits(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.project(rows)
            if self.offset is not None:
                logits = at_least_float32(logits)
                logits += self.offset.to(logits.dtype)[rows // self.z.shape[1], None]
            logits.scatter_(-1, self.z.flatten()[rows, None], 0.0)
            for transform in self.transforms:
                logits = transform(logits, rows)
            return logits

    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield some of ``rows`` and their log ratios, which are valid until the next are asked for."""
        reader, chunks = self.in_chunks(rows)
        for part in chunks:
            yield part, reader.logits(part)

    def log_ratios(self) -> Tensor:
        """Materialised: (B, L, K). Differentiable."""
        logits = self.project(slice(None))
        if self.offset is not None:
            logits = logits + self.offset.to(logits.dtype).repeat_interleave(self.z.shape[1])[:, None]
        logits = logits.scatter(-1, self.z.flatten()[:, None], 0.0)
        for transform in self.transforms:
            logits = transform(logits, self.all_rows())
        return logits.view(*self.z.shape, self.num_states)


def _belief_from(log_p: Tensor) -> Belief:
    """A belief (B, L, K) that is materialised already."""
    return Belief(log_p, None, log_p.shape[-1], log_p.shape[-1])


@runtime_checkable
class _LazyDenoiser(Protocol):
    """A denoiser with a lazy belief."""

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief: ...


@runtime_checkable
class _LazyScore(Protocol):
    """A score model with lazy ratios."""

    def ratios(
        self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Ratios: ...


class _Conditional(Protocol):
    """A denoiser without a lazy belief that takes labels."""

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid, dropout: Dropout, labels: Labels) -> Tensor: ...


def _drop_none(valid: Valid, dropout: Dropout) -> tuple[Any, ...]:
    """These two arguments without the None at their end, so that ``log_probs(z, alpha)`` alone is a denoiser too."""
    return () if valid is None and dropout is None else (valid,) if dropout is None else (valid, dropout)


def belief_of(
    denoiser: AnyDenoiser, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
) -> Belief:
    """A denoiser's belief, lazy if it can be; a model without one is refused."""
    if isinstance(denoiser, _LazyDenoiser):
        return denoiser.belief(z, alpha, valid, dropout, labels)
    if isinstance(denoiser, Denoiser):
        if labels is not None:
            return _belief_from(cast(_Conditional, denoiser).log_probs(z, alpha, valid, dropout, labels))
        return _belief_from(denoiser.log_probs(z, alpha, *_drop_none(valid, dropout)))
    raise ValueError(
        f"a belief about each token is needed, and a {type(denoiser).__name__} gives none: a score model goes with "
        "ScoreEntropy and the analytic sampler, a Gaussian model with Variational and the gaussian sampler"
    )


def ratios_of(
    score: AnyDenoiser, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
) -> Ratios:
    """A score model's ratios, lazy if they can be; a model without ratios is refused."""
    if isinstance(score, _LazyScore):
        return score.ratios(z, alpha, valid, dropout, labels)
    if isinstance(score, Score):
        if labels is not None:
            raise ValueError(f"labels for a {type(score).__name__}: it has no lazy ratios that would take them")
        log_ratios = score.log_ratios(z, alpha, *_drop_none(valid, dropout))
        return Ratios(log_ratios, None, log_ratios.shape[-1], log_ratios.shape[-1], z)
    raise ValueError(
        f"the ratios of a score model are needed, and a {type(score).__name__} gives none: a denoiser with a belief "
        "goes with ContinuousTimeBound and the ancestral sampler"
    )


def materialised_log_probs(
    lazy: _LazyDenoiser, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
) -> Tensor:
    """log of the belief (B, L, K): the method ``log_probs`` of a class that has ``belief``."""
    return lazy.belief(z, alpha, valid, dropout, labels).log_probs()


def materialised_log_ratios(
    lazy: _LazyScore, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
) -> Tensor:
    """log ratios (B, L, K): the method ``log_ratios`` of a class that has ``ratios``."""
    return lazy.ratios(z, alpha, valid, dropout, labels).log_ratios()

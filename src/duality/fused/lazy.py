"""What a network says of every position, before it is written out: vectors, and the head that projects them to states.

The vectors are (B, L, D), the states K = 50 000: written out, an answer is most of the memory and much of the time of a
step. So it is read a few rows (positions) at a time, and only those that somebody wants: by a sampler with ``each``, by
a loss in ``heads``. ``log_probs()`` and ``log_ratios()`` write all of it out.

Logits are as precise as the network makes them, and float32 from there on (float64 if the network is): a log-softmax in
bfloat16 is wrong by up to 0.075 nats.

A denoiser needs a method ``log_probs`` and nothing of this; one that has ``belief`` too is faster. ``belief_of`` asks
either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duality.diffusion import draws
from duality.diffusion.draws import rows_at_once
from duality.noise import Noise
from duality.protocols import Latent

Bend = Callable[[Tensor, Tensor], Tensor]
A = TypeVar("A", bound="Answer")

_COLUMNS = 1024  # states projected at a time on a CPU, where a product with a very wide result is a fifth slower


def precise(logits: Tensor) -> Tensor:
    """At least float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def rows_of_a_product(num_states: int, device: torch.device, learning: bool = False) -> int:
    """How many rows to project at most at a time: enough for a product to be efficient, far fewer than a batch has.

    On a CPU the head's weights are read from memory once for each chunk, however many rows it has: 256 are worth that.
    Where no activations are kept for a backward pass there is room for more. Elsewhere a gigabyte.
    """
    if device.type != "cpu":
        return max((1 << 28) // num_states, 1)
    return max(256 if learning else 420, min((6 << 20) // num_states, 4096))


def evenly(rows: Tensor, most: int) -> tuple[Tensor, ...]:
    """``rows`` in as few parts of at most ``most`` as there can be, of one size: a small one would cost as a large."""
    count = -(-len(rows) // most)
    return torch.split(rows, -(-len(rows) // count)) if count else ()


@dataclass(frozen=True)
class Answer:
    """Vectors (B, L, D) and the head that projects them onto its first ``num_named`` states; None: they are logits."""

    vectors: Tensor
    head: nn.Linear | None
    num_named: int
    num_states: int
    room: Tensor | None = field(default=None, kw_only=True)
    """Memory for a chunk of logits, see ``with_room``."""

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
        if self.room is None or torch.is_grad_enabled():
            return precise(F.linear(vectors, weight, bias))
        logits = self.room[: len(vectors)]
        step = _COLUMNS if logits.device.type == "cpu" else self.num_named
        for start in range(0, self.num_named, step):
            some = slice(start, start + step)
            torch.addmm(bias[some], vectors, weight[some].T, out=logits[:, some])
        return logits

    def with_room(self: A, rows: int) -> A:
        """Puts up to ``rows`` logits always into the same memory, so that a chunk is gone when the next is there.

        The system takes large pieces of memory back when they are free, and to get them again takes as long as to fill
        them. A network of lower precision is left alone: its logits are another tensor than its products.
        """
        dtype, device = self.vectors.dtype, self.vectors.device
        if self.head is None or precise(self.vectors[:0]).dtype != dtype or torch.is_autocast_enabled(device.type):
            return self
        return replace(self, room=torch.empty(rows, self.num_named, dtype=dtype, device=device))

    @torch.no_grad()
    def logits(self, rows: Tensor) -> Tensor:
        """What a formula reads."""
        return self.project(rows)

    def in_chunks(self: A, rows: Tensor, learning: bool = False) -> tuple[A, tuple[Tensor, ...]]:
        """This answer with room for a chunk, and ``rows`` in such chunks."""
        chunks = evenly(rows, rows_of_a_product(self.num_named, rows.device, learning))
        return (self.with_room(len(chunks[0])) if chunks else self), chunks

    def put(self: A, rows: Tensor, other: A) -> A:
        """This answer with ``rows`` (flat positions) taken from ``other``, which has as many."""
        vectors = self.vectors.flatten(0, 1).index_copy(0, rows, other.vectors.flatten(0, 1))
        return replace(self, vectors=vectors.view(self.vectors.shape))

    def at(self: A, rows: Tensor) -> A:
        """Only these rows, as one sequence."""
        return replace(self, vectors=self.vectors.flatten(0, 1)[rows][None])

    def plain(self: A, where: Tensor | None) -> Answer:
        """An answer whose ``logits`` say all there is to say at the positions ``where`` (B, L)."""
        return self


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
        """(some of ``rows``, their log beliefs, to be used before the next), until all have been read."""
        reader, chunks = self.in_chunks(rows)
        for part in chunks:
            yield part, reader.rows(part)

    @torch.no_grad()
    def likeliest(self) -> Tensor:
        """The most likely states, (B, L); where one is certain nothing is read."""
        shape = self.vectors.shape[:2]
        best = torch.full_like(self.everything(), -1) if self.certain is None else self.certain.flatten().clone()
        reader, chunks = self.in_chunks((best < 0).nonzero()[:, 0])
        for rows in chunks:
            # the softmax changes no order
            most = (reader.rows(rows) if self.bends else reader.project(rows)).max(-1)
            draws.finite(most.values[:, None])
            best[rows] = most.indices
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

    def plain(self, where: Tensor | None) -> Belief:
        """Written out where it is bent, or certain: then a formula reads what has become of it."""
        sure = torch.zeros((), dtype=torch.bool) if self.certain is None else self.certain >= 0
        if self.bends or bool((sure if where is None else sure & where).any()):
            return given(self.log_probs()[..., : self.num_named])
        return self


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
        """(some of ``rows``, their log ratios, to be used before the next), until all have been read."""
        reader, chunks = self.in_chunks(rows)
        for part in chunks:
            yield part, reader.logits(part)

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
    for rows in torch.split(logits, rows_at_once(logits.shape[-1], logits.device)):
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

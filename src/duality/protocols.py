"""START HERE: the interfaces of the library on one page.

    A model is a **process** (where noise goes), a **schedule** (how fast), a **denoiser** (what was
    there), an **objective** (how it learns) and a **sampler** (how it writes).

Letters: ``x`` clean tokens (B, L) int64 · ``z`` noisy tokens, or a ``TopK`` mixture of tokens per position ·
``alpha`` signal level in [0, 1], 1 is clean, float64 of shape (B,) · ``t`` time in [0, 1], 0 is clean ·
``mask`` (B, L) bool, False on padding, None when nothing is padded · ``K`` the number of states.

Only a schedule knows time: processes, denoisers and samplers speak of ``alpha``. Only ``Noise`` makes random
numbers. What is a choice is a frozen dataclass (``LogLinear(eps=1e-3)``), so it prints and saves as it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from duality.noise import Noise


@dataclass(frozen=True)
class TopK:
    """A point of the simplex at each position as a sparse mixture: ``weights`` (B, L, k) of the tokens ``ids``."""

    ids: Tensor
    weights: Tensor


Latent = Tensor | TopK


@dataclass(frozen=True)
class Loss:
    """``total``: the sum over real tokens, to differentiate. ``nats``: the same per token (B, L), detached."""

    total: Tensor
    nats: Tensor


@runtime_checkable
class Schedule(Protocol):
    """How fast signal is lost. The ends are read from it, never assumed: alpha(1) need not be 0."""

    def alpha(self, t: Tensor) -> Tensor: ...
    def alpha_prime(self, t: Tensor) -> Tensor: ...
    def time(self, alpha: Tensor) -> Tensor: ...


@runtime_checkable
class Process(Protocol):
    """Where noise goes: q(z | x) = alpha x + (1 - alpha) prior. Knows alpha, never t."""

    @property
    def vocab_size(self) -> int: ...
    def prior(self) -> Tensor: ...
    def prior_of(self, z: Tensor) -> Tensor: ...
    def sample_prior(self, length: int, noise: Noise) -> Tensor: ...
    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor: ...


class Denoiser(Protocol):
    """What was there: log of the belief about each clean token, (B, L, K). Dropout happens if noise is given."""

    def log_probs(
        self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None
    ) -> Tensor: ...


class Objective(Protocol):
    """How it learns. Times come from outside: stratified in training, low-discrepancy in evaluation."""

    def __call__(
        self, denoiser: Denoiser, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss: ...


class Sampler(Protocol):
    """How it writes: one step from the level ``alpha_t`` to the cleaner ``alpha_s``; one call of the denoiser."""

    def step(
        self, denoiser: Denoiser, process: Process, z: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise
    ) -> Tensor: ...


@dataclass(frozen=True)
class Phase:
    """A stretch of training: ``objective`` until step ``until`` (exclusive)."""

    name: str
    objective: Objective
    until: int


@runtime_checkable
class Method(Protocol):
    """A named assembly of the parts above; what a recipe chooses and a table compares.

    ``phases`` is how it is trained, ``bound`` what it is measured by, ``schedule`` and ``sampler`` how it writes.
    """

    def process(self, num_tokens: int) -> Process: ...
    def schedule(self) -> Schedule: ...
    def phases(self, process: Process, steps: int) -> tuple[Phase, ...]: ...
    def bound(self, process: Process) -> Objective: ...
    def sampler(self) -> Sampler: ...


Reporter = Callable[[str], None]

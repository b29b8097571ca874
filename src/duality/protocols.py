"""START HERE: the interfaces of the library on one page.

    A model is a **process** (where noise goes), a **schedule** (how fast), a **denoiser** (what was
    there), an **objective** (how it learns) and a **sampler** (how it writes).

Letters: ``x`` clean tokens (B, L) int64 · ``z`` noisy tokens, or a ``TopK`` mixture of tokens per position ·
``alpha`` signal level in [0, 1], 1 is clean, float64 of shape (B,) · ``t`` time in [0, 1], 0 is clean ·
``mask`` (B, L) bool, False on padding, None when nothing is padded · ``K`` the number of states.

Only a schedule knows time: processes, denoisers and samplers speak of ``alpha``. Only ``Noise`` makes random
numbers. What is a choice is a frozen dataclass (``LogLinear(eps=1e-3)``), so it prints and saves as it is written.

A network answers one of three questions: what the token was (``Denoiser``), how likely other states are than this one
(``Score``), or where a vector came from (the Gaussian models in ``baselines/``). Each objective and each sampler names
the kind it asks; giving it another is an error that says what would work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from duality.noise import Noise


@dataclass(frozen=True)
class TopK:
    """A point of the simplex at each position as a sparse mixture: ``weights`` (B, L, k) of the tokens ``ids``."""

    ids: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Prefix:
    """What comes after a prefix: its last token ``ids`` (B, 1), and ``memory``, what a causal network kept of the rest.

    ``position`` is the place of the next token, which the belief is about.
    """

    ids: Tensor
    position: int
    memory: Any


Latent = Tensor | TopK | Prefix


@dataclass(frozen=True)
class Loss:
    """``total``: the sum over real tokens, to differentiate. ``nats``: the same per token (B, L), detached."""

    total: Tensor
    nats: Tensor


@dataclass(frozen=True)
class Ends:
    """What closes a bound, in nats per token (B, L): the noisy end (``prior``) and the clean (``reconstruction``)."""

    prior: Tensor
    reconstruction: Tensor


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


@runtime_checkable
class Denoiser(Protocol):
    """What was there: log of the belief about each clean token, (B, L, K). Dropout happens if noise is given.

    That is all a denoiser needs. One that also has ``belief``, the same before it is written out (``answers.py``), is
    trained and sampled without ever making a tensor of that size.
    """

    def log_probs(
        self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None
    ) -> Tensor: ...


@runtime_checkable
class Score(Protocol):
    """How likely other states are: log q(y) / q(z) for every state y, (B, L, K), 0 at y = z. Lazily: ``ratios``."""

    def log_ratios(
        self, z: Tensor, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None
    ) -> Tensor: ...


class Objective(Protocol):
    """How it learns. Times come from outside: stratified in training, low-discrepancy in evaluation."""

    def __call__(
        self, denoiser: Any, x: Tensor, t: Tensor, noise: Noise, mask: Tensor | None = None, dropout: bool = False
    ) -> Loss: ...


Kind = Literal["bound", "exact", "pseudo-likelihood"]


class Measure(Objective, Protocol):
    """An objective whose mean over t in (0, 1), plus ``ends``, is nats: what ``kind`` says, and what is reported."""

    @property
    def kind(self) -> Kind: ...
    def ends(self, denoiser: Any, x: Tensor, noise: Noise, mask: Tensor | None = None) -> Ends: ...


class Sampler(Protocol):
    """How it writes: ``start``, steps from ``alpha_t`` to the cleaner ``alpha_s``, ``last`` to clean tokens.

    ``state`` is whatever the sampler carries, for most of them tokens. Every step, the last included, is one network
    call. ``greedy`` takes the most likely tokens in the last.
    """

    def start(self, denoiser: Any, length: int, steps: int, noise: Noise) -> Any: ...
    def step(self, denoiser: Any, state: Any, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Any: ...
    def last(self, denoiser: Any, state: Any, alpha_t: Tensor, greedy: bool, noise: Noise) -> Tensor: ...
    def tokens(self, denoiser: Any, state: Any) -> Tensor: ...
    def default_steps(self, length: int) -> int: ...


class Backbone(Protocol):
    """A network's configuration, and how the network is made of it (see ``backbones/dit.py``)."""

    def build(
        self, num_states: int, *, causal: bool = False, input_width: int | None = None, num_labels: int = 0
    ) -> Any: ...


@dataclass(frozen=True)
class Vocabulary:
    """What a method is told of the data: number of tokens and of labels, and how often each token occurs in training.

    ``counts`` is a function because only some methods ask, and counting a large corpus takes time.
    """

    num_tokens: int
    num_labels: int = 0
    counts: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class Phase:
    """A stretch of training: ``objective`` until step ``until`` (exclusive).

    ``teacher`` says whose copy teaches in it, the student's weights or their average, taken when the phase begins.
    """

    name: str
    objective: Objective
    until: int
    teacher: Literal["weights", "ema"] | None = None


@runtime_checkable
class Method(Protocol):
    """A named assembly of the parts above; what a recipe chooses and a table compares.

    ``network`` is what it asks, ``phases`` how it is trained, ``measure`` what it is measured by, ``schedule`` and
    ``sampler`` how it writes.
    """

    def network(self, backbone: Any, vocabulary: Vocabulary) -> nn.Module: ...
    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]: ...
    def measure(self, num_tokens: int) -> Measure: ...
    def schedule(self) -> Schedule: ...
    def sampler(self, num_tokens: int) -> Sampler: ...


Reporter = Callable[[str], None]


@dataclass(frozen=True)
class Prediction:
    """``x_hat`` (B, L, d), the predicted embedding, and ``logits`` (B, L, K) of the tokens it stands for."""

    x_hat: Tensor
    logits: Tensor


@runtime_checkable
class VectorDenoiser(Protocol):
    """Where a vector came from.

    ``guess`` is an earlier prediction for networks that look at one (self-conditioning); None lets such a network make
    its own, in a pass of its own. ``decode`` gives the logits of p(x | z_0).
    """

    def embeddings(self) -> Tensor: ...
    def gamma(self, t: Tensor) -> tuple[Tensor, Tensor]: ...
    def predict(
        self,
        z: Tensor,
        gamma: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        guess: Tensor | None = None,
    ) -> Prediction: ...
    def decode(self, z: Tensor, mask: Tensor | None = None) -> Tensor: ...

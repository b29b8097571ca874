"""START HERE: the interfaces of the library on one page, and its vocabulary.

    A model is a **process** (where noise goes), a **schedule** (how fast), a **denoiser** (what was
    there), an **objective** (how it learns) and a **sampler** (how it writes).

Letters: ``x`` clean tokens (B, L) int64 · ``z`` noisy tokens, or a ``TopK`` mixture of tokens per position ·
``alpha`` signal level in [0, 1], 1 is clean, float64 of shape (B,) · ``t`` time in [0, 1], 0 is clean · ``K`` the
number of states.

Glossary:
    state        a value that a position of ``z`` can take: a token, or the mask token
    mask token   the extra state of absorbing noise (``mask_id``); *mask* never means padding
    valid        (B, L) bool, False on padding that is ignored, True elsewhere; None if nothing is ignored
    belief       a denoiser's distribution over the clean token of each position
    evidence     what a noisy token z says of its own clean token: log q(z | x = z) / q(z | any other x)
    cavity       a belief without the evidence of the position itself: what a denoiser of uniform noise gives
    tail         how the last step chooses the clean tokens
    ratios       a score model's q(y) / q(z) for every state y
    lazy         not yet projected to the K states: vectors and an output head, read some rows at a time
    materialise  to compute the whole (B, L, K) tensor of something lazy
    transform    a change of the belief's logits, such as a temperature
    label        the class of a sequence (B,); ``num_labels`` itself means "no label"
    conditioned  given labels; a wrapper binds them to a denoiser
    route        one of three ways to draw z_s: stay at z, draw from the belief, draw from the prior
    ends         the two terms that close a bound: prior and reconstruction
    buffer       memory that is used again for every chunk of rows
    teacher      the frozen copy that a student learns from in a round of distillation

Only a schedule knows time: processes, denoisers and samplers use ``alpha``. Only ``Noise`` makes random numbers. A
choice is a frozen dataclass (``LogLinear(eps=1e-3)``): it prints and saves as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

if TYPE_CHECKING:
    from duality.noise import Noise


Valid = Tensor | None  # (B, L) bool, False on padding that is ignored; None if there is none
Labels = Tensor | None  # (B,) int64; None without labels
Dropout: TypeAlias = "Noise | None"  # the noise that dropout is drawn from; None without dropout
Kind = Literal["bound", "exact", "pseudo-likelihood"]
Tail = Literal["ancestral", "greedy", "posterior"]


@dataclass(frozen=True)
class TopK:
    """A point of the simplex at each position as a sparse mixture: ``weights`` (B, L, k) of the tokens ``ids``."""

    ids: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Prefix:
    """The input of one autoregressive step: the last token ``ids`` (B, 1) and the network's ``cache`` of the rest.

    ``position`` is the position of the next token, which the belief is about.
    """

    ids: Tensor
    position: int
    cache: object


Latent = Tensor | TopK | Prefix


@dataclass(frozen=True)
class Loss:
    """``total``: the sum over valid tokens, to differentiate. ``nats``: the same per token (B, L), detached."""

    total: Tensor
    nats: Tensor


@dataclass(frozen=True)
class Ends:
    """The terms that close a bound, in nats per token (B, L): the noisy end (``prior``) and the clean end."""

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
    """Where noise goes: q(z | x) = alpha x + (1 - alpha) prior. Knows alpha, never t.

    ``mask_id`` is the state that no text contains, None if there is none. Closed forms of a bound are a speed-up that
    is registered for a process (``fused.process_formulas``); without one the general bound is used.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    def prior(self) -> Tensor: ...
    def prior_of(self, z: Tensor) -> Tensor: ...
    def sample_prior(self, length: int, noise: Noise) -> Tensor: ...
    def corrupt(self, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor: ...


@runtime_checkable
class LazyBelief(Protocol):
    """A belief that is not materialised: ``each`` yields some flat positions and their log-probabilities.

    ``num_outputs`` of the ``num_states`` states have a probability above 0. ``fused.lazy.Belief`` is one.
    """

    @property
    def num_outputs(self) -> int: ...
    @property
    def num_states(self) -> int: ...
    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]: ...
    def argmax_states(self) -> Tensor: ...
    def log_probs(self) -> Tensor: ...


@runtime_checkable
class LazyRatios(Protocol):
    """The log ratios of a score model that are not materialised, read in the same manner: ``fused.lazy.Ratios``."""

    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]: ...
    def log_ratios(self) -> Tensor: ...


@runtime_checkable
class Network(Protocol):
    """A backbone's module: ``hidden`` maps the input to vectors (B, L, D), ``head`` projects them to the states.

    ``condition`` (B,) is the noise level. ``prepare`` chooses how it is computed in training; ``empty_cache`` is for
    a causal network. A network refuses what it does not have.
    """

    num_states: int
    num_labels: int
    causal: bool
    head: nn.Linear

    def hidden(
        self, z: Latent, condition: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Tensor: ...
    def empty_cache(self, batch: int, length: int) -> object: ...
    def prepare(self, *, recompute: bool, compile: bool) -> None: ...


@runtime_checkable
class Backbone(Protocol):
    """A network's configuration, and how the network is built from it (``networks/dit.py``)."""

    def build(
        self, num_states: int, *, causal: bool = False, input_width: int | None = None, num_labels: int = 0
    ) -> Network: ...


@runtime_checkable
class Denoiser(Protocol):
    """What was there: log of the belief about each clean token, (B, L, K). Dropout is applied if its noise is given.

    ``log_probs(z, alpha)`` is all that a denoiser needs; the rest is given only where it is not None. One that also has
    ``belief``, the lazy form, is trained and sampled without a tensor of that size. A class-conditional one takes
    ``labels`` (B,) as a fifth argument.
    """

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor: ...


@runtime_checkable
class Score(Protocol):
    """How likely other states are: log q(y) / q(z) for every state y, (B, L, K), 0 at y = z. Lazy form: ``ratios``."""

    def log_ratios(self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor: ...


@dataclass(frozen=True)
class Prediction:
    """``x_hat`` (B, L, d), the predicted embedding, and ``logits`` (B, L, K) of the tokens it stands for."""

    x_hat: Tensor
    logits: Tensor


@runtime_checkable
class VectorDenoiser(Protocol):
    """Where a vector came from: the model of a Gaussian diffusion over embeddings.

    ``guess`` is an earlier prediction, for networks with self-conditioning. ``decode`` gives the logits of p(x | z_0).
    """

    def embeddings(self) -> Tensor: ...
    def gamma(self, t: Tensor) -> tuple[Tensor, Tensor]: ...
    def predict(
        self, z: Tensor, gamma: Tensor, valid: Valid = None, dropout: Dropout = None, guess: Tensor | None = None
    ) -> Prediction: ...
    def decode(self, z: Tensor, valid: Valid = None) -> Tensor: ...


AnyDenoiser = Denoiser | Score | VectorDenoiser | nn.Module


@runtime_checkable
class Wrapper(Protocol):
    """A denoiser around another one. Wrappers compose in any order that has a meaning; labels pass through them."""

    @property
    def denoiser(self) -> AnyDenoiser: ...


class Objective(Protocol):
    """How it learns. Times come from outside: stratified in training, low-discrepancy in evaluation.

    An objective refuses a denoiser of a kind that it cannot use, and a process for which it has no meaning.
    """

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss: ...


class Measure(Objective, Protocol):
    """An objective that is also a likelihood: its mean over t in (0, 1), plus ``ends``, is nats of the given kind."""

    @property
    def kind(self) -> Kind: ...
    def ends(self, denoiser: AnyDenoiser, x: Tensor, noise: Noise, valid: Valid = None) -> Ends: ...


class Sampler(Protocol):
    """How it writes: ``start``, steps from ``alpha_t`` to the cleaner ``alpha_s``, ``last`` to clean tokens.

    ``state`` is what the sampler carries from step to step, for most samplers tokens. Every step, the last included, is
    one network call. The ``tail`` "ancestral" draws the clean tokens, "greedy" takes the most likely ones of the belief
    (the paper's Greedy-Tail), "posterior" the most likely ones given the evidence of the noisy token too. Where the
    belief has that evidence already, as with absorbing noise, the last two are the same. ``steps`` is the number of
    steps for a length: what is ``wanted``, where the sampler leaves a choice, and its default otherwise.
    """

    def start(self, denoiser: AnyDenoiser, length: int, steps: int, noise: Noise) -> Any: ...
    def step(self, denoiser: AnyDenoiser, state: Any, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Any: ...
    def last(self, denoiser: AnyDenoiser, state: Any, alpha_t: Tensor, tail: Tail, noise: Noise) -> Tensor: ...
    def tokens(self, denoiser: AnyDenoiser, state: Any) -> Tensor: ...
    def steps(self, length: int, wanted: int | None = None) -> int: ...


@runtime_checkable
class TokenSampler(Sampler, Protocol):
    """A sampler of a denoiser with a belief that carries tokens, and the noise that its steps reverse."""

    @property
    def process(self) -> Process: ...
    def corrupt(self, denoiser: AnyDenoiser, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor: ...


class Grid(Protocol):
    """Where the steps of sampling are: ``steps`` + 1 times from 1 (noise) to 0 (clean), never rising, float64."""

    def __call__(self, schedule: Schedule, steps: int) -> Tensor: ...


@dataclass(frozen=True)
class Vocabulary:
    """What a method knows of the data: number of tokens and of labels, and how often each token occurs in training.

    ``counts`` is a function because few methods ask for it, and counting a large corpus takes time.
    """

    num_tokens: int
    num_labels: int = 0
    counts: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class Phase:
    """A part of training: ``objective`` until step ``until`` (exclusive).

    ``teacher`` says which copy of the student becomes the teacher when the phase begins: its weights or their average.
    """

    name: str
    objective: Objective
    until: int
    teacher: Literal["weights", "ema"] | None = None


@runtime_checkable
class Method(Protocol):
    """A named assembly of the parts above; what a recipe chooses and a table compares.

    ``process`` is None for a method without a discrete process (autoregressive, Gaussian). ``network`` is the model to
    train, ``phases`` how it is trained, ``measure`` its likelihood; ``sampling_schedule`` and ``sampler`` write.
    """

    def process(self, num_tokens: int) -> Process | None: ...
    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module: ...
    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]: ...
    def measure(self, num_tokens: int) -> Measure: ...
    def sampling_schedule(self) -> Schedule: ...
    def sampler(self, num_tokens: int) -> Sampler: ...


@runtime_checkable
class Distillation(Protocol):
    """A kind of distillation: its rounds as phases, and whether it fits a process."""

    @property
    def rounds(self) -> int: ...
    @property
    def round_steps(self) -> int: ...
    @property
    def growth(self) -> Literal["double", "linear"]: ...
    @property
    def deltas_per_step(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def sampling_steps(self) -> int: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def sharpens(self) -> bool: ...
    def round_at(self, step: int) -> dict[str, float]: ...
    def delta_of_round(self, number: int) -> float: ...
    def phases(self, method: Method, num_tokens: int, teacher: AnyDenoiser) -> tuple[Phase, ...]: ...
    @staticmethod
    def fits(process: Process) -> bool: ...

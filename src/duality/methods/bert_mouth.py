"""BERT-Mouth (Wang & Cho, 2019): a masked language model with Gibbs sampling.

The network learns the conditionals p(x_l | some of the others) and nothing else: there is no time and no noise level.
Training masks each token with probability ``rate`` and predicts the masked tokens,

    loss = 1/rate  sum over masked l of  -log p(x_l | the unmasked tokens),     in expectation nats per token.

A sequence without any masked token has loss 0. Masking one token in such a sequence would give some patterns more
weight than ``rate`` does, and bias the loss; with 128 tokens it concerns one sequence in 10^9.

The measure is the pseudo-likelihood, sum over l of -log p(x_l | all the others). It is no bound: the conditionals need
not belong to any joint law. Time t in (0, 1) chooses the one masked position, floor(t n) of n valid ones, and its nats
are multiplied by n, so that the mean over t is exactly the sum over positions.

Sampling masks one position after another and redraws it given the rest. From mask tokens only, the first sweep is
any-order generation; with each later sweep the law converges geometrically to the one with these conditionals.

A tail concerns the one token of the last step. It is masked before it is drawn, so that the greedy and the posterior
tail are the same.

What must hold: a sweep visits each position once, in a separate random order for each sequence.
Left out: BERT's corruption in which a tenth of the chosen tokens is replaced by random ones and a tenth left as it is,
next-sentence prediction, pretrained weights, and the original's other orders (left to right, several at once).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from duality.denoisers.readouts import check_fits
from duality.devices import finite
from duality.diffusion import draws
from duality.diffusion.processes import Absorbing
from duality.fused.formulas import CrossEntropy
from duality.fused.lazy import belief_of
from duality.fused.loss import fused_loss
from duality.methods.base import DiscreteMethod
from duality.noise import Noise
from duality.objectives.base import NoEnds, belief_in, dropout_of, intersection
from duality.protocols import AnyDenoiser, Kind, Loss, Phase, Tail, Valid


@dataclass(frozen=True)
class _MaskedTokens:
    """Cross-entropy of tokens that are masked with probability ``rate``, divided by it. It does not depend on time."""

    process: Absorbing
    rate: float = 0.15

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        hidden = noise.uniform("hide", x.shape[1]) < self.rate
        z = torch.where(hidden, self.process.mask_id, x)
        level = torch.full_like(t, 1 - self.rate, dtype=torch.float64)
        belief = belief_in(self.process, denoiser, z, level, valid, dropout_of(noise, dropout))
        formula = CrossEntropy(x, torch.full_like(level, 1 / self.rate)[:, None])
        return fused_loss(belief, formula, intersection(hidden, valid))


@dataclass(frozen=True)
class _PseudoLikelihood(NoEnds):
    """-log p of one token given all the others, times their number; t chooses which."""

    process: Absorbing
    kind: Kind = "pseudo-likelihood"

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        real = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
        count = real.sum(-1)
        chosen = torch.minimum((t.double() * count).long(), count - 1)
        hidden = real & (real.cumsum(-1) - 1 == chosen[:, None])
        z = torch.where(hidden, self.process.mask_id, x)
        level = 1 - 1 / count.clamp_min(1).double()
        belief = belief_in(self.process, denoiser, z, level, valid, dropout_of(noise, dropout))
        return fused_loss(belief, CrossEntropy(x, count[:, None].double()), intersection(hidden, valid))


@dataclass(frozen=True)
class _Chain:
    """The state of a Gibbs chain: its tokens (B, L), how many it has drawn, and the noise of its orders."""

    ids: Tensor
    drawn: int
    orders: Noise

    @property
    def place(self) -> Tensor:
        """The position to draw next, (B, 1): each sweep has a new random permutation."""
        sweep, turn = divmod(self.drawn, self.ids.shape[1])
        keys = self.orders.fold(sweep).uniform("order", self.ids.shape[1])
        return keys.argsort(stable=True, dim=-1)[:, turn, None]


@dataclass(frozen=True)
class Gibbs:
    """One position at a time, redrawn given all the others; a step is one position of every sequence."""

    process: Absorbing

    def start(self, denoiser: AnyDenoiser, length: int, steps: int, noise: Noise) -> _Chain:
        if steps < length:
            raise ValueError(
                f"steps is {steps}: Gibbs sampling draws one token per network call, so {length} tokens take at least "
                f"{length} steps; give {length} or more (by default {self.steps(length)}), or leave steps out"
            )
        check_fits(denoiser, self.process)
        return _Chain(self.process.sample_prior(length, noise), 0, noise.fold("orders"))

    def step(
        self, denoiser: AnyDenoiser, state: _Chain, alpha_t: Tensor, alpha_s: Tensor, noise: Noise, greedy: bool = False
    ) -> _Chain:
        """Mask the next position, compute the belief, and draw the token, or take the most likely one."""
        place = state.place
        z = state.ids.scatter(1, place, self.process.mask_id)
        rows = torch.arange(len(z), device=z.device) * z.shape[1] + place[:, 0]
        log_p = finite(belief_of(denoiser, z, alpha_t).rows(rows))[:, None]
        token = log_p.argmax(-1) if greedy else draws.categorical(log_p.exp(), noise.uniform("draw", 1))
        return replace(state, ids=z.scatter(1, place, token), drawn=state.drawn + 1)

    def last(self, denoiser: AnyDenoiser, state: _Chain, alpha_t: Tensor, tail: Tail, noise: Noise) -> Tensor:
        return self.step(denoiser, state, alpha_t, alpha_t, noise, tail != "ancestral").ids

    def tokens(self, denoiser: AnyDenoiser, state: _Chain) -> Tensor:
        return state.ids

    def steps(self, length: int, wanted: int | None = None) -> int:
        return 2 * length if wanted is None else max(wanted, length)


@dataclass(frozen=True)
class BertMouth(DiscreteMethod):
    """A masked language model, trained with a share ``rate`` of the tokens masked."""

    rate: float = 0.15
    time = False

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(
                f"method.rate is {self.rate}: it is the share of tokens that are hidden, in (0, 1]; BERT's is 0.15"
            )

    def process(self, num_tokens: int) -> Absorbing:
        return Absorbing.over(num_tokens)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("masked tokens", _MaskedTokens(self.process(num_tokens), self.rate), steps),)

    def measure(self, num_tokens: int) -> _PseudoLikelihood:
        return _PseudoLikelihood(self.process(num_tokens))

    def sampler(self, num_tokens: int) -> Gibbs:
        return Gibbs(self.process(num_tokens))

"""DiffusionBERT (He et al., 2022): absorbing noise that masks informative tokens first, the "spindle" schedule.

    alpha_v(t) = 1 - t - strength sin(pi t) H(v),   H(v) = 1 - mean information / information(v),   clamped to [-1, 1]

information(v) = -log frequency(v) in the training corpus, each token counted once more than it occurs; the mean is
over the corpus. So rare tokens are masked early and frequent ones late, and sampling unmasks frequent tokens first. As
strength < 1/pi, every alpha_v falls strictly from 1 to 0; the clamp treats a token of less than half the mean
information as a token of half the mean.

The forward process depends on the token, hence so does the speed at which a token v is unmasked in reverse,
u_v = -alpha_v' / (1 - alpha_v). Given the data a mask token becomes x at rate u_x. With the model's belief p about the
clean token *given that it is masked at t*, it becomes v at rate p_v u_v. The divergence of the two jump processes is

    u_x (-log p_x) + sum_v p_v u_v - u_x      where masked, 0 elsewhere,

and its integral over t bounds -log p(x), without end terms. With all speeds equal it is MDLM's bound. The
speeds are 1/t + e_v with e_v bounded, and 1/t cancels in the last two terms: only e_v is computed there.

What must hold: the network is given t, because the belief depends on it: tokens that are masked at small t are mostly
those that are masked early.
Left out: the mean over the sentence instead of the corpus (a reverse process must know the schedule before it knows the
sentence), the released code's other H (log count over its maximum), chains of T steps, the auxiliary cross-entropy,
decoding without time, and BERT's weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from duality.denoisers.readouts import SubsDenoiser, check_fits
from duality.denoisers.wrapping import unwrap
from duality.devices import finite, positions
from duality.diffusion import draws
from duality.diffusion.processes import Absorbing
from duality.fused.formulas import Backward, Formula, at
from duality.fused.lazy import belief_of
from duality.fused.loss import fused_loss
from duality.methods.base import DiscreteMethod
from duality.noise import Noise
from duality.objectives.base import NoEnds, belief_in, dropout_of, intersection
from duality.protocols import AnyDenoiser, Backbone, Kind, Loss, Network, Phase, Valid, Vocabulary
from duality.samplers.base import RouteSampler


def _unigram_information(counts: Tensor) -> Tensor:
    """-log frequency of each token, counted once more than it occurs."""
    smooth = counts.double() + 1
    return smooth.sum().log() - smooth.log()


def _skews(information: Tensor, strength: float) -> Tensor:
    """strength H(v), (K,) float64: the difference 1 - t - alpha_v(t) at t = 1/2."""
    nats = information.detach().double().clamp_min(1e-12)
    mean = (torch.softmax(-nats, -1) * nats).sum()
    return strength * (1 - mean / nats).clamp(-1, 1)


def _hidden_chance(skew: Tensor, t: Tensor) -> Tensor:
    """1 - alpha_v(t) = t + skew sin(pi t)."""
    return t + skew * torch.sin(math.pi * t)


def _speed(skew: Tensor, t: Tensor) -> Tensor:
    """u_v = -alpha_v' / (1 - alpha_v)."""
    return (1 + math.pi * skew * torch.cos(math.pi * t)) / _hidden_chance(skew, t).clamp_min(2.0**-53)


def _excess(skew: Tensor, t: Tensor) -> Tensor:
    """e_v = u_v - 1/t, without the difference: skew (pi t cos(pi t) - sin(pi t)) / (t (1 - alpha_v))."""
    t = t.clamp_min(2.0**-53)
    return skew * (math.pi * t * torch.cos(math.pi * t) - torch.sin(math.pi * t)) / (t * _hidden_chance(skew, t))


def _hide(x: Tensor, t: Tensor, skew: Tensor, mask_id: int, noise: Noise) -> Tensor:
    """Noisy tokens at time ``t``."""
    hidden = noise.uniform("replace", x.shape[1]) >= 1 - _hidden_chance(skew[x], t[:, None])
    return torch.where(hidden, mask_id, x)


@dataclass(frozen=True)
class _SpindleNats(Formula):
    """``scale`` times the bound of a masked token, from the mean excess under the belief and the token's surprisal."""

    x: Tensor
    t: Tensor
    scale: Tensor
    skew: Tensor
    shared: ClassVar[tuple[str, ...]] = ("skew",)

    def read(self, logits: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        log_p = torch.log_softmax(logits, -1)
        log_p_x = at(log_p, self.x)
        # a materialised belief may have a column for the mask token, with probability 0
        p = torch.exp(log_p, out=logits)[:, : len(self.skew)]
        ahead = _excess(self.skew, self.t[:, None]).to(logits.dtype)
        # a product and a sum, because autocast would compute a matrix product in bfloat16
        mean = (p * ahead).sum(-1)

        def pull(slope: Tensor, slope_x: Tensor) -> None:
            p.mul_(ahead.sub_(mean[:, None]).mul_(slope).sub_(slope_x))
            p.scatter_add_(-1, self.x[:, None], slope_x)

        return (mean, log_p_x), pull

    def nats(self, *numbers: Tensor) -> Tensor:
        mean, log_p_x = numbers
        skew = self.skew[self.x]
        return self.scale * (_speed(skew, self.t) * -log_p_x + mean - _excess(skew, self.t))


class SpindleDenoiser(SubsDenoiser):
    """The belief of absorbing noise, given the time, and the information (K,) of the tokens, saved with the weights."""

    def __init__(self, backbone: Network, process: Absorbing, information: Tensor):
        super().__init__(backbone, process, time=True)
        self.information = nn.Parameter(information.float(), requires_grad=False)


@runtime_checkable
class _Informed(Protocol):
    """A denoiser with the information of its tokens."""

    information: Tensor


def _information_of(denoiser: AnyDenoiser) -> Tensor:
    """The information of the tokens, from the denoiser inside the wrappers."""
    network = unwrap(denoiser)
    if not isinstance(network, _Informed):
        raise ValueError(
            f"a {type(network).__name__} does not know how informative its tokens are, and the spindle schedule "
            "needs that: use a network that DiffusionBERT built"
        )
    return network.information


@dataclass(frozen=True)
class _SpindleBound(NoEnds):
    """E_t of the bound, for absorbing noise with the spindle schedule."""

    process: Absorbing
    strength: float
    kind: Kind = "bound"

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        # t = u^2, weighted by 2 u: with equal times the variance is infinite (``schedules.Polynomial``)
        u, skew = t.double(), _skews(_information_of(denoiser), self.strength)
        t = u.square()
        z = _hide(x, t, skew, self.process.mask_id, noise)
        belief = belief_in(self.process, denoiser, z, 1 - t, valid, dropout_of(noise, dropout))
        formula = _SpindleNats(x, t[:, None], 2 * u[:, None], skew)
        return fused_loss(belief, formula, intersection(z == self.process.mask_id, valid))


@dataclass(frozen=True)
class SpindleSampler(RouteSampler):
    """Ancestral steps: a mask token is v with probability p_v, and then still masked at s with probability m_v.

    m_v = (1 - alpha_v(s)) / (1 - alpha_v(t)). Time is 1 - alpha of the level that ``generate`` gives.
    """

    process: Absorbing
    strength: float = 0.3

    def corrupt(self, denoiser: AnyDenoiser, x: Tensor, alpha: Tensor, noise: Noise) -> Tensor:
        """The noise that the steps reverse."""
        return _hide(x, 1 - alpha, _skews(_information_of(denoiser), self.strength), self.process.mask_id, noise)

    def start(self, denoiser: AnyDenoiser, length: int, steps: int, noise: Noise) -> Tensor:
        _information_of(denoiser)
        check_fits(denoiser, self.process)
        return self.process.sample_prior(length, noise)

    def step(self, denoiser: AnyDenoiser, state: Tensor, alpha_t: Tensor, alpha_s: Tensor, noise: Noise) -> Tensor:
        skew, later, now = _skews(_information_of(denoiser), self.strength), 1 - alpha_s[:, None], 1 - alpha_t[:, None]
        belief = belief_of(denoiser, state, alpha_t)
        stay = _hidden_chance(skew, later) / _hidden_chance(skew, now)
        u = noise.uniform("show", state.shape[1])
        # A position that stays masked for every token need not be drawn.
        drawn = (state == self.process.mask_id) & (u >= stay.amin(-1, keepdim=True))
        draw, clean = noise.uniform("draw", state.shape[1]).flatten(), state.flatten().clone()
        for rows, log_p in belief.each(positions(drawn)):
            clean[rows] = draws.categorical(finite(log_p)[:, : len(skew)].exp(), draw[rows])
        clean = clean.view(state.shape)  # where none is drawn it is not used
        shown = drawn & (u >= stay.gather(1, clean.clamp_max(len(skew) - 1)))
        return torch.where(shown, clean, state)


@dataclass(frozen=True)
class DiffusionBERT(DiscreteMethod):
    """Absorbing diffusion with the spindle schedule; ``strength`` 0 is MDLM with time, 0.3 the released code."""

    strength: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.strength < 1 / math.pi:
            raise ValueError(
                f"method.strength is {self.strength}: it must be in [0, 1/pi = {1 / math.pi:.4f}), or noise would go "
                "backwards; the released code's is 0.3, and 0 treats all tokens alike"
            )

    def process(self, num_tokens: int) -> Absorbing:
        return Absorbing.over(num_tokens)

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        process = self.process(vocabulary.num_tokens)
        # Without counts, as when weights are loaded afterwards, all tokens have equal information.
        counts = torch.zeros(vocabulary.num_tokens) if vocabulary.counts is None else vocabulary.counts()
        network = backbone.build(process.vocab_size, num_labels=vocabulary.num_labels)
        return SpindleDenoiser(network, process, _unigram_information(counts))

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("bound", self.measure(num_tokens), steps),)

    def measure(self, num_tokens: int) -> _SpindleBound:
        return _SpindleBound(self.process(num_tokens), self.strength)

    def sampler(self, num_tokens: int) -> SpindleSampler:
        return SpindleSampler(self.process(num_tokens), self.strength)

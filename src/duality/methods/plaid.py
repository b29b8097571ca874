"""Plaid (Gulrajani & Hashimoto, 2023): Gaussian diffusion over learned embeddings, trained on its likelihood bound.

    e          a row of a learned table, normalised to unit length
    gamma(t)   gamma_0 + (gamma_1 - gamma_0) s(t), ends and s learned; s rises from s(0) = 0 to s(1) = 1
    logits     network(z / sqrt(alpha^2 / d + sigma^2), gamma) + (alpha / sigma^2) z . e_v
    x_hat      softmax(logits) @ table

The second term of the logits is log q(z | x = v): by Bayes' rule, all information of a position about its own token.
The network adds the information of the other positions. So the untrained network, whose head is zero, is the perfect
model of uniform independent tokens: its bound is log K. The network is given gamma itself.

Everything is trained on the bound (``objectives.variational``) except s. The expected bound does not depend on s, which
only decides how the integral over gamma is sampled, hence s is trained to lower the variance of the loss. As the mean
is constant, this minimises the mean of the squared loss, whose gradient is that of the loss times 2 loss: the gradient
of s is multiplied by this factor, that of the ends is not.

With ``self_conditioning`` the network is also given its last prediction (Chen et al., 2023).

Left out of the original: muP, a learning rate of 1e-2 for table and schedule (here all share one), the gradual entry of
the likelihood term over the first 5000 steps, short sequences, the stop of some gradients in self-conditioned samples,
and at sampling the score temperature and guidance. The reconstruction term is computed for a random share of the
samples, with a fixed instead of an adaptive share. Tokens are drawn at the last level of the grid, t = 1 / steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duality.devices import positions_where
from duality.diffusion.vectors import cross_entropy, diffuse, diffusion_nats, levels, prior_nats, spread
from duality.fused.lazy import at_least_float32
from duality.methods.base import ProcesslessMethod, require
from duality.noise import Noise
from duality.objectives.base import dropout_of, loss_of_nats
from duality.objectives.variational import Variational
from duality.protocols import AnyDenoiser, Backbone, Dropout, Loss, Network, Phase, Prediction, Valid, Vocabulary
from duality.samplers.gaussian import GaussianAncestral


class _LearnedSchedule(nn.Module):
    """gamma(t) = gamma_0 + (gamma_1 - gamma_0) s(t), with s a sum of rising tanh's, scaled to go from 0 to 1.

    The ends are learned as offsets from their first values, so that weight decay does not pull them to 0.
    """

    def __init__(self, gamma_min: float, gamma_max: float, units: int = 1024):
        super().__init__()
        self.first_ends = (gamma_min, gamma_max)
        self.offset = nn.Parameter(torch.zeros(2))
        self.steepness = nn.Parameter(torch.randn(units))
        self.place = nn.Parameter(torch.randn(units))
        self.height = nn.Parameter(torch.randn(units))

    def ends(self) -> Tensor:
        """(gamma_0, gamma_1), float64."""
        return torch.stack([own + end for own, end in zip(self.offset.double(), self.first_ends)])

    def interior(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """s and s' at ``t`` (B,), float64."""
        steepness, height = F.softplus(self.steepness.double()), F.softplus(self.height.double())
        times = torch.cat([torch.arange(2, dtype=t.dtype, device=t.device), t]).double()
        rising = torch.tanh((times[:, None] - 0.5) * steepness + self.place.double())
        value = (rising * height).sum(-1)
        slope = ((1 - rising.square()) * steepness * height).sum(-1)
        whole = value[1] - value[0]
        return (value[2:] - value[0]) / whole, slope[2:] / whole

    def between(self, s: Tensor, rise: Tensor) -> tuple[Tensor, Tensor]:
        """gamma and gamma' where s and s' are these."""
        first, final = self.ends()
        return first + (final - first) * s, (final - first) * rise


class PlaidDenoiser(nn.Module):
    """The network, the table of embeddings and the schedule: a ``protocols.VectorDenoiser``."""

    def __init__(
        self, backbone: Network, width: int, gamma_min: float, gamma_max: float, self_conditioning: bool = False
    ):
        super().__init__()
        self.backbone = backbone
        self.self_conditioning = self_conditioning
        self.table = nn.Parameter(F.normalize(torch.randn(backbone.num_states, width), dim=-1))
        self.schedule = _LearnedSchedule(gamma_min, gamma_max)

    def embeddings(self) -> Tensor:
        return F.normalize(self.table, dim=-1)

    def gamma(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.schedule.between(*self.schedule.interior(t))

    def predict(
        self, z: Tensor, gamma: Tensor, valid: Valid = None, dropout: Dropout = None, guess: Tensor | None = None
    ) -> Prediction:
        width = z.shape[-1]
        alpha, sigma = levels(gamma)
        seen = z / spread((alpha.square() / width + sigma.square()).sqrt(), z)
        if self.self_conditioning:
            if guess is None:
                with torch.no_grad():
                    guess = self.predict(z, gamma, valid, dropout, torch.zeros_like(z)).x_hat
            seen = torch.cat([seen, guess * width**0.5], -1)
        logits = at_least_float32(self.backbone.head(self.backbone.hidden(seen, gamma, valid, dropout)))
        with torch.autocast(z.device.type, enabled=False):
            table = self.embeddings()
            logits = logits + (spread(alpha / sigma.square(), z) * z) @ table.T
            return Prediction(torch.softmax(logits, -1) @ table, logits)

    def decode(self, z: Tensor, valid: Valid = None) -> Tensor:
        return self.predict(z, self.schedule.ends()[0].expand(len(z)), valid).logits


def _reweight_gradient(value: Tensor, weight: Tensor) -> Tensor:
    """``value``; its gradient is multiplied by the value that ``weight`` has during the backward pass."""
    if value.requires_grad:
        value.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]
    return value


@dataclass(frozen=True)
class _PlaidBound:
    """The whole bound for training: diffusion term at t, prior, and reconstruction for a ``share`` of the samples.

    The samples with reconstruction are drawn from their own noise and weighted by 1 / share: the loss is unbiased and
    does not depend on how a batch is divided. ``guessed`` is the share of the samples that are given a first prediction
    if the network is self-conditioning.
    """

    share: float = 0.25
    guessed: float = 0.25

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and 0 <= self.guessed <= 1):
            raise ValueError(f"share is {self.share}, guessed {self.guessed}: (0, 1] and [0, 1] are allowed")

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        model = require(denoiser, PlaidDenoiser, "Plaid")
        real = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
        size, schedule = len(x), model.schedule
        weight = torch.zeros(size, dtype=torch.float64, device=x.device)
        s, rise = (_reweight_gradient(part, weight) for part in schedule.interior(t))
        gamma, slope = schedule.between(s, rise)
        first, final = schedule.ends()
        # One network call for the samples, followed by those with reconstruction.
        chosen, guessed = self.choose(noise)
        rows = torch.cat([torch.arange(size, device=x.device), chosen])
        keys = Noise(torch.cat([noise.keys, noise.select(chosen).fold("reconstruction").keys]))
        gammas = torch.cat([gamma, first.expand(len(chosen))])
        e = model.embeddings()[x]
        z = diffuse(e[rows], gammas, keys.normal("vector", *e.shape[1:]))
        seen = None if valid is None else valid[rows]
        prediction = self.predict(model, z, gammas, seen, keys, guessed, dropout)
        diffusion = diffusion_nats(e, prediction.x_hat[:size], gamma, slope)
        weight.copy_(2 * (diffusion.detach() * real).sum(-1) / real.sum(-1).clamp_min(1))
        reconstruction = cross_entropy(prediction.logits[size:], x[chosen]) / self.share
        return loss_of_nats((diffusion + prior_nats(e, final)).index_add(0, chosen, reconstruction), valid)

    def choose(self, noise: Noise) -> tuple[Tensor, Tensor]:
        """The samples with reconstruction, and the rows that are given a first prediction, of all samples and these."""
        reconstructed = noise.uniform("reconstruct") < self.share
        of_samples, of_these = (keys.uniform("guess") < self.guessed for keys in (noise, noise.fold("reconstruction")))
        chosen, given = positions_where(reconstructed, torch.cat([of_samples, reconstructed & of_these]))
        size = len(reconstructed)
        place = size - 1 + reconstructed.cumsum(0)  # of a sample among the rows, if it is reconstructed
        return chosen, torch.where(given < size, given, place[given % size])

    def predict(
        self,
        denoiser: PlaidDenoiser,
        z: Tensor,
        gamma: Tensor,
        valid: Valid,
        noise: Noise,
        guessed: Tensor,
        dropout: bool,
    ) -> Prediction:
        """The prediction; if the network is self-conditioning, some rows are given a first prediction."""
        guess = torch.zeros_like(z)
        if denoiser.self_conditioning and len(guessed):
            some, drop = None if valid is None else valid[guessed], noise.select(guessed).fold("guess")
            with torch.no_grad():
                first = denoiser.predict(z[guessed], gamma[guessed], some, dropout_of(drop, dropout), guess[guessed])
            guess = guess.index_copy(0, guessed, first.x_hat)
        return denoiser.predict(z, gamma, valid, dropout_of(noise, dropout), guess)


@dataclass(frozen=True)
class Plaid(ProcesslessMethod):
    """Plaid with embeddings of ``embedding_width``; gamma_0 and gamma_1 start at ``gamma_min`` and ``gamma_max``."""

    embedding_width: int = 16
    gamma_min: float = -3.0
    gamma_max: float = 6.0
    self_conditioning: bool = False

    def __post_init__(self) -> None:
        if self.embedding_width < 1:
            raise ValueError(
                f"method.embedding_width is {self.embedding_width}: it must be at least 1; the usual is 16"
            )
        if not self.gamma_min < self.gamma_max:
            raise ValueError(
                f"method.gamma_min is {self.gamma_min} and method.gamma_max {self.gamma_max}: noise must grow, "
                "gamma_min < gamma_max; the usual are -3 and 6"
            )

    def network(self, backbone: Backbone, vocabulary: Vocabulary) -> nn.Module:
        if vocabulary.num_labels:
            raise ValueError(
                f"{vocabulary.num_labels} labels: Plaid is not class-conditional here; use data.labels=false, or a "
                "method that is (Duo, MDLM, D3PM)"
            )
        inputs = self.embedding_width * (2 if self.self_conditioning else 1)
        network = backbone.build(vocabulary.num_tokens, input_width=inputs)
        return PlaidDenoiser(network, self.embedding_width, self.gamma_min, self.gamma_max, self.self_conditioning)

    def phases(self, num_tokens: int, steps: int) -> tuple[Phase, ...]:
        return (Phase("bound", _PlaidBound(), steps),)

    def measure(self, num_tokens: int) -> Variational:
        return Variational()

    def sampler(self, num_tokens: int) -> GaussianAncestral:
        return GaussianAncestral()

"""A denoiser is a backbone and a readout: what the network's numbers mean.

    MeanDenoiser     the belief about the clean token is softmax(logits); uniform noise, D3PM
    SubsDenoiser     the same for absorbing noise, with what is certain put in: a token that is not the mask is itself
                     (carry over), and no token is the mask (zero masking)
    ScoreDenoiser    the logits are log ratios q(y) / q(z) of the noisy law, SEDD's parametrisation
    CausalDenoiser   the belief about a token given the ones before it

The network is told the noise level -log(alpha); below ``LEAST_ALPHA`` it is told that one's, as -log 0 is no number.
An answer is vectors and a head (``answers.Belief``, ``answers.Ratios``); ``log_probs`` and ``log_ratios`` write it out.
With labels the network is class-conditional; ``wrappers.labelled`` binds them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from duality.diffusion.processes import Absorbing
from duality.fused.lazy import Belief, Ratios, ratios_written_out, written_out
from duality.networks.dit import Network
from duality.noise import Noise
from duality.protocols import Latent, Prefix, Process, TopK

LEAST_ALPHA = 1e-3


def noise_level(alpha: Tensor) -> Tensor:
    """What the network is told: -log(alpha)."""
    return -alpha.clamp_min(LEAST_ALPHA).log()


def check_states(backbone: Network, process: Process) -> None:
    """Refuse a network whose states are not the process's."""
    if backbone.num_states != process.vocab_size:
        hint = " (its tokens and the mask, which is a state of its own)" if isinstance(process, Absorbing) else ""
        raise ValueError(
            f"the network has {backbone.num_states} states, {process} needs {process.vocab_size}{hint}: "
            f"build the network with {process.vocab_size}"
        )


class MeanDenoiser(nn.Module):
    """Belief = softmax of the network's logits, given the noise level."""

    def __init__(self, backbone: Network):
        super().__init__()
        self.backbone = backbone

    def belief(
        self,
        z: Latent,
        alpha: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Belief:
        """The belief about each clean token."""
        vectors = self.backbone.hidden(z, noise_level(alpha), mask, dropout, labels)
        return Belief(vectors, self.backbone.head, self.backbone.num_states, self.backbone.num_states)

    log_probs = written_out


class SubsDenoiser(nn.Module):
    """Belief of absorbing noise: never the mask, and certain where a token is shown.

    Without ``time`` the network is told nothing of the noise level, as in MDLM: how much is masked can be seen. Then
    the belief depends on z alone, and ``wrappers.Memoized`` may keep it.
    """

    def __init__(self, backbone: Network, process: Absorbing, time: bool = False):
        super().__init__()
        check_states(backbone, process)
        self.backbone = backbone
        self.process = process
        self.depends_on_alpha = time

    def belief(
        self,
        z: Latent,
        alpha: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Belief:
        """The belief about each clean token: certain where one is shown; the mask's column is never projected."""
        if not isinstance(z, Tensor):
            raise TypeError("absorbing noise is read as token ids: a mixture of tokens has no mask")
        level = noise_level(alpha) if self.depends_on_alpha else torch.zeros_like(alpha)
        vectors, mask_id = self.backbone.hidden(z, level, mask, dropout, labels), self.process.mask_id
        return Belief(vectors, self.backbone.head, mask_id, mask_id + 1, torch.where(z == mask_id, -1, z))

    log_probs = written_out


class ScoreDenoiser(nn.Module):
    """log q(y) / q(z): the network's logits, for absorbing noise relative to the ratio of a uniform belief.

    That ratio is alpha / ((1 - alpha) (K - 1)) between any token and the mask; taking it out leaves the network numbers
    of one size (SEDD's ``scale_by_sigma``).
    """

    def __init__(self, backbone: Network, process: Process):
        super().__init__()
        check_states(backbone, process)
        self.backbone = backbone
        self.process = process

    def ratios(
        self,
        z: Tensor,
        alpha: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Ratios:
        """log ratios, 0 at z."""
        vectors = self.backbone.hidden(z, noise_level(alpha), mask, dropout, labels)
        offset, num_states = None, self.process.vocab_size
        if isinstance(self.process, Absorbing):
            # alpha within rounding of 1 counts as the largest float64 below it: times that small do occur, rarely
            offset = torch.log(alpha / ((1 - alpha).clamp_min(2.0**-53) * (num_states - 1)))
        return Ratios(vectors, self.backbone.head, num_states, num_states, z, offset)

    log_ratios = ratios_written_out


class CausalDenoiser(nn.Module):
    """Belief about each token given the ones before it: an autoregressive model, seen as a denoiser.

    Row l of ``log_probs`` reads tokens 0 .. l-1 only. State K - 1 of K begins a sequence and is never written: thus the
    first token has a probability too. For one more token after a prefix, give a ``Prefix``.
    """

    def __init__(self, backbone: Network):
        super().__init__()
        if not backbone.causal:
            raise ValueError("an autoregressive model needs a network that looks left only: build(..., causal=True)")
        self.backbone = backbone

    @property
    def begin(self) -> int:
        return self.backbone.num_states - 1

    def belief(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Belief:
        """p(x_l | x_<l) over the K - 1 tokens; (B, 1) of them for a prefix. ``alpha`` is not looked at."""
        if isinstance(z, TopK):
            raise TypeError("an autoregressive model reads token ids, not mixtures")
        if not isinstance(z, Prefix):
            z = torch.cat([torch.full_like(z[:, :1], self.begin), z[:, :-1]], 1)
        return Belief(self.backbone.hidden(z, alpha, mask, dropout), self.backbone.head, self.begin, self.begin)

    log_probs = written_out

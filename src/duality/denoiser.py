"""A denoiser is a backbone and a readout: what the network's numbers mean.

    MeanDenoiser     the belief about the clean token is softmax(logits); uniform noise, D3PM
    SubsDenoiser     the same for absorbing noise, with what is certain put in: a token that is not the mask is itself
                     (carry over), and no token is the mask (zero masking)
    ScoreDenoiser    the logits are log ratios q(y) / q(z) of the noisy law, SEDD's parametrisation
    CausalDenoiser   the belief about a token given the ones before it

The network is told the noise level -log(alpha); below ``LEAST_ALPHA`` it is told that one's, as -log 0 is no number.
Whatever precision the network runs in, the softmax is taken in float32 (float64 if the network is): a log-softmax in
bfloat16 is wrong by up to 0.075 nats. With labels the network is class-conditional; ``wrappers.labelled`` binds them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from duality import functional
from duality.backbones.dit import Network
from duality.noise import Noise
from duality.processes import Absorbing
from duality.protocols import Latent, Prefix, Process, TopK

LEAST_ALPHA = 1e-3


def noise_level(alpha: Tensor) -> Tensor:
    """What the network is told: -log(alpha)."""
    return -alpha.clamp_min(LEAST_ALPHA).log()


def precise(logits: Tensor) -> Tensor:
    """At least float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def log_softmax(logits: Tensor) -> Tensor:
    """The belief of fresh ``logits``. Where no gradient is wanted it takes their place, some rows at a time.

    At a large vocabulary a belief is most of the memory, and of the time beside the network's: one is enough.
    """
    if torch.is_grad_enabled():
        return torch.log_softmax(logits, -1)
    logits = logits.contiguous()
    num_states = logits.shape[-1]
    for rows in torch.split(logits.view(-1, num_states), functional.rows_at_once(num_states)):
        rows.copy_(torch.log_softmax(rows, -1))
    return logits


def carry_over(logits: Tensor, z: Tensor, mask_id: int) -> Tensor:
    """The belief of ``SubsDenoiser``: softmax without the mask where z is hidden, certainty of z elsewhere.

    As ``log_softmax``, in place of fresh logits where no gradient is wanted.
    """
    if torch.is_grad_enabled():
        # The mask's column is dropped before the softmax, so that no gradient ever meets an infinity.
        log_p = torch.log_softmax(logits[..., :mask_id], -1)
        shown = torch.full_like(log_p, -torch.inf).scatter(-1, z.clamp_max(mask_id - 1)[..., None], 0.0)
        log_p = torch.where((z == mask_id)[..., None], log_p, shown)
        return nn.functional.pad(log_p, (0, 1), value=-torch.inf)
    logits = logits.contiguous()
    rows, states = logits.view(-1, mask_id + 1), z.flatten()
    tokens, hidden = rows[:, :mask_id], (states == mask_id).nonzero()[:, 0]
    for part in torch.split(hidden, functional.rows_at_once(mask_id)):
        tokens.index_copy_(0, part, torch.log_softmax(tokens.index_select(0, part), -1))
    shown = (states != mask_id).nonzero()[:, 0]
    rows.index_fill_(0, shown, -torch.inf)[shown, states[shown]] = 0.0
    rows[:, mask_id] = -torch.inf
    return logits


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

    def log_probs(
        self,
        z: Latent,
        alpha: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """log of the belief, (B, L, K)."""
        return log_softmax(precise(self.backbone(z, noise_level(alpha), mask, dropout, labels)))


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

    def log_probs(
        self,
        z: Latent,
        alpha: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """log of the belief, (B, L, K): the mask's is -inf."""
        if not isinstance(z, Tensor):
            raise TypeError("absorbing noise is read as token ids: a mixture of tokens has no mask")
        level = noise_level(alpha) if self.depends_on_alpha else torch.zeros_like(alpha)
        logits = precise(self.backbone(z, level, mask, dropout, labels))
        return carry_over(logits, z, self.process.mask_id)


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

    def log_ratios(
        self,
        z: Tensor,
        alpha: Tensor,
        mask: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """log ratios, (B, L, K), 0 at z."""
        logits = precise(self.backbone(z, noise_level(alpha), mask, dropout, labels))
        if isinstance(self.process, Absorbing):
            # alpha within rounding of 1 counts as the largest float64 below it: times that small do occur, rarely
            scale = torch.log(alpha / ((1 - alpha).clamp_min(2.0**-53) * (self.process.vocab_size - 1)))
            offset = scale.to(logits.dtype)[:, None, None]
            logits = logits + offset if torch.is_grad_enabled() else logits.add_(offset)
        # the network's own tensor, which nobody else has, is enough where no gradient is wanted
        return (
            logits.scatter(-1, z[..., None], 0.0) if torch.is_grad_enabled() else logits.scatter_(-1, z[..., None], 0)
        )


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

    def log_probs(self, z: Latent, alpha: Tensor, mask: Tensor | None = None, dropout: Noise | None = None) -> Tensor:
        """log p(x_l | x_<l), (B, L, K - 1); (B, 1, K - 1) for a prefix. ``alpha`` is not looked at."""
        if isinstance(z, TopK):
            raise TypeError("an autoregressive model reads token ids, not mixtures")
        if not isinstance(z, Prefix):
            z = torch.cat([torch.full_like(z[:, :1], self.begin), z[:, :-1]], 1)
        return torch.log_softmax(precise(self.backbone(z, alpha, mask, dropout))[..., : self.begin], -1)

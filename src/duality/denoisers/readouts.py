"""Readouts: a denoiser is a network and the meaning of its numbers.

    MeanDenoiser     the belief about the clean token is softmax(logits); uniform noise, D3PM
    SubsDenoiser     the same for absorbing noise, with two facts put in: a token that is not the mask token is certain
                     (carry over), and no clean token is the mask token (zero masking)
    ScoreDenoiser    the logits are log ratios q(y) / q(z) of the noisy law, SEDD's parametrisation
    CausalDenoiser   the belief about a token given the ones before it

The network is given the noise level -log(alpha); below ``LEAST_ALPHA`` it is given that of ``LEAST_ALPHA``, because
-log 0 is not a number. Answers are lazy (``fused.lazy``); ``log_probs`` and ``log_ratios`` materialise them.
``check_fits`` refuses a denoiser that does not fit a process.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from duality.denoisers.wrapping import Readout, unwrap
from duality.fused.lazy import Belief, Ratios, materialised_log_probs, materialised_log_ratios
from duality.protocols import (
    AnyDenoiser,
    Denoiser,
    Dropout,
    Labels,
    Latent,
    Network,
    Prefix,
    Process,
    Score,
    TopK,
    Valid,
)

LEAST_ALPHA = 1e-3


def _noise_level(alpha: Tensor) -> Tensor:
    """The noise level that the network is given: -log(alpha)."""
    return -alpha.clamp_min(LEAST_ALPHA).log()


def check_states(num_states: int, process: Process) -> None:
    """Refuse another number of states than that of the process."""
    if num_states != process.vocab_size:
        hint = "" if process.mask_id is None else " (its tokens and the mask token, which is a state of its own)"
        raise ValueError(
            f"the denoiser has {num_states} states and {process} {process.vocab_size}{hint}: build the network with "
            f"{process.vocab_size}"
        )


class MeanDenoiser(nn.Module):
    """Belief = softmax of the network's logits, given the noise level."""

    def __init__(self, backbone: Network):
        super().__init__()
        self.backbone = backbone

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        """The belief about each clean token."""
        vectors = self.backbone.hidden(z, _noise_level(alpha), valid, dropout, labels)
        return Belief(vectors, self.backbone.head, self.backbone.num_states, self.backbone.num_states)

    log_probs = materialised_log_probs


class SubsDenoiser(nn.Module):
    """Belief of absorbing noise: never the mask token, and certain where a token is shown.

    Without ``time`` the network is not given the noise level, as in MDLM: the number of mask tokens shows it. Then
    the belief depends on z alone, and ``Memoized`` may keep it.
    """

    def __init__(self, backbone: Network, process: Process, time: bool = False):
        super().__init__()
        check_states(backbone.num_states, process)
        if process.mask_id != process.vocab_size - 1:
            raise ValueError(
                f"{process} has the mask token {process.mask_id}: SubsDenoiser needs one, as the last of its "
                f"{process.vocab_size} states; use MeanDenoiser for a process without mask token"
            )
        self.backbone = backbone
        self.process = process
        self.mask_id = process.mask_id
        self.depends_on_alpha = time

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        """The belief about each clean token: certain where one is shown; the mask token's column is never projected."""
        if not isinstance(z, Tensor):
            raise TypeError("absorbing noise is read as token ids: a mixture of tokens has no mask token")
        level = _noise_level(alpha) if self.depends_on_alpha else torch.zeros_like(alpha)
        vectors = self.backbone.hidden(z, level, valid, dropout, labels)
        certain = torch.where(z == self.mask_id, -1, z)
        return Belief(vectors, self.backbone.head, self.mask_id, self.mask_id + 1, certain)

    log_probs = materialised_log_probs


class ScoreDenoiser(nn.Module):
    """log q(y) / q(z): the network's logits, for absorbing noise relative to the ratio of a uniform belief.

    That ratio is alpha / ((1 - alpha) (K - 1)) between any token and the mask token; without it the network's numbers
    are of one size at all levels (SEDD's ``scale_by_sigma``).
    """

    def __init__(self, backbone: Network, process: Process):
        super().__init__()
        check_states(backbone.num_states, process)
        self.backbone = backbone
        self.process = process

    def ratios(
        self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Ratios:
        """log ratios, 0 at z."""
        vectors = self.backbone.hidden(z, _noise_level(alpha), valid, dropout, labels)
        offset, num_states = None, self.process.vocab_size
        if self.process.mask_id is not None:
            # alpha within rounding of 1 counts as the largest float64 below it: times that small do occur, rarely
            offset = torch.log(alpha / ((1 - alpha).clamp_min(2.0**-53) * (num_states - 1)))
        return Ratios(vectors, self.backbone.head, num_states, num_states, z, offset)

    log_ratios = materialised_log_ratios


class CausalDenoiser(nn.Module):
    """Belief about each token given the ones before it: an autoregressive model as a denoiser.

    Row l of ``log_probs`` reads tokens 0 .. l-1 only. State K - 1 of K is never written. It begins a sequence, or the
    state ``begin`` does if one is given: thus the first token has a probability too. For one more token after a prefix,
    give a ``Prefix``.
    """

    def __init__(self, backbone: Network, begin: int | None = None):
        super().__init__()
        if not backbone.causal:
            raise ValueError("an autoregressive model needs a causal network: build(..., causal=True)")
        self.backbone = backbone
        self.num_tokens = backbone.num_states - 1
        self.begin = self.num_tokens if begin is None else begin
        if not 0 <= self.begin < backbone.num_states:
            raise ValueError(f"method.begin is {begin}: it must be one of the {backbone.num_states} states, or none")

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        """p(x_l | x_<l) over the K - 1 tokens; (B, 1) of them for a prefix. ``alpha`` is not used."""
        if isinstance(z, TopK):
            raise TypeError("an autoregressive model reads token ids, not mixtures")
        if not isinstance(z, Prefix):
            z = torch.cat([torch.full_like(z[:, :1], self.begin), z[:, :-1]], 1)
        vectors = self.backbone.hidden(z, alpha, valid, dropout, labels)
        return Belief(vectors, self.backbone.head, self.num_tokens, self.num_tokens)

    log_probs = materialised_log_probs


# --- which readout goes with which process


@runtime_checkable
class _OfProcess(Protocol):
    """A denoiser that was built for one process."""

    @property
    def process(self) -> Process: ...


def check_fits(denoiser: AnyDenoiser, process: Process) -> None:
    """Refuse a denoiser of tokens whose states or mask token are not those of the process.

    Objectives and samplers call this before the first network call. A network with fewer states than the noise would be
    read outside its table, and one with more would write tokens that no text has; a belief that gives the mask token a
    probability would leave mask tokens in the text, and its loss would be no bound. Only what a denoiser is made of is
    looked at, not a tensor: the check costs nothing on any device. A denoiser without a network inside is known by its
    answers alone: for these ``check_states`` compares the number of states.
    """
    model = unwrap(denoiser)
    if not isinstance(model, (Denoiser, Score)) or not isinstance(model, Readout):
        return
    name = type(model).__name__
    if isinstance(model, CausalDenoiser):
        raise ValueError(
            f"a {name} reads the clean tokens before a position, and {process} is noise on all of them: use its own "
            "objective (NextToken) and its own sampler (autoregressive)"
        )
    check_states(model.backbone.num_states, process)
    if isinstance(model, MeanDenoiser) and process.mask_id is not None:
        raise ValueError(
            f"the denoiser gives the mask token of {process} a probability, so its loss would be no bound and its "
            "samples would contain mask tokens: use SubsDenoiser, which excludes it"
        )
    if isinstance(model, _OfProcess) and model.process.mask_id != process.mask_id:
        raise ValueError(
            f"the {name} was built for {model.process}, and it is used with {process}, whose mask token is "
            f"{process.mask_id}: use the process that it was built for"
        )

"""What a model believes of each token while it writes: it is noted when the sampler asks for it.

``Observed`` is a denoiser around another one; the sampler gets what it would get without it. ``read`` then gives, for
the tokens that came out of a step, how probable each was, how undecided the model was, and what else it thought of.

What must hold: the samples are the same with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from duality.fused.lazy import Belief, belief_of, materialised_log_probs
from duality.protocols import AnyDenoiser, Denoiser, Dropout, Labels, Latent, Prefix, Valid


@dataclass(frozen=True)
class Reading:
    """Of each place (B, L): the probability of its token, the entropy in nats, the most likely tokens (B, L, k)."""

    token: Tensor
    entropy: Tensor
    best: Tensor
    best_probability: Tensor


class Observed:
    """A denoiser that remembers its last belief, and where it was about: all places, or one of a causal model."""

    def __init__(self, denoiser: AnyDenoiser) -> None:
        self.denoiser = denoiser
        self.last: Belief | None = None
        self.place: int | None = None

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        self.last = belief_of(self.denoiser, z, alpha, valid, dropout, labels)
        self.place = z.position if isinstance(z, Prefix) else None
        return self.last

    log_probs = materialised_log_probs


def observed(denoiser: AnyDenoiser) -> AnyDenoiser:
    """The denoiser, observed if it has a belief."""
    return Observed(denoiser) if isinstance(denoiser, Denoiser) else denoiser


@torch.no_grad()
def read(belief: Belief, tokens: Tensor, alternatives: int) -> Reading:
    """What a belief says of the tokens (B, L), and the ``alternatives`` most likely ones of each place."""
    flat, count = tokens.flatten(), belief.positions
    chosen, entropy = torch.zeros(count), torch.zeros(count)
    best, probability = torch.zeros(count, alternatives, dtype=torch.long), torch.zeros(count, alternatives)
    plain = not belief.transforms and belief.certain is None
    reader, chunks = belief.in_chunks(belief.all_rows())
    for rows in chunks:
        if (
            plain
        ):  # of logits the entropy is log Z - E[logit]: one softmax in place of a log-softmax and its exponential
            logits = reader.project(rows)
            p = torch.softmax(logits, -1)
            entropy[rows] = logits.logsumexp(-1).sub_((p * logits).sum(-1)).float().cpu()
        else:
            log_p = reader.rows(rows)
            p = log_p.exp()
            entropy[rows] = torch.special.entr(p).sum(-1).float().cpu()
        inside = flat[rows] < p.shape[-1]  # the mask token is no output
        found = p.gather(-1, flat[rows].clamp_max(p.shape[-1] - 1)[:, None])[:, 0] * inside
        chosen[rows] = found.float().cpu()
        if alternatives:
            top = p.topk(min(alternatives, p.shape[-1]), -1)
            best[rows, : top.indices.shape[-1]] = top.indices.cpu()
            probability[rows, : top.values.shape[-1]] = top.values.float().cpu()
    shape = tokens.shape
    return Reading(chosen.view(shape), entropy.view(shape), best.view(*shape, -1), probability.view(*shape, -1))

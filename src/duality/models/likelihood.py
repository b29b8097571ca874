"""Likelihood: a bound on -log p(text) in nats per token, with its standard error.

    bound = diffusion term (mean over t of the objective) + prior term KL(q(z_1|x) || prior) + reconstruction term

All three are computed and reported, by the model's own measure (``protocols.Measure``). The value of an autoregressive
model is exact; that of a masked language model is a pseudo-likelihood, which is no bound. ``kind`` says which it is.
Sums are in float64, and the ratio sum of nats / sum of tokens is taken once, at the end. Times and noise belong to the
sequence (its index), so the value does not depend on the batch size. The ranks of a job take the batches in turn; every
number is computed by one of them, and the sums are taken at the end, so the value is that of a single process.

Sequence i is evaluated at the times (d + v_i) / D, d = 0 .. D-1, where the v_i are stratified over the sequences. The
loss depends on v_i. The standard error therefore comes from differences between neighbours in v (the estimator of
systematic sampling): they differ in text and noise and hardly in time, so the spread over time is not counted.

Everything is per real token: a token of the text or the one end-of-text of its document. Where padding is modelled
(data/packing.py), the nats of the end-of-text tokens after it are part of what a document costs and are in the sum, but
these tokens are not counted: a model that is certain of them has the number that it would have without them. Their
share is reported as ``padding``.

``latents`` "gaussian" draws the noisy tokens of a model of uniform noise as the argmax of Gaussian latents
(``GaussianUniform``), at the same levels: another estimate of the same number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.denoisers.conditioning import with_labels
from duality.diffusion.processes import GaussianUniform, Uniform
from duality.noise import Noise, stratified_times
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.discrete_time import DiscreteTimeBound
from duality.objectives.score_entropy import ScoreEntropy
from duality.protocols import AnyDenoiser, Kind, Measure
from duality.ranks import job

Latents = Literal["discrete", "gaussian"]
KEPT = "evaluations.json"  # likelihoods that are kept beside the other files of a run


@dataclass(frozen=True)
class Likelihood:
    """Nats per token and their terms, over how much text, with which kind of measure.

    ``padding`` is the share of the nats that is paid for the ``num_padding`` tokens of modelled padding.
    """

    nats_per_token: float
    stderr: float
    diffusion: float
    prior: float
    reconstruction: float
    num_tokens: int
    num_sequences: int
    num_draws: int
    kind: Kind
    bytes_per_token: float
    characters_per_token: float
    padding: float
    num_padding: int

    @staticmethod
    def parse(values: Mapping[str, object]) -> Likelihood | None:
        """A likelihood as it is kept, with or without the name of its set; None if it is of another form."""
        known = {name: value for name, value in values.items() if name != "set"}
        same = known.keys() == {each.name for each in fields(Likelihood)}
        return Likelihood(**known) if same else None  # type: ignore[arg-type]

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        # the value of an untrained model may be too large for a float
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    @property
    def perplexity_stderr(self) -> float:
        """The standard error of the perplexity, to first order."""
        return self.perplexity * self.stderr

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the text."""
        return self.nats_per_token / math.log(2) / self.bytes_per_token

    @property
    def bits_per_character(self) -> float:
        """Bits for each character of the text."""
        return self.nats_per_token / math.log(2) / self.characters_per_token

    def lines(self) -> list[str]:
        """The result in words."""
        # how the number relates to the model's own perplexity: a bound on it, equal to it, or a pseudo-perplexity
        symbol = {"bound": "PPL <=", "exact": "PPL =", "pseudo-likelihood": "pseudo-PPL"}[self.kind]
        error = self.stderr / math.log(2)  # in bits
        paid = f"of these, {self.padding:.4f} are paid for the end-of-text tokens after a document's end"
        return [
            f"{symbol} {self.perplexity:.2f} ± {self.perplexity_stderr:.2f}   ({self.kind}, per token)",
            f"nats per token      {self.nats_per_token:.4f} ± {self.stderr:.4f}"
            f"   = diffusion {self.diffusion:.4f} + prior {self.prior:.2e} + reconstruction {self.reconstruction:.2e}",
            *([f"                    {paid} ({self.num_padding} of them)"] if self.num_padding else []),
            f"bits per byte       {self.bits_per_byte:.4f} ± {error / self.bytes_per_token:.4f}",
            f"bits per character  {self.bits_per_character:.4f} ± {error / self.characters_per_token:.4f}",
            f"over {self.num_tokens} tokens in {self.num_sequences} sequences, "
            f"{self.num_draws} draw{'s' if self.num_draws > 1 else ''} of time and noise each",
        ]


def choose_latents(measure: Measure, latents: Latents) -> Measure:
    """The measure with noisy tokens drawn from the discrete process, or as the argmax of Gaussian latents."""
    if latents == "discrete":
        return measure
    if latents != "gaussian":
        raise ValueError(f"latents is {latents!r}: it must be discrete or gaussian")
    bounds = ContinuousTimeBound, DiscreteTimeBound, ScoreEntropy
    if isinstance(measure, bounds) and isinstance(measure.process, Uniform):
        return replace(measure, process=GaussianUniform(measure.process.vocab_size))
    raise ValueError(
        "latents is gaussian: only uniform noise, such as that of Duo and UDLM, is the argmax of Gaussian latents, and "
        "this model has other noise or none; measure it with discrete latents, the default"
    )


class LikelihoodOptions(TypedDict, total=False):
    """How ``likelihood`` measures, as keywords."""

    num_draws: int
    limit: int | None
    batch_size: int
    seed: int
    device: torch.device | str
    latents: Latents
    advance: Callable[[float], None]


@torch.no_grad()
def likelihood(
    denoiser: AnyDenoiser,
    measure: Measure,
    sequences: Sequences,
    *,
    num_draws: int = 1,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    device: torch.device | str = "cpu",
    latents: Latents = "discrete",
    advance: Callable[[float], None] = lambda count: None,
) -> Likelihood:
    """The bound over ``sequences`` (``limit`` of them, evenly spread), each with ``num_draws`` times.

    ``advance`` is called after each draw of a batch, with its share of the sequences.
    """
    if not 1 <= num_draws < 1 << 63 or batch_size < 1 or (limit is not None and limit < 1):
        got = f"draws {num_draws}, batch size {batch_size}, limit {limit}"
        raise ValueError(f"{got}: each must be at least 1, and draws below 2**63")
    measure = choose_latents(measure, latents)
    if measure.kind == "exact":
        num_draws = 1  # there is nothing to draw
    chosen = sequences.spread(limit)
    count = len(chosen)
    offsets = stratified_times(seed, 0, count)
    parts = torch.zeros(count, 3, dtype=torch.float64)
    padding, tokens, num_padding = torch.zeros(3, count, dtype=torch.float64)
    place = job()
    for start in range(place.rank * batch_size, count, place.size * batch_size):
        index = torch.arange(start, min(start + batch_size, count))
        rows = chosen[index.numpy()]
        x, paid = (part.to(device) for part in sequences.rows(rows))
        real, labels = sequences.real(rows).to(device), sequences.labels(rows)
        valid = None if bool(paid.all()) else paid
        tokens[index] = real.sum(-1).double().cpu()
        num_padding[index] = (paid & ~real).sum(-1).double().cpu()
        conditioned = denoiser if labels is None else with_labels(denoiser, labels.to(device))
        for draw in range(num_draws):
            noise = Noise.of(seed, draw, index.to(device)).fold("evaluate")
            times = ((draw + offsets[index]) / num_draws).to(device)
            ends = measure.ends(conditioned, x, noise, valid)
            loss = measure(conditioned, x, times, noise, valid)
            for part, nats in enumerate((loss.nats, ends.prior, ends.reconstruction)):
                parts[index, part] += torch.where(paid, nats.double(), 0.0).sum(-1).cpu() / num_draws
                padding[index] += torch.where(paid & ~real, nats.double(), 0.0).sum(-1).cpu() / num_draws
            advance(min(place.size * batch_size, count - start) / num_draws)
    place.sum_(parts, padding, tokens, num_padding)
    share, order = (float(padding.sum() / tokens.sum()), int(num_padding.sum())), offsets.argsort()
    return _summarise(parts[order], tokens[order], share, sequences.store, num_draws, measure.kind)


def _summarise(
    parts: Tensor, tokens: Tensor, padding: tuple[float, int], store: TokenStore, num_draws: int, kind: Kind
) -> Likelihood:
    """Totals and their error; ``parts`` and ``tokens`` are in the order of the sequences' times."""
    total, count = tokens.sum(), len(tokens)
    diffusion, prior, reconstruction = (parts.sum(0) / total).tolist()
    rate = diffusion + prior + reconstruction
    steps = (parts.sum(1) - rate * tokens).diff()
    variance = float((steps**2).mean()) / 2 * count if count > 1 else math.inf
    facts = math.sqrt(variance) / float(total), diffusion, prior, reconstruction, int(total), count, num_draws, kind
    return Likelihood(rate, *facts, store.num_bytes / len(store), store.num_characters / len(store), *padding)


def hash_weights(network: nn.Module, headers: bool = False) -> str:
    """What identifies the weights of a network: a digest of their names and bytes, and of ``headers``: type, shape."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update((f"{name} {value.dtype} {tuple(value.shape)}" if headers else name).encode())
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()

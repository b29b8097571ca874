"""A toy language whose every probability is known: K = 3 tokens, sequences of L = 2 or more, its perfect denoisers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from duality.diffusion import posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.protocols import Denoiser, Dropout, Grid, Latent, Process, Schedule, Tail, Valid
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import levels
from duality.samplers.grids import LINEAR
from duality.samplers.psi import Psi

LENGTH = 2


def data_law(vocab_size: int = 3, length: int = LENGTH) -> Tensor:
    """p(x1, x2, ...): a correlated table of full support; sequences of one token repeated are the most likely."""
    generator = torch.Generator().manual_seed(5)
    table = torch.rand((vocab_size,) * length, generator=generator, dtype=torch.float64) ** 2 + 0.05
    same = torch.arange(vocab_size)
    table[(same,) * length] += 1
    return table / table.sum()


def conditional_nats(law: Tensor, x: Tensor, known: int) -> float:
    """-log p of the tokens x behind the first ``known`` ones, given these."""
    given = law[tuple(x[:known])]
    return float(given.sum().log() - law[tuple(x)].log())


def entropy(law: Tensor) -> float:
    """Nats of a whole sequence."""
    return float(-(law * law.log()).sum())


@dataclass(frozen=True)
class Oracle:
    """The exact belief about each token. For uniform noise the bound is tight with the leave-one-out belief:
    p(x_l | z without z_l). ``leave_out=False`` gives the full posterior p(x_l | z), which is the oracle of absorbing
    noise. The oracle of sequences that begin with ``known`` clean tokens knows that these are not noisy.
    """

    law: Tensor
    process: Process
    leave_out: bool
    known: int = 0

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        assert isinstance(z, Tensor)
        num_tokens, num_states, length = len(self.law), self.process.vocab_size, self.law.ndim
        prior = self.process.prior()
        clean = torch.eye(num_states, dtype=torch.float64)[:num_tokens]
        # likelihood[b, x] = q(z_l | x)
        noisy = alpha[:, None, None] * clean + (1 - alpha[:, None, None]) * prior
        beliefs = []
        for own in range(length):
            joint = self.law.expand(len(z), *self.law.shape)
            for place in range(length):
                if place == own and self.leave_out:
                    continue
                law = clean.expand_as(noisy) if place < self.known else noisy
                likelihood = law.gather(2, z[:, place, None, None].expand(-1, num_tokens, 1))[..., 0]
                shape = [len(z)] + [num_tokens if axis == place else 1 for axis in range(length)]
                joint = joint * likelihood.view(shape)
            belief = joint.sum([1 + axis for axis in range(length) if axis != own])
            beliefs.append(belief / belief.sum(-1, keepdim=True))
        probs = torch.stack(beliefs, 1)
        pad = torch.zeros(*probs.shape[:-1], num_states - num_tokens, dtype=torch.float64)
        return torch.cat([probs, pad], -1).log()


@dataclass(frozen=True)
class CausalOracle:
    """The exact belief about each token given the ones before it, of the toy language ``law``."""

    law: Tensor

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        assert isinstance(z, Tensor)
        rows = []
        for x in z:
            given, beliefs = self.law, []
            for token in x:
                belief = given.flatten(1).sum(1) if given.ndim > 1 else given
                beliefs.append(belief / belief.sum())
                given = given[token]
            rows.append(torch.stack(beliefs))
        return torch.stack(rows).log()


@dataclass(frozen=True)
class OracleScore:
    """The ratios that a belief implies."""

    denoiser: Denoiser
    process: Process

    def log_ratios(self, z: Tensor, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        p = self.denoiser.log_probs(z, alpha).exp()
        return posterior.log_ratios(p, z, alpha[:, None], self.process.prior())


def suited(kind: object, denoiser: Denoiser, process: Process) -> Denoiser | OracleScore:
    """The belief in the form that a kind of sampler needs."""
    return OracleScore(denoiser, process) if kind is Analytic else denoiser


def uniform_toy(leave_out: bool = True) -> tuple[Tensor, Uniform, Denoiser]:
    law = data_law()
    process = Uniform(3)
    return law, process, Oracle(law, process, leave_out)


def absorbing_toy() -> tuple[Tensor, Absorbing, Denoiser]:
    law = data_law()
    process = Absorbing(4)
    return law, process, Oracle(law, process, leave_out=False)


def all_states(num_states: int, length: int = LENGTH) -> Tensor:
    """Every sequence, (num_states ** length, length)."""
    return torch.tensor(list(itertools.product(range(num_states), repeat=length)))


@dataclass(frozen=True)
class SingleToken:
    """The oracle of sequences of one token: the data's law, except where absorbing noise leaves the token visible."""

    law: Tensor
    process: Process

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        assert isinstance(z, Tensor)
        num_states = self.process.vocab_size
        belief = F.pad(self.law, (0, num_states - len(self.law))).expand(*z.shape, -1)
        if isinstance(self.process, Absorbing):
            belief = torch.where((z == self.process.mask_id)[..., None], belief, F.one_hot(z, num_states).double())
        return belief.log()


def kernel_of(sampler: Ancestral | Psi, denoiser: Denoiser, z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The law of each token after a step from each of the sequences z (n, L): the mixture of its routes, (n, L, K)."""
    process = sampler.process
    p = denoiser.log_probs(z, alpha_t.expand(len(z))).exp()
    route_probabilities = sampler.routes(p.gather(-1, z[..., None])[..., 0], process.prior_of(z), alpha_t, alpha_s)
    stay, belief, prior = (probability[..., None] for probability in route_probabilities)
    return stay * F.one_hot(z, process.vocab_size) + belief * p + prior * process.prior()


def tail_tokens(process: Process, denoiser: Denoiser, z: Tensor, alpha: Tensor, tail: Tail) -> Tensor:
    """The tokens that a tail takes for each of the sequences z (n, L): argmax of the belief or of the posterior."""
    p = denoiser.log_probs(z, alpha.expand(len(z))).exp()
    if tail == "posterior":
        p = posterior.posterior(p, z, alpha, torch.ones_like(alpha), process.prior())
    return p.argmax(-1)


def law_of(
    sampler: Ancestral | Psi,
    denoiser: Denoiser,
    schedule: Schedule,
    steps: int,
    grid: Grid = LINEAR,
    length: int = LENGTH,
    tail: Tail = "ancestral",
) -> Tensor:
    """The sampler's exact output law, (K,) * length: the product of its transition matrices, position by position."""
    num_states = sampler.process.vocab_size
    states = all_states(num_states, length)
    current = sampler.process.prior()[states].prod(-1)
    alphas = levels(schedule, steps, grid)
    for alpha_t, alpha_s in itertools.pairwise(alphas):
        kernel = kernel_of(sampler, denoiser, states, alpha_t, alpha_s)
        if tail != "ancestral" and alpha_s == 1:
            kernel = F.one_hot(tail_tokens(sampler.process, denoiser, states, alpha_t, tail), num_states).double()
        joint = kernel[:, 0]
        for place in range(1, length):
            joint = (joint[..., None] * kernel[:, place, None]).flatten(1)
        current = current @ joint
    return current.view((num_states,) * length)


def gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (0, 1) by eigenvalues of the Jacobi matrix (Golub & Welsch)."""
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / (4 * k**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (values + 1) / 2, vectors[0] ** 2


def total_variation(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().sum()) / 2

"""The library's step over the plain dense one (``reference.py``) on the same network: the gain of the fused forms.

Below 1 the library is cheaper. Each draws its own noise; the plain one draws K Gaussians per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import reference
from benchmarks.models import (
    Batch,
    Scale,
    clear_gradients,
    frozen_copy,
    learning_step,
    network_of,
    plain_network,
)
from benchmarks.rows import Report, Row, memory_row, time_row
from benchmarks.samplers import middle_levels
from benchmarks.timing import Runner, take_turns
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.methods.ar import AR
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.objectives.consistency import Consistency
from duality.objectives.curriculum import TemperedBound
from duality.protocols import Method, Objective
from duality.samplers.ancestral import Ancestral
from duality.samplers.psi import Psi, _kappa
from duality.training.distillation import DCD

PLAIN = "plain"
AGAINST = "plain dense step"

Pair = tuple[Runner, Runner]


def learning_pair(
    name: str, denoiser: nn.Module, objective: Objective, batch: Batch, plain: Callable[[], Tensor]
) -> Pair:
    """The plain step and the step of the library."""

    def run() -> None:
        total: Any = plain().sum()
        total.backward()

    return Runner(PLAIN, run, clear_gradients(denoiser)), learning_step(name, denoiser, objective, batch)


def duo_pairs(scale: Scale, states: int, generator: torch.Generator) -> Iterator[Pair]:
    """Curriculum, bound, consistency: uniform noise."""
    method, batch, prior = Duo(), Batch.of(scale.size(states)), Uniform(states).prior()
    denoiser = network_of(method, scale.backbone, states)
    network, x, t = plain_network(denoiser), batch.x, batch.t
    teacher: Any = frozen_copy(denoiser)
    tempered, bound = (phase.objective for phase in method.phases(states, 2))
    assert isinstance(tempered, TemperedBound)
    gaussian_schedule, tau, flat = tempered.schedule, tempered.tau, LogLinear()

    def eps() -> Tensor:
        return torch.randn(*x.shape, states, generator=generator)

    def curriculum() -> Tensor:
        w = reference.gaussian_latent(x, gaussian_schedule.mu(t), eps())
        return reference.curriculum(network, w, x, gaussian_schedule.alpha(t), gaussian_schedule.alpha_prime(t), tau)

    def plain_bound() -> Tensor:
        z = reference.corrupt(x, flat.alpha(t), prior, generator)
        return reference.duo(network, z, x, flat.alpha(t), flat.alpha_prime(t))

    distilled = DCD(compare="output").phases(method, states, teacher)[0].objective
    assert isinstance(distilled, Consistency)
    plain_teacher, dual, s = plain_network(teacher), distilled.schedule, (t - distilled.delta).clamp_min(0.0)

    def consistency() -> Tensor:
        shared = eps()
        z_t, z_s = (reference.gaussian_latent(x, dual.mu(each), shared).argmax(-1) for each in (t, s))
        return reference.dcd(network, plain_teacher, z_t, z_s, dual.alpha(t), dual.alpha(s))

    yield learning_pair("Duo, curriculum", denoiser, tempered, batch, curriculum)
    yield learning_pair("Duo, bound", denoiser, bound, batch, plain_bound)
    yield learning_pair("DCD", denoiser, distilled, batch, consistency)


def other_pairs(scale: Scale, states: int, generator: torch.Generator) -> Iterator[Pair]:
    """MDLM, SEDD, AR."""
    batch = Batch.of(scale.size(states))
    x, t = batch.x, batch.t

    def made(method: Method) -> tuple[nn.Module, reference.Network, Objective]:
        denoiser = network_of(method, scale.backbone, states)
        return denoiser, plain_network(denoiser), method.phases(states, 1)[0].objective

    denoiser, network, objective = made(MDLM())
    masked, ending = Absorbing(states + 1).prior(), LogLinear(eps=0.0)

    def mdlm() -> Tensor:
        z = reference.corrupt(x, ending.alpha(t), masked, generator)
        return reference.mdlm(network, z, x, ending.alpha(t), ending.alpha_prime(t))

    yield learning_pair("MDLM", denoiser, objective, batch, mdlm)
    for method, process in ((SEDD("absorbing"), Absorbing(states + 1)), (SEDD("uniform"), Uniform(states))):
        denoiser, network, objective = made(method)
        plain = sedd_of(network, process, batch, generator)
        yield learning_pair(f"SEDD {method.noise}", denoiser, objective, batch, plain)
    denoiser, network, objective = made(AR())
    yield learning_pair("AR", denoiser, objective, batch, lambda: reference.autoregressive(network, x, begin=states))


def sedd_of(
    network: reference.Network, process: Uniform | Absorbing, batch: Batch, generator: torch.Generator
) -> Callable[[], Tensor]:
    """The plain score entropy of a process."""
    prior, schedule, masked = process.prior(), LogLinear(), isinstance(process, Absorbing)

    def nats() -> Tensor:
        alpha, slope = schedule.alpha(batch.t), schedule.alpha_prime(batch.t)
        z = reference.corrupt(batch.x, alpha, prior, generator)
        return reference.sedd(network, z, batch.x, alpha, slope, prior, masked)

    return nats


def sampling_pairs(scale: Scale, states: int, generator: torch.Generator) -> Iterator[Pair]:
    """Ancestral and psi steps, uniform noise."""
    batch, process = Batch.of(scale.size(states)), Uniform(states)
    denoiser: Any = network_of(Duo(), scale.backbone, states).requires_grad_(False)
    network, prior = plain_network(denoiser), process.prior()
    alpha_t, alpha_s = middle_levels(len(batch.x))
    z = process.corrupt(batch.x, alpha_t, batch.noise.fold("corrupt"))
    psi = Psi(process)

    def belief() -> Tensor:
        return torch.softmax(network(z, alpha_t), -1).double()

    @torch.no_grad()
    def plain_ancestral() -> None:
        reference.draw(reference.posterior(belief(), z, alpha_t, alpha_s, prior), generator)

    @torch.no_grad()
    def plain_psi() -> None:
        share = _kappa(psi.rule, psi.eta, alpha_t, alpha_s)
        reference.draw(reference.psi_posterior(belief(), z, alpha_t, alpha_s, prior, share), generator)

    for name, sampler, plain in (("ancestral", Ancestral(process), plain_ancestral), ("psi", psi, plain_psi)):

        @torch.no_grad()
        def step(sampler: Ancestral | Psi = sampler) -> None:
            sampler.step(denoiser, z, alpha_t, alpha_s, batch.noise)

        yield Runner(PLAIN, plain), Runner(f"{name} step", step)


def section(scale: Scale, report: Report) -> Iterator[Row]:
    """Time and memory of every pair, at the first vocabulary."""
    states = scale.vocabularies[0]
    size, generator = scale.size(states), torch.Generator().manual_seed(0)
    # a plain sampling step takes as long as ten steps of the library, so it is measured once
    for pairs, repeats in ((duo_pairs, scale.few), (other_pairs, scale.few), (sampling_pairs, 1)):
        for plain, library in pairs(scale, states, generator):
            report(library.name)
            timings = take_turns((plain, library), repeats, memory=True)
            yield time_row("fused / plain, time", timings, library.name, PLAIN, AGAINST, size)
            yield memory_row("fused / plain, memory", timings, library.name, PLAIN, AGAINST, size)

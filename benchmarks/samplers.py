"""The cost of each sampler: a step over the bare forward pass, in time, and its peak memory in beliefs.

A belief is one float32 tensor of batch x length x states, the size of the network's logits. The step is the middle one
of a 32-step linear grid, from a state with half of the signal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.models import BARE, Batch, Scale, network_of
from benchmarks.rows import Report, Row, single, spaced, time_row
from benchmarks.timing import Runner, take_turns
from duality.denoisers.readouts import ScoreDenoiser, _noise_level
from duality.diffusion import PROCESSES
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.protocols import Method, Sampler
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import levels
from duality.samplers.psi import Psi

STEPS = 32
BAR = 1.15
ANALYTIC_BAR = 1.25
NOISES: dict[str, Method] = {"uniform": Duo(), "absorbing": MDLM()}


def middle_levels(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """alpha_t and alpha_s of the middle step."""
    grid = levels(LogLinear(), STEPS)
    return grid[STEPS // 2 - 1].expand(batch), grid[STEPS // 2].expand(batch)


def runners_of(process: Uniform | Absorbing, denoiser: Any, batch: Batch) -> list[Runner]:
    """The bare forward pass, then the step of every sampler."""
    alpha_t, alpha_s = middle_levels(len(batch.x))
    z = process.corrupt(batch.x, alpha_t, batch.noise.fold("corrupt"))

    @torch.no_grad()
    def forward() -> None:
        denoiser.backbone(z, _noise_level(alpha_t))

    def step(sampler: Sampler, model: Any) -> Runner:
        @torch.no_grad()
        def run() -> None:
            sampler.step(model, z, alpha_t, alpha_s, batch.noise)

        return Runner(type(sampler).__name__.lower(), run)

    score = ScoreDenoiser(denoiser.backbone, process)
    beliefs = [step(sampler, denoiser) for sampler in (Ancestral(process), Psi(process))]
    return [Runner(BARE, forward), *beliefs, step(Analytic(process), score)]


def section(scale: Scale, report: Report) -> Iterator[Row]:
    """Every sampler of both kinds of noise at the paper's two vocabularies."""
    for states in scale.vocabularies:
        for noise, method in NOISES.items():
            report(f"K = {spaced(states)}: {noise} noise")
            process = PROCESSES[noise].over(states)  # type: ignore[attr-defined]
            size, denoiser = scale.size(states), network_of(method, scale.backbone, states).requires_grad_(False)
            runners = runners_of(process, denoiser, Batch.of(size))
            timings = take_turns(runners, scale.repeats, memory=True)
            belief = size.batch * size.length * process.vocab_size * 4
            for runner in runners[1:]:
                bar = ANALYTIC_BAR if runner.name == "analytic" else BAR
                row = time_row("samplers", timings, runner.name, BARE, "bare forward", size, bar)
                yield replace(row, name=f"{runner.name}, {noise}")
            for runner in runners[1:]:
                held, bare = timings.peaks[runner.name] / belief, timings.peaks[BARE] / belief
                note, details = f"the forward: {bare:.3f}", {"against_beliefs": bare}
                name = f"{runner.name}, {noise}"
                yield Row("sampler memory", name, "", size, single(held), "beliefs", note=note, details=details)

"""Draws of a gradient, as the training of a run makes them, and their statistics for several objectives.

A draw is a minibatch of the run's own training text, with fresh sequences, times and noise, exactly as a training step
has them (``training.loop.gradients``); its number and the seed decide everything. All objectives are measured on the
same draws, so that their ratios are paired.

    found = compare_objectives(model, sequences, {"mine": my_objective}, VarianceSettings())

What must hold: a seed gives the same numbers; dividing a minibatch into micro-batches changes rounding only; the
weights of the model are never changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from duality.data.loader import Loader
from duality.data.packing import Sequences
from duality.files.progress import Reporter
from duality.models.model import Model, ignore, network
from duality.papers.duo.variance.gradients import Draw, Statistics, collect
from duality.papers.duo.variance.settings import VarianceSettings
from duality.protocols import Objective, Phase, Vocabulary
from duality.training.loop import gradients
from duality.training.settings import of_all_weights
from duality.training.state import TrainState, load_weights

Advance = Callable[[int], None]


def _draws_of(model: Model, sequences: Sequences, objective: Objective, settings: VarianceSettings) -> tuple[Draw, int]:
    """The draws of an objective as a function of their number, and the number of weights, which all have a gradient."""
    training = replace(
        of_all_weights(model.recipe.training),
        seed=settings.seed,
        batch_size=settings.batch or model.recipe.training.batch_size,
        micro_batch=settings.micro_batch,
        compile=False,
    )
    copy = network(model.recipe, Vocabulary(model.tokenizer.vocab_size, len(model.label_names)), model.device)
    load_weights(copy, dict(model.denoiser.named_parameters()))
    state = TrainState.fresh(copy, training)
    parameters = [value for value in state.model.parameters() if value.requires_grad]
    loader, phase = Loader(sequences, training.batch_size, training.seed), Phase("variance", objective, 1)

    def draw(number: int) -> tuple[Tensor, float]:
        state.step = number
        state.optimizer.zero_grad()
        loss, _ = gradients(state, loader, phase, training)
        found = [torch.zeros_like(value) if value.grad is None else value.grad for value in parameters]
        flat = torch.cat([each.flatten() for each in found])
        if not math.isfinite(float(loss)) or not bool(flat.isfinite().all()):
            raise ValueError(
                f"draw {number} has the loss {float(loss)} or a gradient that is not finite: the weights of step "
                f"{model.step} are damaged or diverged; measure an earlier checkpoint"
            )
        return flat, float(loss)

    return draw, sum(value.numel() for value in parameters)


def compare_objectives(
    model: Model,
    sequences: Sequences,
    objectives: Mapping[str, Objective],
    settings: VarianceSettings,
    advance: Advance = ignore,
) -> dict[str, Statistics]:
    """The statistics of each objective, all on the same draws; objectives may be any, under names of your own."""
    found = {}
    for name, objective in objectives.items():
        draw, num_weights = _draws_of(model, sequences, objective, settings)
        found[name] = collect(
            draw, num_weights, settings.num_draws, groups=settings.groups, device=model.device, advance=advance
        )
    return found


def affordable_draws(
    model: Model,
    sequences: Sequences,
    objectives: Mapping[str, Objective],
    settings: VarianceSettings,
    report: Reporter,
) -> int:
    """The number of draws: what is wanted, or less if the time limit is shorter. One draw of each is timed."""
    if settings.limit_seconds is None:
        return settings.num_draws
    each_draw = 0.0
    for objective in objectives.values():
        draw, _ = _draws_of(model, sequences, objective, settings)
        draw(0)  # the first one also allocates
        started = time.monotonic()
        draw(1)
        each_draw += time.monotonic() - started
    rounds = int(settings.limit_seconds / (each_draw * settings.groups))
    if rounds < 2:
        raise ValueError(
            f"limit-seconds leaves {settings.limit_seconds:.0f} s for a checkpoint, and the fewest draws "
            f"({2 * settings.groups} of {len(objectives)} objectives) take {2 * settings.groups * each_draw:.0f} s: "
            "raise it, or name fewer objectives"
        )
    if rounds * settings.groups < settings.num_draws:
        report(f"{rounds * settings.groups} draws instead of {settings.num_draws}, to stay within the time limit")
    return min(settings.num_draws, rounds * settings.groups)

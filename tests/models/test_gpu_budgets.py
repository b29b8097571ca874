"""What the paper's steps may cost a GPU: kernels, bytes, waits, simulated times, at 64 x 1024 tokens and K = 50 257.

They are counted on the real code (``models.cost``), so that a pass over the logits that comes back, or a host that
waits again, fails here. docs/performance.md has the table and what it supposes.
"""

from __future__ import annotations

from functools import cache

import pytest

from duality.models.cost import count_sampling, count_training
from duality.models.roofline import GPUS, Cost
from duality.recipes.catalogue import recipe
from duality.recipes.derive import derive_distillation

pytestmark = pytest.mark.slow
ROWS, SAMPLES = 64, 16


@cache
def steps(name: str, distillation: str = "", settings: tuple[str, ...] = ()) -> dict[str, Cost]:
    """A training step of each phase."""
    chosen = recipe(name, settings)
    if distillation:
        chosen = derive_distillation(chosen, distillation, chosen.training.steps)
    return {phase.name: phase.one for phase in count_training(chosen, ROWS)}


def milliseconds(cost: Cost) -> tuple[float, float]:
    return 1e3 * cost.seconds(GPUS["H100"]), 1e3 * cost.seconds(GPUS["A100"])


def test_the_products_of_a_step_are_those_of_the_network() -> None:
    """A check of the count itself: 6 operations for each weight and token, the embedding excepted, and attention."""
    for cost in steps("ar-owt").values():
        weights = 12 * 12 * 768**2 + 768 * 50_257
        expected = 6 * weights * ROWS * 1024 + 12 * (4 + 10) * ROWS * 1024**2 * 768 / 2
        assert cost.operations == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", ["duo-owt", "mdlm-owt"])
def test_a_sampling_step(name: str) -> None:
    cost = count_sampling(recipe(name), SAMPLES)
    h100, a100 = milliseconds(cost)
    assert h100 <= 30
    assert a100 <= 60
    assert cost.num_syncs <= 1


def test_the_loss_of_duo_goes_over_the_logits_three_times() -> None:
    """Once to reduce them, twice to replace them by their gradient: 20 of these GB; products are not in it."""
    for phase, cost in steps("duo-owt").items():
        loss = cost.part(lambda event: "fused/" in event.place and not event.operations)
        assert loss.moved <= 25e9, phase


def test_dropout_moves_nothing() -> None:
    """It is in the kernels of gate and residual, which a network without it needs too (90 GB before)."""
    without = steps("duo-owt", settings=("backbone.dropout=0",))
    for phase, cost in steps("duo-owt").items():
        assert cost.moved <= without[phase].moved + 0.5e9


# The most that a step of each phase may take on an H100 and an A100, in milliseconds.
TIMES = {
    ("duo-owt", ""): (170, 400),
    ("mdlm-owt", ""): (150, 380),
    ("ar-owt", ""): (150, 380),
    ("duo-owt", "dcd"): (260, 620),
}


@pytest.mark.parametrize(("name", "distillation"), TIMES)
def test_a_training_step(name: str, distillation: str) -> None:
    for phase, cost in steps(name, distillation).items():
        found, most = milliseconds(cost), TIMES[name, distillation]
        assert found[0] <= most[0], phase
        assert found[1] <= most[1], phase
        assert cost.num_kernels <= 3000, phase


@pytest.mark.parametrize("name", ["duo-owt", "mdlm-owt", "ar-owt", "sedd-absorb-owt"])
def test_the_host_waits_twice_in_a_step_at_most(name: str) -> None:
    for phase, cost in steps(name).items():
        assert cost.num_syncs <= 2, (phase, [event for event in cost.events if event.kind == "sync"])

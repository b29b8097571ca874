"""Every schedule: decreasing, its slope is its derivative, its time is its inverse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from duality.diffusion import GAUSSIAN_SCHEDULES, SCHEDULES
from duality.diffusion.schedules import Cosine, Dual, LinearLogSnr, LinearVariance, LogLinear, Polynomial
from duality.protocols import Schedule

CASES: list[Schedule] = [
    *(kind() for kind in SCHEDULES.values()),
    LogLinear(0.0),
    Cosine(0.0),
    Polynomial(eps=0.0),
    *(Dual(vocab_size, kind()) for kind in GAUSSIAN_SCHEDULES.values() for vocab_size in (2, 27, 50_257)),
    Dual(1000, alpha_min=0.2, alpha_max=0.6),
]


@pytest.mark.parametrize("schedule", CASES, ids=str)
def test_common_properties(schedule: Schedule) -> None:
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    alpha = schedule.alpha(t)
    assert alpha.dtype == torch.float64
    assert (alpha.diff() < 0).all()
    assert torch.allclose(schedule.time(alpha), t, atol=1e-9)
    step = 1e-4
    numeric = (
        8 * (schedule.alpha(t + step) - schedule.alpha(t - step))
        - (schedule.alpha(t + 2 * step) - schedule.alpha(t - 2 * step))
    ) / (12 * step)
    assert torch.allclose(schedule.alpha_prime(t), numeric, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("schedule", [LogLinear(1e-2), Cosine(1e-2)], ids=str)
def test_discrete_ends(schedule: Schedule) -> None:
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([1.0, 1e-2], abs=1e-15)


@pytest.mark.parametrize("kind", GAUSSIAN_SCHEDULES.types())
def test_dual_covers_its_range_of_alpha(kind: type) -> None:
    schedule = Dual(30_522, kind(), alpha_min=0.05, alpha_max=0.95)
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([0.95, 0.05], abs=1e-12)


def test_the_papers_time_range_belongs_to_linear_variance() -> None:
    """alpha~^2 = 1 - t on [0.03, 0.15] gives alpha from .934 to .047 at K = 30 522, as the paper's text says."""
    from duality.diffusion import gaussian

    time = torch.tensor([0.03, 0.15], dtype=torch.float64)
    alpha = gaussian.level(LinearVariance().mu(time), 30_522)
    assert alpha.tolist() == pytest.approx([0.934, 0.047], abs=1e-3)


def test_the_range_of_alpha_is_checked() -> None:
    with pytest.raises(ValueError, match="alpha_min < alpha_max"):
        Dual(27, alpha_min=0.9, alpha_max=0.1)


def test_levels_are_those_of_the_released_code(golden: Path) -> None:
    """Their cosine scales time by 1 - eps, so that it ends at 1e-6 instead of eps; their slope lacks that factor."""
    data = np.load(golden / "schedules.npz")
    for name, schedule, scale in (("log_linear", LogLinear(), 1.0), ("cosine", Cosine(0.0), 1 - 1e-3)):
        t = scale * torch.from_numpy(data[f"{name}/t"]).double()
        assert torch.allclose(schedule.alpha(t), torch.from_numpy(data[f"{name}/alpha"]).double(), atol=1e-6)
        assert torch.allclose(schedule.alpha_prime(t), torch.from_numpy(data[f"{name}/dalpha"]).double(), atol=1e-5)


def test_the_latent_of_the_released_code(golden: Path) -> None:
    """w = alpha~ x + sigma~ eps at their gamma, its argmax, and its tempered softmax."""
    from duality.diffusion import gaussian

    data = np.load(golden / "curriculum.npz")
    mu = LinearLogSnr().mu(torch.from_numpy(data["gamma"]).double())
    signal, spread = (part[:, None, None] for part in gaussian._split_mu(mu))
    clean = torch.nn.functional.one_hot(torch.from_numpy(data["x0"]), 27)
    w = signal * clean + spread * torch.from_numpy(data["epsilon"]).double()
    assert torch.allclose(w, torch.from_numpy(data["w_t"]).double(), atol=1e-6)
    assert torch.equal(w.argmax(-1), torch.from_numpy(data["xt_argmax"]))
    soft = torch.softmax(torch.from_numpy(data["w_t"]).double() * 1000.0, -1)
    assert torch.allclose(soft, torch.from_numpy(data["softmax"]).double(), atol=2e-4)

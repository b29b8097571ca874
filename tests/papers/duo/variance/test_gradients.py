"""The variance of gradients: unbiased where the truth is known, intervals that cover it, and a warning where not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from duality.evaluation.metrics import t_quantile
from duality.papers.duo.variance.gradients import (
    _MEMORY,
    ALL,
    LOSS,
    SIGNAL,
    SNR,
    SPLIT,
    STATISTICS,
    TOP,
    Statistics,
)
from duality.papers.duo.variance.settings import VarianceSettings

Sample = Callable[[int, torch.Generator], Tensor]


def statistics_of(gradients: Tensor, losses: Tensor | None = None, groups: int = 20, num_top: int = 100) -> Statistics:
    """The statistics of given draws (N, P)."""

    def draw(number: int) -> tuple[Tensor, float]:
        return gradients[number], 0.0 if losses is None else float(losses[number])

    settings = VarianceSettings(num_draws=len(gradients), groups=groups)
    return Statistics.of_draws(draw, gradients.shape[1], settings, num_top=num_top)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def deviation(values: list[float], true: float) -> float:
    """How many standard errors the mean of some values lies from the truth."""
    found = torch.tensor(values, dtype=torch.float64)
    return float((found.mean() - true) / (found.std() / len(values) ** 0.5))


def test_linear_regression_has_its_known_covariance() -> None:
    """g = x (x . d - e): E g = d, trace of the covariance (P + 1) |d|^2 + P s^2, and the loss (x . d - e)^2 / 2."""
    gap, sigma = torch.tensor([0.5, -1.0, 0.25, 2.0], dtype=torch.float64), 0.7
    size, square = len(gap), float(gap.square().sum())
    residual = square + sigma**2
    found: dict[str, list[float]] = {ALL: [], SIGNAL: [], LOSS: []}
    for seed in range(400):
        x = normals(12, size, seed=seed)
        error = x @ gap - sigma * normals(12, seed=10_000 + seed)
        values = statistics_of(x * error[:, None], error.square() / 2, groups=6).by_name
        for name, list_ in found.items():
            list_.append(values[name].value)
    assert abs(deviation(found[ALL], (size + 1) * square + size * sigma**2)) < 4
    assert abs(deviation(found[SIGNAL], square)) < 4
    assert abs(deviation(found[LOSS], residual**2 / 2)) < 4
    # the plain |mean|^2, from which trace / N was taken off, is far from it
    assert deviation([signal + trace / 12 for signal, trace in zip(found[SIGNAL], found[ALL])], square) > 4


def test_statistics_are_those_of_the_draws_without_each_group() -> None:
    gradients, losses = normals(24, 7, seed=1) * torch.arange(1, 8), normals(24, seed=2)
    found = statistics_of(gradients, losses, groups=8, num_top=3)
    for number in (None, 0, 5):
        kept = torch.tensor([draw for draw in range(24) if number is None or draw % 8 != number])
        some, variances = gradients[kept], gradients[kept].var(0)
        trace = float(variances.sum())
        signal = float(some.mean(0).square().sum()) - trace / len(kept)
        halves = [gradients[kept[kept % 2 == side]].var(0) for side in (0, 1)]
        chosen = [half.topk(3).indices for half in halves]
        expected = {
            ALL: trace,
            TOP: float(variances.topk(3).values.sum()),
            SPLIT: float(halves[1][chosen[0]].sum() + halves[0][chosen[1]].sum()) / 2,
            LOSS: float(losses[kept].var()),
            SIGNAL: signal,
            SNR: signal / trace,
        }
        for name in STATISTICS:
            repeated = found.by_name[name]
            value = repeated.value if number is None else float(repeated.without[number])
            assert value == pytest.approx(expected[name], rel=1e-12), (name, number)
    assert found.mean_loss.value == pytest.approx(float(losses.mean()))
    squares = [0.0, *(float(gradients[:size].var(0).sum()) * (size - 1) for size in range(2, 25))]
    added = [after - before for before, after in zip(squares, squares[1:])]
    assert found.largest_share == pytest.approx(max(added) / squares[-1])


def test_an_interval_is_that_of_the_mean_for_a_mean() -> None:
    """For a mean the jackknife is the classical standard error, and the interval Student's."""
    losses = normals(20, seed=3) + 50
    # draws i and i + 20 are in group i, so that the mean of a group is one of the losses
    mean = statistics_of(torch.ones(40, 2), losses.repeat(2), groups=20).mean_loss.estimate()
    assert mean.stderr == pytest.approx(float(losses.std() / 20**0.5))
    assert mean.high - mean.value == pytest.approx(t_quantile(19) * mean.stderr)
    assert t_quantile(5) == pytest.approx(2.5706, abs=2e-3)


def test_the_largest_of_equal_variances_are_too_large_and_the_split_is_not() -> None:
    found = [statistics_of(normals(24, 50, seed=seed), groups=6, num_top=10).by_name for seed in range(100)]
    assert deviation([each[TOP].value for each in found], 10.0) > 20
    assert abs(deviation([each[SPLIT].value for each in found], 10.0)) < 4


def student(degrees: int) -> Sample:
    """Draws of four weights with a common scale: Student's t."""

    def sample(count: int, source: torch.Generator) -> Tensor:
        normal = torch.randn(count, 4, dtype=torch.float64, generator=source)
        scale = torch.randn(count, degrees, dtype=torch.float64, generator=source).square().mean(1, keepdim=True)
        return normal / scale.sqrt()

    return sample


def coverage(sample: Sample, true: float) -> tuple[float, float]:
    """How often the interval of the trace covers the truth, and how often a heavy tail is reported."""
    covered = warned = 0
    for seed in range(100):
        found = statistics_of(sample(240, generator(seed)))
        estimate = found.by_name[ALL].estimate()
        covered += estimate.low <= true <= estimate.high
        warned += found.heavy_tailed
    return covered / 100, warned / 100


def test_intervals_cover_a_heavy_tail_and_warn_of_one_that_is_too_heavy() -> None:
    """Five degrees: a variance is estimated with barely finite error. Two: it is itself infinite."""
    covered, warned = coverage(student(5), 4 * 5 / 3)
    assert covered >= 0.88
    assert warned < 0.25
    _, warned = coverage(student(2), float("inf"))
    assert warned > 0.8


def test_what_two_objectives_share_cancels_in_their_ratio() -> None:
    """The second is the first times 0.8 and a little noise: its ratio is known better than either."""
    first = student(5)(240, generator(0))
    second = 0.8 * first + 0.01 * normals(240, 4, seed=1)
    one, two = statistics_of(first).by_name[ALL], statistics_of(second).by_name[ALL]
    ratio = two.over(one)
    assert ratio is not None
    assert ratio.low < 0.64 + 1e-4 / 1.7 < ratio.high
    assert ratio.high / ratio.low < 1.01
    assert two.estimate().high / two.estimate().low > 1.2


def test_a_signal_that_may_be_none_has_no_ratio() -> None:
    found = statistics_of(normals(240, 4, seed=0)).by_name
    assert found[SIGNAL].estimate().low < 0 < found[SIGNAL].estimate().high
    assert found[SIGNAL].over(found[SIGNAL]) is None
    strong = statistics_of(normals(240, 4, seed=0) + 3).by_name
    assert strong[SNR].over(strong[SNR]) is not None
    estimate = strong[SIGNAL].estimate()
    assert estimate.low < 36 < estimate.high


def test_digits_survive_a_large_mean_and_low_precision() -> None:
    small = normals(40, 3, seed=5)
    found = statistics_of(small.float() + 100, normals(40, seed=6) + 1e7)
    again = statistics_of((small.float() + 100).double(), normals(40, seed=6) + 1e7)
    assert found.by_name[ALL].value == again.by_name[ALL].value
    assert found.by_name[ALL].value == pytest.approx(float(small.var(0).sum()), rel=1e-4)
    assert found.by_name[LOSS].value == pytest.approx(float(normals(40, seed=6).var()), rel=1e-6)


@pytest.mark.parametrize("place", [0, 1, 100, 239])
def test_one_large_draw_is_seen_wherever_it_stands_and_a_large_mean_is_none(place: int) -> None:
    gradients = normals(240, 4, seed=8) + 1000
    assert not statistics_of(gradients).heavy_tailed
    gradients[place] += 40
    assert statistics_of(gradients).heavy_tailed


def test_gradients_without_variance() -> None:
    found = statistics_of(torch.ones(40, 3))
    assert found.by_name[ALL].estimate().high == 0
    assert found.largest_share == 0
    assert found.by_name[SIGNAL].value == pytest.approx(3.0)
    assert found.by_name[ALL].over(found.by_name[ALL]) is None


def test_draws_are_collected_in_order_and_counted() -> None:
    data, seen = normals(40, 3, seed=7), 0

    def advance(amount: float, tokens: int = 0) -> None:
        nonlocal seen
        seen += int(amount) + tokens

    found = Statistics.of_draws(
        lambda number: (data[number], float(number)), 3, VarianceSettings(num_draws=40), advance=advance
    )
    assert seen == found.num_draws == 40
    assert found.by_name[ALL].value == statistics_of(data).by_name[ALL].value
    assert found.mean_loss.value == pytest.approx(19.5)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="groups is 5"):
        Statistics.of_draws(lambda number: (torch.zeros(3), 0.0), 3, VarianceSettings(num_draws=30, groups=5))
    with pytest.raises(ValueError, match=r"multiple of the 20 groups, at least 40; use 40"):
        Statistics.of_draws(lambda number: (torch.zeros(3), 0.0), 3, VarianceSettings(num_draws=30))
    with pytest.raises(ValueError, match="use --groups 10"):
        Statistics.of_draws(lambda number: (torch.zeros(3), 0.0), _MEMORY // 16 // 10, VarianceSettings())
    with pytest.raises(ValueError, match="a smaller network"):
        Statistics.of_draws(lambda number: (torch.zeros(3), 0.0), _MEMORY, VarianceSettings())

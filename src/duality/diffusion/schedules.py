"""How fast signal is lost: alpha(t) falls from t = 0 to t = 1, with its analytic slope and its true inverse.

``LogLinear``, ``Cosine`` and ``Polynomial`` are schedules of the discrete process. ``Dual`` is T of a Gaussian
schedule, seen through a window of alpha: time 0 is the window's clean end, time 1 its noisy end, so that integrating
the bound over time in [0, 1] covers exactly that window, whatever Gaussian schedule drives it.

A Gaussian schedule here is a map between mu = alpha_tilde / sigma_tilde and its own time; it only decides where in the
window training spends its samples.

What must hold: time(alpha(t)) = t, alpha_prime = d alpha / dt, alpha decreasing. All in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from duality.diffusion import gaussian


def check_eps(eps: float) -> None:
    """alpha(1) = eps is a level that 1 can fall to."""
    if not 0 <= eps < 1:
        raise ValueError(f"eps is {eps}: it is the last signal level, alpha(1), and must be in [0, 1)")


@dataclass(frozen=True)
class LogLinear:
    """alpha = 1 - (1 - eps) t: the paper's schedule for training without a curriculum and for evaluation."""

    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * t.to(torch.float64)

    def alpha_prime(self, t: Tensor) -> Tensor:
        return torch.full_like(t, self.eps - 1, dtype=torch.float64)

    def time(self, alpha: Tensor) -> Tensor:
        return (1 - alpha.to(torch.float64)) / (1 - self.eps)


@dataclass(frozen=True)
class Cosine:
    """alpha = eps + (1 - eps) (1 - sin(pi t / 2)): signal goes early, and the noisy end is gentle."""

    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * torch.sin(math.pi / 2 * t.to(torch.float64))

    def alpha_prime(self, t: Tensor) -> Tensor:
        return -(1 - self.eps) * math.pi / 2 * torch.cos(math.pi / 2 * t.to(torch.float64))

    def time(self, alpha: Tensor) -> Tensor:
        return torch.asin((1 - alpha.to(torch.float64)) / (1 - self.eps)) * 2 / math.pi


@dataclass(frozen=True)
class Polynomial:
    """alpha = 1 - (1 - eps) t^power: with power > 1, more samples where little noise is left.

    The bound's variance comes from there: a change has probability t and weight 1/t, so under ``LogLinear`` the second
    moment grows as log(1/t) without limit, while at power 2 it is finite. The bound itself does not depend on the
    schedule.
    """

    power: float = 2.0
    eps: float = 1e-3

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ValueError(f"power is {self.power}: it must be positive; 1 is LogLinear")
        check_eps(self.eps)

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * t.to(torch.float64) ** self.power

    def alpha_prime(self, t: Tensor) -> Tensor:
        return (self.eps - 1) * self.power * t.to(torch.float64) ** (self.power - 1)

    def time(self, alpha: Tensor) -> Tensor:
        return ((1 - alpha.to(torch.float64)) / (1 - self.eps)) ** (1 / self.power)


@runtime_checkable
class GaussianSchedule(Protocol):
    """mu at a Gaussian time, d mu / d time, and the time of a mu. Hashable, because windows are cached by it."""

    def mu(self, time: Tensor) -> Tensor: ...
    def mu_prime(self, time: Tensor) -> Tensor: ...
    def gaussian_time(self, mu: Tensor) -> Tensor: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class LinearVariance:
    """alpha_tilde^2 = 1 - time: the schedule that the paper's window [0.03, 0.15] belongs to."""

    def mu(self, time: Tensor) -> Tensor:
        return ((1 - time) / time).sqrt()

    def mu_prime(self, time: Tensor) -> Tensor:
        return -0.5 / (time**2 * self.mu(time))

    def gaussian_time(self, mu: Tensor) -> Tensor:
        return 1 / (1 + mu**2)


@dataclass(frozen=True)
class LinearSignal:
    """alpha_tilde = 1 - time: the schedule that the paper's text states."""

    def mu(self, time: Tensor) -> Tensor:
        return (1 - time) / (1 - (1 - time) ** 2).sqrt()

    def mu_prime(self, time: Tensor) -> Tensor:
        return -((1 - (1 - time) ** 2) ** -1.5)

    def gaussian_time(self, mu: Tensor) -> Tensor:
        # 1 - mu / sqrt(1 + mu^2) without cancellation at large mu
        root = (1 + mu**2).sqrt()
        return 1 / (root * (root + mu))


@dataclass(frozen=True)
class LinearLogSnr:
    """gamma = -log mu^2 = time: the schedule that the released code trains with."""

    def mu(self, time: Tensor) -> Tensor:
        return (-time / 2).exp()

    def mu_prime(self, time: Tensor) -> Tensor:
        return -0.5 * self.mu(time)

    def gaussian_time(self, mu: Tensor) -> Tensor:
        return -2 * mu.log()


@lru_cache(maxsize=64)
def _window(
    gaussian_schedule: GaussianSchedule, vocab_size: int, alpha_min: float, alpha_max: float
) -> tuple[float, float]:
    """The Gaussian times at which alpha is ``alpha_max`` and ``alpha_min``."""
    ends = gaussian.inverse_level(torch.tensor([alpha_max, alpha_min], dtype=torch.float64), vocab_size)
    first, last = gaussian_schedule.gaussian_time(ends).tolist()
    return first, last


@dataclass(frozen=True)
class Dual:
    """alpha = T(Gaussian schedule) for alpha from ``alpha_max`` at t = 0 down to ``alpha_min`` at t = 1."""

    vocab_size: int
    gaussian_schedule: GaussianSchedule = LinearVariance()
    alpha_min: float = 0.05
    alpha_max: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.alpha_min < self.alpha_max < 1:
            raise ValueError(
                f"the window of alpha is [{self.alpha_min}, {self.alpha_max}]: it must satisfy "
                "0 < alpha_min < alpha_max < 1"
            )

    def window(self) -> tuple[float, float]:
        """The Gaussian times of the window's clean and noisy ends."""
        return _window(self.gaussian_schedule, self.vocab_size, self.alpha_min, self.alpha_max)

    def gaussian_time(self, t: Tensor) -> Tensor:
        """The Gaussian schedule's time at time ``t`` of the window."""
        first, last = self.window()
        return first + (last - first) * t.to(torch.float64)

    def mu(self, t: Tensor) -> Tensor:
        return self.gaussian_schedule.mu(self.gaussian_time(t))

    def alpha(self, t: Tensor) -> Tensor:
        return gaussian.level(self.mu(t), self.vocab_size)

    def alpha_prime(self, t: Tensor) -> Tensor:
        first, last = self.window()
        time = self.gaussian_time(t)
        slope = gaussian.level_slope(self.gaussian_schedule.mu(time), self.vocab_size)
        return slope * self.gaussian_schedule.mu_prime(time) * (last - first)

    def time(self, alpha: Tensor) -> Tensor:
        first, last = self.window()
        mu = gaussian.inverse_level(alpha, self.vocab_size)
        return (self.gaussian_schedule.gaussian_time(mu) - first) / (last - first)


def check_dual(schedule: object, name: str) -> None:
    """Refuse a schedule that is not that of a Gaussian diffusion, for what draws Gaussian latents."""
    if not isinstance(schedule, Dual):
        raise ValueError(
            f"{name} draws Gaussian latents, and {schedule} is a schedule of the discrete noise alone: use "
            "Dual(vocab_size), which has both"
        )

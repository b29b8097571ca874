"""What a user asks of a measurement of variance, as one object for the library and the command line.

    VarianceSettings(objectives=("plain", "tau=0.001"))      --objectives plain,tau=0.001

Objectives, steps and the window are sequences, or texts with commas between the parts. A field's docstring is its help.
What must hold: the fields and their help are known without torch; what cannot be measured is refused when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from duality.evaluation.requests import list_values

_GROUPS = 20


@dataclass(frozen=True)
class VarianceSettings:
    """What is measured, and on how many draws."""

    objectives: str | Sequence[str] = ""
    """names with commas, the first is compared with: plain, window (the curriculum with tau -> 0), tau=0.001, udlm,
    mdlm, own; each may have times: plain/log-linear, tau=0.01/polynomial. Those that fit the run if not given."""
    num_draws: int = 400
    """minibatches, each with fresh sequences, times and noise; a multiple of the groups."""
    batch: int | None = None
    """sequences in a minibatch; the run's own batch size if not given."""
    micro_batch: int = 0
    """sequences at a time, to save memory; 0 is the whole minibatch. The result does not depend on it."""
    groups: int = _GROUPS
    """groups of draws for the jackknife; memory is 16 bytes for each weight and group."""
    steps: str | Sequence[int] = "last"
    """the last checkpoint, all that the run has kept, or some, with commas."""
    weights: Literal["model", "ema"] = "model"
    """raw weights (model), at which training computes gradients, or averaged ones (ema)."""
    window: str | tuple[float, ...] = ""
    """the range of alpha of window and tau, such as 0.05,0.95 (the paper's); the run's own if not given."""
    seed: int = 0
    """seed of sequences, times and noise."""
    limit_seconds: float | None = None
    """take fewer draws if these would take longer."""

    def __post_init__(self) -> None:
        draws, groups = self.num_draws, self.groups
        if groups < 6:
            raise ValueError(
                f"groups is {groups}: an interval by the jackknife needs at least 6; the usual is {_GROUPS}"
            )
        if draws < 2 * groups or draws % groups:  # the groups cannot share them equally
            raise ValueError(
                f"draws is {draws}: it must be a multiple of the {groups} groups, at least {2 * groups}; use "
                f"{max(2, round(draws / groups)) * groups}"
            )
        if (self.batch is not None and self.batch < 1) or self.micro_batch < 0:
            raise ValueError(
                f"batch {self.batch}, micro-batch {self.micro_batch}: a minibatch needs at least 1 sequence, and a "
                "micro-batch of 0 is the whole minibatch"
            )
        for name, value in (("seed", self.seed), ("draws", draws)):
            if not 0 <= value < 1 << 63:
                raise ValueError(f"{name} is {value}: it must be a whole number from 0 to 2**63 - 1")
        if self.limit_seconds is not None and not self.limit_seconds > 0:
            raise ValueError(f"limit-seconds is {self.limit_seconds}: it must be positive; leave it out for no limit")
        self.kept_steps([])
        self.alpha_range()

    def names(self) -> tuple[str, ...]:
        """The names of the objectives; none for those that fit the run."""
        return tuple(list_values("--objectives", "names", self.objectives, str)) if self.objectives else ()

    def kept_steps(self, saved: Sequence[int]) -> Sequence[int]:
        """The steps of the checkpoints, of a run that has ``saved`` these; none for the newest alone."""
        if self.steps in ("last", "all"):
            return saved if self.steps == "all" else ()
        return list_values("--step", "last, all, or steps such as 1000,2000", self.steps, int)

    def alpha_range(self) -> tuple[float, float] | None:
        """The range of alpha of the objectives that have one; None if it is not given."""
        kind = "two levels of alpha such as 0.05,0.95"
        found = list_values("--window", kind, self.window, float) if self.window else ()
        if len(found) not in (0, 2):
            raise ValueError(f"--window {self.window!r}: write {kind}, with commas between")
        return (found[0], found[1]) if found else None

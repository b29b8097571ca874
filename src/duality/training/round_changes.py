"""The fields of a distillation that a user may set, for ``duality.distill`` and its command; known without torch.

``for_steps`` is no field: it chooses the number of rounds and delta for a number of sampling steps
(``_choose_rounds``).
"""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from duality.diffusion import Divergence
from duality.training import Compare, Growth, TeacherCopy

if TYPE_CHECKING:
    from duality.protocols import Distillation


@dataclass(frozen=True)
class RoundChanges:
    """Fields of ``distillation.Rounds`` and of its kinds; None leaves a field as it is."""

    rounds: int | None = None
    """how often the teacher becomes a copy of the student; 5 if not given."""
    round_steps: int | None = None
    """training steps of each round; if not given, a hundredth of the run's own steps, but at least 150."""
    teacher: TeacherCopy | None = None
    """which copy of the student is the teacher: its weights (the default) or their average (ema)."""
    delta: float | None = None
    """the first round's step, as a fraction of the time from data to noise; 1/512 (dcd) or 1/1024 (sdtt)."""
    growth: Growth | None = None
    """from round to round delta doubles (double, the default), or grows linearly (linear)."""
    divergence: Divergence | None = None
    """the distance between student and teacher; kl-backward (the default) is KL(student || teacher)."""
    compare: Compare | None = None
    """what dcd compares: the networks' outputs (output, the paper's, the default), or these together with the noisy
    tokens (posterior)."""
    for_steps: int | None = None
    """choose rounds and delta for sampling with N steps: in the last round the student learns steps of length 1/N."""

    def given_fields(self) -> dict[str, object]:
        """The fields that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "for_steps"}

    def resolve(self, standard: Distillation) -> RoundChanges:
        """The same with rounds and delta in place of ``for_steps``; ``standard`` is the unchanged distillation."""
        if self.compare is not None and "compare" not in inspect.signature(type(standard)).parameters:
            raise ValueError(
                f"compare is {self.compare!r}, and {type(standard).__name__} has no such field: it is for DCD; at a "
                "mask token output and posterior are the same, so leave it out"
            )
        if self.for_steps is None:
            return self
        if self.rounds is not None and self.delta is not None:
            raise ValueError(
                f"for_steps is {self.for_steps} and chooses rounds and delta, which are both given: leave one of the "
                "three out"
            )
        chosen = _choose_rounds(
            self.for_steps,
            most=standard.rounds,
            finest=standard.delta_of_round(1),
            deltas_per_step=standard.deltas_per_step,
            growth=self.growth or standard.growth,
            rounds=self.rounds,
            delta=self.delta,
        )
        return replace(self, rounds=chosen[0], delta=chosen[1], for_steps=None)


def _choose_rounds(
    steps: int,
    *,
    most: int = 5,
    finest: float = 1 / 512,
    deltas_per_step: int = 1,
    growth: Growth = "double",
    rounds: int | None = None,
    delta: float | None = None,
) -> tuple[int, float]:
    """Number of rounds, and delta of the first, for a model that will be sampled with ``steps`` equal steps of time.

    In the last round a step of the student, which is ``deltas_per_step`` deltas, is 1 / ``steps`` long. Rounds are as
    many as there are from ``finest`` on, where student and teacher hardly differ, but no more than ``most``. Either of
    ``rounds`` and ``delta`` may be given; the other one is chosen for it.

    >>> _choose_rounds(32)  # the paper's: 1/512, 1/256, 1/128, 1/64, 1/32
    (5, 0.001953125)
    >>> _choose_rounds(8)
    (5, 0.0078125)
    >>> _choose_rounds(8, rounds=3)
    (3, 0.03125)
    >>> _choose_rounds(8, delta=1 / 64)
    (4, 0.015625)
    >>> _choose_rounds(256)
    (2, 0.001953125)
    >>> _choose_rounds(32, finest=1 / 1024, deltas_per_step=2)  # SDTT with two steps of the teacher
    (5, 0.0009765625)
    """
    if steps < 1:
        raise ValueError(f"for_steps is {steps}: a sample takes at least 1 step")
    if delta is not None and not delta > 0:
        raise ValueError(f"delta is {delta}: it is a fraction of the time from data to noise, in (0, 1]")
    last = 1 / (steps * deltas_per_step)
    if rounds is None:
        grown = last / (finest if delta is None else delta) * (1 + 1e-9)  # a quotient may be rounded below its number
        count = max(1, 1 + math.floor(math.log2(grown)) if growth == "double" else math.floor(grown))
        rounds = min(count, most) if delta is None else count
    if delta is None:
        delta = last / (2 ** (rounds - 1) if growth == "double" else max(rounds, 1))
    return rounds, delta

"""The fields of a distillation that a user may set, for ``duality.distill`` and its command; known without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from duality.diffusion import Divergence
from duality.training import Growth, TeacherCopy


@dataclass(frozen=True)
class RoundChanges:
    """Fields of ``distillation.Rounds``; None leaves a field as it is."""

    rounds: int | None = None
    """how often the teacher becomes a copy of the student; 5 if not given."""
    round_steps: int | None = None
    """training steps of each round; a hundredth of the run's own steps if not given, as in the paper."""
    teacher: TeacherCopy | None = None
    """which copy of the student is the teacher: its weights (the default) or their average (ema)."""
    delta: float | None = None
    """the first round's step, as a fraction of the time from data to noise; 1/512 (dcd) or 1/1024 (sdtt)."""
    growth: Growth | None = None
    """from round to round delta doubles (double, the default), or grows linearly (linear)."""
    divergence: Divergence | None = None
    """the distance between student and teacher; kl-backward (the default) is KL(student || teacher)."""

    def given(self) -> dict[str, object]:
        """The fields that are set."""
        return {field: value for field, value in asdict(self).items() if value is not None}

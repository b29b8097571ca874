"""Rows of a sweep with given measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duality.evaluation.samples import REAL_TEXT, Row


def row(label: str, steps: int, gen_ppl: float | None, entropy: float, **more: Any) -> Row:
    """A row with these measures and some others."""
    known = gen_ppl is not None
    base: dict[str, Any] = {
        "label": label, "run": Path("runs") / label, "steps": steps, "num": 8, "length": 64,
        "judge": "j" if known else None, "gen_ppl": gen_ppl, "stderr": 1.25 if known else None,
        "low": gen_ppl - 2 if gen_ppl is not None else None, "high": gen_ppl + 3 if gen_ppl is not None else None,
        "entropy": entropy, "entropy_low": entropy - 0.1, "entropy_high": entropy + 0.1,
        "distinct_1": 0.1, "distinct_2": 0.2, "distinct_3": 0.3, "self_repetition": 0.04, "mauve": None,
        "nfe": float(steps), "seconds_per_sample": 0.5,
    }  # fmt: skip
    return Row(**{**base, **more})


REAL = row(REAL_TEXT, 0, 30.0, 5.5, run=Path(), sampler="none", tail="none")

"""The results that a reproduction keeps of a domain, by the key of a model and its seed.

OUT/runs/<key>-<seed>/                  the run folders
OUT/likelihoods/<key>-<seed>.json       nats per token of held-out text
OUT/variances/<key>-<seed>.json         variances of gradients, of several objectives
OUT/samples/<key>-<seed>/               a sweep's folder: samples, scores, quality.json
"""

from __future__ import annotations

import json
from pathlib import Path


def run_folder(out: Path, key: str, seed: int) -> Path:
    """Where the run of a model with a seed is."""
    return out / "runs" / f"{key}-{seed}"


def result_path(out: Path, kind: str, key: str, seed: int) -> Path:
    """Where the likelihood or the variances of a model with a seed are kept."""
    return out / kind / f"{key}-{seed}.json"


def read_likelihood(out: Path, key: str, seed: int) -> tuple[float, float]:
    """Nats per token and their standard error, as kept."""
    found = json.loads(result_path(out, "likelihoods", key, seed).read_text(encoding="utf-8"))
    return float(found["nats"]), float(found["stderr"])


def read_variances(
    out: Path, key: str, seed: int, statistic: str, pair: tuple[str, str]
) -> tuple[float, float, tuple[float, float]]:
    """The variances of two objectives, as kept, and the logarithm of their ratio with its standard error."""
    found = json.loads(result_path(out, "variances", key, seed).read_text(encoding="utf-8"))
    first, second = (float(found["values"][name][statistic]) for name in pair)
    log, error = found["log_ratios"][statistic][pair[0]][pair[1]]
    return first, second, (float(log), float(error))

"""What is said of a model's belief is what the model believes, and saying it changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from duality.fused.lazy import belief_of
from duality.models.model import load
from duality.protocols import AnyDenoiser
from duality.samplers.generate import Frame
from duality.studio.generation import Observed

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filters": {"temperature": 0.7, "top_p": 0.8},
    "known": {"prompt": "The ", "temperature": 1.0},
    "greedy": {"tail": "greedy", "temperature": 1.0},
}


class Dense:
    """A denoiser that keeps the whole belief of every call, as a reference."""

    def __init__(self, denoiser: AnyDenoiser) -> None:
        self.denoiser, self.log_p = denoiser, torch.zeros(0)

    def belief(self, *arguments: Any) -> Any:
        found = belief_of(self.denoiser, *arguments)
        self.log_p = found.log_probs()
        return found

    def log_probs(self, *arguments: Any) -> Tensor:
        return belief_of(self.denoiser, *arguments).log_probs()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("run", ["duo", "mdlm", "ar"])
@pytest.mark.usefixtures("few_rows")
def test_the_reading_is_the_belief(shelf: Path, run: str, name: str) -> None:
    model, found = load(shelf / run, device="cpu"), []
    settings = {"length": 8, "steps": None if run == "ar" else 4, "seed": 3, **SETTINGS[name]}
    watched: list[Observed] = []
    dense: list[Dense] = []

    def wrap(denoiser: AnyDenoiser) -> AnyDenoiser:
        dense.append(Dense(denoiser))
        watched.append(Observed(dense[0]))
        return watched[0]

    def see(frame: Frame) -> None:
        reading = watched[0].read(frame.tokens, 3) if frame.step else None
        if reading is not None:
            place = reading.place
            tokens = frame.tokens if place is None else frame.tokens[:, place : place + 1]
            found.append((reading, tokens, dense[0].log_p))

    seen = model.sample(2, wrap=wrap, watch=see, **settings)
    assert [each.tokens for each in seen] == [each.tokens for each in model.sample(2, **settings)]
    assert len(found) == (8 if run == "ar" else 4)
    for reading, tokens, log_p in found:
        p = log_p.double().exp()
        torch.testing.assert_close(reading.entropy.double(), torch.special.entr(p).sum(-1), atol=1e-4, rtol=1e-4)
        expected = p.gather(-1, tokens[..., None])[..., 0]  # the mask token has probability 0
        torch.testing.assert_close(reading.token.double(), expected, atol=1e-6, rtol=1e-4)
        best = p.sort(-1, descending=True).values[..., :3]
        torch.testing.assert_close(reading.best_probability.double(), best, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(p.gather(-1, reading.best)[best > 0], best[best > 0], atol=1e-6, rtol=1e-4)

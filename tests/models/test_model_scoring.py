"""The likelihood of given texts: exact or with a correct error, and independent of the other texts."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import small_recipe
from support.toy_model import toy_model
from torch import Tensor, nn

import duality
from duality.models.model import Model
from duality.models.requests import ScoreRequest
from duality.models.scoring import Passage, measure_tokens
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Ends, Kind, Loss, Valid

NAMES = ("duo-laptop", "mdlm-laptop", "ar-laptop", "sedd-absorb-laptop", "plaid-laptop", "bert-mouth-laptop")
SHORT, LONG = "The cat.", "You may reproduce and distribute copies of the work, in any medium, with or without it."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, english: Path) -> dict[str, Model]:
    """A model of each kind, trained for 20 steps on sequences of 32 bytes, in float64."""
    folder = tmp_path_factory.mktemp("models")
    trained = {name: duality.train(small_recipe(english, name=name), out=folder / name) for name in NAMES}
    return {name: replace(model, denoiser=model.denoiser.double()) for name, model in trained.items()}


def test_an_autoregressive_model_is_exact(models: dict[str, Model]) -> None:
    """The sum of log-probabilities over pieces of 32 tokens; nothing is drawn, so there is no error."""
    model = models["ar-laptop"]
    denoiser: Any = model.denoiser
    for text in (SHORT, LONG):
        ids = torch.tensor(model.tokenizer.encode(text))
        nats = 0.0
        for start in range(0, len(ids), 32):
            piece = ids[start : start + 32]
            log_p = denoiser.log_probs(piece[None], torch.ones(1, dtype=torch.float64))
            nats -= float(log_p[0].gather(-1, piece[:, None]).sum())
        found = model.log_likelihood(text)
        assert found.nats == pytest.approx(nats, rel=1e-12)
        assert (found.kind, found.stderr, found.num_tokens) == ("exact", 0.0, len(ids))
        assert found.nats_per_token == found.nats / len(ids)
        assert found == model.log_likelihood(text, num_draws=3, seed=5)


@pytest.mark.parametrize("name", NAMES)
def test_the_value_of_a_text_does_not_depend_on_other_texts(models: dict[str, Model], name: str) -> None:
    """For any batch size and any other texts, long or short, before or after it."""
    model = models[name]
    texts = [SHORT, LONG, "x", SHORT * 4, LONG]
    together = model.log_likelihood(texts, num_draws=3)
    assert isinstance(together, list)
    assert together[1].nats == pytest.approx(together[4].nats, rel=1e-9)
    for text, found in zip(texts, together, strict=True):
        for batch_size in (1, 2, 64):
            alone = model.log_likelihood(text, num_draws=3, batch_size=batch_size)
            assert alone.nats == pytest.approx(found.nats, rel=1e-9)
            assert alone.stderr == pytest.approx(found.stderr, rel=1e-6)
            assert (alone.kind, alone.num_tokens) == (found.kind, found.num_tokens)


@pytest.mark.parametrize("name", ["mdlm-laptop", "duo-laptop"])
def test_a_bound_is_deterministic_and_has_an_error(models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = model.log_likelihood(LONG)
    assert found == model.log_likelihood(LONG)
    assert found.kind == "bound"
    assert 0 < found.stderr < math.inf
    assert found.nats != model.log_likelihood(LONG, seed=1).nats
    assert model.log_likelihood(LONG, num_draws=32).stderr < found.stderr
    assert model.log_likelihood(LONG, num_draws=1).stderr == math.inf


@pytest.mark.parametrize("name", ["mdlm-laptop", "duo-laptop"])
def test_the_error_is_the_spread_over_seeds(models: dict[str, Model], name: str) -> None:
    found = [models[name].log_likelihood(SHORT, num_draws=8, seed=seed) for seed in range(60)]
    spread = statistics.stdev(one.nats for one in found)
    claimed = math.sqrt(statistics.mean(one.stderr**2 for one in found))
    assert 0.6 * spread < claimed < 1.8 * spread


def test_the_bound_is_the_measure_with_its_end_terms(models: dict[str, Model]) -> None:
    """The mean of many draws is close to the mean over time on a grid, plus prior and reconstruction."""
    model = models["duo-laptop"]
    x = torch.tensor(model.tokenizer.encode(SHORT))[None].expand(2048, -1)
    times = (torch.arange(2048, dtype=torch.float64) + 0.5) / 2048
    noise = duality.Noise.of(7, 0, torch.arange(2048))
    with torch.no_grad():
        ends = model.measure.ends(model.denoiser, x, noise)
        total = model.measure(model.denoiser, x, times, noise).nats + ends.prior + ends.reconstruction
    assert float(ends.prior.sum(1).mean()) > 0
    found = model.log_likelihood(SHORT, num_draws=2048, batch_size=512)
    assert found.nats == pytest.approx(float(total.sum(1).mean()), abs=6 * found.stderr)
    assert found.stderr < 1


@pytest.mark.parametrize("name", NAMES)
def test_surprisal_sums_to_the_likelihood(models: dict[str, Model], name: str) -> None:
    model = models[name]
    for text in (LONG, "naïve"):
        entries = model.surprisal(text, num_draws=5, seed=2)
        assert [entry.token for entry in entries] == model.tokenizer.encode(text).tolist()
        assert "".join(entry.text for entry in entries) == text
        whole = model.log_likelihood(text, num_draws=5, seed=2)
        assert sum(entry.nats for entry in entries) == pytest.approx(whole.nats, rel=1e-12)
        assert all(entry.stderr >= 0 for entry in entries)


def test_a_pseudo_likelihood_with_a_draw_for_each_token_is_complete(models: dict[str, Model]) -> None:
    """Each token is masked once: the value does not depend on the seed."""
    model = models["bert-mouth-laptop"]
    values = [model.log_likelihood(SHORT, num_draws=len(SHORT), seed=seed) for seed in range(3)]
    assert values[0].kind == "pseudo-likelihood"
    assert len({round(value.nats, 9) for value in values}) == 1
    assert all(entry.nats > 0 for entry in model.surprisal(SHORT, num_draws=len(SHORT)))


def test_a_model_prefers_its_training_text(models: dict[str, Model]) -> None:
    text, noise = "any person obtaining a copy of the work", "zq#xj~ qpw|vk jxzqk~wvu qzj}kx wvkqjx z"
    for name in ("ar-laptop", "duo-laptop"):
        likely, unlikely = models[name].log_likelihood([text, noise], num_draws=64)
        assert likely.nats < unlikely.nats


def test_what_a_likelihood_refuses(models: dict[str, Model]) -> None:
    model = models["mdlm-laptop"]
    assert model.log_likelihood([]) == []
    with pytest.raises(ValueError, match="text 1 is empty"):
        model.log_likelihood(["a", ""])
    with pytest.raises(ValueError, match="num_draws is 0, batch_size 32: each must be at least 1"):
        model.log_likelihood("a", num_draws=0)
    with pytest.raises(ValueError, match="num_draws is 8, batch_size 0: each must be at least 1"):
        model.log_likelihood("a", batch_size=0)


@dataclass(frozen=True)
class Recorded:
    """A measure of 1 nat per token, with ends of 10 and 100 nats, that records the times it is asked for."""

    times: list[float]
    kind: Kind = "bound"

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        self.times.extend(t.tolist())
        return Loss(torch.tensor(0.0), torch.ones(x.shape, dtype=torch.float64))

    def ends(self, denoiser: AnyDenoiser, x: Tensor, noise: Noise, valid: Valid = None) -> Ends:
        return Ends(torch.full(x.shape, 10.0), torch.full(x.shape, 100.0))


def times_and_nats(seed: int, num_draws: int = 8) -> tuple[list[float], Tensor]:
    measure = Recorded([])
    model = toy_model(nn.Identity(), measure, length=4)
    (nats,) = measure_tokens(model, [Passage(np.arange(6), seed=seed)], ScoreRequest(num_draws))
    return measure.times, nats


def test_every_token_has_both_end_terms() -> None:
    assert times_and_nats(0)[1].tolist() == [[111.0] * 6] * 8


def test_the_times_of_a_window_are_evenly_spaced_from_an_offset_of_its_own() -> None:
    times = torch.tensor(times_and_nats(0)[0]).view(2, 8)  # two windows of a text
    assert torch.allclose(times.diff(dim=1), torch.full((2, 7), 1 / 8))
    assert 0 < float(times.min()) < float(times.max()) < 1
    assert not torch.allclose(times[0], times[1])
    assert times_and_nats(0)[0] == times_and_nats(0)[0]
    assert times_and_nats(0)[0] != times_and_nats(1)[0]

"""Likelihood: right on the toy, independent of the batch size, with a correct error and end terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy.typing as npt
import pytest
import torch
from support.mixer import Mixer, MixerNetwork
from support.oracles import Oracle, entropy, uniform_toy
from support.runs import small_recipe

from duality.data.corpus import prepare
from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.packing import Sequences
from duality.denoisers.readouts import MeanDenoiser
from duality.diffusion import draws
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.models import model as run_model
from duality.models.likelihood import Latents, Likelihood, likelihood
from duality.noise import Noise
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.next_token import NextToken
from duality.protocols import Dropout, Latent, Measure, Schedule, Valid, Vocabulary
from duality.tokenizers.tokenizer import ByteTokenizer, CharTokenizer


class Toy:
    """A given number of sequences of the toy language."""

    spread = Sequences.spread

    def __init__(self, law: torch.Tensor, count: int, seed: int):
        u = Noise.of(seed, 0, torch.arange(count)).uniform("data")
        pair = draws.categorical(law.flatten().expand(count, -1), u)
        self.ids = torch.stack([pair // 3, pair % 3], 1)
        self.store = self
        self.num_bytes = self.num_characters = 2 * count

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: npt.ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = self.ids[torch.as_tensor(index)]
        return chosen, torch.ones_like(chosen, dtype=torch.bool)

    def real(self, index: npt.ArrayLike) -> torch.Tensor:
        return self.rows(index)[1]

    def labels(self, index: npt.ArrayLike) -> None:
        return None


def toy_likelihood(
    schedule: Schedule, seed: int, count: int = 2000, num_draws: int = 1, latents: Latents = "discrete"
) -> Likelihood:
    law, process, oracle = uniform_toy()
    toy = cast(Sequences, Toy(law, count, seed))  # has all methods that likelihood uses
    bound = ContinuousTimeBound(process, schedule)
    return likelihood(oracle, bound, toy, seed=seed, batch_size=count, num_draws=num_draws, latents=latents)


def test_every_draw_of_a_batch_is_an_advance() -> None:
    law, process, oracle = uniform_toy()
    toy, parts = cast(Sequences, Toy(law, 5, 0)), list[float]()
    measure = ContinuousTimeBound(process, LogLinear())
    likelihood(oracle, measure, toy, num_draws=4, batch_size=3, advance=parts.append)
    assert parts == [0.75] * 4 + [0.5] * 4


@pytest.mark.parametrize("num_draws", [1, 3])
def test_oracle_likelihood_is_the_entropy_within_its_own_error(num_draws: int) -> None:
    """Over 60 repetitions the standardised error has mean 0 and spread about 1: the stated error is right."""
    law, _, _ = uniform_toy()
    truth = entropy(law) / 2
    results = [toy_likelihood(Polynomial(2.0, 1e-4), seed, num_draws=num_draws) for seed in range(60)]
    scores = torch.tensor([(result.nats_per_token - truth) / result.stderr for result in results])
    assert abs(float(scores.mean())) < 4 / math.sqrt(60)
    assert 0.7 < float(scores.std()) < 1.4
    assert results[0].perplexity == pytest.approx(math.exp(results[0].nats_per_token))


def test_the_schedule_of_evaluation_has_the_smaller_spread() -> None:
    """The same bound, but with LogLinear rare changes of large loss at small t make the estimate heavy-tailed."""
    spread = [
        float(torch.tensor([toy_likelihood(schedule, seed, count=500).nats_per_token for seed in range(60)]).std())
        for schedule in (Polynomial(2.0, 1e-4), LogLinear(1e-4))
    ]
    assert spread[0] < 0.8 * spread[1]


def test_end_terms_are_reported_and_added() -> None:
    law, _, _ = uniform_toy()

    class Incomplete:
        """alpha from 0.9 to 0.1: not clean at t = 0, not pure noise at t = 1."""

        def alpha(self, t: torch.Tensor) -> torch.Tensor:
            return 0.9 - 0.8 * t.double()

        def alpha_prime(self, t: torch.Tensor) -> torch.Tensor:
            return torch.full_like(t, -0.8, dtype=torch.float64)

        def time(self, alpha: torch.Tensor) -> torch.Tensor:
            return (0.9 - alpha) / 0.8

    result = toy_likelihood(Incomplete(), 0, count=20_000)
    assert result.reconstruction > 0.01
    assert result.prior > 0.001
    assert result.nats_per_token == pytest.approx(result.diffusion + result.prior + result.reconstruction)
    assert result.nats_per_token > entropy(law) / 2 - 4 * result.stderr  # still a bound
    complete = toy_likelihood(LogLinear(0.0), 0, count=500)
    assert (complete.prior, complete.reconstruction) == (0.0, 0.0)


def test_the_value_does_not_depend_on_the_batch_size(english: Path) -> None:
    """A real network on real text with a padded last sequence: the same to rounding for batches of 1, 7 and 64."""
    recipe = small_recipe(english)
    corpus = prepare(str(english), recipe.data.tokenizer)
    num_tokens = corpus.tokenizer.vocab_size
    torch.manual_seed(0)
    denoiser = run_model.network(recipe, Vocabulary(num_tokens)).double()
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    sequences = Sequences(corpus.validation, 32)
    assert len(corpus.validation) % 32
    results = [
        likelihood(denoiser, recipe.method.measure(num_tokens), sequences, batch_size=size, num_draws=2)
        for size in (1, 7, 64)
    ]
    assert results[0].num_tokens == len(corpus.validation)
    for result in results[1:]:
        assert result.nats_per_token == pytest.approx(results[0].nats_per_token, rel=1e-12)
        assert result.stderr == pytest.approx(results[0].stderr, rel=1e-9)


@pytest.mark.parametrize("name", ["duo", "udlm", "d3pm-uniform", "sedd-uniform"])
def test_gaussian_latents_give_the_same_likelihood(name: str, english: Path) -> None:
    """The paper's sanity check: two estimates with other draws of the same number, of a network that is not trivial."""
    recipe = small_recipe(english, name=f"{name}-laptop")
    corpus = prepare(str(english), recipe.data.tokenizer)
    num_tokens = corpus.tokenizer.vocab_size
    torch.manual_seed(0)
    denoiser = run_model.network(recipe, Vocabulary(num_tokens))
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    measure, sequences = recipe.method.measure(num_tokens), Sequences(corpus.validation, 32)
    discrete = likelihood(denoiser, measure, sequences, num_draws=32)
    gaussian = likelihood(denoiser, measure, sequences, num_draws=32, latents="gaussian")
    error = math.hypot(discrete.stderr, gaussian.stderr)
    assert 0 < abs(gaussian.nats_per_token - discrete.nats_per_token) < 4 * error
    assert error < 0.05 * discrete.nats_per_token


def test_gaussian_latents_of_the_oracle_cost_the_entropy() -> None:
    result = toy_likelihood(Polynomial(2.0, 1e-4), 0, latents="gaussian")
    assert result.nats_per_token == pytest.approx(entropy(uniform_toy()[0]) / 2, abs=4 * result.stderr)
    assert result.stderr < 0.06 * result.nats_per_token


@pytest.mark.parametrize(
    "measure", [ContinuousTimeBound(Absorbing(4), LogLinear(0.0)), NextToken()], ids=["mdlm", "ar"]
)
def test_gaussian_latents_belong_to_uniform_noise(measure: Measure) -> None:
    toy = cast(Sequences, Toy(uniform_toy()[0], 4, 0))
    with pytest.raises(ValueError, match="only uniform noise, such as that of Duo and UDLM"):
        likelihood(Fixed(UNIGRAM), measure, toy, latents="gaussian")
    with pytest.raises(ValueError, match="latents is 'normal': it must be discrete or gaussian"):
        likelihood(Fixed(UNIGRAM), measure, toy, latents="normal")  # type: ignore[arg-type]


def test_bits_per_byte_and_character_count_the_text(tmp_path: Path) -> None:
    """A uniform belief has log K nats per token, for any noise; 'é' is two bytes and one character."""
    text = "é" * 300
    store = write_store(tmp_path / "store", [Document("d", [text])], ByteTokenizer())
    recipe = small_recipe(tmp_path)
    denoiser = run_model.network(recipe, Vocabulary(257))  # untrained: uniform
    result = likelihood(
        denoiser, ContinuousTimeBound(Uniform(257), LogLinear(0.0)), Sequences(store, 16), num_draws=100
    )
    assert result.num_tokens == 601
    assert result.nats_per_token == pytest.approx(math.log(257), abs=4 * result.stderr)
    assert result.bytes_per_token == pytest.approx(600 / 601)
    assert result.bits_per_character == pytest.approx(2 * result.bits_per_byte)


def test_each_sequence_is_measured_with_its_own_label() -> None:
    """Labels 0, 1, 0, 1, ... reach the network with their sequences, also if only some sequences are measured."""

    class Labelled(Toy):
        def labels(self, index: npt.ArrayLike) -> torch.Tensor:  # type: ignore[override]
            return torch.as_tensor(index) % 2

    class Recording(MixerNetwork):
        """Records the labels that it is given."""

        def hidden(
            self,
            z: Latent,
            condition: torch.Tensor,
            valid: torch.Tensor | None = None,
            dropout: Noise | None = None,
            labels: torch.Tensor | None = None,
        ) -> torch.Tensor:
            assert labels is not None
            seen.append(labels.tolist())
            return super().hidden(z, condition, valid, dropout, labels)

    seen: list[list[int]] = []
    denoiser = MeanDenoiser(Recording(Mixer(), 3, 2))
    bound = ContinuousTimeBound(Uniform(3), LogLinear(0.0))
    toy = cast(Sequences, Labelled(uniform_toy()[0], 10, 0))
    result = likelihood(denoiser, bound, toy, batch_size=4)
    assert math.isfinite(result.nats_per_token)
    assert {tuple(labels) for labels in seen} == {(0, 1, 0, 1), (0, 1)}
    seen.clear()
    likelihood(denoiser, bound, toy, batch_size=4, limit=3)  # sequences 0, 3 and 6
    assert {tuple(labels) for labels in seen} == {(0, 1, 0)}


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="each must be at least 1"):
        toy_likelihood(LogLinear(), 0, num_draws=0)


def test_a_hopeless_model_has_an_infinite_perplexity() -> None:
    result = replace(toy_likelihood(Polynomial(2.0, 1e-4), 0, count=10), nats_per_token=900.0)
    assert result.perplexity == math.inf
    assert "inf" in result.lines()[0]


# --- padding that is modelled

AB = CharTokenizer("ab")  # ids: a is 0, b is 1, the end is 2
UNIGRAM = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


@dataclass(frozen=True)
class Fixed:
    """A model that believes the same of every token."""

    law: torch.Tensor

    def log_probs(self, z: Latent, alpha: torch.Tensor, valid: Valid = None, dropout: Dropout = None) -> torch.Tensor:
        assert isinstance(z, torch.Tensor)
        return self.law.log().expand(*z.shape, -1)


def ab_sequences(folder: Path, texts: list[str], length: int, padding: Literal["model", "ignore"]) -> Sequences:
    store = write_store(folder / padding, [Document("", (text,)) for text in texts], AB)
    return Sequences(store, length, "document", padding, AB.separator)


def test_padding_is_paid_and_not_counted(tmp_path: Path) -> None:
    """Rows "a###" and "bb##": 3 letters and 2 ends are real, 3 ends are padding. Every nat is known."""
    a, b, end = (-UNIGRAM.log()).tolist()
    results = {}
    for padding in ("model", "ignore"):
        sequences = ab_sequences(tmp_path, ["a", "bb"], 4, padding)
        results[padding] = likelihood(Fixed(UNIGRAM), NextToken(), sequences, batch_size=1)
    modelled, ignored = results["model"], results["ignore"]
    assert modelled.num_tokens == ignored.num_tokens == 5
    assert modelled.nats_per_token == pytest.approx((a + 2 * b + 5 * end) / 5, rel=1e-12)
    assert ignored.nats_per_token == pytest.approx((a + 2 * b + 2 * end) / 5, rel=1e-12)
    assert modelled.padding == pytest.approx(3 * end / 5, rel=1e-12)
    assert modelled.padding == pytest.approx(modelled.nats_per_token - ignored.nats_per_token, rel=1e-12)
    assert (modelled.num_padding, ignored.num_padding, ignored.padding) == (3, 0, 0.0)
    # the text has 3 characters, and what it costs to end it is part of its bits
    assert modelled.bits_per_character == pytest.approx((a + 2 * b + 5 * end) / 3 / math.log(2), rel=1e-12)
    line = f"of these, {modelled.padding:.4f} are paid for the end-of-text tokens after a document's end (3 of them)"
    assert [text.strip() for text in modelled.lines() if "of these" in text] == [line]
    assert not any("of these" in text for text in ignored.lines())


def test_a_model_that_knows_the_rest_pays_nothing_for_padding(tmp_path: Path) -> None:
    """The number is then that of ignored padding, although all of it was measured."""

    class Certain(Fixed):
        """Left to right; after an end there is nothing but ends."""

        def log_probs(
            self, z: Latent, alpha: torch.Tensor, valid: Valid = None, dropout: Dropout = None
        ) -> torch.Tensor:
            assert isinstance(z, torch.Tensor)
            ended = ((z == 2).cumsum(1) - (z == 2).long() > 0)[..., None]
            return torch.where(ended, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), self.law).log()

    results = [
        likelihood(Certain(UNIGRAM), NextToken(), ab_sequences(tmp_path, ["a", "bb", ""], 5, padding))
        for padding in ("model", "ignore")
    ]
    assert results[0].nats_per_token == results[1].nats_per_token
    assert (results[0].padding, results[0].num_padding) == (0.0, 9)
    assert any("of these, 0.0000 are paid" in line for line in results[0].lines())


def test_the_bound_of_the_oracle_is_what_the_documents_cost(tmp_path: Path) -> None:
    """Documents "", "a" and "b" of known probabilities in rows of two: -log p(document) over the real tokens."""
    law = torch.zeros(3, 3, dtype=torch.float64)
    law[2, 2], law[0, 2], law[1, 2] = 0.2, 0.5, 0.3
    texts = [text for text, share in (("", 20), ("a", 50), ("b", 30)) for _ in range(20 * share)]
    sequences = ab_sequences(tmp_path, texts, 2, "model")
    process = Uniform(3)
    # nothing is impossible for the oracle, so that no logarithm is infinite
    oracle = Oracle((law + 1e-12) / (law + 1e-12).sum(), process, leave_out=True)
    measure = ContinuousTimeBound(process, Polynomial(2.0, 1e-4))
    result = likelihood(oracle, measure, sequences, num_draws=16, batch_size=2000)
    assert result.num_tokens == 20 * (20 + 2 * 80)
    truth = entropy(law[law > 0]) * len(texts) / result.num_tokens
    assert result.nats_per_token == pytest.approx(truth, abs=4 * result.stderr)
    assert result.stderr < 0.015
    assert result.num_padding == 400
    assert result.padding == pytest.approx(0.0, abs=1e-6)  # the second token is an end in every row

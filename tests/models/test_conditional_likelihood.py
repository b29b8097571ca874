"""log p(continuation | context): of a toy whose conditionals are known, and of trained models."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.oracles import (
    CausalOracle,
    Oracle,
    OracleScore,
    all_states,
    conditional_nats,
    data_law,
    entropy,
    gauss_legendre,
    law_of,
)
from support.runs import ROOT, small_recipe
from support.toy_model import toy_model
from torch import Tensor

import duality
from duality.denoisers.clamp import Clamped, ClampedScore, _InContext, _InContextScore, in_context
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear, Polynomial
from duality.methods.bert_mouth import _PseudoLikelihood
from duality.models.model import Model
from duality.models.requests import ScoreRequest
from duality.models.scoring import Passage, TextLikelihood, Window, measure_tokens
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.discrete_time import DiscreteTimeBound
from duality.objectives.next_token import NextToken
from duality.objectives.score_entropy import ScoreEntropy
from duality.protocols import AnyDenoiser, Measure, Process
from duality.samplers.ancestral import Ancestral
from duality.tokenizers.tokenizer import ByteTokenizer

LAW = data_law(length=3)
UNIFORM, ABSORBING = Uniform(3), Absorbing(4)
EXACT = Polynomial(eps=0.0)  # nothing is left at t = 1, so that there is no prior term
SEQUENCES = torch.tensor([[0, 0, 0], [0, 1, 2], [2, 1, 1]])


def measured(denoiser: AnyDenoiser, measure: Measure, x: Tensor, known: int, num_draws: int = 2048) -> TextLikelihood:
    """The likelihood of the tokens x behind the first ``known`` ones."""
    row = Passage(x[known:].numpy(), x[:known].numpy())
    model = toy_model(denoiser, measure, len(x))
    (draws,) = measure_tokens(model, [row], ScoreRequest(num_draws, batch_size=1024))
    return TextLikelihood.of(draws, measure.kind)


def toy(process: Process, known: int) -> Oracle:
    """The perfect denoiser of sequences that begin with ``known`` clean tokens."""
    return Oracle(LAW, process, leave_out=process.mask_id is None, known=known)


def exact_bound(
    patch: pytest.MonkeyPatch, denoiser: AnyDenoiser, process: Process, x: Tensor, known: int, score: bool = False
) -> float:
    """The mean of the bound of x behind its first ``known`` tokens: a sum over all noisy tokens, a quadrature over t.

    The noise of the known tokens is arbitrary: it must not be read.
    """
    # t = s^4: the bound has a logarithm at t = 0
    nodes, weights = gauss_legendre(40)
    nodes, weights = nodes**4, weights * 4 * nodes**3
    free = all_states(process.vocab_size, len(x) - known)
    z = torch.cat([torch.full((len(free), known), 1), free], 1)
    patch.setattr(type(process), "corrupt", lambda *_: z)
    rows, paid = x.expand(len(z), -1), (torch.arange(len(x)) >= known).expand(len(z), -1)
    reader, noise = in_context(denoiser, rows, ~paid, None), duality.Noise.of(0, 0, torch.arange(len(z)))
    schedule = LogLinear(eps=0.0)
    measure: Measure = (ScoreEntropy if score else ContinuousTimeBound)(process, schedule)
    total = 0.0
    for t, weight in zip(nodes, weights, strict=True):
        alpha = schedule.alpha(t)
        noisy = alpha * torch.eye(process.vocab_size, dtype=torch.float64) + (1 - alpha) * process.prior()
        probability = noisy[x[known:, None].T, free].prod(-1)
        seen = probability > 0
        nats = torch.where(seen[:, None], measure(reader, rows, t.expand(len(z)), noise, paid).nats, 0.0)
        assert not nats[:, :known].any()
        total += float(weight * (probability * nats.sum(-1)).sum())
    return total


# --- the toy


@pytest.mark.parametrize("known", [0, 1, 2])
@pytest.mark.parametrize("x", SEQUENCES, ids=str)
def test_the_autoregressive_oracle_is_exact(x: Tensor, known: int) -> None:
    found = measured(CausalOracle(LAW), NextToken(), x, known)
    assert found.nats == pytest.approx(conditional_nats(LAW, x, known), rel=1e-12)
    assert (found.stderr, found.num_tokens, found.kind) == (0.0, 3 - known, "exact")


@pytest.mark.parametrize("score", [False, True], ids=["belief", "ratios"])
@pytest.mark.parametrize("known", [0, 1, 2])
@pytest.mark.parametrize("process", [UNIFORM, ABSORBING], ids=str)
def test_the_bound_of_the_oracle_is_tight(
    process: Process, known: int, score: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every single text, not only in the mean: the reverse process of the oracle is the noise backwards."""
    oracle = toy(process, known)
    for x in SEQUENCES:
        found = exact_bound(monkeypatch, OracleScore(oracle, process) if score else oracle, process, x, known, score)
        assert found == pytest.approx(conditional_nats(LAW, x, known), abs=1e-6)


def test_absorbing_noise_needs_no_denoiser_of_its_own_for_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle of whole texts is that of any context: a token that is not the mask token is clean."""
    for x, known in itertools.product(SEQUENCES, (1, 2)):
        found = exact_bound(monkeypatch, toy(ABSORBING, 0), ABSORBING, x, known)
        assert found == pytest.approx(conditional_nats(LAW, x, known), abs=1e-6)


@pytest.mark.parametrize("process", [UNIFORM, ABSORBING], ids=str)
def test_the_value_of_a_text_is_the_mean_of_its_bound(process: Process) -> None:
    """The whole way, through windows and draws."""
    x = SEQUENCES[1]
    found = measured(toy(process, 1), ContinuousTimeBound(process, EXACT), x, 1)
    assert 0 < found.stderr < 0.15
    assert found.nats == pytest.approx(conditional_nats(LAW, x, 1), abs=4.5 * found.stderr)


def clamped_law(process: Process, denoiser: Oracle, x: Tensor, known: int, steps: int) -> Tensor:
    """What the sampler writes behind a prompt: its law over the tokens that follow."""
    held = Clamped(denoiser, x, torch.arange(3) < known)
    law = law_of(Ancestral(process), held, LogLinear(eps=1e-9), steps, length=3)
    assert float(law[tuple(x[:known])].sum()) == pytest.approx(1.0)
    return law[tuple(x[:known])]


def test_the_bound_is_one_for_what_the_sampler_writes_behind_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the denoiser is not that of the clamped process: the oracle of whole texts, with uniform noise."""
    denoiser, gaps = toy(UNIFORM, 0), []
    for x in SEQUENCES:
        written = -float(clamped_law(UNIFORM, denoiser, x, 1, 128)[tuple(x[1:])].log())
        found = exact_bound(monkeypatch, denoiser, UNIFORM, x, 1)
        assert found > written - 0.005  # the sampler has 128 steps, the bound is that of infinitely many
        gaps.append(found - conditional_nats(LAW, x, 1))
    assert max(map(abs, gaps)) > 0.1


def test_a_mean_over_continuations_is_at_least_their_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any denoiser: no law of continuations is better than the data's."""
    law = LAW[1] / LAW[1].sum()
    texts = [torch.tensor([1, *pair]) for pair in itertools.product(range(3), repeat=2)]
    nats = [exact_bound(monkeypatch, toy(UNIFORM, 0), UNIFORM, x, 1) for x in texts]
    assert sum(float(law[tuple(x[1:])]) * one for x, one in zip(texts, nats)) > entropy(law) + 0.02


def test_the_chain_of_one_step_writes_every_token_alone() -> None:
    """D3PM with T = 1: all tokens of the text are hidden at once, and none of the context."""
    for a, b, c in SEQUENCES.tolist():
        given = LAW[a] / LAW[a].sum()
        expected = -math.log(given[b].sum()) - math.log(given[:, c].sum())
        measure = DiscreteTimeBound(ABSORBING, LogLinear(eps=0.0), 1, separate=True)
        found = measured(toy(ABSORBING, 1), measure, torch.tensor([a, b, c]), 1, num_draws=2)
        assert found.nats == pytest.approx(expected, rel=1e-9)


def test_the_pseudo_likelihood_hides_tokens_of_the_text_only() -> None:
    """The sum over the tokens of the text of -log p(token | context and all others)."""
    for x in SEQUENCES:
        a, b, c = (int(token) for token in x)
        expected = -math.log(LAW[a, b, c] / LAW[a, :, c].sum()) - math.log(LAW[a, b, c] / LAW[a, b].sum())
        found = measured(toy(ABSORBING, 0), _PseudoLikelihood(ABSORBING), x, 1, num_draws=2)
        assert found.nats == pytest.approx(expected, rel=1e-9)


def test_the_error_shrinks_as_the_root_of_the_draws() -> None:
    measure, x = ContinuousTimeBound(ABSORBING, EXACT), SEQUENCES[1]
    few, many = (measured(toy(ABSORBING, 1), measure, x, 1, count).stderr for count in (256, 4096))
    assert few / many == pytest.approx(4.0, rel=0.3)


# --- windows


def cut(context: int, text: int, length: int, filled: bool = False) -> list[tuple[list[int], list[int]]]:
    """The known and the measured tokens of each window; context and text are -context .. -1 and 0 .. text - 1."""
    row = Passage(np.arange(text), np.arange(-context, 0), filled=filled)
    found = Window.cut([row], length)
    assert [window.number for window in found] == list(range(len(found)))
    assert all(len(window.ids) <= window.size <= length for window in found)
    assert all(window.ids[window.known] == window.first for window in found)
    return [(window.ids[: window.known].tolist(), window.ids[window.known :].tolist()) for window in found]


def test_a_context_that_does_not_fit_is_cut_off_on_the_left() -> None:
    assert cut(2, 2, 8) == [([-2, -1], [0, 1])]
    assert cut(9, 2, 4) == [([-2, -1], [0, 1])]
    assert cut(3, 4, 4) == [([], [0, 1, 2, 3])]


def test_a_text_that_is_longer_than_the_model_is_measured_in_windows_that_follow_each_other() -> None:
    assert cut(0, 6, 4) == [([], [0, 1, 2, 3]), ([], [4, 5])]
    assert cut(5, 6, 4) == [([-2, -1], [0, 1]), ([], [2, 3, 4, 5])]
    assert cut(1, 6, 4) == [([-1], [0, 1, 2]), ([], [3, 4, 5])]
    assert cut(0, 10, 4, filled=True) == [([], [0, 1, 2, 3]), ([], [4, 5, 6, 7]), ([6, 7], [8, 9])]
    assert cut(1, 6, 4, filled=True) == [([-1], [0, 1, 2]), ([2], [3, 4, 5])]
    assert cut(0, 8, 4, filled=True) == cut(0, 8, 4)


@pytest.mark.parametrize("filled", [False, True])
def test_every_token_is_measured_once(filled: bool) -> None:
    for context, text, length in itertools.product(range(7), range(1, 12), range(1, 6)):
        found = cut(context, text, length, filled)
        assert [token for _, paid in found for token in paid] == list(range(text))
        assert len(found) == -(-text // length)
        for known, paid in found:
            assert known == list(range(paid[0] - len(known), paid[0]))


# --- text to tokens


class Pairs:
    """A tokenizer of pairs of letters: a border inside a pair has no place in the joint text."""

    def encode(self, text: str) -> Any:
        return np.array([sum(map(ord, text[start : start + 2])) for start in range(0, len(text), 2)], dtype=np.int64)


def test_context_and_text_are_divided_as_the_harness_does() -> None:
    found = Passage.of(ByteTokenizer(), "cat", "The  ")
    assert bytes(found.context.tolist()) == b"The"
    assert bytes(found.ids.tolist()) == b"  cat"
    assert bytes(Passage.of(ByteTokenizer(), "cat", " ").ids.tolist()) == b" cat"
    tokenizer: Any = Pairs()
    assert Passage.of(tokenizer, "bcd", "a").ids.tolist() == [ord("c") + ord("d")]  # behind as many as "a" has alone
    assert Passage.of(tokenizer, "b", "a").ids.tolist() == [ord("b")]  # nothing is left: the text alone


# --- trained models

NAMES = (
    "duo-laptop", "mdlm-laptop", "ar-laptop", "sedd-absorb-laptop", "sedd-uniform-laptop", "d3pm-absorb-laptop",
    "bert-mouth-laptop", "diffusion-bert-laptop", "plaid-laptop",
)  # fmt: skip
TEXTS, CONTEXTS = [" a copy.", " of the work", "x"], ["You may", "any medium, with or without it, to a", ""]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, english: Path) -> dict[str, Model]:
    """A model of each kind, trained for a few steps on sequences of 32 bytes, in float64."""
    folder = tmp_path_factory.mktemp("models")
    trained = {
        name: duality.train(small_recipe(english, "training.steps=10", name=name), out=folder / name) for name in NAMES
    }
    return {name: replace(model, denoiser=model.denoiser.double()) for name, model in trained.items()}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "plaid-laptop"])
def test_every_text_has_the_value_that_it_has_alone(models: dict[str, Model], name: str) -> None:
    model = models[name]
    together = model.log_likelihood(TEXTS, context=CONTEXTS, num_draws=4)
    for text, context, found in zip(TEXTS, CONTEXTS, together, strict=True):
        assert math.isfinite(found.nats)
        assert found.num_tokens == len(text)
        for batch_size in (1, 3):
            alone = model.log_likelihood(text, context=context, num_draws=4, batch_size=batch_size)
            assert alone.nats == pytest.approx(found.nats, rel=1e-9)
            assert alone.stderr == pytest.approx(found.stderr, rel=1e-6)
    assert together[2] == model.log_likelihood("x", num_draws=4)
    other = model.log_likelihood(TEXTS[0], context="zq#~", num_draws=4)
    assert other.nats != pytest.approx(together[0].nats, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_context_is_none(models: dict[str, Model], name: str) -> None:
    texts = ["The cat.", "You may reproduce and distribute copies of the work, in any medium"]
    assert models[name].log_likelihood(texts, context="") == models[name].log_likelihood(texts)
    assert models[name].log_likelihood(texts, context=["", ""]) == models[name].log_likelihood(texts)


def test_the_chain_rule_of_an_autoregressive_model(models: dict[str, Model]) -> None:
    model = models["ar-laptop"]
    first, second = "You may reproduce", " and copy it."
    parts = model.log_likelihood(first).nats + model.log_likelihood(second, context=first).nats
    assert model.log_likelihood(first + second).nats == pytest.approx(parts, rel=1e-12)


def test_an_autoregressive_model_is_exact_with_a_context_that_is_cut(models: dict[str, Model]) -> None:
    model, text = models["ar-laptop"], " of the work"
    context = "any medium, with or without modifications, in Source or Object form"
    row = torch.tensor(model.tokenizer.encode(context + text)[-32:])
    denoiser: Any = model.denoiser
    log_p = denoiser.log_probs(row[None], torch.ones(1, dtype=torch.float64))[0].gather(-1, row[:, None])[:, 0]
    found = model.log_likelihood(text, context=context)
    assert found.nats == pytest.approx(-float(log_p[-len(text) :].sum()), rel=1e-12)


@pytest.mark.parametrize("name", ["mdlm-laptop", "duo-laptop"])
def test_the_error_is_the_spread_over_seeds(models: dict[str, Model], name: str) -> None:
    found = [models[name].log_likelihood(" a copy", context="You may", seed=seed) for seed in range(60)]
    spread = statistics.stdev(one.nats for one in found)
    claimed = math.sqrt(statistics.mean(one.stderr**2 for one in found))
    assert 0.6 * spread < claimed < 1.8 * spread


@pytest.mark.parametrize("name", ["mdlm-laptop", "duo-laptop", "sedd-absorb-laptop", "sedd-uniform-laptop"])
def test_a_measure_reads_what_a_sampler_with_a_prompt_reads(models: dict[str, Model], name: str) -> None:
    """Behind the prompt the belief (or the ratios) is that of the clamped denoiser, whatever the prompt's noise is."""
    model = models[name]
    noise = duality.Noise.of(0, 0, torch.arange(4))
    x, z = noise.integers("x", 256, 12), noise.integers("z", 256, 12)
    known, alpha = torch.arange(12) < 5, noise.uniform("alpha")
    for row in range(4):
        pieces = x[row], known
        with torch.no_grad():
            if "sedd" in name:
                score: Any = ClampedScore(model.denoiser, model.process(), *pieces)
                held, found = (one.log_ratios(z, alpha) for one in (score, _InContextScore(model.denoiser, *pieces)))
            else:
                held, found = (kind(model.denoiser, *pieces).log_probs(z, alpha) for kind in (Clamped, _InContext))
        assert torch.allclose(held[:, 5:].exp(), found[:, 5:].exp(), rtol=1e-9, atol=1e-12)


def test_what_a_context_refuses(models: dict[str, Model]) -> None:
    with pytest.raises(ValueError, match=r"a Gaussian model reads vectors, .* leave the context out"):
        models["plaid-laptop"].log_likelihood("a", context="b")
    model = models["mdlm-laptop"]
    with pytest.raises(ValueError, match="2 contexts for 1 texts: give one string for all of them, or one for each"):
        model.log_likelihood("a", context=["b", "c"])
    with pytest.raises(ValueError, match="text 1 is empty"):
        model.log_likelihood(["a", ""], context="b")


def test_the_python_of_the_documentation_runs(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setattr(duality, "load", lambda run: models["duo-laptop"])
    exec(compile(snippet, "api.md", "exec"), {})
    assert " bound 9\n" in capsys.readouterr().out

"""The tails of sampling: what each takes of the belief, at every level; the laws of whole samples: test_oracle.py."""

from __future__ import annotations

import pytest
import torch
from support.oracles import Oracle, OracleScore, absorbing_toy, all_states, data_law, tail_tokens, uniform_toy
from support.unigram import Unigram
from torch import Tensor

from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.readouts import CausalDenoiser, MeanDenoiser
from duality.diffusion import posterior
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.fused import lazy
from duality.networks import SIZES
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Denoiser, Dropout, Latent, Process, Tail, Valid
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.autoregressive import Autoregressive
from duality.samplers.base import RouteSampler
from duality.samplers.generate import Frame, generate
from duality.samplers.psi import Psi

LEVELS = [0.0, 1e-9, 0.1, 0.3, 0.5, 0.8, 0.999]


def last(sampler: RouteSampler | Analytic, denoiser: AnyDenoiser, z: Tensor, alpha: float, tail: Tail) -> Tensor:
    level, noise = torch.full((len(z),), alpha, dtype=torch.float64), Noise.of(0, 0, torch.arange(len(z)))
    return sampler.last(denoiser, z, level, tail, noise)


def random_belief(num_states: int, rows: int, *, seed: int = 0) -> Tensor:
    """log p (rows, 1, K): some are sharp and some flat."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.1, 6, rows, dtype=torch.float64)[:, None, None]
    return torch.log_softmax(torch.randn(rows, 1, num_states, generator=generator, dtype=torch.float64) * scale, -1)


class Given:
    """A belief that does not depend on its input."""

    def __init__(self, log_p: Tensor):
        self.given = log_p

    def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
        return self.given


@pytest.mark.parametrize("alpha", LEVELS)
@pytest.mark.parametrize("process", [Uniform(3), Unigram(3)], ids=str)
@pytest.mark.parametrize("kind", [Ancestral, Psi])
def test_the_posterior_tail_is_the_argmax_of_the_dense_posterior(
    kind: type[RouteSampler], process: Process, alpha: float
) -> None:
    """For every sequence of the toy, with an even prior and with an uneven one."""
    oracle, z = Oracle(data_law(), process, leave_out=True), all_states(3)
    level = torch.tensor(alpha, dtype=torch.float64)
    for tail in ("greedy", "posterior"):
        expected = tail_tokens(process, oracle, z, level, tail)
        assert torch.equal(last(kind(process), oracle, z, alpha, tail), expected), tail


def test_the_posterior_tail_keeps_more_tokens_the_less_noise_there_is() -> None:
    """At alpha = 0 none for its own sake, as the greedy tail; close to 1 all, and at 1 all that are possible."""
    process, rows = Uniform(7), 400
    log_p = random_belief(7, rows)
    z = torch.randint(0, 7, (rows, 1), generator=torch.Generator().manual_seed(1))
    sampler, belief = Ancestral(process), Given(log_p)
    greedy = last(sampler, belief, z, 0.0, "greedy")
    assert torch.equal(last(sampler, belief, z, 0.0, "posterior"), greedy)
    kept = [int((last(sampler, belief, z, alpha, "posterior") == z).sum()) for alpha in LEVELS]
    assert kept == sorted(kept)
    assert int((greedy == z).sum()) == kept[0] < kept[4] < kept[-1]
    assert torch.equal(last(sampler, belief, z, 1.0, "posterior"), z)
    impossible = log_p.scatter(-1, z[..., None], -torch.inf)
    excluded = last(sampler, Given(impossible), z, 1.0, "posterior")
    assert torch.equal(excluded, impossible.argmax(-1))


def test_with_absorbing_noise_the_posterior_tail_is_the_greedy_one() -> None:
    _, process, oracle = absorbing_toy()
    z = all_states(process.vocab_size)
    for alpha in LEVELS[1:]:  # at 0 every token is the mask token
        greedy, own = (last(Ancestral(process), oracle, z, alpha, tail) for tail in ("greedy", "posterior"))
        assert torch.equal(greedy, own)
    # a token that is not the mask token is clean, and stays even if the belief is another one
    wrong, visible = Given(random_belief(5, 20)), torch.arange(20)[:, None] % 4
    assert torch.equal(last(Ancestral(Absorbing(5)), wrong, visible, 0.3, "posterior"), visible)


@pytest.mark.parametrize("process", [Uniform(3), Absorbing(4)], ids=str)
def test_both_tails_of_a_score_model_take_the_posterior(process: Process) -> None:
    """The ratios of a belief include the evidence of the token: the tokens are those of the belief's posterior tail."""
    oracle: Denoiser = Oracle(data_law(), process, leave_out=isinstance(process, Uniform))
    z = all_states(process.vocab_size)
    for alpha in (0.1, 0.5, 0.9):
        expected = last(Ancestral(process), oracle, z, alpha, "posterior")
        for tail in ("greedy", "posterior"):
            assert torch.equal(last(Analytic(process), OracleScore(oracle, process), z, alpha, tail), expected)


def test_temperature_and_top_p_act_before_the_evidence() -> None:
    """The argmax of (p^(1/T), cut to its nucleus) times q(z | x), as in a step of the sampler."""
    process, rows, alpha = Uniform(7), 300, torch.tensor(0.4, dtype=torch.float64)
    belief = TopP(Temperature(Given(random_belief(7, rows)), 0.5), 0.8)
    z = torch.randint(0, 7, (rows, 1), generator=torch.Generator().manual_seed(2))
    p = belief.log_probs(z, alpha.expand(rows)).exp()
    dense = posterior.posterior(p, z, alpha, torch.ones_like(alpha), process.prior())
    got = last(Ancestral(process), belief, z, float(alpha), "posterior")
    assert torch.equal(got, dense.argmax(-1))
    assert not torch.equal(got, p.argmax(-1))
    plain = Given(random_belief(7, rows))
    assert not torch.equal(got, last(Ancestral(process), plain, z, float(alpha), "posterior"))


@torch.no_grad()
def test_a_lazy_belief_is_read_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network's belief, seven rows at a time, against the materialised one."""
    monkeypatch.setattr(lazy, "chunk_rows", lambda *sizes: 7)
    torch.manual_seed(0)
    backbone, process = SIZES["nano"]().build(40).double(), Uniform(40)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    denoiser, noise = MeanDenoiser(backbone), Noise.of(0, 0, torch.arange(5))
    z, alpha = noise.integers("z", 40, 9), torch.linspace(0.05, 0.6, 5, dtype=torch.float64)
    p = denoiser.log_probs(z, alpha).exp()
    dense = posterior.posterior(p, z, alpha[:, None], torch.ones(5, 1, dtype=torch.float64), process.prior())
    got = Ancestral(process).last(denoiser, z, alpha, "posterior", noise)
    assert torch.equal(got, dense.argmax(-1))
    assert not torch.equal(got, p.argmax(-1))
    assert not torch.equal(got, z)


@torch.no_grad()
def test_the_last_token_of_an_autoregressive_model_has_no_evidence_of_its_own() -> None:
    torch.manual_seed(0)
    network = SIZES["nano"]().build(7, causal=True)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model, sampler = CausalDenoiser(network), Autoregressive(6)
    drawn, greedy, own = (
        generate(model, LogLinear(), sampler, num=60, length=5, steps=5, tail=tail)
        for tail in ("ancestral", "greedy", "posterior")
    )
    assert torch.equal(greedy, own)
    assert torch.equal(greedy[:, :-1], drawn[:, :-1])
    assert not torch.equal(greedy, drawn)


def test_the_posterior_tail_of_whole_samples_is_another_law_than_the_greedy_one() -> None:
    """The tails share all steps but the last: the tokens before it are the same, the samples are not."""
    _, process, oracle = uniform_toy()
    frames: list[Frame] = []
    for tail in ("greedy", "posterior"):
        generate(
            oracle,
            LogLinear(),
            Ancestral(process),
            num=500,
            length=2,
            steps=3,
            tail=tail,
            batch_size=500,
            watch=frames.append,
        )
    greedy, own = frames[:4], frames[4:]
    assert torch.equal(greedy[2].tokens, own[2].tokens)
    assert not torch.equal(greedy[3].tokens, own[3].tokens)

"""Wrappers compose in any order that has a meaning: all orders of three against dense formulas; labels pass through."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from duality.denoisers.clamp import Clamped, ClampedScore, _InContext
from duality.denoisers.conditioning import Guided, LabelledScore, with_labels, with_labels_of
from duality.denoisers.filters import Temperature, TopP
from duality.denoisers.memo import Memoized, Recorded
from duality.denoisers.readouts import MeanDenoiser, ScoreDenoiser, SubsDenoiser
from duality.denoisers.wrapping import network_of, num_labels_of, unwrap
from duality.diffusion.processes import Absorbing, Uniform
from duality.fused.lazy import belief_of, ratios_of
from duality.networks import SIZES
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Dropout, Labels, Latent, Valid

TOKENS = torch.tensor([3, 0, 5, 0, 0])
KNOWN = torch.tensor([True, False, True, False, False])
Dense = Callable[[Tensor, Tensor | None], Tensor]


def conditional(absorbing: bool) -> AnyDenoiser:
    """A class-conditional denoiser over 8 tokens with random weights, in float64."""
    torch.manual_seed(1)
    network = SIZES["nano"]().build(9 if absorbing else 8, num_labels=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return (SubsDenoiser(network, Absorbing(9)) if absorbing else MeanDenoiser(network)).double()


# Each wrapper, and the same on dense log-probabilities as a function of (z, labels).


def dense_temperature(inner: Dense) -> Dense:
    return lambda z, labels: torch.log_softmax(inner(z, labels) / 0.7, -1)


def dense_top_p(inner: Dense) -> Dense:
    def outer(z: Tensor, labels: Labels) -> Tensor:
        log_p = inner(z, labels)
        ordered, ids = log_p.exp().sort(-1, descending=True)
        cut = torch.zeros_like(ordered, dtype=torch.bool).scatter(-1, ids, ordered.cumsum(-1) - ordered >= 0.8)
        return torch.log_softmax(log_p.masked_fill(cut, -torch.inf), -1)

    return outer


def dense_clamp(inner: Dense) -> Dense:
    def outer(z: Tensor, labels: Labels) -> Tensor:
        log_p = inner(torch.where(KNOWN, TOKENS, z), labels)
        certain = torch.nn.functional.one_hot(TOKENS, log_p.shape[-1]).double().log().expand_as(log_p)
        return torch.where(KNOWN[:, None], certain, log_p)

    return outer


def dense_context(inner: Dense) -> Dense:
    return lambda z, labels: inner(torch.where(KNOWN, TOKENS, z), labels)


def dense_guidance(inner: Dense) -> Dense:
    def outer(z: Tensor, labels: Labels) -> Tensor:
        assert labels is None
        conditioned, free = (inner(z, torch.full((len(z),), label)) for label in (1, 3))
        excluded = conditioned == -torch.inf
        mixed = torch.where(excluded, -torch.inf, 2.5 * conditioned - 1.5 * torch.where(excluded, 0, free))
        return torch.log_softmax(mixed, -1)

    return outer


def dense_same(inner: Dense) -> Dense:
    return inner


@dataclass(frozen=True)
class Kind:
    wrap: Callable[[AnyDenoiser], AnyDenoiser]
    dense: Callable[[Dense], Dense]


KINDS: dict[str, Kind] = {
    "temperature": Kind(lambda inner: Temperature(inner, 0.7), dense_temperature),
    "top-p": Kind(lambda inner: TopP(inner, 0.8), dense_top_p),
    "clamp": Kind(lambda inner: Clamped(inner, TOKENS, KNOWN), dense_clamp),
    "context": Kind(lambda inner: _InContext(inner, TOKENS, KNOWN), dense_context),
    "guidance": Kind(lambda inner: Guided(inner, 1, 2.5), dense_guidance),
    "memo": Kind(Memoized, dense_same),
    "record": Kind(Recorded, dense_same),
}
ORDERS = [order for size in (1, 2, 3) for order in itertools.permutations(KINDS, size)]


def has_meaning(order: tuple[str, ...]) -> bool:
    """Guidance cannot be outside top-p: it divides by the unconditional belief."""
    return not ("top-p" in order and "guidance" in order and order.index("top-p") < order.index("guidance"))


@pytest.mark.parametrize("absorbing", [False, True], ids=["uniform", "absorbing"])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_every_order_is_right_or_refused(order: tuple[str, ...], absorbing: bool) -> None:
    """The first name is the innermost wrapper."""
    denoiser = model = conditional(absorbing)
    noise = Noise.of(0, 0, torch.arange(4))
    z, alpha = noise.integers("z", 9 if absorbing else 8, 5), noise.uniform("alpha")
    dense: Dense = lambda z, labels: belief_of(model, z, alpha[: len(z)], None, None, labels).log_probs()  # noqa: E731
    for name in order:
        denoiser, dense = KINDS[name].wrap(denoiser), KINDS[name].dense(dense)
    with torch.no_grad():
        if not has_meaning(order):
            with pytest.raises(ValueError, match="put top-p outside"):
                belief_of(denoiser, z, alpha)
            return
        found, expected = belief_of(denoiser, z, alpha).log_probs().exp(), dense(z, None).exp()
    assert torch.allclose(found, expected, atol=1e-12)
    assert unwrap(denoiser) is model
    assert num_labels_of(denoiser) == network_of(denoiser).num_labels == 3


@pytest.mark.parametrize("name", [name for name in KINDS if name != "guidance"])
def test_labels_pass_through_every_wrapper(name: str) -> None:
    """A label given outside the wrapper reaches the denoiser inside it."""
    model = conditional(False)
    noise = Noise.of(0, 0, torch.arange(3))
    z, alpha, labels = noise.integers("z", 8, 5), noise.uniform("alpha"), torch.tensor([2, 0, 3])
    outside = with_labels(KINDS[name].wrap(model), labels)
    inside = KINDS[name].wrap(with_labels(model, labels))
    other = with_labels(KINDS[name].wrap(model), torch.tensor([1, 1, 1]))
    with torch.no_grad():
        left, right, third = (belief_of(each, z, alpha).log_probs().exp() for each in (outside, inside, other))
    assert torch.equal(left, right)
    assert not torch.allclose(left, third)


def test_two_wrappers_that_choose_labels_are_refused() -> None:
    model = conditional(False)
    z, alpha, labels = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2), torch.tensor([0, 1])
    for both in (
        Guided(with_labels(model, labels), 1, 2.0),
        with_labels(Guided(model, 1, 2.0), labels),
        with_labels(with_labels(model, labels), labels),
    ):
        with pytest.raises(ValueError, match="two wrappers choose the labels"):
            belief_of(both, z, alpha)


def test_a_memoized_belief_belongs_to_its_labels() -> None:
    """The same tokens with other labels need a new network call."""
    model = conditional(True)
    memo = Memoized(model)
    z, alpha = torch.full((3, 5), 8), torch.full((3,), 0.5, dtype=torch.float64)
    with torch.no_grad():
        for labels in (torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2]), None):
            found = memo.belief(z, alpha, None, None, labels).log_probs().exp()
            expected = belief_of(model, z, alpha, None, None, labels).log_probs().exp()
            assert torch.allclose(found, expected, atol=1e-12)
    assert memo.calls == 3 + 0 + 1 + 3


def test_labels_of_a_score_model_pass_through_known_tokens() -> None:
    torch.manual_seed(2)
    process = Uniform(8)
    network = SIZES["nano"]().build(8, num_labels=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    score = ScoreDenoiser(network, process).double()
    noise = Noise.of(0, 0, torch.arange(2))
    z, alpha, labels = noise.integers("z", 8, 5), noise.uniform("alpha"), torch.tensor([2, 1])
    outside = with_labels(ClampedScore(score, process, TOKENS, KNOWN), labels)
    inside = ClampedScore(with_labels(score, labels), process, TOKENS, KNOWN)
    assert isinstance(outside, LabelledScore)
    with torch.no_grad():
        left, right = (ratios_of(each, z, alpha).log_ratios() for each in (outside, inside))
    assert torch.equal(left, right)


def test_a_teacher_gets_the_labels_of_its_student() -> None:
    student, teacher = conditional(False), conditional(False)
    labels = torch.tensor([1, 2])
    assert with_labels_of(student, teacher) is teacher
    conditioned = with_labels_of(with_labels(student, labels), teacher)
    z, alpha = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2)
    with torch.no_grad():
        found = belief_of(conditioned, z, alpha).log_probs()
        assert torch.equal(found, belief_of(teacher, z, alpha, None, None, labels).log_probs())
        deeper = with_labels_of(TopP(Temperature(with_labels(student, labels), 0.5), 0.9), teacher)
        assert torch.equal(belief_of(deeper, z, alpha).log_probs(), found)


def test_a_class_of_a_user_can_be_a_wrapper() -> None:
    """There is no list of wrapper classes."""

    @dataclass(frozen=True)
    class Mine:
        denoiser: AnyDenoiser

        def log_probs(self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None) -> Tensor:
            return belief_of(self.denoiser, z, alpha, valid, dropout).log_probs()

    model = conditional(False)
    assert unwrap(Temperature(Mine(TopP(model, 0.5)), 0.5)) is model

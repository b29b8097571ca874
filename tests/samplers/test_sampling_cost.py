"""A sampling step never materialises the belief: it projects only the rows it needs, a few at a time.

The time of a step is measured in ``benchmarks``; nothing is timed here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from duality import devices
from duality.denoisers.clamp import Clamped, ClampedScore
from duality.denoisers.filters import TopP
from duality.denoisers.memo import Memoized
from duality.denoisers.readouts import MeanDenoiser, ScoreDenoiser, SubsDenoiser
from duality.diffusion import draws
from duality.diffusion.processes import Absorbing, Uniform
from duality.diffusion.schedules import LogLinear
from duality.fused import lazy
from duality.methods.ar import AR
from duality.methods.bert_mouth import BertMouth
from duality.methods.d3pm import D3PM
from duality.methods.diffusion_bert import DiffusionBERT
from duality.methods.diffusion_lm import DiffusionLM
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.plaid import Plaid
from duality.methods.sedd import SEDD
from duality.networks import SIZES
from duality.noise import Noise
from duality.protocols import Tail, Vocabulary
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.base import RouteSampler
from duality.samplers.choice import sampler_named
from duality.samplers.generate import generate
from duality.samplers.psi import Psi

BATCH, LENGTH, STATES = 8, 32, 20_001
BELIEF = BATCH * LENGTH * STATES * 4
TAILS: tuple[Tail, ...] = get_args(Tail)

Mode: Any = TorchDispatchMode  # torch gives these two no types
weak: Any = StorageWeakRef


class Live(Mode):  # type: ignore[misc]
    """Sums, after every operator, the live storages that operators have made, without the weights."""

    def __init__(self, weights: torch.nn.Module) -> None:
        super().__init__()
        self.weights = {parameter.untyped_storage()._cdata for parameter in weights.parameters()}
        self.storages: dict[int, tuple[Any, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self.weights:
                storage: Any = leaf.untyped_storage()
                self.storages[storage._cdata] = (weak(storage), storage.nbytes())
        self.storages = {key: entry for key, entry in self.storages.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.storages.values()))
        return made


def network(process: Uniform | Absorbing, dtype: torch.dtype = torch.float32) -> MeanDenoiser | SubsDenoiser:
    torch.manual_seed(0)
    backbone = SIZES["nano"]().build(process.vocab_size).to(dtype)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    backbone.requires_grad_(False)
    return SubsDenoiser(backbone, process) if isinstance(process, Absorbing) else MeanDenoiser(backbone)


def half_noisy(process: Uniform | Absorbing) -> tuple[Tensor, Tensor, Noise]:
    noise = Noise.of(0, 0, torch.arange(BATCH))
    alpha = torch.full((BATCH,), 0.5, dtype=torch.float64)
    clean = noise.integers("clean", process.vocab_size - 1, LENGTH)
    return process.corrupt(clean, alpha, noise), alpha, noise


def move(sampler: Any, model: Any, z: Tensor, alpha: Tensor, tail: Tail | None, noise: Noise) -> None:
    """Take a step, or the last one with a tail."""
    if tail is None:
        sampler.step(model, z, alpha, alpha + 0.1, noise)
    else:
        sampler.last(model, z, alpha, tail, noise)


@pytest.mark.parametrize("process", [Uniform(STATES), Absorbing(STATES)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_belief_in_place_is_the_plain_one(process: Uniform | Absorbing, dtype: torch.dtype) -> None:
    denoiser = network(process, dtype)
    z, alpha, _ = half_noisy(process)
    z = z[:, :8]  # still more rows than one chunk has
    plain = denoiser.log_probs(z, alpha)
    with torch.no_grad():
        assert torch.allclose(denoiser.log_probs(z, alpha), plain, atol=1e-4 if dtype != torch.float64 else 1e-12)
    assert torch.allclose(plain.double().exp().sum(-1), torch.ones(z.shape, dtype=torch.float64), atol=1e-4)


@pytest.mark.parametrize("process", [Uniform(STATES), Absorbing(STATES)], ids=str)
@pytest.mark.parametrize("kind", [Ancestral, Psi, Analytic])
@pytest.mark.parametrize("tail", [None, *TAILS])
@torch.no_grad()
def test_a_step_never_materialises_the_belief(
    process: Uniform | Absorbing, kind: type, tail: Tail | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sixteenth of the rows at a time, all live memory together is less than a third of a belief."""
    monkeypatch.setattr(lazy, "chunk_rows", lambda *sizes: BATCH * LENGTH // 16)
    denoiser, sampler = network(process), kind(process)
    model = ScoreDenoiser(denoiser.backbone, process) if kind is Analytic else denoiser
    z, alpha, noise = half_noisy(process)
    with Live(denoiser) as live:
        move(sampler, model, z, alpha, tail, noise)
    assert BELIEF / 16 < live.peak < BELIEF / 3


@pytest.mark.parametrize("kind", [Ancestral, Psi])
@torch.no_grad()
def test_only_tokens_that_are_unmasked_are_projected(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absorbing noise: only positions unmasked in this step are projected; in a tail all masked positions."""
    process = Absorbing(STATES)
    denoiser, sampler, projected = network(process), kind(process), []
    plain = lazy.LazyLogits.project

    def counting(self: lazy.LazyLogits, rows: Any) -> Tensor:
        projected.append(rows)
        return plain(self, rows)

    monkeypatch.setattr(lazy.LazyLogits, "project", counting)
    z, alpha, noise = half_noisy(process)
    got = sampler.step(denoiser, z, alpha, alpha + 0.1, noise)
    masked = (z == process.mask_id).flatten()
    unmasked = masked & (got != process.mask_id).flatten()
    assert torch.equal(torch.cat(projected), unmasked.nonzero()[:, 0])
    assert 0 < int(unmasked.sum()) < int(masked.sum()) / 2
    for tail in TAILS:
        projected.clear()
        sampler.last(denoiser, z, alpha, tail, noise)
        assert torch.equal(torch.cat(projected), masked.nonzero()[:, 0]), tail


@pytest.mark.parametrize("process", [Uniform(STATES), Absorbing(STATES)], ids=str)
@pytest.mark.parametrize("sampler", [Ancestral, partial(Psi, rule="mix", eta=0.5)], ids=["ancestral", "psi"])
@torch.no_grad()
def test_a_step_takes_the_routes_of_the_materialised_belief(
    process: Uniform | Absorbing, sampler: Callable[..., RouteSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal token by token, with seven rows projected at a time."""
    monkeypatch.setattr(lazy, "chunk_rows", lambda *sizes: 7)
    denoiser, steps = network(process, torch.float64), sampler(process)
    denoiser.backbone.head.weight.mul_(0.1)  # every state has some probability
    z, now, noise = half_noisy(process)
    later = now + 0.1
    p = denoiser.log_probs(z, now).exp()
    p_z = p.gather(-1, z[..., None])[..., 0]
    route_probabilities = steps.routes(p_z, process.prior_of(z), now[:, None], later[:, None])
    route, draw = (noise.uniform(tag, LENGTH) for tag in ("route", "draw"))
    fresh = process.sample_prior(LENGTH, noise.fold("fresh"))
    expected = torch.where(route < route_probabilities.belief + route_probabilities.prior, fresh, z)
    expected = torch.where(route < route_probabilities.belief, draws.categorical(p, draw), expected)
    assert torch.equal(steps.step(denoiser, z, now, later, noise), expected)


@torch.no_grad()
def test_memoized_beliefs_are_vectors() -> None:
    """A memo keeps the head's input vectors; the network is called for changed sequences only."""
    process = Absorbing(STATES)
    inner = network(process)
    denoiser = Memoized(inner)
    z, alpha, _ = half_noisy(process)
    other = z.roll(1, 0)
    third = torch.cat([z[:1], other[1:]])
    with Live(inner) as live:
        denoiser.belief(z, alpha)
        denoiser.belief(other, alpha)
        assert denoiser.calls == 2 * BATCH
        kept = denoiser.belief(third, alpha)
        assert denoiser.calls == 2 * BATCH + 1
    assert live.peak < BELIEF / 3
    assert torch.allclose(kept.log_probs(), inner.log_probs(third, alpha), atol=1e-3)
    assert denoiser.belief(third, alpha) is kept
    assert denoiser.calls == 2 * BATCH + 1


@pytest.mark.parametrize("process", [Uniform(50), Absorbing(50)], ids=str)
@pytest.mark.parametrize("kind", [Ancestral, Psi, Analytic])
@pytest.mark.parametrize("tail", [None, *TAILS])
@torch.no_grad()
def test_weights_that_are_nan_generate_nothing(process: Uniform | Absorbing, kind: type, tail: Tail | None) -> None:
    """One bad row of the head, at any place, is an error."""
    denoiser, sampler = network(process), kind(process)
    denoiser.backbone.head.weight[7] = torch.nan
    model = ScoreDenoiser(denoiser.backbone, process) if kind is Analytic else denoiser
    z, alpha, noise = half_noisy(process)
    with pytest.raises(ValueError, match="weights are bad"):
        move(sampler, model, z, alpha, tail, noise)


@pytest.mark.parametrize("method", [BertMouth(), DiffusionBERT()], ids=str)
@torch.no_grad()
def test_weights_that_are_nan_generate_nothing_with_samplers_of_other_methods(method: Any) -> None:
    denoiser, sampler = method.network(SIZES["nano"](), Vocabulary(13)), method.sampler(13)
    noise = Noise.of(0, 0, torch.arange(BATCH))
    denoiser.backbone.head.weight[7] = torch.nan
    level = torch.full((BATCH,), 0.1, dtype=torch.float64)
    state = sampler.start(denoiser, 6, 6, noise)
    with pytest.raises(ValueError, match="weights are bad"):
        sampler.step(denoiser, state, level, level + 0.8, noise)


def _known(length: int) -> tuple[Tensor, Tensor]:
    return torch.arange(length) % 5, torch.arange(length) % 7 < 2


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "plain": lambda denoiser: denoiser,
    "infill": lambda denoiser: Clamped(denoiser, *_known(12)),
    "top-p, infill": lambda denoiser: Clamped(TopP(denoiser, 0.8), *_known(12)),
    "memo": Memoized,
}
STATIC = [
    *((method, None, wrap) for method in (Duo(), MDLM(), DiffusionBERT(), D3PM()) for wrap in WRAPPED),
    *((method, "psi-rescale", wrap) for method in (Duo(), MDLM()) for wrap in ("plain", "infill")),
    *((method, None, "plain") for method in (SEDD(), SEDD("uniform"), AR(), Plaid(), DiffusionLM(), BertMouth())),
    *((method, None, "known ratios") for method in (SEDD(), SEDD("uniform"))),
]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("method", "name", "wrap"), STATIC, ids=lambda value: getattr(value, "noise", "") + str(value))
def test_samples_are_the_same_where_shapes_are_static(
    method: Any, name: str | None, wrap: str, tail: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all rows are computed, as on a GPU, the rows that are needed say the same."""
    torch.manual_seed(0)
    model = method.network(SIZES["nano"](), Vocabulary(23)).requires_grad_(False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    sampler = method.sampler(23) if name is None else sampler_named(name, method.process(23))
    denoiser = ClampedScore(model, method.process(23), *_known(12)) if wrap not in WRAPPED else None
    steps = max(5, sampler.steps(12, 5))

    def write() -> Tensor:
        return generate(
            denoiser or WRAPPED[wrap](model),
            method.sampling_schedule(),
            sampler,
            num=3,
            length=12,
            steps=steps,
            tail=tail,
            seed=3,
        )

    sparse = write()
    with monkeypatch.context() as patch:
        patch.setattr(devices, "_WITHOUT_WAIT", ())
        patch.setattr(torch.Tensor, "nonzero", None)  # which a step with static shapes must not ask
        assert torch.equal(write(), sparse)


@torch.no_grad()
def test_weights_that_are_nan_are_refused_at_the_end_where_a_device_would_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = network(Uniform(50))
    model.backbone.head.weight[7] = torch.nan
    monkeypatch.setattr(devices, "_WITHOUT_WAIT", ())
    steps: list[int] = []
    with pytest.raises(ValueError, match="weights are bad"):
        generate(
            model,
            LogLinear(),
            Ancestral(Uniform(50)),
            num=2,
            length=4,
            steps=3,
            watch=lambda frame: steps.append(frame.step),
        )
    assert steps == [0, 1, 2, 3]
    z, alpha, noise = half_noisy(Uniform(50))
    Ancestral(Uniform(50)).step(model, z, alpha, alpha + 0.1, noise)  # nobody waits for the answer

"""The objectives of distillation: their divergences, pairs, teachers and labels. Runs: test_distillation_runs.py."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.plain_forms import divergence
from support.runs import small_recipe
from torch import nn

from duality.denoisers.conditioning import with_labels
from duality.denoisers.readouts import MeanDenoiser, SubsDenoiser
from duality.diffusion import Compare, Divergence
from duality.diffusion.gaussian import coupled_argmax, inverse_level
from duality.diffusion.processes import Absorbing
from duality.diffusion.schedules import Dual, LinearLogSnr, LogLinear
from duality.methods.duo import Duo
from duality.networks.dit import DiT
from duality.noise import Noise
from duality.objectives.consistency import Consistency
from duality.objectives.through_time import ThroughTime
from duality.protocols import Latent
from duality.samplers.ancestral import Ancestral
from duality.training.distillation import DCD, SDTT, Rounds

KINDS: tuple[Divergence, ...] = ("kl-backward", "kl-forward", "mse", "tvd")


def mean_denoiser(seed: int = 0, num_states: int = 11, **options: Any) -> MeanDenoiser:
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "time_width": 8, "dropout": 0.0, **options}
    network = DiT(**shape).build(num_states)
    for parameter in network.parameters():  # also those that are initialised with 0
        nn.init.normal_(parameter, std=0.3)
    return MeanDenoiser(network).double()


# --- divergences


def test_divergences_are_the_released_ones(golden: Path) -> None:
    stored = np.load(golden / "distillation.npz")
    student, teacher = (torch.from_numpy(stored[f"{role}_log_p"]).double() for role in ("student", "teacher"))
    # the reference sums in float32
    assert torch.allclose(
        divergence("kl-backward", student, teacher), torch.from_numpy(stored["kl_bwd"]).double(), atol=1e-5
    )
    assert torch.allclose(
        divergence("kl-forward", student, teacher), torch.from_numpy(stored["kl_fwd"]).double(), atol=1e-5
    )


def test_divergences_are_their_definitions() -> None:
    torch.manual_seed(0)
    student, teacher = (torch.randn(2, 3, 7, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    s, t = student.exp(), teacher.exp()
    expected = {
        "kl-backward": (s * (s / t).log()).sum(-1),
        "kl-forward": (t * (t / s).log()).sum(-1),
        "mse": ((student - teacher) ** 2).mean(-1),
        "tvd": (s - t).clamp_min(0).sum(-1),  # half of the L1 distance
    }
    for kind in KINDS:
        assert torch.allclose(divergence(kind, student, teacher), expected[kind], atol=1e-12), kind
        assert torch.equal(divergence(kind, student, student), torch.zeros(2, 3, dtype=torch.float64)), kind


@pytest.mark.parametrize("kind", KINDS)
def test_excluded_states_have_no_loss_and_no_gradient(kind: Divergence) -> None:
    """With the mask token's column at -inf and certain rows, as in SUBS: values and gradients of the other states."""
    torch.manual_seed(1)
    logits = torch.randn(1, 3, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(1, 3, 5, dtype=torch.float64).log_softmax(-1)
    plain = divergence(kind, logits.log_softmax(-1), teacher)
    (expected,) = torch.autograd.grad(plain.sum(), logits)

    def excluded(log_p: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(log_p, (0, 1), value=-torch.inf)

    padded = divergence(kind, excluded(logits.log_softmax(-1)), excluded(teacher))
    (found,) = torch.autograd.grad(padded.sum(), logits)
    assert torch.allclose(padded, plain, atol=1e-12)
    assert torch.allclose(found, expected, atol=1e-12)
    certain = torch.full((1, 1, 6), -torch.inf, dtype=torch.float64).index_fill(-1, torch.tensor([2]), 0.0)
    assert float(divergence(kind, certain, certain)) == 0.0


@pytest.mark.parametrize("kind", ["kl-backward", "kl-forward"])
def test_the_student_of_two_teachers_is_their_mean(kind: Divergence) -> None:
    """By gradient descent: the geometric mean with the backward divergence, the arithmetic with the forward one."""
    teachers = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64).log()
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=200, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = divergence(kind, logits.log_softmax(-1).expand(1, 2, 3), teachers[None]).mean()
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    learned = logits.detach().softmax(-1)
    expected = teachers.mean(0).softmax(-1) if kind == "kl-backward" else teachers.exp().mean(0)
    assert torch.allclose(learned, expected, atol=1e-6)


# --- delta and rounds


def test_delta_doubles_at_the_border_of_a_round_as_released(golden: Path) -> None:
    meta = json.loads(str(np.load(golden / "distillation.npz")["__meta__"]))
    kind = DCD(rounds=5, round_steps=meta["update_teacher_every"], delta=1 / meta["T"])
    phases = kind.phases(small_recipe(Path("unused")).method, 100, mean_denoiser())
    for key, expected in meta.items():
        if key.startswith("dt_by_step/"):
            step = int(key.removeprefix("dt_by_step/"))
            objective = next(phase.objective for phase in phases if step < phase.until)
            assert isinstance(objective, Consistency)
            assert objective.delta == expected
    assert [phase.until for phase in phases] == [10_000, 20_000, 30_000, 40_000, 50_000]


def test_linear_growth_and_the_round_of_a_step() -> None:
    kind = Rounds(rounds=3, round_steps=4, delta=0.1, growth="linear")
    assert [kind.delta_of_round(number) for number in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])
    assert [kind.round_at(step)["round"] for step in (0, 1, 4, 5, 8, 9, 12)] == [1, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match=r"grows to 1\.6 in round 5"):
        DCD(delta=0.1)
    with pytest.raises(ValueError, match="rounds is 0"):
        SDTT(rounds=0)


# --- the pairs


@pytest.mark.parametrize("vocab_size", [2, 5, 40])
@pytest.mark.parametrize(("alpha_t", "alpha_s"), [(0.05, 0.2), (0.4, 0.45), (0.5, 0.95)])
def test_pairs_have_the_law_of_the_k_dimensional_construction(vocab_size: int, alpha_t: float, alpha_s: float) -> None:
    """(z_t, z_s) from three numbers against argmax of alpha_tilde x + sigma_tilde eps: chi-square of two samples."""
    count = 40_000
    mu = inverse_level(torch.tensor([alpha_t, alpha_s], dtype=torch.float64), vocab_size)
    x = torch.ones(count, 1, dtype=torch.int64)
    ours = coupled_argmax(x, mu[0], mu[1], vocab_size, Noise.of(3, 0, torch.arange(count)))
    generator = torch.Generator().manual_seed(vocab_size)
    eps = torch.randn(count, vocab_size, dtype=torch.float64, generator=generator)
    signal = nn.functional.one_hot(x[:, 0], vocab_size).double()
    theirs = tuple((level * signal + eps).argmax(-1) for level in mu)
    tables = []
    for z_t, z_s in ((ours[0][:, 0], ours[1][:, 0]), theirs):
        tables.append(torch.bincount(z_t * vocab_size + z_s, minlength=vocab_size**2).double())
    intersection = tables[0] + tables[1]
    seen = intersection >= 10
    statistic = float(((tables[0] - tables[1]).square() / intersection)[seen].sum())
    freedom = int(seen.sum()) - 1
    # 4.5 standard deviations of a chi-square
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom) + 5
    assert torch.equal(tables[0] > 0, tables[1] > 0) or int(intersection[tables[0].eq(0) | tables[1].eq(0)].max()) < 30
    for z, alpha in zip(ours, (alpha_t, alpha_s)):
        expected = torch.full((vocab_size,), (1 - alpha) / vocab_size, dtype=torch.float64)
        expected[1] += alpha
        found = torch.bincount(z[:, 0], minlength=vocab_size) / count
        error = (expected * (1 - expected) / count).sqrt()
        assert bool(((found - expected).abs() < 4.5 * error).all())


# --- the objectives


def dual_schedule() -> Dual:
    return Dual(11, LinearLogSnr(), 0.005, 0.999)


def batch(num_states: int = 11, rows: int = 4, length: int = 6) -> tuple[torch.Tensor, torch.Tensor, Noise]:
    noise = Noise.of(0, 0, torch.arange(rows))
    return noise.integers("x", num_states, length), noise.uniform("t", 1)[:, 0], noise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compare", ["output", "posterior"])
def test_a_student_equal_to_its_teacher_has_no_loss(kind: Divergence, compare: Compare) -> None:
    student, teacher = mean_denoiser(0), mean_denoiser(0)
    x, t, noise = batch()
    for target, delta, none in ((teacher, 0.0, True), (teacher, 0.2, False), (mean_denoiser(1), 0.0, False)):
        total = float(Consistency(target, dual_schedule(), delta, kind, compare)(student, x, t, noise).nats.sum())
        assert (total == 0.0) is none
        assert total >= 0.0


def test_dcd_compares_what_it_is_told_in_every_round() -> None:
    for compare in ("output", "posterior"):
        phases = DCD(rounds=2, compare=compare).phases(Duo(), 11, mean_denoiser())
        assert [getattr(phase.objective, "compare", None) for phase in phases] == [compare] * 2


def test_the_student_reads_the_noisier_and_the_teacher_the_cleaner_of_the_pair() -> None:
    x, t, noise = batch(rows=64)
    inputs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    class Spy:
        def __init__(self, name: str):
            self.name = name

        def log_probs(self, z: Latent, alpha: torch.Tensor, valid: Any = None, dropout: Any = None) -> torch.Tensor:
            assert isinstance(z, torch.Tensor)
            inputs[self.name] = z, alpha
            return torch.zeros(*z.shape, 11, dtype=torch.float64).log_softmax(-1)

    Consistency(Spy("teacher"), dual_schedule(), 0.3)(Spy("student"), x, t, noise, dropout=True)
    (z_t, alpha_t), (z_s, alpha_s) = inputs["student"], inputs["teacher"]
    assert torch.equal(alpha_t, dual_schedule().alpha(t))
    assert torch.equal(alpha_s, dual_schedule().alpha((t - 0.3).clamp_min(0)))
    assert bool((alpha_s > alpha_t).all())
    # one trajectory: a token that is clean at t is clean at s; a noisy one stays the same or becomes clean
    assert bool((z_s[z_t == x] == x[z_t == x]).all())
    assert bool(((z_s == z_t) | (z_s == x)).all())
    assert not torch.equal(z_s, z_t)


@pytest.mark.parametrize("which", ["dcd", "sdtt"])
def test_the_teacher_gets_no_gradient_and_no_dropout(which: str) -> None:
    student, teacher = objective_parts(which, dropout=0.5)
    objective = teacher_objective(which, teacher)
    x, t, noise = batch(num_states=10)
    before = {name: value.clone() for name, value in teacher.named_parameters()}
    loss = objective(student, x, t, noise, None, dropout=True)
    torch.autograd.backward(loss.total)
    assert all(value.grad is None for value in teacher.parameters())
    assert any(value.grad is not None and bool(value.grad.any()) for value in student.parameters())
    assert all(torch.equal(before[name], value) for name, value in teacher.named_parameters())
    # Only the student has dropout: it changes the loss, and a teacher without dropout gives the same loss.
    _, without_dropout = objective_parts(which, dropout=0.0)
    again = teacher_objective(which, without_dropout)(student, x, t, noise, None, dropout=True)
    assert torch.equal(loss.nats, again.nats)
    assert not torch.equal(loss.nats, objective(student, x, t, noise, None, dropout=False).nats)


def objective_parts(which: str, dropout: float) -> tuple[Any, Any]:
    """A student and a teacher that differ."""
    made = [mean_denoiser(seed, dropout=dropout) for seed in (0, 1)]
    if which == "dcd":
        return made[0], made[1]
    return SubsDenoiser(made[0].backbone, Absorbing(11)), SubsDenoiser(made[1].backbone, Absorbing(11))


def teacher_objective(which: str, teacher: Any, **options: Any) -> Any:
    if which == "dcd":
        return Consistency(teacher, dual_schedule(), options.get("delta", 0.2))
    process = Absorbing(11)
    return ThroughTime(
        teacher,
        Ancestral(process),
        LogLinear(eps=0.0),
        options.get("delta", 0.2),
        options.get("num_steps", 2),
    )


@pytest.mark.parametrize("which", ["dcd", "sdtt"])
def test_padding_is_not_read_and_has_no_loss(which: str) -> None:
    student, teacher = objective_parts(which, dropout=0.0)
    x, t, noise = batch(num_states=10)
    valid = torch.ones_like(x, dtype=torch.bool)
    valid[:, 4:] = False
    objective = teacher_objective(which, teacher)
    other = torch.where(valid, x, (x + 1) % 10)
    loss, same = (objective(student, tokens, t, noise, valid) for tokens in (x, other))
    assert torch.equal(loss.nats[:, 4:], torch.zeros(4, 2, dtype=torch.float64))
    assert torch.allclose(loss.nats, same.nats, atol=1e-12)
    assert float(loss.total) > 0


@pytest.mark.parametrize("which", ["dcd", "sdtt"])
def test_the_teacher_is_given_the_labels_of_the_student(which: str) -> None:
    given: list[torch.Tensor | None] = []

    class Recording(nn.Module):
        """Records the labels that it is given."""

        def log_probs(
            self, z: Latent, alpha: torch.Tensor, valid: Any = None, dropout: Any = None, labels: Any = None
        ) -> torch.Tensor:
            assert isinstance(z, torch.Tensor)
            given.append(labels)
            equal = torch.zeros(*z.shape, 11, dtype=torch.float64)
            if which == "sdtt":
                equal[..., 10] = -torch.inf  # the mask token
            return equal.log_softmax(-1)

    x, t, noise = batch(num_states=10)
    labels = torch.tensor([0, 2, 1, 0])
    teacher_objective(which, Recording())(with_labels(Recording(), labels), x, t, noise)
    assert len(given) == (2 if which == "dcd" else 3)
    assert all(each is labels for each in given)


def test_sdtt_with_one_teacher_step_is_the_teacher_at_the_same_input() -> None:
    _, teacher = objective_parts("sdtt", 0.0)
    x, t, noise = batch(num_states=10)
    z = Absorbing(11).corrupt(x, 1 - t, noise)
    one = teacher_objective("sdtt", teacher, num_steps=1)
    assert torch.equal(one.target(teacher, z, t, noise).log_probs(), teacher.log_probs(z, 1 - t))
    assert float(one(teacher, x, t, noise).total) == 0.0


def test_sdtt_takes_each_belief_from_the_step_that_unmasks_its_token() -> None:
    """Against three explicit steps of the sampler, position by position."""
    _, teacher = objective_parts("sdtt", 0.0)
    process, delta = Absorbing(11), 0.25
    x, _, noise = batch(num_states=10, rows=32)
    t = torch.full((32,), 0.9, dtype=torch.float64)
    z = process.corrupt(x, 1 - t, noise)
    found = teacher_objective("sdtt", teacher, delta=delta, num_steps=3).target(teacher, z, t, noise).log_probs()
    states, beliefs = [z], []
    for step in range(3):
        now, later = 1 - (t - step * delta).clamp_min(0), 1 - (t - (step + 1) * delta).clamp_min(0)
        beliefs.append(teacher.log_probs(states[-1], now))
        states.append(Ancestral(process).step(teacher, states[-1], now, later, noise.fold(step)))
    sources = set()
    for row in range(32):
        for place in range(6):
            if z[row, place] != 10:
                continue
            unmasked = next((step for step in range(3) if states[step + 1][row, place] != 10), 2)
            sources.add(unmasked)
            assert torch.allclose(found[row, place], beliefs[unmasked][row, place], rtol=1e-12)
    assert sources == {0, 1, 2}


def test_sdtt_has_a_loss_at_masked_positions_only() -> None:
    student, teacher = objective_parts("sdtt", 0.0)
    x, t, noise = batch(num_states=10, rows=16)
    loss = teacher_objective("sdtt", teacher)(student, x, t, noise)
    masked = Absorbing(11).corrupt(x, 1 - t, noise) == 10
    assert torch.equal(loss.nats > 0, masked)
    # a step beyond the clean end unmasks nothing; the loss stays finite
    early = teacher_objective("sdtt", teacher, delta=0.5)(student, x, torch.full_like(t, 1e-3), noise)
    assert bool(early.nats.isfinite().all())


def test_a_step_of_distillation_moves_the_student_towards_the_teacher() -> None:
    """With a fixed teacher, gradient descent lowers the loss to less than a third."""
    student, teacher = mean_denoiser(0), mean_denoiser(1)
    x, t, noise = batch()
    objective = Consistency(teacher, dual_schedule(), 0.1)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = objective(student, x, t, noise)
        torch.autograd.backward(loss.total)
        optimizer.step()
        losses.append(float(loss.total))
    assert losses[-1] < 0.3 * losses[0]


def test_the_times_of_dcd_run_over_the_stated_window() -> None:
    """t = 0 is log-SNR 4 and t = 1 is log-SNR 1 at the paper's vocabulary, as the docstring of ``DCD`` says."""
    objective = DCD().phases(Duo(), 50_257, nn.Identity())[0].objective
    assert isinstance(objective, Consistency)
    log_snr = 2 * objective.schedule.mu(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).log()
    assert log_snr.tolist() == pytest.approx([4.0, 2.5, 1.0], abs=2e-3)

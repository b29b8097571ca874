"""Distillation: what it minimises, whom it learns from, and that a run of it is a run like any other."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import quiet, small_recipe
from torch import nn

from duality import checkpoint, run
from duality.backbones.dit import DiT
from duality.config import from_jsonable
from duality.denoiser import MeanDenoiser, SubsDenoiser
from duality.distillation import DCD, SDTT, Rounds
from duality.divergences import Divergence, divergence
from duality.gaussian import coupled_argmax, inverse_level
from duality.metrics import read_metrics
from duality.noise import Noise
from duality.objectives import Consistency, ThroughTime
from duality.processes import Absorbing
from duality.protocols import Latent
from duality.recipes import Recipe, distilled
from duality.samplers import Ancestral
from duality.schedules import Dual, LinearLogSnr, LogLinear
from duality.train import StepRecord, TrainState
from duality.wrappers import labelled

KINDS: tuple[Divergence, ...] = ("kl-backward", "kl-forward", "mse", "tvd")


def mean_denoiser(seed: int = 0, num_states: int = 11, **options: Any) -> MeanDenoiser:
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "time_width": 8, "dropout": 0.0, **options}
    network = DiT(**shape).build(num_states)
    for parameter in network.parameters():  # also those that begin at 0
        nn.init.normal_(parameter, std=0.3)
    return MeanDenoiser(network).double()


# --- divergences


def test_divergences_are_the_released_ones(golden: Path) -> None:
    stored = np.load(golden / "distillation.npz")
    student, teacher = (torch.from_numpy(stored[f"{who}_log_p"]).double() for who in ("student", "teacher"))
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
        "tvd": (s - t).clamp_min(0).sum(-1),  # one of the two ways to say it
    }
    for kind in KINDS:
        assert torch.allclose(divergence(kind, student, teacher), expected[kind], atol=1e-12), kind
        assert torch.equal(divergence(kind, student, student), torch.zeros(2, 3, dtype=torch.float64)), kind


@pytest.mark.parametrize("kind", KINDS)
def test_excluded_states_cost_nothing_and_have_no_gradient(kind: Divergence) -> None:
    """With the mask's column at -inf and certain rows, as SUBS has them: numbers and gradients of the rest alone."""
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
def test_what_several_teachers_teach(kind: Divergence) -> None:
    """Gradient descent on one student with two teachers: their geometric mean backward, their mean forward."""
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
    learnt = logits.detach().softmax(-1)
    expected = teachers.mean(0).softmax(-1) if kind == "kl-backward" else teachers.exp().mean(0)
    assert torch.allclose(learnt, expected, atol=1e-6)


# --- strides and rounds


def test_stride_doubles_at_the_rounds_borders_as_released(golden: Path) -> None:
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
    assert [kind.stride(number) for number in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])
    assert [kind.round_of(step) for step in (0, 1, 4, 5, 8, 9, 12)] == [1, 1, 1, 2, 2, 3, 3]
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
    both = tables[0] + tables[1]
    seen = both >= 10
    statistic = float(((tables[0] - tables[1]).square() / both)[seen].sum())
    freedom = int(seen.sum()) - 1
    # 4.5 standard deviations of a chi-square
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom) + 5
    assert torch.equal(tables[0] > 0, tables[1] > 0) or int(both[tables[0].eq(0) | tables[1].eq(0)].max()) < 30
    for z, alpha in zip(ours, (alpha_t, alpha_s)):
        expected = torch.full((vocab_size,), (1 - alpha) / vocab_size, dtype=torch.float64)
        expected[1] += alpha
        found = torch.bincount(z[:, 0], minlength=vocab_size) / count
        error = (expected * (1 - expected) / count).sqrt()
        assert bool(((found - expected).abs() < 4.5 * error).all())


# --- the objectives


def window() -> Dual:
    return Dual(11, LinearLogSnr(), 0.005, 0.999)


def batch(num_states: int = 11, rows: int = 4, length: int = 6) -> tuple[torch.Tensor, torch.Tensor, Noise]:
    noise = Noise.of(0, 0, torch.arange(rows))
    return noise.integers("x", num_states, length), noise.uniform("t", 1)[:, 0], noise


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_that_is_its_teacher_loses_nothing(kind: Divergence) -> None:
    student, teacher = mean_denoiser(0), mean_denoiser(0)
    x, t, noise = batch()
    assert float(Consistency(teacher, window(), 0.0, kind)(student, x, t, noise).total) == 0.0
    assert float(Consistency(teacher, window(), 0.2, kind)(student, x, t, noise).total) > 0
    assert float(Consistency(mean_denoiser(1), window(), 0.0, kind)(student, x, t, noise).total) > 0


def test_the_student_reads_the_noisier_and_the_teacher_the_cleaner_of_the_pair() -> None:
    x, t, noise = batch(rows=64)
    asked: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    class Spy:
        def __init__(self, name: str):
            self.name = name

        def log_probs(self, z: Latent, alpha: torch.Tensor, mask: Any = None, dropout: Any = None) -> torch.Tensor:
            assert isinstance(z, torch.Tensor)
            asked[self.name] = z, alpha
            return torch.zeros(*z.shape, 11, dtype=torch.float64).log_softmax(-1)

    Consistency(Spy("teacher"), window(), 0.3)(Spy("student"), x, t, noise, dropout=True)
    (z_t, alpha_t), (z_s, alpha_s) = asked["student"], asked["teacher"]
    assert torch.equal(alpha_t, window().alpha(t))
    assert torch.equal(alpha_s, window().alpha((t - 0.3).clamp_min(0)))
    assert bool((alpha_s > alpha_t).all())
    # one trajectory: a token that is already right at t is right at s, and another one is another or right at s
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
    # dropout reaches the student only: with it the loss is another, and a teacher without any dropout gives the same
    _, sober = objective_parts(which, dropout=0.0)
    again = teacher_objective(which, sober)(student, x, t, noise, None, dropout=True)
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
        return Consistency(teacher, window(), options.get("delta", 0.2))
    process = Absorbing(11)
    return ThroughTime(
        teacher,
        process,
        lambda denoiser, x, alpha, noise: process.corrupt(x, alpha, noise),
        Ancestral(process),
        LogLinear(eps=0.0),
        options.get("delta", 0.2),
        options.get("num_steps", 2),
    )


@pytest.mark.parametrize("which", ["dcd", "sdtt"])
def test_padding_is_not_read_and_not_paid(which: str) -> None:
    student, teacher = objective_parts(which, dropout=0.0)
    x, t, noise = batch(num_states=10)
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[:, 4:] = False
    objective = teacher_objective(which, teacher)
    other = torch.where(mask, x, (x + 1) % 10)
    loss, same = (objective(student, tokens, t, noise, mask) for tokens in (x, other))
    assert torch.equal(loss.nats[:, 4:], torch.zeros(4, 2, dtype=torch.float64))
    assert torch.allclose(loss.nats, same.nats, atol=1e-12)
    assert float(loss.total) > 0


@pytest.mark.parametrize("which", ["dcd", "sdtt"])
def test_the_teacher_is_told_the_students_labels(which: str) -> None:
    heard: list[torch.Tensor | None] = []

    class Listener(nn.Module):
        """Remembers the classes it was told."""

        def log_probs(
            self, z: Latent, alpha: torch.Tensor, mask: Any = None, dropout: Any = None, labels: Any = None
        ) -> torch.Tensor:
            assert isinstance(z, torch.Tensor)
            heard.append(labels)
            return torch.zeros(*z.shape, 11, dtype=torch.float64).log_softmax(-1)

    x, t, noise = batch(num_states=10)
    labels = torch.tensor([0, 2, 1, 0])
    teacher_objective(which, Listener())(labelled(Listener(), labels), x, t, noise)
    assert len(heard) == (2 if which == "dcd" else 3)
    assert all(each is labels for each in heard)


def test_sdtt_with_one_teacher_step_is_the_teacher_at_the_same_input() -> None:
    _, teacher = objective_parts("sdtt", 0.0)
    x, t, noise = batch(num_states=10)
    z = Absorbing(11).corrupt(x, 1 - t, noise)
    one = teacher_objective("sdtt", teacher, num_steps=1)
    assert torch.equal(one.target(teacher, z, t, noise), teacher.log_probs(z, 1 - t))
    assert float(one(teacher, x, t, noise).total) == 0.0


def test_sdtt_takes_each_belief_from_the_step_in_which_its_token_was_shown() -> None:
    """Replayed by hand: three steps of the sampler, position by position."""
    _, teacher = objective_parts("sdtt", 0.0)
    process, delta = Absorbing(11), 0.25
    x, _, noise = batch(num_states=10, rows=32)
    t = torch.full((32,), 0.9, dtype=torch.float64)
    z = process.corrupt(x, 1 - t, noise)
    found = teacher_objective("sdtt", teacher, delta=delta, num_steps=3).target(teacher, z, t, noise)
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
            shown = next((step for step in range(3) if states[step + 1][row, place] != 10), 2)
            sources.add(shown)
            assert torch.equal(found[row, place], beliefs[shown][row, place])
    assert sources == {0, 1, 2}


def test_sdtt_pays_for_hidden_positions_only() -> None:
    student, teacher = objective_parts("sdtt", 0.0)
    x, t, noise = batch(num_states=10, rows=16)
    loss = teacher_objective("sdtt", teacher)(student, x, t, noise)
    hidden = Absorbing(11).corrupt(x, 1 - t, noise) == 10
    assert torch.equal(loss.nats > 0, hidden)
    # beyond the clean end nothing is left to show, and nothing is not a number
    early = teacher_objective("sdtt", teacher, delta=0.5)(student, x, torch.full_like(t, 1e-3), noise)
    assert bool(early.nats.isfinite().all())


# --- the runs


def base_run(english: Path, folder: Path, *assignments: str, name: str = "duo-laptop") -> Recipe:
    recipe = small_recipe(english, "training.steps=6", "training.decay=0", *assignments, name=name)
    run.train(recipe, folder, report=quiet)
    return recipe


def small_rounds(kind: type[Any], **options: Any) -> Any:
    return kind(**{"rounds": 3, "round_steps": 4, "delta": 1 / 16, **options})


def distillation_of(base: Recipe, kind: Any, **training: Any) -> Recipe:
    recipe = distilled(base, kind, base.training.steps)
    return replace(recipe, training=replace(recipe.training, **{"save_every": 3, "log_every": 1, **training}))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    saved = checkpoint.load_newest(folder / "checkpoints", quiet)
    assert saved is not None
    return {f"{group}.{name}": value for group, values in saved.groups.items() for name, value in values.items()}


def stop_at(step: int) -> Callable[[StepRecord], None]:
    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


MODELS = {
    "duo-laptop": DCD,
    "udlm-laptop": DCD,
    "d3pm-uniform-laptop": DCD,
    "mdlm-laptop": SDTT,
    "d3pm-absorb-laptop": SDTT,
    "diffusion-bert-laptop": SDTT,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_belief_about_discrete_noise_can_be_distilled(english: Path, tmp_path: Path, name: str) -> None:
    base = base_run(english, tmp_path / "base", name=name)
    recipe = distillation_of(base, small_rounds(MODELS[name]))
    assert run.distil(tmp_path / "base", recipe, tmp_path / "few", report=quiet) == run.Outcome(12, 0)
    phases = [row["phase"] for row in read_metrics(tmp_path / "few") if "phase" in row]
    assert phases == ["round 1"] * 4 + ["round 2"] * 4 + ["round 3"] * 4
    # what is measured is the bound, of the method's own kind, not the loss of distillation
    measured = [row for row in read_metrics(tmp_path / "few") if "validation_nats" in row]
    assert [row["step"] for row in measured] == [4, 8, 12]
    assert all(row["validation_nats"] > 1 and row["validation_kind"] == "bound" for row in measured)
    model = run.load(tmp_path / "few", quiet)
    assert model.recipe == recipe
    assert model.generate(num=2, length=8, steps=2).shape == (2, 8)


@pytest.mark.parametrize("teacher", ["weights", "ema"])
@pytest.mark.parametrize(("name", "kind"), [("duo-laptop", DCD), ("mdlm-laptop", SDTT)])
def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(
    english: Path, tmp_path: Path, name: str, kind: type[Any], teacher: str
) -> None:
    """Stopped within a round, at its border and just after, with dropout; the teacher is part of what is equal."""
    base = base_run(english, tmp_path / "base", "backbone.dropout=0.1", name=name)
    recipe = distillation_of(base, small_rounds(kind, teacher=teacher))
    run.distil(tmp_path / "base", recipe, tmp_path / "whole", report=quiet)
    for stop in (2, 4, 5, 11):
        options: dict[str, Any] = {"resume": stop > 2, "report": quiet, "watch": stop_at(stop)}
        assert run.distil(tmp_path / "base", recipe, tmp_path / "parts", **options).step == stop
    assert run.train(recipe, tmp_path / "parts", resume=True, report=quiet) == run.Outcome(12, 0)
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert any(key.startswith("teacher.") for key in whole)
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    for number in range(4):
        one, other = (run.load(tmp_path / folder, quiet, round_number=number) for folder in ("whole", "parts"))
        assert all(map(torch.equal, one.denoiser.parameters(), other.denoiser.parameters()))


@pytest.mark.parametrize(("teacher", "group"), [("weights", "model"), ("ema", "ema")])
def test_the_teacher_changes_once_a_round_and_to_what_was_asked(
    english: Path, tmp_path: Path, teacher: str, group: str
) -> None:
    base = base_run(english, tmp_path / "base")
    recipe = distillation_of(base, small_rounds(DCD, teacher=teacher), keep=20, save_every=1, micro_batch=3)
    run.distil(tmp_path / "base", recipe, tmp_path / "few", report=quiet)
    saved = {step: checkpoint.load(tmp_path / f"few/checkpoints/step-{step:08d}") for step in range(13)}

    def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(left[name], right[name]) for name in left)

    trained = checkpoint.load_newest(tmp_path / "base" / "checkpoints", quiet)
    assert trained is not None
    assert equal(saved[0].groups["model"], trained.groups["model"])
    assert equal(saved[0].groups["ema"], trained.groups["ema"])
    assert not equal(trained.groups["model"], trained.groups["ema"])
    for step in range(1, 13):
        begun = (step - 1) // 4 * 4
        assert equal(saved[step].groups["teacher"], saved[begun].groups[group]), step
        assert saved[step].state["round"] == begun // 4 + 1
        assert saved[step].state["delta"] == 2 ** (begun // 4) / 16


def test_the_configured_ema_decay_wins(english: Path, tmp_path: Path) -> None:
    """The base was averaged with 0.99; its distillation is not, from the first step on."""
    base = base_run(english, tmp_path / "base")
    assert base.training.ema == 0.99
    for decay in (0.0, 1.0):
        recipe = distillation_of(base, small_rounds(DCD), ema=decay, save_every=12)
        run.distil(tmp_path / "base", recipe, tmp_path / f"few-{decay}", report=quiet)
    now = tensors(tmp_path / "few-0.0")
    names = [key.removeprefix("ema.") for key in now if key.startswith("ema.")]
    assert all(torch.equal(now[f"ema.{name}"], now[f"model.{name}"]) for name in names)
    # 1 is never reached: the average moves quickly at first, decay at most (1 + n) / (10 + n), counted from here
    state = TrainState.fresh(nn.Linear(2, 2, bias=False), recipe.training)
    before = state.ema["weight"].clone()
    with torch.no_grad():
        next(state.model.parameters()).add_(1.0)
    state.step = 1
    state.average(1.0)
    assert torch.allclose(state.ema["weight"], before + (1 - 2 / 11))


def test_rounds_are_kept_and_can_be_looked_at(english: Path, tmp_path: Path) -> None:
    base = base_run(english, tmp_path / "base")
    run.distil(tmp_path / "base", distillation_of(base, small_rounds(DCD), keep=1), tmp_path / "few", report=quiet)
    assert checkpoint.steps_saved(tmp_path / "few" / "rounds") == [0, 4, 8, 12]
    before, after = run.load(tmp_path / "base", quiet), run.load(tmp_path / "few", quiet)
    first, last = (run.load(tmp_path / "few", quiet, round_number=number) for number in (0, 3))
    assert all(map(torch.equal, before.denoiser.parameters(), first.denoiser.parameters()))
    assert all(map(torch.equal, after.denoiser.parameters(), last.denoiser.parameters()))
    with pytest.raises(ValueError, match="has no round 4: there are 0, 1, 2, 3"):
        run.load(tmp_path / "few", quiet, round_number=4)
    with pytest.raises(ValueError, match="is no distillation"):
        run.load(tmp_path / "base", quiet, round_number=1)
    (tmp_path / "few" / "rounds" / "step-00000004" / "ema.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match="is damaged"):
        run.load(tmp_path / "few", quiet, round_number=1)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("ar-laptop", DCD, "autoregressive model writes one token per step"),
        ("ar-laptop", SDTT, "autoregressive model writes one token per step"),
        ("sedd-uniform-laptop", DCD, "a score model answers with ratios"),
        ("sedd-absorb-laptop", SDTT, "a score model answers with ratios"),
        ("mdlm-laptop", DCD, "for MDLM use --method sdtt"),
        ("duo-laptop", SDTT, "for Duo use --method dcd"),
        ("plaid-laptop", DCD, "no discrete diffusion with a belief"),
        ("bert-mouth-laptop", SDTT, "no discrete diffusion with a belief"),
    ],
)
def test_what_cannot_be_distilled_is_refused_and_leaves_nothing(
    english: Path, tmp_path: Path, name: str, kind: type[Any], message: str
) -> None:
    base = base_run(english, tmp_path / "base", "training.steps=1", name=name)
    before = tensors(tmp_path / "base")
    with pytest.raises(ValueError, match=message):
        run.distil(tmp_path / "base", distillation_of(base, small_rounds(kind)), tmp_path / "few", report=quiet)
    assert not any((tmp_path / "few").iterdir())
    after = tensors(tmp_path / "base")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_distilling_nothing_is_refused(english: Path, tmp_path: Path) -> None:
    recipe = distillation_of(small_recipe(english), small_rounds(DCD))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        run.distil(tmp_path / "empty", recipe, tmp_path / "few", report=quiet)
    with pytest.raises(ValueError, match="begins from a trained run"):
        run.train(recipe, tmp_path / "new", report=quiet)
    with pytest.raises(ValueError, match="set the rounds instead"):
        replace(recipe, training=replace(recipe.training, steps=5))
    base_run(english, tmp_path / "base")
    with pytest.raises(ValueError, match="already holds a run"):
        run.distil(tmp_path / "empty", recipe, tmp_path / "base", report=quiet)


def test_a_checkpoint_of_another_round_is_refused(english: Path, tmp_path: Path) -> None:
    base = base_run(english, tmp_path / "base")
    recipe = distillation_of(base, small_rounds(DCD))
    run.distil(tmp_path / "base", recipe, tmp_path / "few", report=quiet, watch=stop_at(6))
    changed = replace(recipe, distillation=small_rounds(DCD, delta=1 / 32))
    run.write_recipe(changed, tmp_path / "few")
    with pytest.raises(ValueError, match="its recipe says"):
        run.train(changed, tmp_path / "few", resume=True, report=quiet)


def test_the_papers_settings_come_out_of_the_papers_base() -> None:
    """5 rounds of 10 000 steps, batch 128, learning rate 6e-5 after 500 steps, average 0.999."""
    from duality.recipes import recipe

    made = distilled(recipe("duo-owt"), DCD(), 1_000_000).training
    assert (made.steps, made.batch_size, made.warmup, made.decay) == (50_000, 128, 500, 0.0)
    assert made.learning_rate == pytest.approx(6e-5)
    assert made.ema == pytest.approx(0.999)


def test_old_recipes_without_a_distillation_load() -> None:
    from duality.recipes import REGISTRY, from_json, to_json

    data = to_json(small_recipe(Path("unused")))
    del data["distillation"]
    assert from_json(data).distillation is None
    assert from_jsonable(to_json(distillation_of(small_recipe(Path("unused")), DCD())), REGISTRY).distillation == DCD()


def test_a_step_of_distillation_moves_the_student_towards_the_teacher() -> None:
    """Descent on the real thing: with a fixed teacher the loss falls by a factor."""
    student, teacher = mean_denoiser(0), mean_denoiser(1)
    x, t, noise = batch()
    objective = Consistency(teacher, window(), 0.1)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = objective(student, x, t, noise)
        torch.autograd.backward(loss.total)
        optimizer.step()
        losses.append(float(loss.total))
    assert losses[-1] < 0.3 * losses[0]

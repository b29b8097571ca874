"""Training: interrupted = uninterrupted, accumulated = whole batch, and a failing run keeps its last checkpoint."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from support import session
from support.checkpoints import load_newest
from support.runs import quiet, small_recipe
from torch import Tensor, nn

from duality.data.corpus import prepare
from duality.data.loader import Loader, Prefetch
from duality.data.packing import Sequences
from duality.files.atomic import PARTIAL
from duality.models import folder
from duality.models import model as run_model
from duality.protocols import Loss, Phase, Vocabulary
from duality.recipes.recipe import Recipe
from duality.training import checkpoint, loop
from duality.training.loop import StepRecord, TrainingDiverged, TrainState, fit, gradients, phase_at, take_step
from duality.training.metrics import MARKS, compare_with_counts, read_metrics
from duality.training.parallel import Layout
from duality.training.settings import Training


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Everything the last checkpoint holds, flat."""
    loaded = load_newest(folder / "checkpoints", print)
    assert loaded is not None
    return {f"{group}.{name}": value for group, tensors in loaded.groups.items() for name, value in tensors.items()}


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_metrics(folder) if "loss" in row]


def assert_identical(left: Path, right: Path) -> None:
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("optimizer.") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert losses(left) == losses(right)


def stop_at(step: int) -> Callable[[StepRecord], None]:
    """A watcher that interrupts training during ``step``, as Ctrl-C does."""

    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


@pytest.mark.parametrize("extra", [(), ("backbone.dropout=0.2", "training.micro_batch=3")], ids=["plain", "dropout"])
def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(
    english: Path, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    """Stopped in the curriculum, at its border and in the bound, at steps with and without a regular checkpoint."""
    recipe = small_recipe(english, *extra)
    assert session.train(recipe, tmp_path / "whole", report=quiet) == session.Outcome(20, 0)
    for stop in (3, 10, 17):
        outcome = session.train(recipe, tmp_path / "parts", resume=True, report=quiet, watch=stop_at(stop))
        assert outcome == session.Outcome(stop, signal.SIGINT)
    assert session.train(recipe, tmp_path / "parts", resume=True, report=quiet) == session.Outcome(20, 0)
    assert_identical(tmp_path / "whole", tmp_path / "parts")
    assert (tmp_path / "parts" / "loss.png").stat().st_size > 1000


def test_resume_from_an_older_checkpoint_when_the_last_is_damaged(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english)
    session.train(recipe, tmp_path / "whole", report=quiet)
    session.train(recipe, tmp_path / "parts", report=quiet, watch=stop_at(12))
    (tmp_path / "parts" / "checkpoints" / "step-00000012" / "model.safetensors").write_bytes(b"junk")
    messages: list[str] = []
    session.train(recipe, tmp_path / "parts", resume=True, report=messages.append)
    assert any("step-00000012 is damaged" in message for message in messages)
    assert "resuming at step 10 of 20" in messages
    assert_identical(tmp_path / "whole", tmp_path / "parts")


def test_resuming_a_finished_run_changes_nothing(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english)
    session.train(recipe, tmp_path / "a", report=quiet)
    before = weights(tmp_path / "a")
    assert session.train(recipe, tmp_path / "a", resume=True, report=quiet) == session.Outcome(20, 0)
    assert all(torch.equal(before[name], value) for name, value in weights(tmp_path / "a").items())


def parts(recipe: Recipe, dtype: torch.dtype = torch.float64) -> tuple[TrainState, Loader, tuple[Phase, ...]]:
    """State, loader and phases of a recipe; zero-initialised weights of the network are random too."""
    corpus = prepare(recipe.data.corpus, recipe.data.tokenizer)
    num_tokens = corpus.tokenizer.vocab_size
    denoiser = run_model.network(recipe, Vocabulary(num_tokens)).to(dtype)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    loader = Loader(Sequences(corpus.train, recipe.data.length), recipe.training.batch_size, recipe.training.seed)
    return TrainState.fresh(denoiser, recipe.training), loader, recipe.method.phases(num_tokens, recipe.training.steps)


@pytest.mark.parametrize("step", [0, 15], ids=["curriculum", "bound"])
def test_accumulated_gradients_are_those_of_the_whole_batch(english: Path, step: int) -> None:
    """8, 4 + 4, 3 + 3 + 2 and 1 x 8, with dropout: the same loss and gradient up to rounding."""
    results = []
    for micro_batch in (0, 4, 3, 1):
        recipe = small_recipe(english, f"training.micro_batch={micro_batch}", "backbone.dropout=0.2")
        state, loader, phases = parts(recipe)
        state.step = step
        loss, count, _ = gradients(state, loader, phase_at(phases, step), recipe.training)
        results.append((float(loss), count, [p.grad.clone() for p in state.model.parameters() if p.grad is not None]))
    for value, count, grads in results[1:]:
        assert value == pytest.approx(results[0][0], rel=1e-12)
        assert count == results[0][1]
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(grads, results[0][2], strict=True))


@pytest.mark.parametrize("step", [0, 15], ids=["curriculum", "bound"])
def test_parts_of_a_batch_that_are_paid_for_add_up_to_the_whole(english: Path, step: int) -> None:
    """So the network sees all tokens, whichever are paid for; in micro-batches and with dropout too."""
    recipe = small_recipe(english, "training.micro_batch=3", "backbone.dropout=0.2")
    some = torch.rand(recipe.training.batch_size, recipe.data.length, generator=torch.Generator().manual_seed(1)) < 0.4
    sums = []
    for paid in (torch.ones_like(some), some, ~some):
        state, loader, phases = parts(recipe)
        state.step = step
        batch = replace(loader.batch(step), paid=paid)
        with Prefetch(lambda _, batch=batch: batch, step) as batches:  # type: ignore[misc]
            loss, count, _ = gradients(state, batches, phase_at(phases, step), recipe.training)
        assert count == int(paid.sum())
        sums.append([loss * count, *(value * count for value in grads_of(state.model))])
    assert all(torch.allclose(a, b + c, rtol=1e-9, atol=1e-10) for a, b, c in zip(*sums, strict=True))


def grads_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The gradients of all parameters, each of which must have one."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(grads) == len(list(model.parameters()))
    return grads


def grads_of_the_next_step(state: TrainState) -> list[torch.Tensor]:
    """An empty list, into which the next step puts the gradients that it applies; those of before are forgotten."""
    applied: list[torch.Tensor] = []
    state.optimizer.zero_grad()
    state.optimizer.register_step_pre_hook(lambda *_: applied.extend(value.clone() for value in grads_of(state.model)))
    return applied


def test_learning_lowers_the_loss(english: Path) -> None:
    recipe = small_recipe(
        english, "training.steps=60", "training.warmup=5", "method.curriculum=0", "training.learning_rate=3e-3"
    )
    state, loader, phases = parts(recipe, torch.float32)
    values = [take_step(state, loader, phases, recipe.training).loss for _ in range(60)]
    assert sum(values[-10:]) < 0.8 * sum(values[:10])


def test_fit_takes_the_same_steps_until_it_is_stopped_or_the_last_phase_ends(english: Path) -> None:
    recipe = small_recipe(english, "training.steps=5")
    state, loader, phases = parts(recipe)
    values = [take_step(state, loader, phases, recipe.training).loss for _ in range(5)]
    state, loader, phases = parts(recipe)
    seen: list[float] = []

    def after_step(record: StepRecord) -> bool:
        seen.append(record.loss)
        return record.step != 3

    for until in (3, 5):
        fit(state, loader, phases, recipe.training, after_step)
        assert seen == values[:until]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english)
    folder = tmp_path / "run"
    session.train(recipe, folder, report=quiet, watch=stop_at(10))
    before = weights(folder)

    created: list[TrainState] = []
    fresh = TrainState.fresh

    def remember(model: nn.Module, training: Training, teacher: nn.Module | None, layout: Layout) -> TrainState:
        created.append(fresh(model, training, teacher, layout))
        return created[-1]

    def poison(record: StepRecord) -> None:
        # a numerical failure: one weight becomes infinite after step 12
        if record.step == 12:
            dict(created[-1].model.named_parameters())["backbone.embedding"].data[0, 0] = math.inf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainState, "fresh", staticmethod(remember))
        with pytest.raises(
            TrainingDiverged, match=r"at step 1\d the loss is (nan|inf).*--resume --set training.learning"
        ):
            session.train(recipe, folder, resume=True, report=quiet, watch=poison)
    after = weights(folder)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_bfloat16_trains_close_to_float32(english: Path) -> None:
    """Autocast of the network with the loss in float32: the first losses agree to bfloat16's precision."""
    values = {}
    for precision in ("float32", "bfloat16"):
        recipe = small_recipe(english, f"training.precision={precision}", "backbone.dropout=0.1")
        state, loader, phases = parts(recipe, torch.float32)
        values[precision] = [take_step(state, loader, phases, recipe.training).loss for _ in range(3)]
        assert all(parameter.dtype == torch.float32 for parameter in state.model.parameters())
    assert values["bfloat16"] == pytest.approx(values["float32"], rel=0.03)
    assert values["bfloat16"] != values["float32"]


def test_sigterm_saves_too(english: Path, tmp_path: Path) -> None:
    def watch(record: StepRecord) -> None:
        if record.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    assert session.train(small_recipe(english), tmp_path, report=quiet, watch=watch) == session.Outcome(
        7, signal.SIGTERM
    )
    assert checkpoint.steps_saved(tmp_path / "checkpoints") == [5, 7]


@pytest.mark.parametrize("clip", [0.0, 1e-7, 0.05, 1e3])
def test_gradients_are_clipped_as_torch_clips_them(english: Path, clip: float) -> None:
    """No clipping, a clip far below the norm, below it, above it: the gradients are those of torch's function."""
    recipe = small_recipe(english, f"training.clip={clip}")
    state, loader, phases = parts(recipe, torch.float32)
    gradients(state, loader, phase_at(phases, 0), recipe.training)
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), clip or math.inf)
    expected = [value.clone() for value in grads_of(state.model)]
    applied = grads_of_the_next_step(state)
    record = take_step(state, loader, phases, recipe.training)
    assert record.gradient_norm == float(norm)
    assert 0.05 < record.gradient_norm < 1e3
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(applied, expected, strict=True))
    assert all(value.grad is None for value in state.model.parameters())  # their memory is free between steps


def test_a_norm_just_above_the_clip_is_clipped(english: Path) -> None:
    recipe = small_recipe(english)
    state, loader, phases = parts(recipe, torch.float32)
    gradients(state, loader, phase_at(phases, 0), recipe.training)
    norm = float(nn.utils.get_total_norm(grads_of(state.model)))
    applied = grads_of_the_next_step(state)
    take_step(state, loader, phases, replace(recipe.training, clip=0.9 * norm))
    assert float(nn.utils.get_total_norm(applied)) == pytest.approx(0.9 * norm, rel=1e-4)


def test_a_gradient_that_is_not_finite_changes_no_weights(english: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the loss itself is finite."""
    recipe = small_recipe(english)
    state, loader, phases = parts(recipe, torch.float32)
    before = [value.detach().clone() for value in state.model.parameters()]

    def broken(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        found = gradients(*args)
        grads_of(state.model)[0].fill_(math.inf)
        return found

    monkeypatch.setattr(loop, "gradients", broken)
    with pytest.raises(TrainingDiverged, match="the norm of its gradient inf"):
        take_step(state, loader, phases, recipe.training)
    assert all(map(torch.equal, before, state.model.parameters()))


def test_padding_is_not_counted_as_tokens(english: Path) -> None:
    recipe = small_recipe(english)
    state, loader, phases = parts(recipe, torch.float32)
    plain = loader.batch(0)
    valid = torch.ones_like(plain.ids, dtype=torch.bool)
    valid[0, 3:] = False
    with Prefetch(lambda step: replace(plain, valid=valid), 0) as padded:
        assert gradients(state, padded, phase_at(phases, 0), recipe.training)[1] == int(valid.sum())


@pytest.mark.parametrize("padding", ["model", "light"])
def test_the_loss_that_is_shown_is_in_the_unit_of_the_validation(tmp_path: Path, padding: str) -> None:
    """Of an untrained model every position costs the same, and a validation divides by the real tokens alone."""
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"line {number}\n" for number in range(200)))
    modelled = ("data.documents=lines", "data.packing=document", f"data.padding={padding}")
    recipe = small_recipe(text, *modelled, "training.learning_rate=1e-9", "training.steps=2", name="ar-laptop")
    shown = list[float]()
    session.train(recipe, tmp_path / "run", report=quiet, watch=lambda record: shown.append(record.nats_per_token))
    *rows, last = read_metrics(tmp_path / "run")
    assert [row["nats_per_token"] for row in rows] == shown
    for row in rows:
        assert row["nats_per_token"] > 2 * row["loss"]
        assert row["nats_per_token"] == pytest.approx(last["validation_nats"], rel=0.25)


def test_a_training_says_whether_it_is_better_than_counts(
    english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted once for a run, and drawn."""
    drawn, said = list[tuple[float, str]](), list[str]()
    axhline = Axes.axhline

    def watched(axes: Axes, y: float, **options: Any) -> object:
        drawn.append((y, options["label"]))
        return axhline(axes, y, **options)

    monkeypatch.setattr(Axes, "axhline", watched)
    recipe = small_recipe(english, "training.learning_rate=1e-9", "training.steps=4", "training.eval_every=2")
    session.train(recipe, tmp_path, report=said.append)
    marks = [[row[name] for name in MARKS] for row in read_metrics(tmp_path) if "validation_nats" in row]
    (tokens, pairs), again = marks
    assert [tokens, pairs] == again
    assert 2 < pairs < tokens < 4  # English by bytes
    assert drawn == [(tokens, f"frequencies of tokens, {tokens:.2f}"), (pairs, f"pairs of tokens, {pairs:.2f}")]
    assert said[-1].startswith(f"no better than the frequencies of tokens ({tokens:.2f} nats per token; pairs")
    assert "--set training.learning_rate=3e-10, now 1e-09" in said[-1]
    monkeypatch.setattr("duality.runs.session.nats_of_counts", None)
    longer = replace(recipe, training=replace(recipe.training, steps=6))
    session.train(longer, tmp_path, resume=True, may_be_longer=True, report=said.append)
    assert read_metrics(tmp_path)[-1]["validation_pairs"] == pairs


def test_what_is_said_of_counts() -> None:
    row = {"step": 3, "validation_nats": 3.0, "validation_stderr": 0.1}
    marks = {"validation_frequencies": 3.2, "validation_pairs": 2.5}
    assert compare_with_counts([row], 0.1) is None  # a run of before they were counted
    better = "token frequencies alone give 3.20 nats per token, pairs of tokens 2.50"
    assert compare_with_counts([row | marks, {"step": 4}], 0.1) == better
    for nats in (3.2, None):  # which stands there for an infinite number
        assert "no better" in str(compare_with_counts([row | marks, row | marks | {"validation_nats": nats}], 0.1))


def test_average_warms_up_and_follows_the_reference(golden: Path) -> None:
    import numpy as np

    data = np.load(golden / "misc.npz")
    params, shadow = torch.from_numpy(data["ema/params"]), torch.from_numpy(data["ema/shadow"])

    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(params[0].clone())

    one = One()
    state = TrainState(one, None, {"w": params[0].clone()}, one)  # type: ignore[arg-type]
    for step in range(1, len(params)):
        state.step = step
        one.w.data.copy_(params[step])
        state.average(0.9999)
        assert torch.allclose(state.ema["w"], shadow[step], atol=1e-6)


def test_rate_warms_up_stays_and_cools_down() -> None:
    training = Training(steps=100, warmup=10, decay=0.2, learning_rate=1.0)
    rates = [training.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert set(rates[10:81]) == {1.0}
    assert rates[80:] == pytest.approx([1 - i / 20 for i in range(20)])


def test_phases_follow_each_other() -> None:
    phases = tuple(
        Phase(name, lambda *args: Loss(torch.zeros(()), torch.zeros(())), until)
        for name, until in (("a", 0), ("b", 3), ("c", 5))
    )
    assert [phase_at(phases, step).name for step in range(5)] == ["b", "b", "b", "c", "c"]


def test_metrics_cut_short_by_a_crash_are_repaired(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english)
    session.train(recipe, tmp_path / "whole", report=quiet)
    session.train(recipe, tmp_path / "cut", report=quiet, watch=stop_at(10))
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 11, "phase": "bound", "loss": 1.0}) + "\n" + '{"step": 12, "lo')
    session.train(recipe, tmp_path / "cut", resume=True, report=quiet)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_run_is_never_overwritten_nor_mixed(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english)
    session.train(recipe, tmp_path / "a", report=quiet, watch=stop_at(5))
    with pytest.raises(ValueError, match=r"already holds a run.*--resume"):
        session.train(recipe, tmp_path / "a", report=quiet)
    other = replace(recipe, training=replace(recipe.training, ema=0.5))
    with pytest.raises(ValueError, match=r"training.ema: 0.99 -> 0.5"):
        session.train(other, tmp_path / "a", resume=True, report=quiet)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds other files"):
        session.train(recipe, tmp_path / "b", resume=True, report=quiet)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.tex"]


def test_a_resumed_run_may_lower_its_learning_rate_and_says_so(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english)
    session.train(recipe, tmp_path, report=quiet, watch=stop_at(5))
    gentler = replace(recipe, training=replace(recipe.training, learning_rate=1e-4))
    assert session.train(gentler, tmp_path, resume=True, report=quiet) == session.Outcome(20, 0)
    assert folder.read_recipe(tmp_path) == gentler
    changes = [row for row in read_metrics(tmp_path) if "changed" in row]
    assert changes == [{"step": 5, "changed": ["training.learning_rate: 0.006 -> 0.0001"]}]
    rates = {row["step"]: row["learning_rate"] for row in read_metrics(tmp_path) if "loss" in row}
    assert rates[5] == 0.006
    assert rates[6] == 0.0001


STARTED, DEAD = ("corpus", "tokenizer", "recipe"), "1f0c53a2-4711-88123-9ab2c4"  # a process of another machine


@pytest.mark.parametrize("leftover", [*(f"{PARTIAL}{name}.json.{DEAD}" for name in STARTED), "tokenizer.json"])
def test_a_crash_while_the_run_is_created_does_not_block_the_next_run(
    english: Path, tmp_path: Path, leftover: str
) -> None:
    (tmp_path / leftover).write_text("{")
    assert session.train(
        small_recipe(english, "training.steps=1"), tmp_path, resume=True, report=quiet
    ) == session.Outcome(1, 0)


def test_a_finished_run_that_lost_its_metrics_is_measured_again(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english, "training.steps=3")
    session.train(recipe, tmp_path, report=quiet)
    before = [row for row in read_metrics(tmp_path) if "validation_nats" in row]
    (tmp_path / "metrics.jsonl").unlink()
    session.train(recipe, tmp_path, resume=True, report=quiet)
    assert read_metrics(tmp_path) == before


def test_training_needs_no_git(english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    session.train(small_recipe(english, "training.steps=1"), tmp_path / "a", report=quiet)
    assert json.loads((tmp_path / "a" / "env.json").read_text())["commit"] is None


def test_average_by_hand() -> None:
    """decay = min(0.9, (1 + n) / (10 + n)): 2/11 at n = 1, 3/12 at n = 2, 0.9 from n = 80 on."""
    denoiser = run_model.network(small_recipe(Path("unused")), Vocabulary(5))
    state = TrainState.fresh(denoiser, Training())
    for values in state.ema.values():
        values.zero_()
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.fill_(1.0)
    expected = 0.0
    for step, decay in ((1, 2 / 11), (2, 3 / 12), (1000, 0.9)):
        state.step = step
        state.average(0.9)
        expected = decay * expected + (1 - decay)
        assert all(torch.allclose(values, torch.tensor(expected)) for values in state.ema.values())


def test_a_changed_corpus_is_detected(english: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(english.read_text())
    recipe = small_recipe(corpus)
    session.train(recipe, tmp_path / "a", report=quiet, watch=stop_at(5))
    corpus.write_text(english.read_text().replace("License", "Licence"))
    with pytest.raises(ValueError, match="has changed since the run began"):
        session.train(recipe, tmp_path / "a", resume=True, report=quiet)


def test_a_checkpoint_of_another_vocabulary_is_refused(english: Path, tmp_path: Path) -> None:
    session.train(small_recipe(english), tmp_path / "a", report=quiet, watch=stop_at(5))
    characters = prepare(str(english), small_recipe(english, "data.tokenizer=characters").data.tokenizer)
    characters.tokenizer.save(tmp_path / "a")
    with pytest.raises(ValueError, match="trained with a vocabulary of 257 tokens"):
        run_model.load(tmp_path / "a", print)


def test_a_run_from_before_there_were_labels_is_read(english: Path, tmp_path: Path) -> None:
    recipe = small_recipe(english, "training.steps=2")
    session.train(recipe, tmp_path / "a", report=quiet)
    path = tmp_path / "a" / "corpus.json"
    identity = json.loads(path.read_text())
    del identity["labels"]
    path.write_text(json.dumps(identity))
    assert run_model.load(tmp_path / "a", report=quiet).label_names == ()
    assert session.train(recipe, tmp_path / "a", resume=True, report=quiet) == session.Outcome(2, 0)

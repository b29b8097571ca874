"""Finetuning: the first step sees the model of the source, with its tokenizer; resumed bit for bit; misfits refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import jobs, session
from support.checkpoints import load_newest
from support.runs import ROOT, quiet, small_recipe
from support.trackers import recorded

import duality
from duality.cli.main import main
from duality.models.folder import read_recipe
from duality.noise import Noise, stratified_times
from duality.recipes.catalogue import from_json, to_json
from duality.recipes.corpus import make_loader, prepare_corpus
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Recipe
from duality.runs.corpus import sequences_of_run
from duality.runs.requests import TrainRequest
from duality.runs.resume import TrainingPlan
from duality.runs.train import plan_training
from duality.tokenizers.specs import KeptTokenizer
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

OTHER = "Nothing of this is in the licence: zebras, quartz and jazz; 1 2 3 äöü.\n" * 60
SHORT = ["training.save_every=2", "training.log_every=1", "training.eval_every=0"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    """A trained Duo whose tokenizer depends on its text."""
    folder = tmp_path_factory.mktemp("finetuning") / "base"
    pairs = (
        "data.tokenizer=bpe",
        "data.tokenizer.vocab_size=300",
        "training.learning_rate=0.003",
        "generation.steps=2",
    )
    session.train(small_recipe(english, *pairs, "training.steps=12", "training.keep=3"), folder, report=quiet)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another text."""
    path = tmp_path / "other.txt"
    path.write_text(OTHER, encoding="utf-8")
    return path


def planned(base: Path, out: Path, *assignments: str, steps: int = 4, **more: Any) -> TrainingPlan:
    return plan_training(TrainRequest(start=base, out=out, steps=steps, set=[*SHORT, *assignments], **more))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    saved = load_newest(folder / "checkpoints", quiet)
    assert saved is not None
    return {f"{group}.{name}": value for group, values in saved.groups.items() for name, value in values.items()}


def stop_at(step: int) -> Callable[[StepRecord], None]:
    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def first_loss(model: duality.Model, recipe: Recipe, folder: Path) -> float:
    """The loss of a model on the first batch of a training, computed with the objective alone."""
    corpus, training = prepare_corpus(recipe, tokenizer=model.tokenizer), recipe.training
    batch = make_loader(recipe, corpus, folder).batch(0)
    times = stratified_times(training.seed, 0, training.batch_size, torch.device("cpu"))
    noise = Noise.of(training.seed, 0, torch.arange(training.batch_size))
    (phase,) = (each for each in method_phases(recipe, corpus.tokenizer.vocab_size) if each.until > 0)
    return float(phase.objective(model.denoiser, batch.ids, times, noise, batch.valid).nats.mean())


@pytest.mark.parametrize("changes", [(), ("training.freeze=embedding,blocks.0",)], ids=["all", "frozen"])
def test_the_first_step_sees_the_old_model(base: Path, english: Path, tmp_path: Path, changes: tuple[str, ...]) -> None:
    """On the old data its loss is the old model's, and the validation before it what `eval` says of the old model."""
    plan = planned(base, tmp_path / "tuned", *changes, data=english)
    plan.run(device="cpu")
    model, rows = duality.load(base), read_metrics(tmp_path / "tuned")
    assert rows[1]["step"] == 1
    assert rows[1]["phase"] == "bound"  # the curriculum is not begun again
    assert rows[1]["loss"] == pytest.approx(first_loss(model, plan.recipe, tmp_path), rel=1e-6)
    measured = model.likelihood(sequences_of_run(model, base), num_draws=4, limit=256)
    assert rows[0]["step"] == 0
    assert rows[0]["validation_nats"] == measured.nats_per_token
    kept = {name for name, value in tensors(tmp_path / "tuned").items() if not torch.equal(value, first(base, name))}
    assert kept if changes else kept >= {"model.backbone.embedding", "ema.backbone.embedding"}
    assert not changes or "model.backbone.embedding" not in kept


def first(base: Path, name: str) -> torch.Tensor:
    """What a weight of a finetuning, or its average, begins with: the average of the base."""
    group, _, weight = name.partition(".")
    return torch.zeros(()) if group == "optimizer" else tensors(base)[f"ema.{weight}"]


def test_another_text_is_read_with_the_tokenizer_of_the_source(base: Path, other: Path, tmp_path: Path) -> None:
    """Also when the run goes on, is measured, distilled, and finetuned again."""
    model = duality.train(start=base, data=other, out=tmp_path / "tuned", steps=4, set=SHORT, device="cpu")
    assert (tmp_path / "tuned" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    own = model.recipe.data.tokenizer
    assert isinstance(own, KeptTokenizer)
    assert own.fingerprint == model.tokenizer.fingerprint == duality.load(base).tokenizer.fingerprint
    assert from_json(json.loads(json.dumps(to_json(model.recipe)))) == model.recipe
    assert model.recipe.name == "duo-laptop-finetuned"
    assert model.recipe.source == "duo-laptop at step 12"
    held_out = sequences_of_run(model, tmp_path / "tuned")
    assert "zebras" in model.tokenizer.decode(held_out.rows(range(1))[0][0])
    few = duality.distill(tmp_path / "tuned", rounds=1, round_steps=2, out=tmp_path / "few", device="cpu")
    assert few.sample(1, steps=2)[0].tokens
    again = duality.train(
        start=tmp_path / "tuned", data=other, out=tmp_path / "again", steps=2, set=SHORT, device="cpu"
    )
    assert again.recipe.data.tokenizer == own
    assert again.recipe.name == "duo-laptop-finetuned"
    from_few = planned(tmp_path / "few", tmp_path / "from-few", data=other)
    assert from_few.recipe.distillation is None


def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(base: Path, other: Path, tmp_path: Path) -> None:
    """With the source and without it, which then is not needed any more; by its name or without it."""
    extra = ("training.freeze=head", "backbone.dropout=0.1")
    planned(base, tmp_path / "whole", *extra, data=other, steps=6).run(device="cpu")
    parts = tmp_path / "parts"
    for stop in (1, 3):
        plan = planned(base, parts, *extra, data=other, steps=6, resume=True)
        assert plan.run(device="cpu", watch=stop_at(stop)).step == stop
    plan = plan_training(TrainRequest("duo-laptop-finetuned", out=parts, resume=True))
    assert plan.run(device="cpu", watch=stop_at(5)).step == 5
    plan_training(TrainRequest(out=parts, resume=True)).run(device="cpu")
    whole, found = tensors(tmp_path / "whole"), tensors(parts)
    assert whole.keys() == found.keys()
    assert all(torch.equal(whole[name], found[name]) for name in whole)
    rows = [
        [(row["step"], row.get("loss"), row.get("validation_nats")) for row in read_metrics(each)]
        for each in (tmp_path / "whole", parts)
    ]
    assert rows[0] == rows[1]


def test_a_run_continues_with_the_source_that_it_began_from(base: Path, other: Path, tmp_path: Path) -> None:
    source, tuned = tmp_path / "source", tmp_path / "tuned"
    shutil.copytree(base, source)
    planned(source, tuned, data=other).run(device="cpu")
    shutil.copytree(base, tmp_path / "moved")
    assert planned(tmp_path / "moved", tuned, resume=True).run(device="cpu").step == 4
    session.train(
        small_recipe(
            Path(read_recipe(base).data.corpus),
            "data.tokenizer=bpe",
            "data.tokenizer.vocab_size=300",
            "training.steps=2",
        ),
        tmp_path / "stranger",
    )
    with pytest.raises(ValueError, match=r"is a finetuning of step 12 of .*source, and the weights of .*stranger"):
        planned(tmp_path / "stranger", tuned, resume=True).run(device="cpu")
    with pytest.raises(ValueError, match="did not begin as a finetuning"):
        plan_training(TrainRequest("duo-laptop", start=base, out=source, resume=True)).run(device="cpu")
    # a source that went on and has not kept the checkpoint is trusted at its place
    shutil.rmtree(source / "checkpoints" / "step-00000012")
    messages: list[str] = []
    planned(source, tuned, resume=True).run(device="cpu", report=messages.append)
    assert any("is not kept any more and is not compared" in line for line in messages)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("duo-laptop", ("backbone.width=64",), r"backbone.width: 32 -> 64"),
        (
            "duo-laptop",
            ("backbone.activation=relu2", "backbone.depth=3"),
            r"backbone.depth: 2 -> 3; backbone.activation",
        ),
        ("mdlm-laptop", (), r"method: Duo.*-> MDLM"),
        ("sedd-uniform-laptop", (), r"method: Duo.*-> SEDD"),
        ("ar-laptop", (), r"method: Duo.*-> AR"),
        ("duo-laptop", ("data.tokenizer=bytes",), r"data.tokenizer: BPE\(vocab_size=300\) -> Bytes"),
        ("duo-laptop", ("data.tokenizer.vocab_size=400",), r"data.tokenizer.vocab_size: 300 -> 400"),
        ("duo-laptop", ("data.labels=true", "data.packing=document"), r"data.labels: False -> True"),
        ("duo-laptop", ("training.freeze=tail",), r"'tail', which is no part of the network"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    base: Path, other: Path, tmp_path: Path, name: str, changes: tuple[str, ...], words: str
) -> None:
    recipe = small_recipe(other, "data.tokenizer=bpe", "data.tokenizer.vocab_size=300", *changes, name=name)
    with pytest.raises(ValueError, match=words):
        duality.train(recipe, start=base, out=tmp_path / "tuned", device="cpu")
    assert not (tmp_path / "tuned").exists()


def test_a_recipe_whose_network_is_the_same_fits(base: Path, other: Path, tmp_path: Path) -> None:
    """Another method of the same belief, another length, another dropout; and the phases, if they are asked for."""
    more = ("data.tokenizer=bpe", "data.tokenizer.vocab_size=300", "data.length=16", "backbone.dropout=0.1")
    udlm = small_recipe(other, *more, "training.steps=2", name="udlm-laptop")
    model = duality.train(udlm, start=base, out=tmp_path / "udlm", device="cpu")
    assert (model.recipe.name, model.length) == ("udlm-laptop", 16)
    plan = planned(base, tmp_path / "phases", "training.phase_steps=none", data=other, steps=8)
    plan.run(device="cpu")
    phases = [row["phase"] for row in read_metrics(tmp_path / "phases") if "phase" in row]
    assert phases == ["curriculum"] * 2 + ["bound"] * 6


def test_labels_stay_the_same(english: Path, tmp_path: Path) -> None:
    for author in ("austen", "melville", "twain"):
        (tmp_path / "three" / author).mkdir(parents=True)
        shutil.copy(english, tmp_path / "three" / author / "book.txt")
    shutil.copytree(tmp_path / "three", tmp_path / "two", ignore=shutil.ignore_patterns("twain"))
    labels = (
        "data.labels=true",
        "data.packing=document",
        "data.split=document",
        "training.steps=2",
        "generation.steps=2",
    )
    session.train(small_recipe(tmp_path / "three", *labels), tmp_path / "base")
    tuned = duality.train(start=tmp_path / "base", data=tmp_path / "three", out=tmp_path / "a", steps=2, device="cpu")
    assert tuned.label_names == ("austen", "melville", "twain")
    with pytest.raises(ValueError, match="labels of the corpus are austen, melville, and those of"):
        planned(tmp_path / "base", tmp_path / "b", data=tmp_path / "two").run(device="cpu")
    assert not (tmp_path / "b").exists()


def test_data_from_memory(base: Path, tmp_path: Path) -> None:
    texts = [f"A short text, number {number}, about a zebra." for number in range(40)]
    model = duality.train(start=base, data=texts, out=tmp_path / "tuned", steps=2, set=SHORT, device="cpu")
    assert model.tokenizer.fingerprint == duality.load(base).tokenizer.fingerprint
    with pytest.raises(ValueError, match=r"data is ids, and .* reads text"):
        duality.train(start=base, data=torch.zeros(4, 99, dtype=torch.int64), out=tmp_path / "ids", device="cpu")
    with pytest.raises(ValueError, match="nothing to finetune"):
        duality.train(start=base, out=tmp_path / "ids", device="cpu")
    assert not (tmp_path / "ids").exists()


def test_a_beginning_that_crashed_is_completed(base: Path, other: Path, tmp_path: Path) -> None:
    """Before the recipe is written there is no run; new weights are not put beside those of the source."""
    out = tmp_path / "tuned"
    planned(base, out, data=other).run(device="cpu")
    whole = tensors(out)
    (out / "recipe.json").unlink()
    for each in ("metrics.jsonl", "loss.png"):
        (out / each).unlink()
    shutil.rmtree(out / "samples")
    with pytest.raises(
        ValueError, match=r"holds the beginning of a finetuning: complete it with `duality train --from`"
    ):
        session.train(small_recipe(other), out, report=quiet)
    planned(base, out, data=other).run(device="cpu")
    assert all(torch.equal(whole[name], value) for name, value in tensors(out).items())


@pytest.mark.slow
def test_many_processes_finetune_as_one_does(tmp_path: Path) -> None:
    """With frozen parts, divided weights and without; the numbers are those of one process but for rounding."""
    small = ["--set", *jobs.SMALL, "training.save_every=3", "generation.steps=2"]
    base = ["train", "duo-laptop", "--out", str(tmp_path / "base"), "--steps", "3", *small]

    def tuned(name: str, *changes: str) -> list[str]:
        settings = ["--set", "training.log_every=1", "training.eval_every=0", "training.freeze=blocks.0,head", *changes]
        place = [
            "--from",
            str(tmp_path / "base"),
            "--data",
            str(ROOT / "README.md"),
            "--out",
            str(tmp_path / name),
        ]
        return ["train", *place, "--steps", "4", *settings]

    assert main(base) == main(tuned("one")) == 0
    log = ["--log", "support.trackers:Recorder"]
    ended = jobs.run(2, [[*tuned(name, f"parallel.strategy={name}"), *log] for name in ("ddp", "fsdp")])
    assert ended.codes == (0, 0), ended.err
    one = [value for row in jobs.losses(tmp_path / "one") for value in row]
    for name in ("ddp", "fsdp"):
        assert [entry[1] for entry in recorded(tmp_path / name) if entry[0] == "metrics"] == read_metrics(
            tmp_path / name
        )
        assert [value for row in jobs.losses(tmp_path / name) for value in row] == pytest.approx(one, rel=1e-4)
        found = tensors(tmp_path / name)
        assert torch.equal(found["model.backbone.head.weight"], tensors(tmp_path / "base")["ema.backbone.head.weight"])
        assert not any("head" in key for key in found if key.startswith("optimizer."))

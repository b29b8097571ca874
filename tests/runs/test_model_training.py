"""Training and distilling from Python: data from memory, resuming, signals; the same runs as the commands make."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.checkpoints import load_newest
from support.runs import ROOT, small_recipe

import duality
from duality.cli.main import main
from duality.models.folder import _environment, read_recipe
from duality.recipes.recipe import Recipe
from duality.tokenizers.specs import Bytes
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

TEXTS = [f"Text number {number}, in which a fox meets {number % 7} dogs.\n" for number in range(120)]


def without_corpus(*assignments: str) -> Recipe:
    return small_recipe(Path("no-corpus"), *assignments)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    saved = load_newest(folder / "checkpoints", print)
    assert saved is not None
    return {f"{group}.{name}": value for group, tensors in saved.groups.items() for name, value in tensors.items()}


def assert_same(left: Path, right: Path) -> None:
    """Weights, average and optimizer are equal bit for bit, and so are the losses."""
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    losses = [[row["loss"] for row in read_metrics(folder) if "loss" in row] for folder in (left, right)]
    assert losses[0] == losses[1]


def stop_at(step: int) -> Callable[[StepRecord], None]:
    def watch(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def text_stream() -> Iterator[str]:
    yield from TEXTS


def test_texts_as_a_list_and_as_a_generator_train_the_same_model(tmp_path: Path) -> None:
    models = [
        duality.train(without_corpus(), data=data, out=tmp_path / name)
        for name, data in (("list", TEXTS), ("generator", text_stream()))
    ]
    assert_same(tmp_path / "list", tmp_path / "generator")
    assert [model.step for model in models] == [20, 20]
    assert models[0].sample(2, steps=3) == models[1].sample(2, steps=3)
    recipe = read_recipe(tmp_path / "list")
    assert Path(recipe.data.corpus).parent == (tmp_path / "list" / "data").resolve()
    assert recipe.data.tokenizer == Bytes()


def test_ids_as_a_tensor(tmp_path: Path) -> None:
    ids = torch.arange(60 * 40).view(60, 40) % 11
    model = duality.train(without_corpus(), data=ids, out=tmp_path / "ids")
    assert model.tokenizer.encode("3 1 4").tolist() == [3, 1, 4]
    (sample,) = model.sample(steps=2, length=8)
    assert len(sample.tokens) == 8
    assert max(sample.tokens) < model.tokenizer.vocab_size
    assert model.log_likelihood("0 1 2 3 4 5").num_tokens == 6
    assert duality.load(tmp_path / "ids").sample(steps=2, length=8) == [sample]


@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_a_run_on_data_from_memory_resumes_bit_for_bit(tmp_path: Path, kind: str) -> None:
    """Stopped twice; resumed with the same data, and without it; by name of the recipe and with the recipe."""
    data = TEXTS if kind == "texts" else torch.arange(60 * 40).view(60, 40) % 11
    recipe = without_corpus()
    duality.train(recipe, data=data, out=tmp_path / "whole")
    parts = tmp_path / "parts"
    with pytest.raises(duality.TrainingStopped, match=r"SIGINT at step 3 and saved.*resume=True") as stopped:
        duality.train(recipe, data=data, out=parts, watch=stop_at(3))
    assert (stopped.value.step, stopped.value.signal) == (3, signal.SIGINT)
    with pytest.raises(duality.TrainingStopped):
        duality.train(recipe, data=data, out=parts, resume=True, watch=stop_at(11))
    model = duality.train("duo-laptop", out=parts, resume=True)
    assert model.step == 20
    assert_same(tmp_path / "whole", parts)
    assert not list(parts.glob(".data*"))


def test_other_data_for_the_same_run_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(duality.TrainingStopped):
        duality.train(without_corpus(), data=TEXTS, out=out, watch=stop_at(2))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="holds other data than was given"):
        duality.train(without_corpus(), data=TEXTS[:-1], out=out, resume=True)
    with pytest.raises(ValueError, match="already holds a run: continue it with --resume"):
        duality.train(without_corpus(), data=TEXTS, out=out)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_folder_with_other_files_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "database.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds other files \(database.txt\)"):
        duality.train(without_corpus(), data=TEXTS, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["database.txt"]
    own = tmp_path / "project"
    (own / "data").mkdir(parents=True)
    (own / "data" / "corpus.jsonl").write_text("mine")
    with pytest.raises(ValueError, match="holds other data"):
        duality.train(without_corpus(), data=TEXTS, out=own)
    assert [path.name for path in own.rglob("*")] == ["data", "corpus.jsonl"]
    assert (own / "data" / "corpus.jsonl").read_text() == "mine"


def test_data_that_cannot_be_read_leaves_no_run(tmp_path: Path) -> None:
    bad: list[object] = [[], [1, 2], 5, [torch.tensor([0.5])]]
    for data in bad:
        with pytest.raises(ValueError, match="data"):
            duality.train(without_corpus(), data=data, out=tmp_path / "run")  # type: ignore[arg-type]
        assert not list((tmp_path / "run").iterdir())


def test_train_does_the_same_as_the_command(tmp_path: Path, english: Path) -> None:
    """A path, a number of steps, a seed and assignments: the same recipe, the same weights."""
    fields = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.batch_size=4"]
    assignments = ["--set", *fields, "--seed", "3", "--steps", "4"]
    assert main(["train", "mdlm-laptop", "--out", str(tmp_path / "command"), "--data", str(english), *assignments]) == 0
    model = duality.train("mdlm-laptop", data=english, out=tmp_path / "call", seed=3, steps=4, set=fields)
    assert model.recipe == read_recipe(tmp_path / "command")
    assert_same(tmp_path / "command", tmp_path / "call")


def test_messages_and_steps_are_given_to_report_and_watch(tmp_path: Path, english: Path) -> None:
    messages: list[str] = []
    records: list[StepRecord] = []
    recipe = small_recipe(english, "training.steps=3")
    duality.train(recipe, out=tmp_path / "run", report=messages.append, watch=records.append)
    assert any("training duo-laptop to step 3" in message for message in messages)
    assert [record.step for record in records] == [1, 2, 3]


def test_distill_does_the_same_as_the_command(tmp_path: Path, english: Path) -> None:
    base = tmp_path / "base"
    duality.train(small_recipe(english, "training.steps=4"), out=base)
    options = ["--rounds", "2", "--round-steps", "2", "--teacher", "ema", "--growth", "linear", "--delta", "0.1"]
    assert main(["distill", str(base), *options, "--seed", "4", "--out", str(tmp_path / "command")]) == 0
    few = duality.distill(
        str(base), rounds=2, round_steps=2, teacher="ema", growth="linear", delta=0.1, seed=4, out=tmp_path / "call"
    )
    assert few.recipe == read_recipe(tmp_path / "command")
    assert_same(tmp_path / "command", tmp_path / "call")
    assert few.recipe.distillation is not None
    assert few.recipe.distillation.delta_of_round(2) == 0.2
    assert duality.load(tmp_path / "call", round=0).step == 0
    again = duality.distill(base, out=tmp_path / "call", resume=True)
    assert again.step == 4


def test_the_default_distillation_suits_the_noise_and_is_saved_beside_the_run(tmp_path: Path, english: Path) -> None:
    duality.train(small_recipe(english, "training.steps=2", name="mdlm-laptop"), out=tmp_path / "base")
    few = duality.distill(tmp_path / "base", rounds=1, round_steps=1)
    assert few.recipe.name == "mdlm-laptop-sdtt"
    assert few.step == 1
    assert (tmp_path / "base-sdtt" / "recipe.json").is_file()
    with pytest.raises(ValueError, match="no distillation 'dct'"):
        duality.distill(tmp_path / "base", method="dct")
    with pytest.raises(ValueError, match=r"SDTT\.divergence is 'l2': it must be one of 'kl-backward'"):
        duality.distill(tmp_path / "base", divergence="l2", out=tmp_path / "other")  # type: ignore[arg-type]


def test_the_commit_of_a_run_is_that_of_the_source() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a repository")
    found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert _environment()["commit"] == found.stdout.strip()

"""Streamed corpora: the batches of a stream are those of its documents, whatever was interrupted, with little disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from support import jobs, session
from support.runs import ROOT, quiet, small_recipe

from duality.data.documents import read_documents
from duality.data.loader import Loader
from duality.data.stream import INDEX, StreamLoader
from duality.models.folder import STREAM
from duality.recipes import corpus as recipe_corpus
from duality.recipes.corpus import describe_corpus, make_sequences, prepare_corpus
from duality.recipes.recipe import Recipe
from duality.tokenizers.tokenizer import ByteTokenizer
from duality.training import checkpoint

KILLS = int(os.environ.get("DUALITY_TEST_KILLS", "3"))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """230 lines of different lengths."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{number} {'word ' * (number % 7)}end\n" for number in range(230)))
    return path


def streamed(path: Path, size: int, *assignments: str) -> Recipe:
    return small_recipe(path, "data.documents=lines", "data.length=8", f"data.stream={size}", *assignments)


def opened(recipe: Recipe, folder: Path) -> StreamLoader:
    found = recipe_corpus.make_loader(recipe, prepare_corpus(recipe), folder / STREAM)
    assert isinstance(found, StreamLoader)
    return found


def same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    return right is None if left is None else right is not None and torch.equal(left, right)


def blocks_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / STREAM).glob("block-*"))


@pytest.mark.parametrize("packing", ["wrap", "document"])
def test_a_stream_of_one_block_has_the_batches_of_a_corpus_that_is_not_streamed(
    packing: str, lines: Path, tmp_path: Path
) -> None:
    recipe = streamed(lines, 1000, f"data.packing={packing}", "data.padding=ignore")
    corpus = prepare_corpus(recipe)
    plain = Loader(make_sequences(recipe.data, corpus.train, corpus.tokenizer), 8, recipe.training.seed)
    with opened(recipe, tmp_path) as loader:
        for step in (0, 1, 17, 400):  # many epochs
            left, right = plain.batch(step), loader.batch(step)
            assert torch.equal(left.ids, right.ids)
            assert same(left.valid, right.valid)
    assert blocks_in(tmp_path) == []
    assert "these are the first 1,000 documents" in "\n".join(describe_corpus(recipe, corpus))


@pytest.mark.parametrize("size", [20, 33, 50])
@pytest.mark.parametrize("packing", ["wrap", "document"])
def test_one_pass_has_every_document_once_and_few_blocks_on_the_disk(
    size: int, packing: str, lines: Path, tmp_path: Path
) -> None:
    recipe = streamed(lines, size, "data.split=document", f"data.packing={packing}", "data.padding=ignore")
    corpus = prepare_corpus(recipe)
    most, seen = 0, Counter[tuple[int, ...]]()
    with opened(recipe, tmp_path) as loader:
        loader.batch(10_000)  # makes everything known
        total = sum(loader.index.sequences)
        assert loader.index.complete
    with opened(recipe, tmp_path) as loader:
        for step in range(-(-total // 8)):
            batch = loader.batch(step)
            valid = torch.ones_like(batch.ids, dtype=torch.bool) if batch.valid is None else batch.valid
            for row, own in list(zip(batch.ids, valid))[: total - step * 8]:
                seen[tuple(row[own].tolist())] += 1
            most = max(most, len(blocks_in(tmp_path)))
    assert most <= 3
    expected = Counter[tuple[int, ...]]()
    tokenizer, held_out = ByteTokenizer(), corpus.validation.num_documents
    documents = [
        [*tokenizer.encode("".join(each.pieces)).tolist(), tokenizer.separator]
        for each in read_documents(recipe.data.corpus, "lines", start=0)
    ]
    for start in range(0, len(documents), size):
        block = documents[start : start + size]
        block = block[: size - held_out] if start == 0 else block
        parts = block if packing == "document" else [[token for document in block for token in document]]
        expected.update(tuple(part[at : at + 8]) for part in parts for at in range(0, len(part), 8))
    assert seen == expected


def read_until(loader: StreamLoader, steps: int) -> None:
    for step in range(steps):
        loader.batch(step)


def test_a_step_has_the_same_batch_in_any_order_and_after_the_index_is_lost(lines: Path, tmp_path: Path) -> None:
    recipe = streamed(lines, 40)
    steps = list(range(60))
    with opened(recipe, tmp_path / "first") as loader:
        expected = [loader.batch(step).ids for step in steps]
    steps = random.Random(1).sample(steps, 20)
    for folder in (tmp_path / "first", tmp_path / "new"):
        with opened(recipe, folder) as loader:
            assert all(torch.equal(loader.batch(step).ids, expected[step]) for step in steps)
    with opened(recipe, tmp_path / "far") as loader:
        assert torch.equal(loader.batch(59).ids, expected[59])  # the blocks before it are not kept
        assert torch.equal(loader.batch(59, slice(2, 5)).ids, expected[59][2:5])
    assert len(blocks_in(tmp_path / "far")) <= 2


def test_a_block_larger_than_a_batch_or_smaller_is_the_same(lines: Path, tmp_path: Path) -> None:
    rows = []
    for size in (8, 40):
        recipe = streamed(lines, 10, "data.split=document", f"training.batch_size={size}")
        with opened(recipe, tmp_path / str(size)) as loader:
            rows.append(torch.cat([loader.batch(step).ids for step in range(400 // size)]))
    assert torch.equal(*rows)


def test_another_text_than_before_is_refused(lines: Path, tmp_path: Path) -> None:
    recipe = streamed(lines, 40)
    with opened(recipe, tmp_path) as loader:
        loader.batch(40)
    index = json.loads((tmp_path / STREAM / INDEX).read_text())
    for name in blocks_in(tmp_path):
        (tmp_path / STREAM / name).rename(tmp_path / name)
    text = lines.read_text().replace("\n100 ", "\nother ")
    corpus = prepare_corpus(recipe)
    lines.write_text(text)
    again = recipe_corpus.make_loader(recipe, corpus, tmp_path / STREAM)
    assert isinstance(again, StreamLoader)
    with again, pytest.raises(ValueError, match="has read before: restore"):
        read_until(again, 60)
    (tmp_path / STREAM / INDEX).write_text(json.dumps({**index, "checksums": ["x", *index["checksums"][1:]]}))
    with pytest.raises(ValueError, match="of another corpus than this one"):
        recipe_corpus.make_loader(recipe, corpus, tmp_path / STREAM)
    (tmp_path / STREAM / INDEX).write_text('{"sequences": [0]}')
    with pytest.raises(ValueError, match=r"blocks\.json is damaged"):
        recipe_corpus.make_loader(recipe, corpus, tmp_path / STREAM)


def test_an_error_in_a_later_document_ends_the_training_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(120)) + '{"body": "no text"}\n')
    recipe = streamed(path, 100, "data.documents=auto")
    with opened(recipe, tmp_path) as loader, pytest.raises(ValueError, match=r"bad\.jsonl, line 121: no 'text'"):
        read_until(loader, 200)
    assert blocks_in(tmp_path) == []


def test_what_cannot_be_streamed_is_refused(lines: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.stream=5 with a mixture"):
        small_recipe(lines, f"data.corpus=[{lines}:1,{ROOT}/LICENSE:1]", "data.stream=5")
    with pytest.raises(ValueError, match=r"data\.stream is -1"):
        small_recipe(lines, "data.stream=-1")


# --- the hub


def test_a_dataset_of_the_hub_is_not_kept(hub_folder: Callable[..., str], tmp_path: Path) -> None:
    spec = hub_folder(train=90, test=4)
    recipe = small_recipe(Path("x"), f"data.corpus={spec}", "data.stream=25", "data.length=8", "data.packing=document")
    corpus = prepare_corpus(recipe)
    assert corpus.train.num_documents == 25
    assert corpus.validation.num_documents == 4  # its own part
    found = [each.name for each in islice(read_documents(spec, start=30), 2)]
    assert [name.rpartition(":")[2] for name in found] == ["31", "32"]
    with opened(recipe, tmp_path) as loader:
        loader.batch(500)
        assert loader.index.complete
        assert len(loader.index.sequences) == 4
    assert not list((tmp_path / "hf").rglob("*.arrow"))


def test_a_dataset_of_the_hub_without_a_test_set_holds_out_of_its_first_documents(
    hub_folder: Callable[..., str],
) -> None:
    spec = hub_folder(train=230)
    corpus = prepare_corpus(small_recipe(Path("x"), f"data.corpus={spec}", "data.stream=100"))
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (95, 5)
    with pytest.raises(
        ValueError, match=r"has no column 'bodi': its columns are 'body', 'label'; .*did you mean body\?"
    ):
        next(read_documents(spec.replace(":body", ":bodi"), start=0))


# --- trainings


def weights(folder: Path) -> dict[str, torch.Tensor]:
    path = checkpoint.newest_intact(folder / "checkpoints", quiet)
    assert path is not None
    return dict(checkpoint.load(path, ("model",)).groups["model"])


@pytest.mark.slow
def test_a_training_that_is_killed_continues_on_the_same_stream(lines: Path, tmp_path: Path) -> None:
    recipe = streamed(lines, 12, "data.split=document", "training.steps=90", "training.save_every=4")
    session.train(recipe, tmp_path / "whole")
    settings = ["data.documents=lines", "data.length=8", "data.stream=12", "data.split=document", "training.steps=90"]
    small = (f"data.corpus={lines}", *(each for each in jobs.SMALL if not each.startswith("data.")))
    more = ["data.tokenizer=bytes", "training.warmup=4", "training.save_every=4"]
    command = [sys.executable, "-m", "duality", "train", "duo-laptop", "--out", str(tmp_path / "run"), "--resume"]
    command += ["--set", *small, *settings, *more]
    chance = random.Random(0)
    for _ in range(KILLS):
        process = subprocess.Popen(command, env={**os.environ, **jobs.SHARED}, stderr=subprocess.DEVNULL)
        known, until = blocks_in(tmp_path / "run"), time.monotonic() + 60
        while blocks_in(tmp_path / "run") in (known, []) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, env={**os.environ, **jobs.SHARED}, check=True, capture_output=True)
    assert len(blocks_in(tmp_path / "run")) <= 4
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.slow
def test_two_processes_train_on_the_stream_of_one(lines: Path, tmp_path: Path) -> None:
    settings = ["data.documents=lines", "data.stream=12", "data.split=document", "training.steps=30"]
    small = [f"data.corpus={lines}", *(each for each in jobs.SMALL if not each.startswith("data.corpus"))]
    command = ["train", "duo-laptop", "--set", *small, *settings, "--out"]
    one = jobs.run(1, [[*command, str(tmp_path / "one")]])
    two = jobs.run(2, [[*command, str(tmp_path / "two")]])
    assert (one.codes, two.codes) == ((0,), (0, 0)), two.err
    for left, right in zip(jobs.losses(tmp_path / "one"), jobs.losses(tmp_path / "two"), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    first, second = (json.loads((tmp_path / name / STREAM / INDEX).read_text()) for name in ("one", "two"))
    shared = min(len(first["checksums"]), len(second["checksums"]))
    assert shared > 5
    assert first["checksums"][:shared] == second["checksums"][:shared]

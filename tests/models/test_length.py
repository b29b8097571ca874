"""Length is modelled: a model of short documents learns to stop, samples end there, and reports say what is paid."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe

import duality
from duality.cli.main import main
from duality.data import Padding
from duality.evaluation.samples import Case
from duality.evaluation.sweep import RunSampler, held_out_text
from duality.models import sampling as writing
from duality.models.model import Model
from duality.models.requests import SampleRequest
from duality.models.sampling import _end_of_known, known_tokens, row_with_blanks
from duality.recipes import corpus as recipe_corpus
from duality.tokenizers.tokenizer import ByteTokenizer
from duality.training.metrics import read_metrics

END = ByteTokenizer.separator
DOCUMENTS = ("data.packing=document", "data.documents=lines", "data.tokenizer=characters", "data.length=8")
LONGER = ("training.steps=120", "training.batch_size=32", "training.learning_rate=1e-2", "training.ema=0.9")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words of two and four letters, one per line."""
    path = tmp_path_factory.mktemp("lines") / "words.txt.gz"
    path.write_bytes(gzip.compress(b"ab\n\ncdcd\n" * 200))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, lines: Path) -> Path:
    """A model that was trained on the words."""
    folder = tmp_path_factory.mktemp("stops") / "run"
    session.train(small_recipe(lines, *DOCUMENTS, *LONGER, name="mdlm-laptop"), folder, report=quiet)
    return folder


# --- a model learns to stop


def test_a_model_learns_to_stop(run: Path) -> None:
    """Nearly all samples are one of the two words and nothing else, and each row is ended to its last token."""
    samples = duality.load(run).sample(64, steps=16)
    words = [sample for sample in samples if sample.text in ("ab", "cdcd")]
    assert len(words) > 50
    assert {sample.text for sample in words} == {"ab", "cdcd"}
    whole = [word for word in words if word.full_text == word.text + "<|endoftext|>" * (8 - len(word.text))]
    assert len(whole) > 45


def test_it_pays_little_for_padding_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document costs about log 2, to say which of the two it is; padding is a small part of it."""
    assert main(["eval", str(run), "--json", "--draws", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_tokens"] == 10 * 3 + 10 * 5
    assert found["num_padding"] == 20 * 8 - found["num_tokens"]
    assert 0 < found["padding"] < 0.5 * found["nats_per_token"]
    assert found["nats_per_token"] < 1.0
    assert main(["eval", str(run), "--draws", "2"]) == 0
    assert "are paid for the end-of-text tokens after a document's end (80 of them)" in capsys.readouterr().out
    logged = [row for row in read_metrics(run) if "validation_nats" in row]
    assert 0 < logged[-1]["validation_padding"] < logged[-1]["validation_nats"]


def test_other_text_is_cut_into_documents_as_the_run_s_own(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("ab\nab\ncdcd\n")
    assert main(["eval", str(run), "--json", "--data", str(other)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_sequences"], found["num_tokens"], found["num_padding"]) == (3, 3 + 3 + 5, 13)


# --- what a corpus is


def prepared_summary(recipe: duality.Recipe) -> list[str]:
    lines = recipe_corpus.describe_corpus(recipe, recipe_corpus.prepare_corpus(recipe, quiet))
    return lines[:-1]  # the last one says how often the training sees it


def test_the_summary_of_a_corpus(lines: Path, novel: Path) -> None:
    assert prepared_summary(small_recipe(lines, *DOCUMENTS)) == [
        "380 lines (1,520 tokens) to train on, 20 (80 tokens) for validation",
        "a line has 4 tokens in the median, with its end-of-text; 0 are longer than a sequence of 8 and are cut into "
        "several rows",
        "what follows the end of a document, 50% of all positions, is end-of-text tokens",
    ]
    cut = prepared_summary(small_recipe(lines, *DOCUMENTS, "data.length=4"))
    assert "190 are longer than a sequence of 4 and are cut into several rows" in cut[1]
    (wrapped,) = prepared_summary(small_recipe(novel))
    assert wrapped.startswith("1 document (")


def test_short_documents_without_modelled_padding_are_warned_of(lines: Path, tmp_path: Path) -> None:
    said: list[str] = []
    recipe = small_recipe(lines, *DOCUMENTS, "data.padding=ignore", "data.length=16", "training.steps=1")
    session.train(recipe, tmp_path / "run", report=said.append)
    warnings = [line for line in said if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "the model will not learn where a document ends; set data.padding=model" in warnings[0]
    for changed in ("data.length=7", "data.padding=model"):
        assert not any("warning" in line for line in prepared_summary(small_recipe(lines, *DOCUMENTS, changed)))


def test_a_training_begins_with_its_epochs_and_the_files_that_it_does_not_read(lines: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / lines.name).write_bytes(lines.read_bytes())
    for number in range(7):
        (folder / f"picture-{number}.png").touch()
    said: list[str] = []
    recipe = small_recipe(folder, *DOCUMENTS, "training.steps=2", "training.batch_size=19")
    session.train(recipe, tmp_path / "run", report=said.append)
    assert "2 steps of 19 sequences are 0.1 epochs of the 380 sequences of 8 tokens" in said
    names = ", ".join(f"picture-{number}.png" for number in range(5))
    assert f"7 files are not read: {names}, ..." in said
    said.clear()
    session.train(small_recipe(lines, *DOCUMENTS, "training.steps=1"), tmp_path / "other", report=said.append)
    assert not any("not read" in line for line in said)


def test_tokens_are_counted_as_they_are_trained_on(lines: Path) -> None:
    recipe = small_recipe(lines, *DOCUMENTS)
    corpus = recipe_corpus.prepare_corpus(recipe, quiet)
    numbers: dict[Padding, int] = {"ignore": 380, "model": 380 * 8 - 1520 + 380}
    for padding, ends in numbers.items():
        vocabulary = recipe_corpus.count_vocabulary(replace(recipe.data, padding=padding), corpus)
        assert vocabulary.counts is not None
        assert vocabulary.counts().tolist() == [190, 190, 380, 380, ends]


def test_real_text_of_documents_is_padded_like_samples(lines: Path) -> None:
    found = held_out_text(small_recipe(lines, *DOCUMENTS), 4, 8, quiet)
    assert found is not None
    assert tuple(found.tokens.shape) == (4, 8)
    assert sorted(set(found.texts)) in (["ab"], ["ab", "cdcd"], ["cdcd"])
    ignored = held_out_text(small_recipe(lines, *DOCUMENTS, "data.padding=ignore"), 4, 8, quiet)
    assert ignored is None


# --- samples end at the first end-of-text


def scripted(row: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model write these tokens."""
    monkeypatch.setattr(writing, "generate", lambda *_, num, each, **__: each(torch.tensor([row] * num)))


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Model:
    out = tmp_path_factory.mktemp("bytes") / "run"
    return duality.train(small_recipe(english, "training.steps=1"), out=out)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "The a"),
        ({"prompt": "The "}, "The a"),
        ({"suffix": "!"}, "The a<|endoftext|>b<|endoftext|>!"),
        ({"prompt": "The ", "suffix": "!"}, "The a<|endoftext|>b<|endoftext|>!"),
    ],
    ids=["nothing known", "prompt", "suffix", "both"],
)
def test_a_sample_ends_at_the_first_end_behind_all_known_tokens(
    arguments: dict[str, str], text: str, bytes_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = [*b"The a", END, *b"b", END, *b"!"]
    scripted(row, monkeypatch)
    (sample,) = bytes_model.sample(length=len(row), **arguments)  # type: ignore[arg-type]
    assert sample.text == text
    assert sample.full_text == "The a<|endoftext|>b<|endoftext|>!"
    assert sample.tokens == row


@pytest.mark.parametrize(
    ("template", "last", "text"),
    [("A ___ of ___", b"z", "A x<|endoftext|> of y"), ("A ___ of ___.", b".", "A x<|endoftext|> of y<|endoftext|>.")],
)
def test_filled_text_keeps_what_is_known(
    template: str, last: bytes, text: str, bytes_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends in an inner blank are shown; behind the last known token the text is cut."""
    scripted([*b"A x", END, *b" of y", END, *last], monkeypatch)
    (sample,) = bytes_model.fill(template, tokens_per_blank=2)
    assert sample.text == text


def test_where_the_known_tokens_end(bytes_model: Model) -> None:
    for prompt, suffix, end in (("", "", 0), ("abc", "", 3), ("", "z", 8)):
        assert _end_of_known(known_tokens(bytes_model, SampleRequest(length=8, prompt=prompt, suffix=suffix))) == end
    assert _end_of_known(row_with_blanks(ByteTokenizer(), "a _ b _", "_", 2, lambda length: None)) == 7


def test_an_empty_sample_is_empty(bytes_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted([END, *b"abc"], monkeypatch)
    assert [sample.text for sample in bytes_model.sample(2, length=4)] == ["", ""]
    case = Case(label="x", run=Path("x"), steps=2, num=3, length=4)
    monkeypatch.setattr("duality.evaluation.sweep.load", lambda *_, **__: bytes_model)
    samples = RunSampler("cpu", quiet).sample(case, lambda _: None)
    assert samples.texts == [""] * 3
    assert samples.tokens.tolist() == [[END, *b"abc"]] * 3


def test_the_command_shows_the_rest_if_asked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for flags in ((), ("--full",), ("--json",), ("--json", "--full")):
        assert main(["sample", str(run), "--num", "3", "--steps", "8", *flags]) == 0
        shown[flags] = capsys.readouterr().out
    rows = [json.loads(line) for line in shown["--json", "--full"].splitlines()]
    tokenizer = duality.load(run).tokenizer
    for row, plain in zip(rows, map(json.loads, shown[("--json",)].splitlines()), strict=True):
        assert row["full_text"] == tokenizer.decode(row["tokens"])
        assert row["text"] == row["full_text"].partition("<|endoftext|>")[0]
        assert {key: value for key, value in row.items() if key != "full_text"} == plain
    assert "<|endoftext|>" not in shown[()]
    assert [line for line in shown[()].splitlines() if not line.startswith("---")] == [row["text"] for row in rows]
    full = [line for line in shown[("--full",)].splitlines() if not line.startswith("---")]
    assert full == [row["full_text"] for row in rows]

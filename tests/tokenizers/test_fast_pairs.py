"""Byte pairs by tiktoken: always the ids of the library, and no such encoder where they might differ."""

from __future__ import annotations

import json
import lzma
import random
import sys
from typing import Any

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from support.runs import ROOT

from duality.data import encode as encoding
from duality.data.encode import _library_rows
from duality.tokenizers import fast_pairs
from duality.tokenizers.fast_pairs import FastPairs, find_unlike
from duality.tokenizers.library import LibraryTokenizer
from duality.tokenizers.specs import BPE, Pretrained

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAIRS = BPE(700).train([README, "Ünïcödé 😀 中文 don't  \n\n stop 1234\t" * 9])


def encoder_of(tokenizer: LibraryTokenizer) -> FastPairs:
    pytest.importorskip("tiktoken", reason="tiktoken is not installed (the extra data)")
    assert tokenizer.fast is not None
    return tokenizer.fast


def same(tokenizer: LibraryTokenizer, texts: list[str]) -> None:
    for text, row in zip(texts, encoder_of(tokenizer).encode(texts), strict=True):
        assert row is not None
        assert row.dtype == np.int64
        assert row.tolist() == tokenizer.encode(text).tolist()


@given(st.lists(st.text(), max_size=4))
def test_any_text_has_the_ids_of_the_library(texts: list[str]) -> None:
    same(PAIRS, texts)
    same(PAIRS, [f"{README[:50]}{text}<|endoftext|>" for text in texts])


@given(st.text(st.sampled_from("aabct ths'e1 2\n\t.,—é中😀\u3000\u0085\u200b"), max_size=200))
def test_text_of_common_pieces(text: str) -> None:
    same(PAIRS, [text])


def test_characters_of_every_plane() -> None:
    draw = random.Random(0)
    points = [draw.randrange(0x110000) for _ in range(20_000)]
    text = "".join(chr(point) + draw.choice("a 1.") for point in points if not 0xD800 <= point < 0xE000)
    for row, part in zip(encoder_of(PAIRS).encode([text]), [text]):
        assert row is None or row.tolist() == PAIRS.encode(part).tolist()


@pytest.mark.network
def test_real_text_has_the_published_ids() -> None:
    path = ROOT.parent / "shared" / "data" / "openwebtext" / "owt_1000docs.jsonl.xz"
    if not path.is_file():
        pytest.skip("the sample of OpenWebText is not on this machine")
    try:
        gpt2 = Pretrained("gpt2").train(())
    except ValueError as error:
        pytest.skip(str(error))
    assert isinstance(gpt2, LibraryTokenizer)
    assert gpt2.kind == "bpe"
    texts = [str(json.loads(line)["text"]) for line in lzma.decompress(path.read_bytes()).decode().splitlines()]
    rows = encoder_of(gpt2).encode(texts)
    ids = np.concatenate([np.append(row, gpt2.separator) for row in rows if row is not None])
    assert np.array_equal(ids, np.fromfile(path.with_name("owt_1000docs_gpt2_uint16.bin"), dtype="<u2"))


def test_much_text_is_encoded_by_it_and_the_rest_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, texts = encoder_of(PAIRS), [README, "", "a ☃ b", README[:99]]
    expected = [PAIRS.encode(text).tolist() for text in texts]
    seen: list[str] = []

    def encode_text(text: str) -> list[int]:
        seen.append(text)
        return fast.encode_text(text)

    tokenizer = LibraryTokenizer("bpe", PAIRS.content)
    monkeypatch.setitem(vars(tokenizer), "fast", FastPairs(encode_text, frozenset("☃")))
    assert [row.tolist() for row in _library_rows(tokenizer, texts)] == expected
    assert seen == []
    monkeypatch.setattr(encoding, "FAST_CHARACTERS", 1)
    assert [row.tolist() for row in _library_rows(tokenizer, texts)] == expected
    assert sorted(seen) == sorted(text for text in texts if "☃" not in text)
    assert [row.tolist() for row in _library_rows(PAIRS, texts)] == expected


def test_a_character_that_is_classed_otherwise_is_left_to_the_library() -> None:
    fast = encoder_of(PAIRS)
    assert find_unlike(r"\p{L}", r"(?!q)\p{L}") == {"q"}
    assert find_unlike(r"[\p{L}☃]", r"\p{L}") == {"☃"}
    assert find_unlike("[0-7]", f"[0-9{chr(0x10FFFF)}]") == {"8", "9", chr(0x10FFFF)}
    other = FastPairs(fast.encode_text, find_unlike(r"\p{L}", r"(?!q)\p{L}"))
    assert [row is None for row in other.encode(["quick", "fox", ""])] == [True, False, False]


def test_a_text_that_the_engine_gives_up_on_is_left_to_the_library() -> None:
    fast = encoder_of(PAIRS)

    def fail(text: str) -> list[int]:
        raise BaseException(f"{len(text)} steps")

    assert FastPairs(fail, fast.unlike).encode(["a", "b"]) == [None, None]
    same(PAIRS, ["a" + " " * 100_000 + "\n" * 100_000, "x" * 100_000])


def changed(**changes: Any) -> LibraryTokenizer:
    """Byte pairs with another option of the model, or of the whole file."""
    content = json.loads(PAIRS.definition)["bpe"]
    for name, value in changes.items():
        (content if name in content else content["model"])[name] = value
    return LibraryTokenizer("bpe", content)


def test_pairs_that_may_give_other_ids_have_no_such_encoder() -> None:
    encoder_of(changed())
    merges = json.loads(PAIRS.definition)["bpe"]["model"]["merges"]
    assert changed(merges=[merges[1], merges[0], *merges[2:]]).fast is None  # not in the order of the ids
    assert changed(merges=merges[:-1]).fast is None  # a piece that no merge makes
    assert changed(ignore_merges=True).fast is None
    assert changed(dropout=0.1).fast is None
    assert changed(normalizer={"type": "NFC"}).fast is None
    spaced = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    assert changed(pre_tokenizer=spaced).fast is None
    assert changed(pre_tokenizer={**spaced, "add_prefix_space": False, "use_regex": False}).fast is None
    assert changed(pre_tokenizer={"type": "Whitespace"}).fast is None
    added = json.loads(PAIRS.definition)["bpe"]["added_tokens"]
    assert changed(added_tokens=[{**added[0], "special": False}]).fast is None


def test_a_piece_that_its_own_bytes_do_not_become() -> None:
    """Here "ab" is merged first, so that "abc" is never made; tiktoken would make it of "ab" and "c"."""
    pytest.importorskip("tiktoken", reason="tiktoken is not installed (the extra data)")
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<|endoftext|>", *alphabet, "ab", "bc", "abc"]
    model = library.models.BPE(
        {piece: index for index, piece in enumerate(pieces)}, [("a", "b"), ("b", "c"), ("a", "bc")]
    )
    made = library.Tokenizer(model)
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|endoftext|>"])
    tokenizer = LibraryTokenizer("bpe", json.loads(made.to_str()))
    assert len(tokenizer.encode("abc")) == 2
    assert tokenizer.fast is None


def test_without_tiktoken_the_library_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    monkeypatch.setattr(encoding, "FAST_CHARACTERS", 1)
    tokenizer = LibraryTokenizer("bpe", PAIRS.content)
    assert tokenizer.fast is None
    assert _library_rows(tokenizer, [README])[0].tolist() == tokenizer.encode(README).tolist()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"RAYON_NUM_THREADS": "3"}, 3), ({"RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "false"}, 1)],
)
def test_threads(variables: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)
    assert fast_pairs._num_threads() >= 1
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert fast_pairs._num_threads() == expected

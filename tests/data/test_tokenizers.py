"""Tokenizers: exact round trips, vocabularies without a spare id, files that bring the same tokenizer back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duality.data.tokenizer_specs import BPE, Bytes, Characters
from duality.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer, load_tokenizer

TEXTS = ["the cat sat on the mat. " * 20, "Ünïcödé 😀 and <|endoftext|> as text\n\n" * 5]
BPE_280 = BPE(280).train(TEXTS)
CHARACTERS = Characters().train(TEXTS)
ALL: list[Tokenizer] = [ByteTokenizer(), CHARACTERS, BPE_280]
ANY: list[Tokenizer] = [ByteTokenizer(), BPE_280]


@settings(deadline=None)
@given(st.text())
@pytest.mark.parametrize("tokenizer", ANY, ids=["bytes", "bpe"])
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == text
    assert tokenizer.separator not in ids
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < tokenizer.vocab_size)


@given(st.text(alphabet=CHARACTERS.alphabet))
def test_text_of_the_alphabet_comes_back(text: str) -> None:
    ids = CHARACTERS.encode(text)
    assert len(ids) == len(text)
    assert CHARACTERS.decode(ids) == text


@pytest.mark.parametrize("tokenizer", ALL, ids=["bytes", "characters", "bpe"])
def test_every_id_is_a_state_of_text_or_the_separator(tokenizer: Tokenizer) -> None:
    shown = [tokenizer.decode([index]) for index in range(tokenizer.vocab_size)]
    assert all(shown)
    assert shown[tokenizer.separator] == "<|endoftext|>"
    with pytest.raises(ValueError, match=f"id {tokenizer.vocab_size} at position 1 is outside the vocabulary"):
        tokenizer.decode([0, tokenizer.vocab_size])
    with pytest.raises(ValueError, match="id -1 at position 0"):
        tokenizer.decode([-1])


@pytest.mark.parametrize("tokenizer", ALL, ids=["bytes", "characters", "bpe"])
def test_a_text_cannot_hold_a_separator(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|endoftext|>")
    assert len(ids) > 1
    assert tokenizer.separator not in ids
    assert tokenizer.decode(ids) == "<|endoftext|>"


@pytest.mark.parametrize("tokenizer", ALL, ids=["bytes", "characters", "bpe"])
def test_documents_are_shown_apart(tokenizer: Tokenizer) -> None:
    end = [tokenizer.separator]
    row = np.concatenate([tokenizer.encode("the cat"), end, end, tokenizer.encode("sat"), end])
    assert tokenizer.decode(row) == "the cat<|endoftext|><|endoftext|>sat<|endoftext|>"
    assert tokenizer.decode(torch.from_numpy(row)) == tokenizer.decode(row)
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("tokenizer", ALL, ids=["bytes", "characters", "bpe"])
@pytest.mark.parametrize("ids", [[[1, 2]], [0.5]])
def test_only_one_row_of_integers_is_decoded(tokenizer: Tokenizer, ids: list[Any]) -> None:
    with pytest.raises(ValueError, match="decode takes one row of integers; got"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", ALL, ids=["bytes", "characters", "bpe"])
def test_a_saved_tokenizer_comes_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "new" / "folder")
    loaded = load_tokenizer(tmp_path / "new" / "folder")
    assert loaded == tokenizer
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode("the cat").tolist() == tokenizer.encode("the cat").tolist()
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["tokenizer.json"]


def test_fingerprints_tell_tokenizers_apart() -> None:
    others: list[Tokenizer] = [Characters().train(["ab"]), BPE(281).train(TEXTS), BPE(280).train(TEXTS[:1])]
    assert len({tokenizer.fingerprint for tokenizer in [*ALL, *others]}) == 6


def test_sizes() -> None:
    assert (ByteTokenizer().vocab_size, ByteTokenizer().separator) == (257, 256)
    assert (CharTokenizer("abc").vocab_size, CharTokenizer("abc").separator) == (4, 3)
    assert (BPE_280.vocab_size, BPE_280.separator) == (280, 0)
    assert BPE(4000).train(["tiny"]).vocab_size == 257


def test_half_characters_are_replaced() -> None:
    for tokenizer in ANY:
        assert tokenizer.decode(tokenizer.encode("é")[:1]) == "\ufffd"


@pytest.mark.parametrize("tokenizer", ANY, ids=["bytes", "bpe"])
def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="half a surrogate pair at position 2"):
        tokenizer.encode("ab\ud800")


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(ValueError, match=r"'ß' at position 4 .* use the tokenizer Bytes or BPE, or .*extra='ßŽ'"):
        CHARACTERS.encode("the ßŽ")
    wider = Characters(extra="Žß").train(TEXTS)
    assert wider.decode(wider.encode("ßŽ")) == "ßŽ"


def test_what_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match=r"at least 257 .* got 256: raise it, or use Bytes"):
        BPE(256)
    with pytest.raises(ValueError, match="training text is empty"):
        Characters().train([])
    with pytest.raises(ValueError, match="must be sorted"):
        CharTokenizer("ba")
    assert Bytes().train([]) == ByteTokenizer()


def test_bpe_training_gives_the_same_file_in_another_process() -> None:
    program = (
        "import json, sys; from duality.data.tokenizer_specs import BPE; "
        "print(BPE(400).train(json.loads(sys.stdin.read())).fingerprint)"
    )
    words = [f"{first}{second}" for first in "abcdefgh" for second in "stuvwxyz"]
    texts = [" ".join(words), " ".join(reversed(words))] * 2  # all pairs equally frequent: ties everywhere
    expected = BPE(400).train(texts).fingerprint
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    result = subprocess.run(
        command, input=json.dumps(texts), env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == expected


def test_files_that_hold_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    for content, problem in (
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"kind": "characters"}', "is damaged"),
        ('{"kind": "words"}', "unknown kind 'words'; known are bytes, characters, bpe"),
    ):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ValueError, match=problem):
            load_tokenizer(tmp_path)


def test_a_tokenizer_prints_short() -> None:
    assert len(repr(BPETokenizer(BPE_280.definition))) < 100

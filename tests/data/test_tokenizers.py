"""Tokenizers: exact round trips, vocabularies without unused ids, files that load as the same tokenizer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from duality.data import TOKENIZERS
from duality.data.tokenizer_specs import BPE, Bytes, Characters, Numbers, Pretrained, TokenizerSpec
from duality.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    NumberTokenizer,
    Tokenizer,
    load_tokenizer,
)

TEXTS = ["the cat sat on the mat. " * 20, "Ünïcödé 😀 and <|endoftext|> as text\n\n" * 5]
BPE_280 = BPE(280).train(TEXTS)
CHARACTERS = Characters().train(TEXTS)
NUMBERS = Numbers(300).train([])
ALL: dict[str, Tokenizer] = {"bytes": ByteTokenizer(), "characters": CHARACTERS, "bpe": BPE_280, "numbers": NUMBERS}
ANY: list[Tokenizer] = [ByteTokenizer(), BPE_280]

# Texts with an exact round trip, and two examples of them.
NUMBER_TEXTS = st.lists(st.integers(0, 299)).map(lambda ids: " ".join(map(str, ids)))
ENCODABLE = {"bytes": st.text(), "characters": st.text(CHARACTERS.alphabet), "bpe": st.text(), "numbers": NUMBER_TEXTS}
EXAMPLES = {name: ("3 14", "15") if name == "numbers" else ("the cat", "sat") for name in ALL}

every_tokenizer = pytest.mark.parametrize("name", ALL)


def test_every_registered_tokenizer_needs_no_arguments() -> None:
    made = {name: entry() for name, entry in TOKENIZERS.items()}
    assert all(isinstance(spec, TokenizerSpec) for spec in made.values())
    assert made["numbers"] == Numbers(256)
    assert [name for name, spec in made.items() if not isinstance(spec, Pretrained)] == list(ALL)


@given(data=st.data())
@every_tokenizer
def test_text_has_an_exact_round_trip(name: str, data: st.DataObject) -> None:
    tokenizer, text = ALL[name], data.draw(ENCODABLE[name])
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == text
    assert tokenizer.separator not in ids
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < tokenizer.vocab_size)


@given(st.text(alphabet=CHARACTERS.alphabet))
def test_a_character_is_an_id(text: str) -> None:
    assert len(CHARACTERS.encode(text)) == len(text)


@given(data=st.data(), num_values=st.integers(1, (1 << 32) - 1))
def test_numbers_are_the_ids(data: st.DataObject, num_values: int) -> None:
    tokenizer = Numbers(num_values).train([])
    ids = data.draw(st.lists(st.integers(0, num_values - 1)))
    text = " ".join(map(str, ids))
    assert tokenizer.encode(text).tolist() == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("\n" + "\t\n ".join(f"00{index}" for index in ids)).tolist() == ids
    assert (tokenizer.vocab_size, tokenizer.separator) == (num_values + 1, num_values)


@pytest.mark.parametrize("word", ["x", "-1", "+1", "1.0", "1_0", "0x1", "٣", "²", "<|endoftext|>", "1<|endoftext|>"])
def test_a_word_that_is_no_number_is_named(word: str) -> None:
    problem = f"the word {word!r} at position 2 is no number; the tokens are whole numbers from 0 to 299, separated"
    with pytest.raises(ValueError, match=f"{re.escape(problem)}.* use another tokenizer, such as Bytes or BPE"):
        NUMBERS.encode(f"3 14 {word} 15")


@pytest.mark.parametrize("word", ["300", "0300", "4294967296", "9" * 24])
def test_a_number_outside_the_vocabulary_is_named(word: str) -> None:
    with pytest.raises(
        ValueError, match=f"the word '{word}' at position 1 is too large; .* from 0 to 299, .* raise the"
    ):
        NUMBERS.encode(f"299 {word}")


def test_a_very_long_word_is_shown_in_part() -> None:
    with pytest.raises(ValueError, match=r"the word '9{20}\.\.\.' at position 0 is too large"):
        NUMBERS.encode("9" * 10_000)
    assert NUMBERS.encode("0" * 10_000 + "7").tolist() == [7]


@pytest.mark.parametrize("wrong", [0, -3, 1 << 32])
def test_an_impossible_number_of_values(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 4294967295 values; got {wrong}: give the largest id"):
        Numbers(wrong)


@every_tokenizer
def test_every_id_is_a_state_of_text_or_the_separator(name: str) -> None:
    tokenizer = ALL[name]
    shown = [tokenizer.decode([index]) for index in range(tokenizer.vocab_size)]
    assert all(shown)
    assert shown[tokenizer.separator] == "<|endoftext|>"
    with pytest.raises(ValueError, match=f"id {tokenizer.vocab_size} at position 1 is outside the vocabulary"):
        tokenizer.decode([0, tokenizer.vocab_size])
    with pytest.raises(ValueError, match="id -1 at position 0"):
        tokenizer.decode([-1])


@pytest.mark.parametrize("name", [name for name in ALL if name != "numbers"])  # for which a separator is not a number
def test_a_text_cannot_hold_a_separator(name: str) -> None:
    tokenizer = ALL[name]
    ids = tokenizer.encode("<|endoftext|>")
    assert len(ids) > 1
    assert tokenizer.separator not in ids
    assert tokenizer.decode(ids) == "<|endoftext|>"


@every_tokenizer
def test_the_separator_is_visible_between_documents(name: str) -> None:
    tokenizer, (first, second) = ALL[name], EXAMPLES[name]
    end = [tokenizer.separator]
    row = np.concatenate([tokenizer.encode(first), end, end, tokenizer.encode(second), end])
    assert tokenizer.decode(row) == f"{first}<|endoftext|><|endoftext|>{second}<|endoftext|>"
    assert tokenizer.decode(torch.from_numpy(row)) == tokenizer.decode(row)
    assert tokenizer.decode([]) == ""


@every_tokenizer
@pytest.mark.parametrize("ids", [[[1, 2]], [0.5]])
def test_only_one_row_of_integers_is_decoded(name: str, ids: list[Any]) -> None:
    with pytest.raises(ValueError, match="decode takes one row of integers; got"):
        ALL[name].decode(ids)


@every_tokenizer
def test_a_saved_tokenizer_is_loaded_unchanged(name: str, tmp_path: Path) -> None:
    tokenizer, (text, _) = ALL[name], EXAMPLES[name]
    tokenizer.save(tmp_path / "new" / "folder")
    loaded = load_tokenizer(tmp_path / "new" / "folder")
    assert loaded == tokenizer
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["tokenizer.json"]


def test_different_tokenizers_have_different_fingerprints() -> None:
    others: list[Tokenizer] = [Characters().train(["ab"]), BPE(281).train(TEXTS), BPE(280).train(TEXTS[:1])]
    others.append(Numbers(301).train([]))
    assert len({tokenizer.fingerprint for tokenizer in [*ALL.values(), *others]}) == 8


def test_sizes() -> None:
    assert (ByteTokenizer().vocab_size, ByteTokenizer().separator) == (257, 256)
    assert (CharTokenizer("abc").vocab_size, CharTokenizer("abc").separator) == (4, 3)
    assert (BPE_280.vocab_size, BPE_280.separator) == (280, 0)
    assert (NumberTokenizer(300).vocab_size, NumberTokenizer(300).separator) == (301, 300)
    assert BPE(4000).train(["tiny"]).vocab_size == 257


def test_incomplete_characters_are_replaced() -> None:
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


def test_training_that_is_refused() -> None:
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


def test_files_that_contain_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    for content, problem in (
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"kind": "characters"}', "is damaged"),
        ('{"kind": "numbers", "num_values": "3"}', "is damaged"),
        ('{"kind": "numbers", "num_values": 0}', "is damaged"),
        ('{"kind": "words"}', "unknown kind 'words'; known are bytes, characters, bpe, wordpiece, numbers"),
    ):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ValueError, match=problem):
            load_tokenizer(tmp_path)


def test_the_repr_of_a_tokenizer_is_short() -> None:
    assert len(repr(BPETokenizer(BPE_280.definition))) < 100

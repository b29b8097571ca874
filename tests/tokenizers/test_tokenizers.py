"""Tokenizers: exact round trips, vocabularies without unused ids, files that load as the same tokenizer."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.runs import ROOT

from duality.data.named import fetch
from duality.tokenizers import TOKENIZERS
from duality.tokenizers.library import LibraryTokenizer, _short_words, load_tokenizer
from duality.tokenizers.specs import (
    BPE,
    FROM_FILES,
    Bytes,
    Characters,
    Nucleotides,
    Numbers,
    Pretrained,
    Smiles,
    Text8,
    TokenizerSpec,
)
from duality.tokenizers.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    NucleotideTokenizer,
    NumberTokenizer,
    SmilesTokenizer,
    Text8Tokenizer,
    Tokenizer,
    text_before_end,
)

TEXTS = ["the cat sat on the mat. " * 20, "Ünïcödé 😀 and <|endoftext|> as text\n\n" * 5]
BPE_280 = BPE(280).train(TEXTS)
CHARACTERS = Characters().train(TEXTS)
NUMBERS = Numbers(300).train([])
MOLECULES = ["CC(C)O", "c1ccccc1Br", "C[C@@H](N)C(=O)O", "[Na+].[Cl-]", "C%10CCl"]
SMILES = Smiles().train(MOLECULES)
ALL: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "characters": CHARACTERS,
    "bpe": BPE_280,
    "numbers": NUMBERS,
    "text8": Text8().train([]),
    "smiles": SMILES,
    "nucleotides": Nucleotides().train([]),
}
ANY: list[Tokenizer] = [ByteTokenizer(), BPE_280]

# Texts with an exact round trip, and two examples of them.
NUMBER_TEXTS = st.lists(st.integers(0, 299)).map(lambda ids: " ".join(map(str, ids)))
ENCODABLE = {
    "bytes": st.text(),
    "characters": st.text(CHARACTERS.alphabet),
    "bpe": st.text(),
    "numbers": NUMBER_TEXTS,
    "text8": st.text("abcdefghijklmnopqrstuvwxyz "),
    "smiles": st.lists(st.sampled_from(SMILES.tokens)).map("".join),
    "nucleotides": st.text("ACGTN"),
}
WORDS_OF = {"numbers": ("3 14", "15"), "smiles": ("CC(C)O", "[Na+]"), "nucleotides": ("ACGT", "NNA")}
EXAMPLES = {name: WORDS_OF.get(name, ("the cat", "sat")) for name in ALL}

every_tokenizer = pytest.mark.parametrize("name", ALL)
every_separator = pytest.mark.parametrize("name", [name for name in ALL if name != "text8"])

# Of the version before there were others: runs and prepared corpora of older versions are read by them.
FINGERPRINTS = {
    "bytes": "1b5ec18e75637aa79a17040f88dbca7b2350d25f5eb340eb20c5ac2015d04072",
    "characters": "bc0a4777a95bff1f3819b40c177b03398484f59161ba3591ffccfc9309681546",
    "bpe": "4eb64e522fa72a4e889c1e4c240c0af802d90fb932163a2e0b78895499d94d4d",
    "numbers": "99988065bce82e7a97839aeeeb4450bdbb70a75dad5fd310f88a3c570db1c555",
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_fingerprints_of_older_versions_stay(name: str) -> None:
    assert ALL[name].fingerprint == FINGERPRINTS[name]


def test_every_registered_tokenizer_needs_no_arguments() -> None:
    made = {name: entry() for name, entry in TOKENIZERS.items()}
    assert all(isinstance(spec, TokenizerSpec) for spec in made.values())
    assert made["numbers"] == Numbers(256)
    assert [name for name, spec in made.items() if not isinstance(spec, (Pretrained, *FROM_FILES))] == list(ALL)


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
    assert [index for index, text in enumerate(shown) if text == "<|endoftext|>"] == (
        [] if tokenizer.separator is None else [tokenizer.separator]
    )
    with pytest.raises(ValueError, match=f"id {tokenizer.vocab_size} at position 1 is outside the vocabulary"):
        tokenizer.decode([0, tokenizer.vocab_size])
    with pytest.raises(ValueError, match="id -1 at position 0"):
        tokenizer.decode([-1])


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe"])  # the others refuse these characters
def test_a_text_cannot_hold_a_separator(name: str) -> None:
    tokenizer = ALL[name]
    ids = tokenizer.encode("<|endoftext|>")
    assert len(ids) > 1
    assert tokenizer.separator not in ids
    assert tokenizer.decode(ids) == "<|endoftext|>"


@every_separator
def test_the_separator_is_visible_between_documents(name: str) -> None:
    tokenizer, (first, second) = ALL[name], EXAMPLES[name]
    assert tokenizer.separator is not None
    end = [tokenizer.separator]
    row = np.concatenate([tokenizer.encode(first), end, end, tokenizer.encode(second), end])
    assert tokenizer.decode(row) == f"{first}<|endoftext|><|endoftext|>{second}<|endoftext|>"
    assert tokenizer.decode(torch.from_numpy(row)) == tokenizer.decode(row)
    assert tokenizer.decode([]) == ""
    assert text_before_end(tokenizer, row) == first
    assert text_before_end(tokenizer, row, len(tokenizer.encode(first)) + 1) == f"{first}<|endoftext|>"


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
    others += [Numbers(301).train([]), Smiles(extra="[nH]").train(MOLECULES)]
    assert len({tokenizer.fingerprint for tokenizer in [*ALL.values(), *others]}) == len(ALL) + 5
    assert Smiles().train(reversed(MOLECULES)).fingerprint == SMILES.fingerprint


def test_sizes() -> None:
    assert (ByteTokenizer().vocab_size, ByteTokenizer().separator) == (257, 256)
    assert (CharTokenizer("abc").vocab_size, CharTokenizer("abc").separator) == (4, 3)
    assert (BPE_280.vocab_size, BPE_280.separator) == (280, 0)
    assert (NumberTokenizer(300).vocab_size, NumberTokenizer(300).separator) == (301, 300)
    assert BPE(4000).train(["tiny"]).vocab_size == 257
    assert (Text8Tokenizer().vocab_size, Text8Tokenizer().separator) == (27, None)
    assert (NucleotideTokenizer().vocab_size, NucleotideTokenizer().separator) == (6, 5)
    assert (SMILES.vocab_size, SMILES.separator) == (len(SMILES.tokens) + 1, len(SMILES.tokens))
    specs: list[TokenizerSpec] = [Text8(), Nucleotides()]
    assert [spec.expected_vocab_size for spec in specs] == [spec.train([]).vocab_size for spec in specs]


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
        "import json, sys; from duality.tokenizers.specs import BPE; "
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
        ('{"kind": "words"}', "unknown kind 'words'; known are bytes, characters, bpe, wordpiece, numbers, text8"),
        ('{"kind": "smiles", "tokens": ["C", "B"]}', "is damaged"),
        ('{"kind": "smiles", "tokens": ["CC"]}', "is damaged"),
        ('{"kind": "smiles", "tokens": [1]}', "is damaged"),
        ('{"kind": "smiles"}', "is damaged"),
        ('{"kind": "library", "library": {}}', "is damaged"),
    ):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ValueError, match=problem):
            load_tokenizer(tmp_path)


def test_the_repr_of_a_tokenizer_is_short() -> None:
    assert len(repr(BPE_280)) < 100


def without_a_longest_word(texts: Iterable[str], vocab_size: int) -> LibraryTokenizer:
    """The tokenizer as it was trained before long words were cut: by the library's own rule of words."""
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(iter(texts), trainer=trainer)
    return LibraryTokenizer("bpe", json.loads(model.to_str()))


def test_ordinary_text_gives_the_tokenizer_that_it_gave_before_long_words_were_cut(english: Path) -> None:
    sources = sorted((*ROOT.glob("docs/*.md"), *ROOT.glob("src/duality/data/*.py"), english))
    texts = [path.read_text(encoding="utf-8") for path in sources]
    assert sum(map(len, texts)) > 200_000
    assert BPE(2048).train(texts) == without_a_longest_word(texts, 2048)
    # trained by an earlier version
    fingerprint = "4cbcba2ada8f8911aea7c8ade7e26ba579a0df0b48072754bce0e51470aa4721"
    assert BPE(512).train([english.read_text(encoding="utf-8")]).fingerprint == fingerprint


@pytest.mark.network
def test_the_books_give_the_tokenizer_that_they_gave_before_long_words_were_cut() -> None:
    try:
        files = fetch("austen")
    except ValueError as error:
        pytest.skip(str(error))
    texts = [path.read_text(encoding="utf-8") for path in files]
    trained = BPE(2048).train(texts)
    assert trained == without_a_longest_word(texts, 2048)
    assert trained.fingerprint == "fb30121f53231e7163e506c92ddedb16463f22593824009c07e7268251ecd930"


WORDS = st.text(st.sampled_from("ab1 2\n\t.,'s—é中文\u3000"), max_size=60)


@given(WORDS)
def test_short_words_are_those_of_the_library(text: str) -> None:
    before = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert _short_words().pre_tokenize_str(text) == before.pre_tokenize_str(text)


@given(text=WORDS, longest=st.integers(1, 9))
def test_a_long_word_is_cut_and_nothing_is_lost(text: str, longest: int) -> None:
    words = _short_words(longest).pre_tokenize_str(text)
    assert "".join(text[start:stop] for _, (start, stop) in words) == text
    assert all(stop - start <= longest + 1 for _, (start, stop) in words)  # one more for the space before it


@pytest.mark.parametrize(
    "characters", ["".join(chr(0x4E00 + number) for number in range(500)), "ACGT", "ACDEFGHIKLMNPQRSTVWY"]
)
def test_text_without_spaces_trains_on_short_words_and_encodes_as_a_whole(characters: str) -> None:
    """Chinese, DNA, proteins: training took time in the square of the length, 133 s for 100 000 Chinese characters."""
    draw = random.Random(0)
    text = "".join(draw.choices(characters, k=30_000))
    assert max(stop - start for _, (start, stop) in _short_words().pre_tokenize_str(text)) <= 256
    tokenizer = BPE(600).train([text])
    assert tokenizer.vocab_size == 600
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode()) / 1.5
    # words are not cut when a text is encoded: the ids are those of the library for the whole text
    assert ids.tolist() == tokenizer.library.encode(text, add_special_tokens=False).ids


def test_text8_has_no_separator_to_cut_at() -> None:
    tokenizer = Text8Tokenizer()
    row = tokenizer.encode("a cat ")
    assert row.tolist() == [0, 26, 2, 0, 19, 26]
    assert text_before_end(tokenizer, row) == text_before_end(tokenizer, row, 3) == "a cat "


@given(text=st.text(), place=st.integers(0, 5))
def test_text8_names_what_it_has_no_symbol_for(text: str, place: int) -> None:
    wrong = next((character for character in text if character not in "abcdefghijklmnopqrstuvwxyz "), None)
    if wrong is None:
        text, wrong = f"{text}É", "É"
    place += text.index(wrong)
    with pytest.raises(ValueError, match=f"^the character {re.escape(repr(wrong))} at position {place} is not one of"):
        Text8Tokenizer().encode("x" * (place - text.index(wrong)) + text)


def test_soft_masked_and_ambiguous_nucleotides() -> None:
    tokenizer = NucleotideTokenizer()
    assert tokenizer.encode("ACGTNacgtn").tolist() == [0, 1, 2, 3, 4] * 2
    assert tokenizer.decode(tokenizer.encode("acRYSWKMBDHVryswkmbdhv")) == "AC" + "N" * 20


@pytest.mark.parametrize(
    ("character", "remedy"),
    [("U", "write T for U"), ("u", "write T for U"), ("\n", "data.documents=lines"), ("-", "Bytes"), ("é", "Bytes")],
)
def test_what_is_no_nucleotide_is_named(character: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"^the character {re.escape(repr(character))} at position 4 .*{remedy}"):
        NucleotideTokenizer().encode(f"ACGT{character}AX")


def test_the_tokens_of_molecules() -> None:
    shown = [SMILES.tokens[index] for index in SMILES.encode("C[C@@H](Br)C%10.[Na+]Cl")]
    assert shown == ["C", "[C@@H]", "(", "Br", ")", "C", "%10", ".", "[Na+]", "Cl"]
    assert list(SMILES.tokens) == sorted(SMILES.tokens)
    assert "l" not in SMILES.tokens


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("CCP[nH]P", "the token 'P' at position 2 is not among .*extra='P.nH.'"),
        ("C%11", "the token '%11' at position 1 is not among"),
        ("CC\nO", r"the character '\\n' at position 2 .* data.documents=lines"),
        ("C[Na", r"the character '\[' at position 1 is no part of a SMILES; .* Bytes"),
        ("C%1C", "the character '%' at position 1"),
        ("CX", "the character 'X' at position 1"),
        ("Cé", "the character 'é' at position 1"),
    ],
)
def test_what_a_molecule_cannot_have_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SMILES.encode(text)


def test_extra_tokens_of_molecules() -> None:
    wider = Smiles(extra="[nH]P%11").train(MOLECULES)
    assert set(wider.tokens) == {*SMILES.tokens, "[nH]", "P", "%11"}
    assert wider.decode(wider.encode("CCP[nH]P")) == "CCP[nH]P"
    with pytest.raises(ValueError, match="'X' at position 0 is no part of a SMILES"):
        Smiles(extra="X")
    with pytest.raises(ValueError, match="training text is empty"):
        Smiles().train([])
    with pytest.raises(ValueError, match="'CC' is no token of SMILES"):
        SmilesTokenizer(("CC",))
    with pytest.raises(ValueError, match="must be sorted"):
        SmilesTokenizer(("O", "C"))

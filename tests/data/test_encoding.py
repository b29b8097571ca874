"""Encoding in parallel: the same ids whatever the sizes of parts and batches and however many threads."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import ROOT

from duality.data import encode as encoding
from duality.data import survey
from duality.data.corpus import encode_corpus, prepare
from duality.data.documents import Document
from duality.data.encode import _encode_documents, _group, cut_at_borders, write_store
from duality.data.packing import Sequences
from duality.files import progress
from duality.tokenizers.specs import BPE, Characters, Numbers
from duality.tokenizers.tokenizer import ByteTokenizer, Text8Tokenizer, Tokenizer

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BPE_300 = BPE(300).train(["aa bb ab. ab ba  aa\n\nbb a'b 'ab aa bb\t ab \n ba é é é😀😀   \n\n\n"] * 3)
SPACED = st.text(alphabet="ab \n\t\x1cé'😀.", max_size=80)


def ids_of(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int], Counter[str]]:
    """All ids, the ends of the documents, and the counts."""
    count, ends = Counter[str](), io.BytesIO()
    documents = [Document(f"text {number}", (text,)) for number, text in enumerate(texts)]
    blocks = list(_encode_documents(documents, tokenizer, count, ends))
    ids = np.concatenate(blocks).tolist() if blocks else []
    return ids, np.frombuffer(ends.getvalue(), dtype="<i8").tolist(), count


def one_by_one(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The ids of each text encoded as a whole, each with a separator behind it."""
    return [index for text in texts for index in (*tokenizer.encode(text).tolist(), tokenizer.separator)]


@given(texts=st.lists(SPACED, max_size=5), part=st.integers(1, 30), batch=st.integers(1, 60))
def test_the_ids_do_not_depend_on_parts_and_batches(texts: list[str], part: int, batch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "PART_CHARACTERS", part)
        patch.setattr(encoding, "BATCH_CHARACTERS", batch)
        ids, ends, count = ids_of(texts, BPE_300)
    assert ids == one_by_one(texts, BPE_300)
    assert ends == [place + 1 for place, index in enumerate(ids) if index == BPE_300.separator]
    assert (count["tokens"], count["documents"]) == (len(ids), len(texts))
    assert count["characters"] == sum(map(len, texts))
    assert count["bytes"] == sum(len(text.encode()) for text in texts)


@given(text=SPACED, size=st.integers(1, 30))
def test_the_parts_of_a_text_join_to_it(text: str, size: int) -> None:
    parts = list(cut_at_borders(text, size))
    assert "".join(parts) == text
    assert all(len(part) >= size for part in parts[:-1])


def test_other_tokenizers_are_given_whole_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer of which nothing is known may join characters across any border."""
    monkeypatch.setattr(encoding, "PART_CHARACTERS", 3)
    seen: list[str] = []

    class Listening(ByteTokenizer):
        def encode(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            seen.append(text)
            return super().encode(text)

    texts = ["one two three", "four five"]
    assert ids_of(texts, Listening())[0] == one_by_one(texts, ByteTokenizer())
    assert seen == texts


@pytest.mark.parametrize(
    "setting", [{"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "5"}, {"TOKENIZERS_PARALLELISM": "false"}]
)
def test_the_ids_and_the_tokenizer_do_not_depend_on_the_number_of_threads(
    setting: dict[str, str], tmp_path: Path
) -> None:
    program = """
import sys
from pathlib import Path
from duality.data import encode
from duality.data.corpus import prepare
from duality.tokenizers.specs import BPE
encode.PART_CHARACTERS = 500
made = prepare(sys.argv[1], BPE(400), cache=Path(sys.argv[2]))
print(made.tokenizer.fingerprint, made.train.shards[0].sha256, made.validation.shards[0].sha256)
"""
    path = tmp_path / "a.txt"
    path.write_text(TEXT * 3, encoding="utf-8")
    made = prepare(path, BPE(400), cache=tmp_path / "here")
    environment = {**os.environ, **setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "there")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    shards = [store.shards[0].sha256 for store in (made.train, made.validation)]
    assert found == [made.tokenizer.fingerprint, *shards]


def test_an_error_in_a_batch_names_its_document_and_place() -> None:
    with pytest.raises(ValueError, match="text 1, after character 0: the word 'x' at position 1 is no number"):
        ids_of(["1 2", "3 x"], Numbers(9).train([]))
    with pytest.raises(ValueError, match="text 1, after character 0: half a surrogate pair at position 1"):
        ids_of(["ok", "a\ud800"], BPE_300)


def test_encoding_reports_the_bytes_that_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 40_000)
    path = tmp_path / "a.txt"
    path.write_text("Some words of text, é.\n" * 5000, encoding="utf-8")  # 120 000 bytes
    messages: list[str] = []
    made = prepare(path, BPE(300), cache=tmp_path / "cache", progress=messages.append)
    shown = [message.split(",")[0] for message in messages if message.startswith("encoding: ")]
    assert shown[-1] == "encoding: 0.1 of 0.1 MB (100 %)"
    assert len(shown) >= 2
    assert all(" tokens/s, " in message for message in messages if message.startswith("encoding: "))
    assert "training the tokenizer: 0.1 of 0.1 MB (100 %), 0:00 left" in messages
    assert made.train.num_bytes + made.validation.num_bytes == path.stat().st_size
    messages.clear()
    encode_corpus(path, ByteTokenizer(), cache=tmp_path / "cache", progress=messages.append)
    assert messages[-1].startswith("encoding: 0.1 of 0.1 MB (100 %)")


def test_a_large_corpus_gives_a_sample_to_the_pairs_and_all_of_it_to_an_alphabet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "SAMPLE_BYTES", 40_000)
    monkeypatch.setattr(survey, "PART_CHARACTERS", 100)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"word{number % 700} is number {number}.\n" for number in range(8000)))
    messages: list[str] = []
    sampled = prepare(path, BPE(400), cache=tmp_path / "cache", progress=messages.append)
    size = path.stat().st_size
    assert f"the tokenizer is trained on a sample: 0 of {size / 1e6:,.0f} MB, evenly spread over the text" in messages
    monkeypatch.setattr(survey, "SAMPLE_BYTES", size)
    whole = prepare(path, BPE(400), cache=tmp_path / "other")
    assert sampled.tokenizer != whole.tokenizer
    assert sampled.tokenizer.decode(sampled.train[:]) == whole.tokenizer.decode(whole.train[:])
    monkeypatch.setattr(survey, "SAMPLE_BYTES", 10)
    assert prepare(path, Characters(), cache=tmp_path / "cache").tokenizer.vocab_size > 20


def test_a_sample_is_spread_evenly_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "PART_CHARACTERS", 10)
    texts = [f"{number:04d} " * 20 for number in range(200)]
    monkeypatch.setattr(survey, "SAMPLE_BYTES", 5_000)
    size = survey.survey([Document("", texts)], False)
    assert size.sample_shares == (0.25, 0.25)
    sample = "".join(size.sample(texts))
    assert sample == "".join(size.sample(iter(texts)))
    assert 0.24 < len(sample) / sum(map(len, texts)) < 0.26
    quarters = [sum(1 for word in sample.split() if int(word) // 50 == quarter) for quarter in range(4)]
    assert max(quarters) - min(quarters) <= 5


def test_of_text_without_spaces_a_smaller_sample_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are all different, so the trainer has more work with it; ordinary text beside it is kept whole."""
    monkeypatch.setattr(survey, "PART_CHARACTERS", 100)
    monkeypatch.setattr(survey, "UNBROKEN_BYTES", 3_000)
    ordinary, unbroken = ["some words " * 30] * 10, [" " + "中" * 300] * 10
    mixed = [text for pair in zip(ordinary, unbroken) for text in pair]
    size = survey.survey([Document("", mixed)], False)
    assert (size.num_bytes, size.num_unbroken) == (10 * 330 + 10 * 901, 9000)
    assert size.sample_shares == (1.0, 3000 / 9000)
    assert size.sample_bytes == 10 * 330 + 10 + 3000
    sample = "".join(size.sample(mixed))
    assert sample.count("some words ") == 300
    assert sample.count("中") == 4 * 300
    few = survey.survey([Document("", mixed[:6])], False)
    assert few.sample_shares == (1.0, 1.0)
    assert few.sample_bytes == few.num_bytes
    assert survey.survey([Document("", ["w" * 256 + " " + "x" * 257])], False).num_unbroken == 257


def test_documents_without_a_separator() -> None:
    """Their ends are known from the file of ends alone; a document may be empty."""
    texts = ["abc", "", "de"]
    documents = [Document(f"text {number}", (text,)) for number, text in enumerate(texts)]
    count, ends = Counter[str](), io.BytesIO()
    blocks = list(_encode_documents(documents, ByteTokenizer(), count, ends, eos=False))
    assert np.concatenate(blocks).tolist() == list(b"abcde")
    assert np.frombuffer(ends.getvalue(), dtype="<i8").tolist() == [3, 3, 5]
    assert [count[name] for name in ("tokens", "documents", "characters")] == [5, 3, 5]


def test_a_tokenizer_without_a_separator_ends_no_document(tmp_path: Path) -> None:
    documents = [Document("first", ("a cat",)), Document("second", ("",)), Document("third", ("sat",))]
    problem = "has 27 ids and none to end a document with: set data.eos=false, or use a tokenizer that has one"
    with pytest.raises(ValueError, match=problem):
        write_store(tmp_path / "store", documents, Text8Tokenizer())
    store = write_store(tmp_path / "store", documents, Text8Tokenizer(), eos=False)
    assert (store.vocab_size, len(store), store.num_documents) == (27, 8, 3)
    rows = Sequences(store, 4, "document")
    ids, valid = rows.rows(range(len(rows)))
    shown = [Text8Tokenizer().decode(row[mask].numpy()) for row, mask in zip(ids, valid)]
    assert shown == ["a ca", "t", "sat"]
    with pytest.raises(
        ValueError, match=r"got None: .* if the tokenizer has none, use padding='ignore' \(data\.padding"
    ):
        Sequences(store, 4, "document", "model", Text8Tokenizer().separator)


def test_pieces_are_joined_up_to_a_limit() -> None:
    assert list(_group(["a", "b", "cd", "e"], len, 3)) == [["a", "b", "cd"], ["e"]]
    assert list(_group([], len, 3)) == []

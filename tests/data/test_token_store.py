"""The token store: one sequence of ids for any shards, complete or absent, with damage detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duality.data import encode
from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.store import TokenStore
from duality.files.atomic import atomic_folder, file_sha256
from duality.tokenizers.specs import BPE
from duality.tokenizers.tokenizer import ByteTokenizer, Tokenizer

MakeStore = Callable[..., TokenStore]


def expected_ids(texts: list[str]) -> list[int]:
    """The ids that a byte store of the texts must contain."""
    return [token for text in texts for token in [*text.encode("utf-8"), 256]]


@settings(deadline=None, max_examples=50)
@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=6).filter(any),
    shard_tokens=st.integers(1, 30),
    data=st.data(),
)
def test_slices_do_not_depend_on_shards(texts: list[str], shard_tokens: int, data: st.DataObject) -> None:
    expected = expected_ids(texts)
    with tempfile.TemporaryDirectory() as folder:
        documents = [Document("", (text[:3], text[3:])) for text in texts]
        store = write_store(Path(folder) / "s", documents, ByteTokenizer(), shard_tokens=shard_tokens)
        store.verify()
        assert len(store) == len(expected)
        assert store[:].tolist() == expected
        for _ in range(5):
            start, stop = (data.draw(st.integers(-len(expected) - 2, len(expected) + 2)) for _ in range(2))
            assert store[start:stop].tolist() == expected[start:stop]
        assert len(store.shards) == -(-len(expected) // shard_tokens)
        ends = np.cumsum([len(text.encode("utf-8")) + 1 for text in texts])
        assert store.document_ends.tolist() == ends.tolist()
        assert (store.num_documents, store.num_characters) == (len(texts), sum(map(len, texts)))
        assert store.num_bytes == len("".join(texts).encode("utf-8"))


def test_a_store_opened_again_is_the_same(make_store: MakeStore) -> None:
    store = make_store(["one", "two"], shard_tokens=3)
    again = TokenStore.open(str(store.folder))
    assert again == store
    assert again[:].tolist() == store[:].tolist()
    assert again.tokenizer == ByteTokenizer().fingerprint
    assert again.vocab_size == 257


@dataclass(frozen=True)
class Wide(Tokenizer):
    """A tokenizer with a given number of ids; every text is encoded as the last id."""

    num_ids: int
    given_id: int | None = None
    kind = "wide"
    separator = 0

    @property
    def vocab_size(self) -> int:
        return self.num_ids

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The last id, or the given one."""
        return np.full(len(text), self.vocab_size - 1 if self.given_id is None else self.given_id)

    def read(self, ids: npt.NDArray[np.int64]) -> str:
        raise NotImplementedError


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_the_largest_id_fits(vocab_size: int, dtype: str, tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", [Document("", ("ab",))], Wide(vocab_size))
    assert store.dtype == dtype
    assert store[:].tolist() == [vocab_size - 1, vocab_size - 1, 0]


@pytest.mark.parametrize("wrong", [-1, 10, 1 << 16])
def test_an_id_outside_the_vocabulary_is_not_written(wrong: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tale, after character 0: the tokenizer gave an id outside"):
        write_store(tmp_path / "s", [Document("tale", ("ab",))], Wide(10, given_id=wrong))
    assert list(tmp_path.iterdir()) == []


def test_bpe_decodes_to_the_documents(tmp_path: Path) -> None:
    tokenizer = BPE(300).train(["the cat sat on the mat " * 9])
    store = write_store(tmp_path / "s", [Document("", ("the cat", " sat")), Document("", ("a mat",))], tokenizer)
    assert tokenizer.decode(store[:]) == "the cat sat<|endoftext|>a mat<|endoftext|>"


@pytest.mark.parametrize("documents", [[], [Document("", ())], [Document("", ("",))]])
def test_no_text_is_an_error(documents: list[Document], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no text in the {len(documents)} document"):
        write_store(tmp_path / "s", documents, ByteTokenizer())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_alone(make_store: MakeStore) -> None:
    store = make_store(["one"])
    with pytest.raises(ValueError, match="exists already"):
        write_store(store.folder, [Document("", ("two",))], ByteTokenizer())
    assert ByteTokenizer().decode(store[:]) == "one<|endoftext|>"


def test_wrong_arguments(make_store: MakeStore) -> None:
    with pytest.raises(ValueError, match="shard_tokens must be at least 1; got 0"):
        make_store(["a"], shard_tokens=0)
    with pytest.raises(ValueError, match="slices of step 1"):
        make_store(["abc"])[::2]


@pytest.mark.parametrize("name", ["shard-00001.bin", "documents.bin"])
def test_a_truncated_or_missing_file_is_found_on_opening(name: str, make_store: MakeStore) -> None:
    path = make_store(["some text", "and more"], shard_tokens=8).folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{name} is damaged: 15 bytes, not 16; delete the folder"):
        TokenStore.open(path.parent)
    path.unlink()
    with pytest.raises(ValueError, match=f"{name} is damaged: 0 bytes, not 16"):
        TokenStore.open(path.parent)


@pytest.mark.parametrize("name", ["shard-00001.bin", "documents.bin"])
def test_a_changed_bit_is_found_by_verifying(name: str, make_store: MakeStore) -> None:
    store = make_store(["some text", "and more"], shard_tokens=8)
    data = bytearray((store.folder / name).read_bytes())
    data[5] ^= 1
    (store.folder / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} is damaged: its sha256 has changed"):
        TokenStore.open(store.folder).verify()


def test_a_damaged_index(make_store: MakeStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no token store: it has no index\.json"):
        TokenStore.open(tmp_path)
    path = make_store(["text"]).folder / "index.json"
    content = json.loads(path.read_text())
    for wrong, problem in (
        ("{", "is damaged"),
        ("[]", "is damaged"),
        (json.dumps({**content, "shards": [{}]}), "is damaged"),
        (json.dumps({key: value for key, value in content.items() if key != "dtype"}), "is damaged"),
        ("[" * 100_000, "is damaged"),
        (json.dumps({**content, "dtype": "object"}), "is damaged"),
        (json.dumps({**content, "num_documents": "1"}), "is damaged"),
        (json.dumps({**content, "num_tokens": 1 << 60}), "is damaged"),
        (json.dumps({**content, "shards": [{**content["shards"][0], "name": "../shard-00000.bin"}]}), "is damaged"),
        (json.dumps({**content, "format": 99}), "has the format 99, not 2"),
    ):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=problem):
            TokenStore.open(path.parent)


def test_a_killed_writer_leaves_nothing_that_could_be_opened(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from duality.data.documents import Document
from duality.tokenizers.tokenizer import ByteTokenizer
from duality.data.encode import write_store
def documents():
    for name in ("one", "two", "three"):  # each is more than is encoded at a time; the next two are read meanwhile
        yield Document(name, ("some text " * 250_000,))
    assert any(Path(sys.argv[1]).rglob("shard-00003.bin"))
    os._exit(9)
write_store(Path(sys.argv[1]) / "store", documents(), ByteTokenizer(), shard_tokens=500_000)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=False)
    assert result.returncode == 9
    assert not (tmp_path / "store").exists()
    assert [path.name[:15] for path in tmp_path.iterdir()] == [".partial-store."]
    store = write_store(tmp_path / "store", [Document("", ("whole",))], ByteTokenizer())
    assert ByteTokenizer().decode(store[:]) == "whole<|endoftext|>"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_failing_writer_leaves_nothing(tmp_path: Path) -> None:
    def documents() -> Iterator[Document]:
        yield Document("one", ("some text",))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "store", documents(), ByteTokenizer(), shard_tokens=2)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_differs_from_its_index_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(path: Path) -> str:
        sha256 = file_sha256(path)
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
        return sha256

    monkeypatch.setattr(encode, "file_sha256", damage)
    with pytest.raises(ValueError, match=r"shard-00000\.bin is damaged: its sha256 has changed"):
        write_store(tmp_path / "store", [Document("", ("whole",))], ByteTokenizer())
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_the_first_store_is_kept(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "x") as slow:
        (slow / "by").write_text("slow")
        with atomic_folder(tmp_path / "x") as quick:
            (quick / "by").write_text("quick")
    assert (tmp_path / "x" / "by").read_text() == "quick"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]

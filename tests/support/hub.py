"""A small Hugging Face hub on loopback, in the words of the real one's interface as far as models need it.

The client is the real `huggingface_hub`. This hub takes all files in the commit itself ("regular" uploads): its storage
of large files (LFS, Xet), which other servers do for the real one, is left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_a-token-of-the-test"

Files = dict[str, bytes]


@dataclass
class Repository:
    """A model: its branches, and the files of its commits."""

    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Files] = field(default_factory=dict)

    def commit(self, branch: str, changes: Files) -> str:
        """Add files to a branch; the name of the new commit."""
        files = {**self.files(branch), **changes}
        digest = hashlib.sha1(repr((sorted(files.items()), len(self.commits))).encode()).hexdigest()
        self.commits[digest], self.branches[branch] = files, digest
        return digest

    def files(self, revision: str) -> Files:
        """The files of a branch or a commit."""
        return self.commits.get(self.branches.get(revision, revision), {})


@dataclass
class Hub:
    """The models of a hub, and the requests that it was asked."""

    models: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""

    def add(self, name: str, files: Files, branch: str = "main") -> str:
        """Add files to a model without a client; the name of the commit."""
        return self.models.setdefault(name, Repository()).commit(branch, files)


class Answers(BaseHTTPRequestHandler):
    """Answers to the requests of the client."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Requests are kept, not printed."""

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def respond(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            body = b"".join(self.chunks())
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        parts = "revision|tree|preupload|commit|branch|resolve"
        found = re.fullmatch(rf"(?:/api/models)?/([^/]+/[^/]+?)(?:/({parts})/(.*))?", path)
        model = None if found is None else self.hub.models.get(found[1])
        if found is None or model is None or (model.private and not self.known()):
            return self.error(404 if self.known() else 401, "RepoNotFound")
        return self.about(model, found[1], found[2], found[3] or "", body)

    def about(self, model: Repository, name: str, part: str | None, rest: str, body: bytes) -> None:
        """An answer about one model."""
        revision, _, file = rest.partition("/")
        if part in ("commit", "preupload", "branch") and not self.known():
            return self.error(401, "")
        if part == "branch":
            model.branches.setdefault(rest, model.branches.get("main", ""))
            return self.json({})
        if part == "preupload":
            asked = json.loads(body)["files"]
            modes = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in asked]
            return self.json({"files": modes})
        if part == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            files = {line["value"]["path"]: line["value"]["content"] for line in lines if line["key"] == "file"}
            commit = model.commit(revision, {path: base64.b64decode(content) for path, content in files.items()})
            url = f"{self.hub.endpoint}/{name}/commit/{commit}"
            return self.json({"success": True, "commitUrl": url, "commitOid": commit, "hookOutput": ""})
        commit = model.branches.get(revision or "main", revision)
        if commit not in model.commits and part is not None:
            return self.error(404, "RevisionNotFound")
        files = model.files(commit)
        if part == "tree":
            rows = files.items()
            return self.json(
                [{"type": "file", "path": path, "size": len(data), "oid": oid(data)} for path, data in rows]
            )
        if part == "resolve":
            return self.file(files.get(file), commit)
        siblings = [{"rfilename": path} for path in files]
        return self.json({"id": name, "sha": commit, "private": model.private, "siblings": siblings})

    def create(self, asked: dict[str, object]) -> None:
        """Make a model."""
        if not self.known():
            return self.error(401, "")
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.hub.models:
            return self.send(409, json.dumps({"url": f"{self.hub.endpoint}/{name}"}).encode(), {})
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.hub.models[name] = Repository(private=private)
        self.hub.models[name].commit("main", {".gitattributes": b""})
        return self.json({"url": f"{self.hub.endpoint}/{name}", "name": name})

    def known(self) -> bool:
        """Whether the client has shown the token."""
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def file(self, data: bytes | None, commit: str) -> None:
        """A file of a commit."""
        if data is None:
            return self.error(404, "EntryNotFound")
        return self.send(200, data, {"X-Repo-Commit": commit, "ETag": f'"{oid(data)}"'})

    def json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def error(self, status: int, code: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code, "Content-Type": "application/json"})

    def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def chunks(self) -> Iterator[bytes]:
        """The body of a request that comes in parts."""
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()


def oid(data: bytes) -> str:
    """The name of a file's content in git."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def described(data: bytes) -> dict[str, object]:
    """Size and name of a file's content."""
    return {"size": len(data), "oid": oid(data)}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers for the duration of a ``with`` block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Answers,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path, *, token: str | None = TOKEN, offline: bool = False
) -> None:
    """Point this process's client at a hub.

    The client reads HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE when it is imported, which another test may have done: so
    what it has read is replaced. A test in a process of its own sets the variables themselves.
    """
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
    else:
        monkeypatch.setenv("HF_TOKEN", token)

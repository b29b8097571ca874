"""Folders of the hub: fetched from a server on this machine, found again without it; every failure is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.released import HF_CONFIG, numbers_folder, prefixed, reference_tensors, write_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TRY = """
import sys
from duality.hub.fetch import fetch_folder
for name in sys.argv[1:]:
    owner, _, revision = name.partition("@")
    try:
        print(sorted(path.name for path in fetch_folder(owner, revision or None).iterdir()))
    except ValueError as error:
        print(error)
print("torch" in sys.modules)
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs: one model, owner/duo, at one commit."""

    files: dict[str, bytes]

    def log_message(self, *_arguments: object) -> None: ...

    def answer(self, content: bytes, **headers: str) -> None:
        self.send_response(404 if "X_Error_Code" in headers else 200)
        for name, value in {**headers, "Content_Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"] and parts[2:4] == ["owner", "duo"]:
            if parts[4:] == ["tree", COMMIT]:
                tree = [
                    {"type": "file", "path": name, "size": len(each), "oid": "0" * 40}
                    for name, each in self.files.items()
                ]
                self.answer(json.dumps(tree).encode(), Content_Type="application/json")
            elif parts[4:] in ([], ["revision", "main"], ["revision", COMMIT]):
                siblings = [{"rfilename": name} for name in self.files]
                about = {"id": "owner/duo", "sha": COMMIT, "siblings": siblings}
                self.answer(json.dumps(about).encode(), Content_Type="application/json")
            else:
                self.answer(b"{}", X_Error_Code="RevisionNotFound")
        elif parts[:3] == ["owner", "duo", "resolve"]:
            self.answer(self.files[parts[4]], ETag=f'"{parts[4]}"', X_Repo_Commit=COMMIT)
        else:
            self.answer(b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub(golden: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a hub with one model, whose folder has a program too."""
    folder = write_folder(tmp_path / "model", prefixed(reference_tensors(golden)), HF_CONFIG)
    Hub.files = {path.name: path.read_bytes() for path in folder.iterdir()} | {"modeling.py": b"raise SystemExit"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asked(home: Path, *names: str, **environment: str) -> list[str]:
    """What a new process says to these names; the library reads its settings when it is imported."""
    settings = {**os.environ, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", **environment}
    settings = {name: value for name, value in settings.items() if value}
    found = subprocess.run(
        [sys.executable, "-c", TRY, *names], env=settings, capture_output=True, text=True, check=True
    )
    *lines, torch_loaded = found.stdout.splitlines()
    assert torch_loaded == "False"
    return lines


@pytest.mark.slow
def test_a_folder_is_fetched_kept_and_found(hub: str, tmp_path: Path) -> None:
    home, whole = tmp_path / "home", "['config.json', 'model.safetensors']"  # programs are not fetched
    fetched, absent, revision, name = asked(
        home, "owner/duo", "owner/nothing", "owner/duo@v9", "a/b/c", HF_ENDPOINT=hub, HF_HUB_OFFLINE=""
    )
    assert fetched == whole
    assert absent.startswith("the model owner/nothing of the Hugging Face hub does not exist, or is private")
    assert revision.startswith("the model owner/duo of the Hugging Face hub at v9 does not have this revision")
    assert name == "hf:a/b/c names no model of the Hugging Face hub: write hf:OWNER/NAME"
    again, offline = asked(home, "owner/duo", "owner/other", HF_ENDPOINT=hub, HF_HUB_OFFLINE="1")
    assert again == whole
    assert "owner/other of the Hugging Face hub is not in the cache, and HF_HUB_OFFLINE is set" in offline
    nowhere = "http://127.0.0.1:9"  # where nothing answers
    again, unreachable = asked(home, "owner/duo", "owner/other", HF_ENDPOINT=nowhere, HF_HUB_OFFLINE="")
    assert again == whole
    assert "owner/other of the Hugging Face hub cannot be had" in unreachable
    assert "look at the network" in unreachable


@pytest.mark.slow
def test_a_model_of_the_hub_is_imported_or_refused_in_one_line(hub: str, tmp_path: Path) -> None:
    tokenizer = str(numbers_folder(tmp_path / "numbers"))
    settings = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub, "NO_PROXY": "127.0.0.1"}
    settings.pop("HF_HUB_OFFLINE", None)
    script = (
        "import sys; from duality.cli.main import main\n"
        "print(*(main(['import', f'hf:owner/{name}', '--out', f'{sys.argv[1]}/{name}', '--tokenizer', sys.argv[2]])"
        " for name in ('duo', 'nothing')))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "runs"), tokenizer]
    found = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "0 2"
    assert found.stderr.splitlines()[-1].startswith(
        "duality: error: the model owner/nothing of the Hugging Face hub does not exist"
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["duo"]
    recipe = json.loads((tmp_path / "runs" / "duo" / "recipe.json").read_text())
    assert recipe["source"] == "imported from hf:owner/duo"

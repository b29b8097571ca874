"""A studio in a process of its own with runs that train in seconds, and a real browser that looks at it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from support import session
from support.runs import small_recipe

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Tokens of a model that would do harm if a page took them for markup.
MARKUP = ("<script>document.title='broken'</script>", "<img/src=x/onerror=document.title='broken'>", "</textarea>")
WORDS = (*MARKUP, "&lt;b&gt;", "the", "cat", "sat", "on", "a", "mat.")


def browser_program() -> str:
    """A Chromium; a test without one is skipped."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install 'diffusion-duality[dev]'")
    pytest.importorskip("starlette", reason="the studio is not installed: pip install 'diffusion-duality[studio]'")
    found = [path for path in map(shutil.which, PROGRAMS) if path]
    if not found:
        pytest.skip("there is no Chromium: `make browser` installs it where it may")
    return found[0]


@dataclass(frozen=True)
class Running:
    """A studio that answers at ``address``; its runs are in ``folder``/runs, and it was started in ``folder``."""

    address: str
    folder: Path

    def get(self, path: str) -> Any:
        """What it answers to GET."""
        with urllib.request.urlopen(self.address + path.lstrip("/"), timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, object]) -> bytes:
        """What it answers to POST."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.address + path.lstrip("/"), json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def events(self, body: dict[str, object]) -> list[dict[str, Any]]:
        """The events of a generation."""
        text = self.post("/api/generate", {**body, "stream": True}).decode("utf-8")
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def word_tokenizer(path: Path) -> Path:
    """A tokenizer of whole words, some of which are markup."""
    ids = {word: index for index, word in enumerate(("[UNK]", "<|endoftext|>", *WORDS))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(path))
    return path


def train_runs(folder: Path) -> None:
    """A Duo, an MDLM and an autoregressive run whose tokens are words; the first has written samples at two steps."""
    corpus = folder / "words.txt"
    corpus.write_text(" ".join(WORDS[(i * 7 + i // 5) % len(WORDS)] for i in range(6000)), encoding="utf-8")
    tokenizer = word_tokenizer(folder / "tokenizer.json")
    words = ("data.length=24", f"data.tokenizer={tokenizer}", "training.steps=4")
    session.train(small_recipe(corpus, *words, "training.eval_every=2", "generation.steps=8"), folder / "runs" / "duo")
    for name in ("mdlm", "ar"):
        session.train(small_recipe(corpus, *words, name=f"{name}-laptop"), folder / "runs" / name)


@contextmanager
def serving(folder: Path) -> Iterator[Running]:
    """A studio in a process of its own."""
    command = [sys.executable, "-m", "duality", "studio", "runs", "--port", "0", "--judge", "runs/ar"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"the studio is at (http://\S+)", line):
                    yield Running(found.group(1), folder)
                    break
            else:
                pytest.fail(f"the studio did not start: {said}")
        finally:
            process.terminate()
            process.wait(30)

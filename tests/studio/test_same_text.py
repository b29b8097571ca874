"""A text of the studio is that of the library and of the command line with the same settings."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.studio import Json, Served, asked, studio_of

from duality.cli.main import main
from duality.models.model import load
from duality.studio.app import Studio, make_application
from duality.studio.library import Library
from duality.studio.schemas import Limits
from duality.studio.server import LOOPBACK

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("duo", {"steps": 3, "seed": 7, "num": 2}),
    "own settings": ("duo", {}),
    "prompt": ("duo", {"steps": 3, "prompt": "The ", "suffix": ".", "length": 20, "temperature": 0.7123456789}),
    "filters": ("mdlm", {"steps": 3, "top_p": 0.9, "tail": "greedy", "length": 12, "sampler": "ancestral"}),
    "psi": ("duo", {"steps": 4, "sampler": "psi-constant", "eta": 0.3, "grid": "cosine", "tail": "posterior"}),
    "kept": ("mdlm", {"steps": 2, "length": 9, "keep": [[0, 65], [8, 66]], "seed": 2**63 - 1}),
    "white": ("duo", {"steps": 2, "length": 9, "prompt": " \n", "suffix": "  "}),
    "dashes": ("ar", {"length": 12, "prompt": "--debug", "num": 2}),
    "quotes": ("duo", {"steps": 2, "prompt": 'it\'s $HOME `x` "y" \\ é\t', "length": 30}),
    "score": ("sedd-uniform", {"steps": 3, "length": 10}),
    "gaussian": ("plaid", {"steps": 2, "length": 10}),
}


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> list[Json]:
    """What a `duality sample` command prints."""
    capsys.readouterr()
    assert main([*shlex.split(command)[1:], "--device", "cpu", "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_generation_is_that_of_the_command_line(
    server: Served, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, settings = CASES[name]
    plain = server.post("/api/generate", {"run": run, **settings}).json
    stream = server.post("/api/generate", {"run": run, **settings, "stream": True, "alternatives": 3}).events
    rows = printed(plain["command"], capsys)
    ends = [event for event in stream if event["type"] == "end"]
    assert [each["tokens"] for each in plain["samples"]] == [row["tokens"] for row in rows]
    assert [each["text"] for each in plain["samples"]] == [row["text"] for row in rows]
    assert [each["tokens"] for each in ends] == [row["tokens"] for row in rows]
    assert stream[0]["type"] == "start"
    assert stream[0]["command"] == plain["command"]
    assert stream[-1]["type"] == "done"
    last = {event["sample"]: event["tokens"] for event in stream if event["type"] == "step"}
    assert [last[each["index"]] for each in ends] == [each["tokens"] for each in ends]


def test_filling_in_is_that_of_the_command_line(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"run": "duo", "text": "The ___ sat on _ ___.", "tokens_per_blank": 3, "steps": 3, "seed": 5, "num": 2}
    found = server.post("/api/fill", settings).json
    rows = printed(found["command"], capsys)
    assert [each["tokens"] for each in found["samples"]] == [row["tokens"] for row in rows]
    assert [each["text"] for each in found["samples"]] == [row["text"] for row in rows]
    assert all(each["text"].startswith("The ") and each["text"].endswith(".") for each in found["samples"])


def test_a_completion_is_that_of_the_command_line(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"model": "duo", "prompt": "The ", "max_tokens": 9, "n": 3, "seed": 4, "top_p": 0.9, "steps": 4}
    found = server.post("/v1/completions", settings).json
    rows = printed(found["command"], capsys)
    assert [each["text"] for each in found["choices"]] == [row["text"].removeprefix("The ") for row in rows]


@pytest.mark.slow
def test_the_command_prints_the_text_in_a_real_shell(server: Served) -> None:
    prompt = '-- it\'s "a" $HOME\n`ls` \\n é: '
    found = server.post("/api/generate", {"run": "duo", "steps": 2, "prompt": prompt, "length": 60}).json
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONIOENCODING": "utf-8"}
    shown = subprocess.run(
        ["sh", "-c", f"{found['command']} --json"], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert json.loads(shown)["text"] == found["samples"][0]["text"]
    assert json.loads(shown)["tokens"] == found["samples"][0]["tokens"]


def test_a_run_that_goes_on_is_named_with_its_step(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command is that of the weights that wrote the text, not of those that come later."""
    shutil.copytree(shelf / "duo", tmp_path / "longer")
    recipe = json.loads((tmp_path / "longer" / "recipe.json").read_text())
    recipe["training"]["steps"] = 99
    (tmp_path / "longer" / "recipe.json").write_text(json.dumps(recipe))
    body = json.dumps({"run": "longer", "steps": 2}).encode()
    found = asked(make_application(studio_of(tmp_path), LOOPBACK), "POST", "/api/generate", body).json
    assert found["command"].endswith(" --step 2")
    assert printed(found["command"], capsys)[0]["tokens"] == found["samples"][0]["tokens"]


def test_the_surprisal_is_that_of_the_library(server: Served) -> None:
    found = server.post("/api/likelihood", {"run": "mdlm", "text": "The cat.", "draws": 5, "seed": 3}).json
    own = load(server.studio.library.find_run("mdlm"), device="cpu").surprisal("The cat.", num_draws=5, seed=3)
    assert [each["token"] for each in found["tokens"]] == [each.token for each in own]
    assert [each["nats"] for each in found["tokens"]] == [round(each.nats, 4) for each in own]
    assert "".join(each["text"] for each in found["tokens"]) == "The cat."
    assert found["kind"] == "bound"


def test_what_is_not_known_is_null(server: Served) -> None:
    """The standard error of one draw is infinite, for which JSON has no word."""
    found = server.post("/api/likelihood", {"run": "duo", "text": "ab", "draws": 1}).json
    assert [each["stderr"] for each in found["tokens"]] == [None, None]


@pytest.mark.slow
def test_a_model_alone_writes_as_its_run_does(shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `duality publish` wrote is shown like a run, with its recipe and a command of its own."""
    load(shelf / "duo", device="cpu").save_pretrained(tmp_path / "published")
    library = Library([shelf, tmp_path / "published"], Limits(), "cpu")
    assert (library.folders, list(library.models)) == ([shelf], [tmp_path / "published"])
    app = make_application(Studio(library), LOOPBACK)
    rows = {row["id"]: row for row in asked(app, "GET", "/api/runs").json["runs"]}
    assert (rows["published"]["state"], rows["published"]["method"], len(rows)) == ("published", "Duo", 6)
    recipes = [asked(app, "GET", f"/api/runs/{name}/recipe").json for name in ("duo", "published")]
    assert recipes[0]["method"] == recipes[1]["method"]
    assert asked(app, "GET", "/api/runs/published/metrics").json == {"rows": []}
    body = {"steps": 3, "length": 10, "seed": 5}
    found = [
        asked(app, "POST", "/api/generate", json.dumps({**body, "run": run}).encode()).json
        for run in ("duo", "published")
    ]
    assert found[0]["samples"][0]["tokens"] == found[1]["samples"][0]["tokens"]
    assert printed(found[1]["command"], capsys)[0]["tokens"] == found[1]["samples"][0]["tokens"]

"""What the description of the interface says is what is answered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.studio import Json, Served, asked, studio_of

from duality.studio.app import _describe_interface, make_application
from duality.studio.schemas import Limits
from duality.studio.server import LOOPBACK

jsonschema = pytest.importorskip("jsonschema")

PAGE = {"/"}
REQUESTS: dict[str, dict[str, Any]] = {
    "/api/generate": {"run": "duo", "steps": 2, "num": 2, "length": 8},
    "/api/fill": {"run": "mdlm", "text": "a ___ b", "steps": 2},
    "/api/likelihood": {"run": "ar", "text": "The cat"},
    "/v1/completions": {"model": "ar", "prompt": "The", "max_tokens": 4, "logprobs": 1},
}
VALUES: list[Json] = [[{}], {"a": 1}, "\ud800", -1, 1e300, 10**400, True, "x" * 30_000, -0.5, "nonsense\x00"]


def schema_of(operation: Json, status: int) -> Json:
    """The schema of an answer with this status."""
    answers = operation["responses"]
    found = answers.get(str(status)) or answers[f"{status // 100}XX"]
    return found["content"]["application/json"]["schema"]


def test_every_route_is_described(shelf: Path) -> None:
    studio = studio_of(shelf)
    made = {(route.path.replace(":path", ""), method) for route in studio.routes() for method in route.methods or ()}
    paths = _describe_interface()["paths"]
    assert isinstance(paths, dict)
    told = {(path, method.upper()) for path, operations in paths.items() for method in operations}
    assert {entry for entry in made if entry[1] != "HEAD" and entry[0].startswith(("/api/", "/v1/"))} == told
    assert "/" in {path for path, _ in made}


def test_every_answer_is_as_described(server: Served) -> None:
    paths = server.get("/api/openapi.json").json["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            body = REQUESTS.get(path, {}) if method == "post" else None
            found = server.send(method.upper(), path.replace("{run}", "duo"), body)
            assert found.status == (400 if path == "/api/judge" else 200), (path, found.body)
            jsonschema.validate(found.json, schema_of(operation, found.status))
            if method == "post":
                form = operation["requestBody"]["content"]["application/json"]["schema"]
                jsonschema.Draft202012Validator.check_schema(form)
                jsonschema.validate(body, form) if body else None
                wrongs: list[Json] = [{}, [], {**REQUESTS.get(path, {}), "nonsense": 1}, {"run": 3, "text": 3}]
                for wrong in wrongs:
                    refused = server.post(path, wrong)
                    assert refused.status == 400
                    jsonschema.validate(refused.json, schema_of(operation, 400))


@pytest.mark.parametrize("path", REQUESTS)
def test_what_the_form_forbids_is_refused(server: Served, path: str) -> None:
    """For every field: a value of another type, and what is beyond each limit."""
    form = server.get("/api/openapi.json").json["paths"][path]["post"]["requestBody"]["content"]
    properties = form["application/json"]["schema"]["properties"]
    for name, about in properties.items():
        if name == "user":
            continue
        for value in VALUES:
            if not jsonschema.Draft202012Validator(about).is_valid(value):
                found = server.post(path, {**REQUESTS[path], name: value})
                assert found.status == 400, (name, value)
                assert name in found.message
                assert "\n" not in found.message
                assert len(found.message) < 700


def test_the_log_of_a_run(shelf: Path, tmp_path: Path) -> None:
    """Only what is new; in parts, if it is much; and what is appended while the studio runs."""
    shutil.copytree(shelf / "duo", tmp_path / "duo")
    log = tmp_path / "duo" / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": step // 2, "note": step}) + "\n" for step in range(20)))
    app = make_application(studio_of(tmp_path), LOOPBACK)
    assert len(asked(app, "GET", "/api/runs/duo/metrics").json["rows"]) == 20
    assert [row["note"] for row in asked(app, "GET", "/api/runs/duo/metrics?after=8").json["rows"]] == [18, 19]
    with log.open("a") as file:
        file.write('{"step": 10, "loss": 1e999, "phase": "x"}\n{"step": 1')
    assert asked(app, "GET", "/api/runs/duo/metrics?after=9").json["rows"] == [{"step": 10, "loss": None, "phase": "x"}]
    few = make_application(studio_of(tmp_path, Limits(rows=3)), LOOPBACK)
    assert [row["note"] for row in asked(few, "GET", "/api/runs/duo/metrics").json["rows"]] == [0, 1, 2, 3]
    for after in ("x", "-2", "1.5", "9" * 30, "%00", "²"):
        assert asked(app, "GET", f"/api/runs/duo/metrics?after={after}").status == 400


def test_the_operator(server: Served) -> None:
    found = server.get("/api/operator?states=2").json
    assert found["discrete"][0] == 0
    assert found["discrete"][-1] == 1
    assert found["discrete"] == sorted(found["discrete"])
    for states in ("1", "0", "-3", "x", str(1 << 40)):
        assert server.get(f"/api/operator?states={states}").status == 400
    assert server.get("/api/operator?states=1048576").status == 200


def test_two_runs_of_one_name(shelf: Path, tmp_path: Path) -> None:
    """A run keeps the id that it was first shown with, also if another one of that name appears."""
    shutil.copytree(shelf / "duo", tmp_path / "x" / "demo")
    library = studio_of(tmp_path).library
    assert list(library.find_runs()) == ["demo"]
    shutil.copytree(shelf / "duo", tmp_path / "y" / "demo")
    assert {name: folder.parent.name for name, folder in library.find_runs().items()} == {"demo": "x", "y/demo": "y"}

"""Clients that leave, read slowly or send slowly; runs that are deleted, damaged or trained; a studio that is full."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.types import Message
from support import session
from support.runs import small_recipe
from support.studio import Served, posted, served, studio_of, until

from duality.studio.generation import Check, Emit
from duality.studio.queues import Queues, _Job
from duality.studio.schemas import Cancelled, Limits, Refusal

LONG = {"run": "duo", "steps": 4000, "length": 64, "stream": True}


def threads() -> int:
    return sum(thread.name.startswith("model ") for thread in threading.enumerate())


def idle(server: Served) -> Callable[[], bool]:
    """Whether a request is answered at once: the model is free."""
    return lambda: server.post("/api/generate", {"run": "duo", "steps": 1, "length": 2}, seconds=5).status == 200


@pytest.mark.slow
def test_clients_that_leave_end_their_work(server: Served) -> None:
    """Each of them asks for minutes of work; the lone request afterwards is answered at once."""
    assert idle(server)()
    for number in range(20):
        connection = server.raw(posted("/api/generate", {**LONG, "stream": number % 2 == 0}))
        if number % 4 == 0:
            assert connection.recv(100)
        connection.close()
    until(idle(server))
    until(lambda: threads() == 0)
    assert server.get("/api/health").json["waiting"] == 0
    gc.collect()
    assert sum(type(each) is _Job for each in gc.get_objects()) <= 2


def test_a_likelihood_ends_too_when_its_client_leaves(server: Served) -> None:
    body = {"run": "duo", "text": "word " * 3000, "draws": 256}
    connection = server.raw(posted("/api/likelihood", body))
    until(lambda: server.studio.queues.count_waiting() == 0)
    connection.close()
    until(idle(server))


def test_a_full_queue(shelf: Path) -> None:
    with served(studio_of(shelf, Limits(queue=2))) as server:
        held = server.raw(posted("/api/generate", LONG))
        assert held.recv(10)  # its work has begun
        waiting = [server.raw(posted("/api/generate", LONG)) for _ in range(2)]
        until(lambda: server.studio.queues.count_waiting() == 2)
        found = server.post("/api/generate", LONG)
        assert found.status == 429
        assert "2 requests are waiting" in found.message
        assert found.headers["retry-after"] == "2"
        assert server.get("/api/runs").status == 200
        for each in (held, *waiting):
            each.close()
        until(idle(server))


def test_limits_of_time(shelf: Path) -> None:
    with served(studio_of(shelf, Limits(seconds=0.2, body_seconds=0.3))) as server:
        found = server.post("/api/generate", {**LONG, "stream": False})
        assert found.status == 503
        assert "took too long" in found.message
        found = server.post("/api/likelihood", {"run": "duo", "text": "word " * 3000, "draws": 256})
        assert found.status == 503
        head = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with server.raw(head + b"Content-Length: 100\r\n\r\n{") as slow:
            assert b" 408 " in slow.recv(4096)


def test_connections_without_a_whole_header_are_closed(shelf: Path) -> None:
    """Nothing, half a line, half a header, or that behind an answer: they take no places from others for long."""
    request = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n"
    with served(studio_of(shelf, Limits(connections=8, header_seconds=0.5))) as server:
        open_ones = [server.raw(request + b"\r\n") for _ in range(2)]
        for each, behind in zip(open_ones, (b"\r\n", b"GET /")):
            assert each.recv(4096).startswith(b"HTTP/1.1 200")
            each.sendall(behind)
        open_ones += [server.raw(begin) for begin in (b"", b"GET /", request) for _ in range(2)]
        assert server.get("/api/health").status == 503
        for each in open_ones:
            while each.recv(4096):
                pass
            each.close()
        assert server.get("/api/health").status == 200


def test_a_long_answer_needs_no_other_header(shelf: Path) -> None:
    with (
        served(studio_of(shelf, Limits(header_seconds=0.1))) as server,
        server.raw(posted("/api/generate", LONG)) as one,
    ):
        until(lambda: bool(one.recv(4096)))
        time.sleep(0.3)
        assert one.recv(100)


def test_a_client_that_does_not_read_is_left(shelf: Path) -> None:
    """Its events are not collected in memory; the next client has its turn."""
    limits = Limits(backlog=4, stalled_seconds=0.3)
    with served(studio_of(shelf, limits)) as server:
        body = {"run": "duo", "steps": 4000, "length": 1000, "num": 8, "stream": True, "alternatives": 10}
        stalled = server.raw(posted("/api/generate", body))
        assert stalled.recv(10)
        assert server.post("/api/generate", {"run": "duo", "steps": 1, "length": 2}).status == 200
        stalled.close()


def test_work_that_waits_too_long_is_refused(shelf: Path) -> None:
    with served(studio_of(shelf, Limits(waiting_seconds=0.3))) as server:
        held = server.raw(posted("/api/generate", LONG))
        assert held.recv(10)
        found = server.post("/api/generate", LONG)
        assert found.status == 503
        assert "busy" in found.message
        held.close()


def test_runs_that_are_deleted_damaged_or_have_no_checkpoint(shelf: Path, tmp_path: Path) -> None:
    for name in ("kept", "deleted", "damaged", "recipe", "young"):
        shutil.copytree(shelf / "duo", tmp_path / name)
    ask = {"steps": 1, "length": 4}
    with served(studio_of(tmp_path)) as server:
        assert server.post("/api/generate", {"run": "deleted", **ask}).status == 200
        shutil.rmtree(tmp_path / "deleted")
        for file in (tmp_path / "damaged" / "checkpoints").rglob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:100])
        (tmp_path / "recipe" / "recipe.json").write_text('{"name": 3')
        (tmp_path / "recipe" / "metrics.jsonl").write_bytes(b"\xff\n\xff\n")
        shutil.rmtree(tmp_path / "young" / "checkpoints")
        statuses = {run: server.post("/api/generate", {"run": run, **ask}) for run in ("deleted", "damaged", "recipe")}
        assert {run: found.status for run, found in statuses.items()} == {"deleted": 404, "damaged": 409, "recipe": 409}
        assert "cannot be loaded" in statuses["damaged"].message
        assert server.post("/api/generate", {"run": "young", **ask}).status == 409
        assert server.get("/api/runs/recipe/metrics").status == 409
        assert server.get("/api/runs/recipe/recipe").status == 409
        rows = {row["id"]: row for row in server.get("/api/runs").json["runs"]}
        assert rows["recipe"]["state"] == "unreadable"
        assert rows["recipe"]["problem"]
        assert rows["young"]["step"] is None
        assert server.post("/api/generate", {"run": "kept", **ask}).status == 200


@pytest.mark.slow
def test_a_run_that_is_trained_meanwhile_writes_with_its_newest_weights(tmp_path: Path, english: Path) -> None:
    recipe = small_recipe(english, "training.steps=20", "training.save_every=1", "training.keep=1")
    training = threading.Thread(target=session.train, args=(recipe, tmp_path / "young"))
    with served(studio_of(tmp_path)) as server:
        training.start()
        steps = []
        while training.is_alive():
            found = server.post("/api/generate", {"run": "young", "steps": 1, "length": 2})
            assert found.status in (200, 404, 409), found.body
            if found.status == 200:
                steps.append(found.json["trained_steps"])
            rows = server.get("/api/runs/young/metrics")
            assert rows.status in (200, 404)
        training.join()
        assert steps == sorted(steps)
        assert server.post("/api/generate", {"run": "young", "steps": 1, "length": 2}).json["trained_steps"] == 20


def test_a_run_that_has_just_appeared_is_found(shelf: Path, tmp_path: Path) -> None:
    """The list of runs is kept; a name that is not in it is looked for on the disk."""
    library = studio_of(tmp_path).library
    assert library.find_runs() == {}
    shutil.copytree(shelf / "duo", tmp_path / "new")
    assert library.find_run("new") == (tmp_path / "new").resolve()
    with pytest.raises(Refusal, match="there is no run 'other' here"):
        library.find_run("other")


def test_models_that_were_not_used_for_long_are_forgotten(shelf: Path) -> None:
    library = studio_of(shelf, Limits(models=2)).library
    first = library.load("duo")
    assert library.load("duo") is first
    library.load("mdlm")
    library.load("ar")
    assert len(library._loaded) == 2
    assert library.load("duo") is not first


def test_a_fault_of_the_studio_is_no_end_of_it(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault has a status and a sentence; the next request is answered."""
    studio = studio_of(shelf)
    with served(studio) as server:
        with monkeypatch.context() as patch:
            patch.setattr("duality.studio.app.generate", lambda *_: 1 / 0)
            found = server.post("/api/generate", {"run": "duo"})
            assert found.status == 500
            assert "ZeroDivisionError" in found.message
        assert server.post("/api/generate", {"run": "duo", "steps": 1, "length": 2}).status == 200


def test_an_error_behind_the_first_event_ends_the_stream(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(_loaded: object, _request: object, emit: Emit, _check: Check) -> None:
        emit({"type": "start"})
        raise Refusal(503, "no more")

    monkeypatch.setattr("duality.studio.app.generate", half)
    with served(studio_of(shelf)) as server:
        events = server.post("/api/generate", {"run": "duo", "stream": True}).events
    assert [event["type"] for event in events] == ["start", "error"]
    assert events[-1]["error"]["message"] == "no more"


def test_threads_end() -> None:
    """A thread without work ends; when the studio is closed, all do, and what is waiting is told."""

    async def run() -> None:
        queues, begun = Queues(Limits()), threading.Event()

        def wait(_emit: Emit, check: Check) -> None:
            begun.set()
            while True:
                check()
                time.sleep(0.01)

        async def stay() -> Message:
            await asyncio.Event().wait()
            return {}

        assert [found async for found in queues.begin(stay, "a", lambda *_: None)] == []
        until(lambda: not queues._models)
        works = [queues.begin(stay, "b", wait) for _ in range(3)]
        assert begun.wait(10)
        queues.close()
        for events in works:
            with pytest.raises(Refusal, match="being closed") as refused:
                await asyncio.wait_for(anext(events), 30)
            assert refused.value.status == 503
        until(lambda: threads() == 0)
        with pytest.raises(Refusal, match="being closed"):
            queues.begin(stay, "c", wait)

    asyncio.run(run())


def test_when_work_is_to_end() -> None:
    async def run() -> None:
        job = _Job(Limits(), threading.Event(), lambda *_: None)
        job.check()
        job.deadline = 0.0
        with pytest.raises(Refusal, match="took too long"):
            job.check()
        job.leave()
        with pytest.raises(Cancelled):
            job.check()

    asyncio.run(run())


def test_samples_of_a_training(server: Served, shelf: Path) -> None:
    found = server.get("/api/runs/duo/samples").json["rows"]
    files = sorted((shelf / "duo" / "samples").glob("*.jsonl"))
    assert [row["step"] for row in found] == [int(file.stem[5:]) for file in files]
    texts = [json.loads(line)["text"] for line in files[-1].read_text().splitlines()] if files else []
    assert not files or found[-1]["texts"] == texts
    assert server.get("/api/runs/duo/samples?after=99").json["rows"] == []

"""The command `studio` as a process: it starts, is killed, starts again at the same port, and ends when it is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duality.cli.main import main
from duality.extras import install_command
from duality.studio.server import Address


@contextmanager
def started(shelf: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and its address."""
    words = [sys.executable, "-m", "duality", "studio", str(shelf), "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("the studio is at http://127.0.0.1:"), line
        yield process, line.split()[4]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_studio_that_is_killed_starts_again_at_its_port(shelf: Path) -> None:
    with started(shelf, 0) as (process, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        body = json.dumps({"run": "duo", "steps": 4000, "stream": True}).encode()
        request = urllib.request.Request(f"{address}api/generate", body, {"content-type": "application/json"})
        stream = urllib.request.urlopen(request, timeout=60)
        assert stream.readline() == b"event: start\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    with started(shelf, port) as (process, address):
        with urllib.request.urlopen(f"{address}api/runs", timeout=60) as answer:
            assert len(json.load(answer)["runs"]) == 5
        with urllib.request.urlopen(request, timeout=60) as stream:
            assert stream.readline() == b"event: start\n"
            process.send_signal(signal.SIGTERM)  # in the midst of work
            assert process.wait(30) == 143
        assert process.stderr is not None
        assert process.stderr.read() == "duality: terminated\n"


def test_without_the_extra_there_is_one_line(
    shelf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as on a machine where it is not installed
    assert main(["studio", str(shelf)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "the studio needs uvicorn" in lines[0]
    assert install_command("studio") in lines[0]


@pytest.mark.slow
def test_other_commands_load_neither_starlette_nor_uvicorn() -> None:
    script = (
        "import sys\nfrom duality.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nprint('LOADED', *sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ}
    ).stdout
    loaded = shown.partition("LOADED")[2].split()
    assert not {"starlette", "uvicorn", "pydantic", "torch"} & set(loaded)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_small_events_are_sent_at_once(host: str) -> None:
    """Without TCP_NODELAY an event waits until the client has acknowledged the one before it, up to 40 ms."""

    async def option_of_a_connection() -> int:
        taken = asyncio.get_running_loop().create_future()

        async def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            taken.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with Address(host, 0).listen() as listener:
            async with await asyncio.start_server(take, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
                found = await asyncio.wait_for(taken, 10)
                writer.close()
                return int(found)

    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    assert asyncio.run(option_of_a_connection())

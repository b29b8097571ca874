"""What the studio's server adds to sampling, what it does under load, and what it survives.

    python -m benchmarks.studio RUN             a step and the time to the first step, over bare sampling
    python -m benchmarks.studio RUN --load      50 clients for 60 seconds: answers, memory, lone requests around it
    python -m benchmarks.studio RUN --faults    200 clients that leave, 500 nonsensical requests, kill -9

The server is the command `duality studio` in a process of its own; the client reads bytes and parses little. Bare
sampling is ``Model.sample`` in this process. Both take turns, and a ratio compares two neighbours: other programs slow
both of them.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import Spread
from duality.models.model import Model, load
from duality.samplers.generate import Frame

STEPS = 32
HEAD = "POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
FIRST_BAR, STEP_BAR, MEMORY_BAR, LATENCY_BAR = 1.2, 1.1, 0.05, 1.5


@dataclass(frozen=True)
class Server:
    """The command in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    run: str

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    def computed(self) -> float:
        """Seconds for which it has computed, on all cores together."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def threads(self) -> int:
        """How many threads it has."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def send(self, path: str, body: bytes | None = None, seconds: float = 120) -> tuple[int, bytes]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            kind = {"content-type": "application/json"}
            connection.request("GET" if body is None else "POST", path, body, kind)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def generate(self, **settings: Any) -> tuple[int, bytes]:
        """Write text."""
        return self.send("/api/generate", json.dumps({"run": self.run, **settings}).encode())


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[Server]:
    """The server of a run, with its model loaded."""
    words = [sys.executable, "-m", "duality", "studio", str(folder), "--port", str(port)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = int(line.split()[4].rstrip("/").rpartition(":")[2])
        server = Server(process, found, folder.resolve().name)
        server.generate(steps=2)
        yield server
    finally:
        process.kill()
        process.wait()


def bare(model: Model, steps: int, seed: int) -> tuple[float, float, float]:
    """Seconds to the first step, of each step after it, and of computing."""
    times: list[float] = []

    def watch(frame: Frame) -> None:
        if frame.step:
            times.append(time.perf_counter())

    start, computed = time.perf_counter(), time.process_time()
    model.sample(1, steps=steps, seed=seed, watch=watch)
    return times[0] - start, (times[-1] - times[0]) / max(steps - 1, 1), time.process_time() - computed


def streamed(server: Server, connection: socket.socket, steps: int, seed: int, alternatives: int) -> tuple[float, ...]:
    """The same through the server, over a connection that is open; with what the model believes of every token."""
    asked = {"run": server.run, "steps": steps, "seed": seed, "stream": True, "alternatives": alternatives}
    body = json.dumps(asked).encode()
    times, tail, start, computed = list[float](), b"", time.perf_counter(), server.computed()
    connection.sendall(f"{HEAD}{len(body)}\r\n\r\n".encode() + body)
    while b"event: done" not in tail:
        part = connection.recv(1 << 16)
        now = time.perf_counter()
        tail = tail[-12:] + part
        times += [now] * (tail.count(b"event: step") - tail[:12].count(b"event: step"))
    while not tail.endswith(b"0\r\n\r\n"):
        tail += connection.recv(1 << 16)
    return times[1] - start, (times[-1] - times[1]) / max(steps - 1, 1), server.computed() - computed


def step_ratios(folder: Path, turns: int) -> bool:
    """Print what the server adds to a step and to the first one, in time and in computing."""
    model, good = load(folder), True
    with serving(folder) as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        for alternatives in (0, 5):
            ratios: dict[tuple[str, float], list[float]] = collections.defaultdict(list)
            for turn in range(turns + 2):
                own, seen = bare(model, STEPS, turn), streamed(server, connection, STEPS, turn, alternatives)
                ratios["first step, seconds", FIRST_BAR].append(seen[0] / own[0])
                ratios["step, seconds", STEP_BAR].append(seen[1] / own[1])
                ratios["step, seconds of computing", STEP_BAR].append(seen[2] / own[2])
            for (name, bar), values in ratios.items():
                spread = Spread.of(values[2:])
                # alternatives are more than bare sampling computes: what they cost is shown, and has no bar
                good &= alternatives > 0 or spread.median <= bar
                print(
                    f"{name}, {alternatives} alternatives: {spread.median:.3f} of bare sampling (quartiles "
                    f"{spread.low:.3f} to {spread.high:.3f}, {turns} turns{'' if alternatives else f', bar {bar}'})"
                )
    return good


def lone(server: Server, model: Model, count: int = 15) -> float:
    """The time of a lone request over that of bare sampling, in turns; the median."""
    ratios = []
    for seed in range(count):
        start = time.perf_counter()
        model.sample(1, steps=STEPS, seed=seed)
        middle = time.perf_counter()
        server.generate(steps=STEPS, seed=seed)
        ratios.append((time.perf_counter() - middle) / (middle - start))
    return statistics.median(ratios)


def under_load(folder: Path, clients: int, seconds: float) -> bool:
    """Print the answers, the memory and the lone request of a server that many clients use."""
    answers: collections.Counter[int | str] = collections.Counter()
    latencies: list[float] = []
    model = load(folder)
    with serving(folder) as server:

        def client(number: int, deadline: float) -> None:
            chance = random.Random(number)
            while time.monotonic() < deadline:
                start = time.perf_counter()
                try:
                    status, _ = server.generate(steps=8, seed=chance.randrange(1 << 30), stream=chance.random() < 0.5)
                except OSError as error:
                    answers[type(error).__name__] += 1
                    continue
                answers[status] += 1
                if status == 200:
                    latencies.append(time.perf_counter() - start)
                else:
                    time.sleep(chance.uniform(0.1, 0.5))

        def storm(length: float) -> list[int]:
            deadline = time.monotonic() + length
            threads = [threading.Thread(target=client, args=(each, deadline)) for each in range(clients)]
            for thread in threads:
                thread.start()
            sizes = []
            while any(thread.is_alive() for thread in threads):
                sizes.append(server.memory())
                time.sleep(0.5)
            return sizes

        storm(min(5.0, seconds))  # the allocator's own growth is over before anything is compared
        answers.clear()
        before = lone(server, model)
        sizes = storm(seconds)
        after = lone(server, model)
    middle = statistics.median(sizes)
    swing = max(abs(size - middle) for size in sizes) / middle
    print(f"{clients} clients, {seconds:g} s: answers {dict(answers)}")
    if latencies:
        print(f"seconds of an answer of 8 steps: median {statistics.median(latencies):.2f}, most {max(latencies):.2f}")
    print(f"memory: {middle / 2**20:.0f} MiB, farthest from it {swing:.1%} (bar {MEMORY_BAR:.0%})")
    print(
        f"a lone request over bare sampling: {before:.2f} before, {after:.2f} after, {after / before:.2f} of it "
        f"(bar {LATENCY_BAR})"
    )
    return set(answers) <= {200, 429, 503} and swing <= MEMORY_BAR and after / before <= LATENCY_BAR


def nonsense(chance: random.Random, run: str) -> bytes:
    """A body that is nearly right, or not at all."""
    values: list[Any] = [None, True, -1, 0, 2**70, 1e308, float("nan"), "", "x" * 30_000, "\x1b[0m", "\ud800", [], {}]
    values += [[[[]]], {"a": {"b": []}}, "___", 10**4000, -0.0, [[0, 1]], "\u0000", ["a"] * 9]
    names = ["run", "model", "steps", "prompt", "suffix", "keep", "length", "num", "n", "seed", "temperature", "top_p"]
    names += ["tail", "sampler", "grid", "eta", "label", "guidance", "stream", "alternatives", "text", "blank", "draws"]
    kind = chance.randrange(5)
    if kind == 0:
        return bytes(chance.randrange(256) for _ in range(chance.randrange(200)))
    if kind == 1:
        return b"[" * chance.randrange(1, 100_000)
    body = {"run": run, "model": run, "text": "a ___", "steps": 2, "length": 4, "max_tokens": 2}
    body |= {name: chance.choice(values) for name in chance.sample(names, chance.randrange(1, 4))}
    data = json.dumps({chance.choice([name, name, name, name + "x"]): value for name, value in body.items()}).encode()
    return data[: chance.randrange(len(data))] if kind == 2 else data


def leave(server: Server, count: int) -> None:
    """Ask for minutes of work, and leave at different moments."""
    chance = random.Random(0)
    for _ in range(count):
        data = json.dumps({"run": server.run, "steps": 4000, "stream": chance.random() < 0.7}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(f"{HEAD}{len(data)}\r\n\r\n".encode() + data[: chance.choice([3, len(data), len(data)])])
            if chance.random() < 0.3:
                connection.settimeout(1.0)
                with suppress(TimeoutError):
                    connection.recv(1 << chance.randrange(4, 16))


def faults(folder: Path, leaving: int, requests: int) -> bool:
    """Print what the server survives."""
    chance, answers = random.Random(1), collections.Counter[int | str]()
    paths = ["/api/generate", "/api/fill", "/api/likelihood", "/v1/completions", "/api/judge"]
    with serving(folder) as server:
        leave(server, 20)
        server.generate(steps=2)
        threads, memory = server.threads(), server.memory()
        leave(server, leaving)
        start = time.perf_counter()
        status, _ = server.generate(steps=2)
        waited = time.perf_counter() - start
        grown = server.memory() / memory - 1
        print(
            f"{leaving} clients left: threads {threads} -> {server.threads()}, memory {grown:+.1%}, the next request "
            f"{status} after {waited:.2f} s"
        )
        good = status == 200 and server.threads() <= threads + 2 and grown <= MEMORY_BAR
        for _ in range(requests):
            try:
                status, body = server.send(chance.choice(paths), nonsense(chance, server.run), seconds=60)
                answers[status] += 1
                good &= status < 500 and (status == 200 or "\n" not in json.loads(body)["error"]["message"])
            except OSError as error:
                answers[type(error).__name__] += 1
                good = False
        print(f"{requests} nonsensical requests: answers {dict(sorted(answers.items(), key=str))}")
        port = server.port
        server.process.kill()
    with serving(folder, port) as server:
        status, _ = server.generate(steps=2)
        print(f"after kill -9 and a start at the same port: {status}")
    return good and status == 200


def main() -> int:
    """Measure what the arguments say; 1 if a bar is not reached."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="a run folder, such as one of duo-laptop")
    parser.add_argument("--load", action="store_true", help="many clients at the same time")
    parser.add_argument("--faults", action="store_true", help="clients that leave, nonsensical requests, kill -9")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--leaving", type=int, default=200)
    parser.add_argument("--requests", type=int, default=500)
    chosen = parser.parse_args()
    if chosen.load:
        return 0 if under_load(chosen.run, chosen.clients, chosen.seconds) else 1
    if chosen.faults:
        return 0 if faults(chosen.run, chosen.leaving, chosen.requests) else 1
    return 0 if step_ratios(chosen.run, chosen.turns) else 1


if __name__ == "__main__":
    sys.exit(main())

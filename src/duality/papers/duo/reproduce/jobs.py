"""Jobs: work in processes of its own, some at a time, each after those that it needs.

    Job(name, needs, cost, work)      ``work(report, advance)`` is called in a process with ``threads`` threads

Several processes with one thread each use the cores of a machine better than one process with several threads, where
networks are small. The cost of a job is in arbitrary units; ``advance(units)`` says what has been done of it, from
which the display computes the time left. A process takes seconds to begin, so it does one job after another: it is sent
jobs through a pipe, and answers with texts, units, an error, or None at the end of a job.

What must hold: a job begins after all that it needs; an error in one job stops the others and is raised here; a job
whose parent process has died stops itself. Nothing depends on the order in which jobs end. ``work`` must be something
that can be started again: one that a signal has stopped raises KeyboardInterrupt, and what it saved is used when it
begins again. A pool of concurrent.futures promises less: it does not end what runs, so that it saves, and does not say
how a process died.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import cast

from duality.files.progress import Reporter, unseen

Advance = Callable[[float], None]
Work = Callable[[Reporter, Advance], None]  # it is sent to another process, so it is a dataclass of plain values
_STOPPED = 130  # the exit code of a process that was stopped
_PATIENCE = 30.0  # seconds for a process to save and end


@dataclass(frozen=True)
class Job:
    """A piece of work with a name, the names of the jobs that it needs, and its cost."""

    name: str
    needs: tuple[str, ...]
    cost: float
    work: Work


Message = str | float | ValueError | None


def execute(jobs: Sequence[Job], *, workers: int, threads: int, report: Reporter, advance: Advance = unseen) -> None:
    """Do all jobs, at most ``workers`` at a time."""
    _check_jobs(jobs)
    waiting, ended, advanced = list(jobs), set[str](), {job.name: 0.0 for job in jobs}
    processes = dict(_start(threads) for _ in range(min(workers, len(jobs))))
    idle, running = list(processes), dict[Connection, Job]()
    start = time.monotonic()
    try:
        while waiting or running:
            for job in [job for job in waiting if set(job.needs) <= ended][: len(idle)]:
                waiting.remove(job)
                connection = idle.pop()
                connection.send(job)
                running[connection] = job
            for connection in cast("list[Connection]", wait(list(running))):
                job = running[connection]
                try:
                    message: Message = connection.recv()
                except (EOFError, OSError):
                    processes[connection].join()
                    how = f"its process ended with exit code {processes[connection].exitcode}"
                    raise ValueError(f"{job.name}: {how}; the same command goes on") from None
                if isinstance(message, ValueError):
                    raise message
                if isinstance(message, str):
                    report(message)
                elif message is not None:
                    advanced[job.name] += message
                    advance(message)
                else:
                    idle.append(connection)
                    del running[connection]
                    ended.add(job.name)
                    advance(job.cost - advanced[job.name])  # a job that found its work done advances at once
                    left = sum(job.cost - advanced[job.name] for job in jobs if job.name not in ended)
                    done, minutes = sum(advanced.values()), (time.monotonic() - start) / 60
                    rest = f", about {left / done * minutes:.0f} minutes are left" if done and left else ""
                    report(f"{len(ended)} of {len(jobs)} jobs are done{rest}")
    finally:
        for process in processes.values():  # ask all first, so that one that does a job saves
            process.terminate()
        limit = time.monotonic() + _PATIENCE
        for process in processes.values():
            process.join(max(0.1, limit - time.monotonic()))
            if process.is_alive():
                process.kill()


def _start(threads: int) -> tuple[Connection, BaseProcess]:
    """A process that does the jobs which it is sent, and the connection to it."""
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=_work, args=(threads, other))
    process.start()
    other.close()  # the process alone has this end, so that the connection ends with it
    return connection, process


def _check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse names that stand twice, needs that are no jobs, and a circle of needs."""
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise ValueError(f"two jobs have one name: {sorted({name for name in names if names.count(name) > 1})}")
    possible, rest = set[str](), list(jobs)
    while ready := {job.name for job in rest if set(job.needs) <= possible}:
        possible |= ready
        rest = [job for job in rest if job.name not in ready]
    if rest:
        raise ValueError(f"these jobs need each other or something that is no job: {[job.name for job in rest]}")


def _work(threads: int, connection: Connection) -> None:
    """Do jobs in this process, as many as come."""
    import torch

    from duality.training.settings import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()

    def end_with_parent() -> None:
        """Ask this process to save and end when its parent is no more."""
        parent = multiprocessing.parent_process()
        if parent is None:
            return
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_PATIENCE)
        os._exit(1)

    def send(message: Message) -> None:
        with suppress(BrokenPipeError):  # the parent has died: this process saves and ends
            connection.send(message)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with suppress(EOFError, KeyboardInterrupt):  # the parent has died, or was stopped
        while True:
            job: Job = connection.recv()
            try:
                job.work(send, send)
            except (ValueError, OSError) as error:
                send(ValueError(f"{job.name}: {' '.join(str(error).split())}"))
            except KeyboardInterrupt:
                sys.exit(_STOPPED)  # without a traceback; the parent, if it still runs, sees the exit code
            else:
                send(None)

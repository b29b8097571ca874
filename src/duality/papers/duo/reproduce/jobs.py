"""Jobs: work in processes of its own, some at a time, each after those that it needs.

    Job(name, needs, cost, work)      ``work(report, advance)`` is called in a process with ``threads`` threads

Several processes with one thread each use the cores of a machine better than one process with several threads, where
networks are small. The cost of a job is in arbitrary units; ``advance(units)`` says what has been done of it, from
which the display computes the time left.

What must hold: a job begins after all that it needs; an error in one job stops the others and is raised here; a job
whose parent process has died stops itself (``work`` must be something that can be started again). Nothing depends on
the order in which jobs end.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Protocol

from duality.files.progress import Reporter

Advance = Callable[[float], None]
_ENDED, _FAILED, _DONE, _SAID = "ended", "failed", "done", "said"
_STOPPED = 130  # the exit code of a process that was stopped
_PATIENCE = 30.0  # seconds for a process to save and end


class Work(Protocol):
    """What a job does; it is sent to another process, so it is a dataclass of plain values."""

    def __call__(self, report: Reporter, advance: Advance) -> None: ...


@dataclass(frozen=True)
class Job:
    """A piece of work with a name, the names of the jobs that it needs, and its cost."""

    name: str
    needs: tuple[str, ...]
    cost: float
    work: Work


class JobFailed(ValueError):
    """A job could not be done."""


class Stopped(Exception):
    """A signal stopped a job; what it saved is used when it begins again."""


Message = tuple[str, str, object]


def execute(
    jobs: Sequence[Job], *, workers: int, threads: int, report: Reporter, advance: Advance = lambda units: None
) -> None:
    """Do all jobs, at most ``workers`` at a time."""
    check(jobs)
    if workers < 1 or threads < 1:
        raise ValueError(f"workers is {workers}, threads {threads}: each must be at least 1")
    context = multiprocessing.get_context("spawn")
    messages: multiprocessing.Queue[Message] = context.Queue()
    waiting, ended, advanced = list(jobs), set[str](), dict[str, float]()
    costs = {job.name: job.cost for job in jobs}
    running: dict[str, BaseProcess] = {}
    start = time.monotonic()
    with stopping(running):
        while waiting or running:
            for job in [job for job in waiting if set(job.needs) <= ended][: workers - len(running)]:
                waiting.remove(job)
                process = context.Process(target=_worker, args=(job, threads, messages), name=job.name)
                process.start()
                running[job.name] = process
            kind, name, content = _next(messages, running)
            if kind == _SAID:
                report(str(content))
            elif kind == _DONE:
                advanced[name] = advanced.get(name, 0.0) + float(str(content))
                advance(float(str(content)))
            elif kind == _FAILED:
                raise JobFailed(f"{name}: {content}")
            else:
                running.pop(name).join()
                ended.add(name)
                advance(costs[name] - advanced.get(name, 0.0))  # a job that found its work done advances at once
                left = sum(cost - advanced.get(each, 0.0) for each, cost in costs.items() if each not in ended)
                seconds = time_left(left, sum(advanced.values()), time.monotonic() - start)
                report(f"{len(ended)} of {len(jobs)} jobs are done{seconds}")


def time_left(left: float, done: float, seconds: float) -> str:
    """The time that is left, in words; "" if nothing has been done yet from which to compute it.

    >>> time_left(300.0, 100.0, 60.0)
    ', about 3 minutes are left'
    """
    return f", about {left / done * seconds / 60:.0f} minutes are left" if done and left else ""


def check(jobs: Sequence[Job]) -> None:
    """Refuse names that stand twice, needs that are no jobs, and a circle of needs."""
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise ValueError(f"two jobs have one name: {sorted({name for name in names if names.count(name) > 1})}")
    possible: set[str] = set()
    rest = list(jobs)
    while rest:
        ready = [job for job in rest if set(job.needs) <= possible]
        if not ready:
            raise ValueError(f"these jobs need each other or something that is no job: {[job.name for job in rest]}")
        possible |= {job.name for job in ready}
        rest = [job for job in rest if job not in ready]


def _next(messages: multiprocessing.Queue[Message], running: dict[str, BaseProcess]) -> Message:
    """The next message; a process that died without one is a failure."""
    while True:
        try:
            return messages.get(timeout=0.5)
        except queue.Empty:
            for name, process in running.items():
                if process.exitcode not in (None, 0):
                    return (
                        _FAILED,
                        name,
                        f"its process ended with exit code {process.exitcode}; the same command goes on",
                    )


@contextmanager
def stopping(running: dict[str, BaseProcess]) -> Iterator[None]:
    """End the processes that run when the block ends early: ask first, so that they save, and wait."""
    try:
        yield
    finally:
        for process in running.values():
            if process.is_alive():
                process.terminate()
        limit = time.monotonic() + _PATIENCE
        for process in running.values():
            process.join(max(0.1, limit - time.monotonic()))
            if process.is_alive():
                process.kill()


def _worker(job: Job, threads: int, messages: multiprocessing.Queue[Message]) -> None:
    """Do one job in this process."""
    import torch

    from duality.training.devices import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        job.work(
            lambda text: messages.put((_SAID, job.name, text)), lambda units: messages.put((_DONE, job.name, units))
        )
    except (ValueError, OSError) as error:
        messages.put((_FAILED, job.name, " ".join(str(error).split())))
        return
    except (Stopped, KeyboardInterrupt):
        sys.exit(_STOPPED)  # without a traceback; the parent, if it still runs, sees the exit code
    messages.put((_ENDED, job.name, None))


def _end_with_parent() -> None:
    """Ask this process to save and end when its parent is no more."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os._exit(1)

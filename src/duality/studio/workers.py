"""A thread for each model, with a queue of limited length: a model writes for one client at a time.

What must hold: a request beyond the limit is refused at once; work that nobody waits for ends at its next step, and is
not begun if it was still waiting; an error of one request ends no thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from duality.studio.generation import Patience
from duality.studio.limits import Cancelled, Limits, Refusal

Work = Callable[[Patience], None]
Ended = Callable[[Exception | None], None]


@dataclass
class Task:
    """Work for a model, and what is called when it has ended, with its error if it has one."""

    work: Work
    ended: Ended
    cancelled: threading.Event = field(default_factory=threading.Event)


class Workers:
    """The threads of all models."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._queues: dict[str, queue.Queue[Task | None]] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def add(self, run: str, task: Task) -> None:
        """Let the thread of a run do this after what is waiting."""
        with self._lock:
            if self._closed:
                raise Refusal(503, "the studio is being closed: start it again")
            if run not in self._queues:
                self._queues[run] = queue.Queue(self.limits.queue)
                thread = threading.Thread(
                    target=self._serve, args=(self._queues[run],), name=f"model {run}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            try:
                self._queues[run].put_nowait(task)
            except queue.Full:
                raise Refusal(
                    429, f"{self.limits.queue} requests are waiting for {run}: try again when some of them are done"
                ) from None

    def waiting(self) -> int:
        """How many requests wait for any model."""
        return sum(each.qsize() for each in self._queues.values())

    def close(self) -> None:
        """End the threads when they have done what they are doing."""
        with self._lock:
            self._closed = True
        for each in self._queues.values():
            while not each.empty():
                task = each.get_nowait()
                if task is not None:
                    task.cancelled.set()
            each.put_nowait(None)

    def _serve(self, tasks: queue.Queue[Task | None]) -> None:
        while (task := tasks.get()) is not None:
            error: Exception | None = None
            try:
                if task.cancelled.is_set():
                    raise Cancelled
                task.work(Patience(task.cancelled, time.monotonic() + self.limits.seconds))
            except Exception as raised:
                error = raised
            task.ended(error)

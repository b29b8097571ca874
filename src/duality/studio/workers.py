"""A thread for each model, with a queue of limited length: a model works for one client at a time.

What must hold: a request beyond the limit is refused at once; work that nobody waits for ends at its next step, and is
not begun if it was still waiting; an error of one request ends no thread; a thread without work ends after a while.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from duality.studio.limits import Limits, Refusal
from duality.studio.patience import Patience

Work = Callable[[Patience], None]
Ended = Callable[[Exception | None], None]


@dataclass(frozen=True)
class Task:
    """Work for a model, and what is called when it has ended, with its error if it has one."""

    work: Work
    ended: Ended
    cancelled: threading.Event = field(default_factory=threading.Event)


class Workers:
    """The threads of all models."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.closing = limits, threading.Event()
        self._queues: dict[str, queue.Queue[Task | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def add(self, model: str, task: Task) -> None:
        """Let the thread of a model do this after what is waiting."""
        with self._lock:
            if self.closing.is_set():
                raise Refusal(503, "the studio is being closed: start it again")
            if model not in self._queues:
                tasks = self._queues[model] = queue.Queue(self.limits.queue)
                thread = threading.Thread(target=self._serve, args=(model, tasks), name=f"model {model}", daemon=True)
                self._threads[model] = thread
                thread.start()
            try:
                self._queues[model].put_nowait(task)
            except queue.Full:
                raise Refusal(
                    429,
                    f"{self.limits.queue} requests are waiting for this model: try again when some of them are done",
                ) from None

    def waiting(self) -> int:
        """How many requests wait for any model."""
        with self._lock:
            return sum(each.qsize() for each in self._queues.values())

    def close(self, seconds: float = 5.0) -> None:
        """End all work at its next step, and wait for the threads so long."""
        self.closing.set()
        with self._lock:
            threads = list(self._threads.values())
            for each in self._queues.values():
                if not each.full():  # the thread of a full queue sees that the studio is being closed
                    each.put_nowait(None)
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, model: str, tasks: queue.Queue[Task | None]) -> None:
        while (task := self._next(model, tasks)) is not None:
            error: Exception | None = None
            try:
                patience = Patience(time.monotonic() + self.limits.seconds, task.cancelled, self.closing)
                patience.check()
                task.work(patience)
            except Exception as raised:
                error = raised
            task.ended(error)
            del task, error  # and all that they refer to, while the thread waits

    def _next(self, model: str, tasks: queue.Queue[Task | None]) -> Task | None:
        """The next task; None if the thread is to end."""
        while True:
            try:
                return tasks.get(timeout=0 if self.closing.is_set() else self.limits.idle_seconds)
            except queue.Empty:
                with self._lock:
                    if tasks.empty():
                        del self._queues[model], self._threads[model]
                        return None

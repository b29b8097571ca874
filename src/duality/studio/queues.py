"""Work for requests: a thread and a queue of limited length for each model; events on their way to the clients.

A model works for one client at a time. What must hold: a request beyond the limit is refused at once; an answer that
cannot be given has a status and one sentence before anything else is sent; when a client leaves, its work ends at its
next step, and is not begun if it was still waiting; an error of one request ends no thread; a thread without work ends
after a while; a client that reads slowly holds at most ``Limits.backlog`` steps in memory, and one that has stopped
reading is left.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from duality.studio.generation import Check, Emit, Event
from duality.studio.schemas import Cancelled, Limits, Refusal
from duality.studio.server import error_event

Work = Callable[[Emit, Check], None]
Show = Callable[[Event], str]
_Item = tuple[Event, ...] | Exception | None  # events, the error that ended the work, or its end

# a proxy is not to collect the events
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
_LOOK_SECONDS = 0.25  # so often a client that waits for an answer is looked for


def _closing() -> Refusal:
    return Refusal(503, "the studio is being closed: start it again")


@dataclass(frozen=True)
class Patience:
    """When work ends early: its client has left, the studio is being closed, or it has taken too long.

    A computation asks at every call of its network, so that one that has no steps to watch, such as a likelihood, ends
    as soon as one that has.
    """

    deadline: float
    cancelled: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise an error if the work is to end."""
        if self.cancelled.is_set():
            raise Cancelled
        if self.closing.is_set():
            raise _closing()
        if time.monotonic() > self.deadline:
            raise Refusal(503, "the request took too long: ask for fewer steps, samples, draws or tokens")


@dataclass(frozen=True)
class Task:
    """Work for a model, and what is called when it has ended, with its error if it has one."""

    work: Callable[[Check], None]
    ended: Callable[[Exception | None], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


class Job:
    """Some work, and its events on their way to the client."""

    def __init__(self, limits: Limits, work: Work) -> None:
        self.limits = limits
        self.task = Task(lambda check: work(self._emit, check), self._put)
        self._loop, self._items = asyncio.get_running_loop(), asyncio.Queue[_Item]()
        self._free = threading.Semaphore(limits.backlog)

    def _emit(self, *events: Event) -> None:
        """Send events, in the thread of the model, as soon as the client has read enough of those before them."""
        if not self._free.acquire(timeout=self.limits.stalled_seconds) or self.task.cancelled.is_set():
            raise Cancelled
        self._put(events)

    def _put(self, item: _Item) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def next(self, request: Request, deadline: float) -> _Item:
        """The next item; an error if the client leaves before it, or it is too late."""
        while True:
            with suppress(asyncio.TimeoutError):
                item = await asyncio.wait_for(self._items.get(), _LOOK_SECONDS)
                self._free.release()
                return item
            if await request.is_disconnected():
                raise Cancelled
            if time.monotonic() > deadline:
                raise Refusal(503, "the model is busy with other requests: try again later")

    async def ready(self) -> list[_Item]:
        """All items that are there, and at least one; behind an error or the end there is none."""
        items = [await self._items.get()]
        while not self._items.empty():
            items.append(self._items.get_nowait())
        self._free.release(len(items))
        return items

    def leave(self) -> None:
        """End the work at its next step."""
        self.task.cancelled.set()
        self._free.release()


class Queues:
    """The threads of all models, and the work that waits for them."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.closing = limits, threading.Event()
        self._queues: dict[str, queue.Queue[Task | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    async def collect(self, request: Request, model: str, work: Work) -> list[Event]:
        """All events of some work."""
        job, events = await self._begin(request, model, work)
        found, deadline = [*events], time.monotonic() + 2 * self.limits.seconds
        try:
            while (item := await job.next(request, deadline)) is not None:
                if isinstance(item, Exception):
                    raise item
                found.extend(item)
        finally:
            job.leave()
        return found

    async def stream(self, request: Request, model: str, work: Work, show: Show) -> Stream:
        """The events of some work as they come."""
        return Stream(*await self._begin(request, model, work), show)

    async def _begin(self, request: Request, model: str, work: Work) -> tuple[Job, tuple[Event, ...]]:
        """Work that has begun, and its first events: an error before them has a status of its own."""
        job = Job(self.limits, work)
        self.add(model, job.task)
        try:
            item = await job.next(request, time.monotonic() + self.limits.waiting_seconds)
        except BaseException:
            job.leave()
            raise
        if not isinstance(item, tuple):
            raise item or Cancelled()
        return job, item

    def add(self, model: str, task: Task) -> None:
        """Let the thread of a model do this after what is waiting."""
        with self._lock:
            if self.closing.is_set():
                raise _closing()
            if model not in self._queues:
                tasks = self._queues[model] = queue.Queue(self.limits.queue)
                thread = threading.Thread(target=self._work, args=(model, tasks), name=f"model {model}", daemon=True)
                self._threads[model] = thread
                thread.start()
            try:
                self._queues[model].put_nowait(task)
            except queue.Full:
                count = self.limits.queue
                raise Refusal(
                    429, f"{count} requests are waiting for this model: try again when some of them are done"
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

    def _work(self, model: str, tasks: queue.Queue[Task | None]) -> None:
        while (task := self._next(model, tasks)) is not None:
            error: Exception | None = None
            try:
                patience = Patience(time.monotonic() + self.limits.seconds, task.cancelled, self.closing)
                patience.check()
                task.work(patience.check)
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


@dataclass(frozen=True)
class Stream:
    """An answer that is sent event by event; its work ends with it.

    A client that has left is seen by a task that waits for its message. (Starlette's own streams begin a group of tasks
    for that, which takes a tenth of a step of a small model.)
    """

    job: Job
    first: tuple[Event, ...]
    show: Show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        leaving = asyncio.ensure_future(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            items: list[_Item] = [self.first]
            while True:
                text, ended = "".join(map(self._text, items)), not isinstance(items[-1], tuple)
                await send({"type": "http.response.body", "body": text.encode(), "more_body": not ended})
                if ended:
                    return
                items = await self.job.ready()
        finally:
            leaving.cancel()
            self.job.leave()

    def _text(self, item: _Item) -> str:
        if isinstance(item, Exception):
            return self.show(error_event(item))
        return "".join(map(self.show, item or ()))

    async def _watch(self, receive: Receive) -> None:
        """End the work when the client leaves: at its next step it says so to the stream, which ends too."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.job.leave()

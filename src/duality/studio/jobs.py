"""Work for a request: done in the thread of its model, its events read in the loop that answers.

What must hold: an answer that cannot be given has a status and one sentence before anything else is sent; when a client
leaves, its work ends at its next step; a client that reads slowly holds at most ``Limits.backlog`` steps in memory, and
one that has stopped reading is left.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from duality.studio.answers import failed
from duality.studio.generation import Emit, Event
from duality.studio.limits import Cancelled, Limits, Refusal
from duality.studio.patience import Patience
from duality.studio.workers import Task, Workers

Work = Callable[[Emit, Patience], None]
Show = Callable[[Event], str]
Item = tuple[Event, ...] | Exception | None  # events, the error that ended the work, or its end

# a proxy is not to collect the events
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
_LOOK_SECONDS = 0.25  # so often a client that waits for an answer is looked for


@dataclass(frozen=True)
class Ready:
    """Events that are there; whether they are the last, and the error that ended the work, if one did."""

    events: list[Event] = field(default_factory=list)
    ended: bool = False
    error: Exception | None = None


class Job:
    """Some work, and its events on their way to the client."""

    def __init__(self, limits: Limits, work: Work) -> None:
        self.limits = limits
        self.task = Task(lambda patience: work(self._emit, patience), self._put)
        self._loop, self._items = asyncio.get_running_loop(), deque[Item]()
        self._free, self._arrival = threading.Semaphore(limits.backlog), asyncio.Event()

    def _emit(self, *events: Event) -> None:
        """Send events, in the thread of the model, as soon as the client has read enough of those before them."""
        if not self._free.acquire(timeout=self.limits.stalled_seconds) or self.task.cancelled.is_set():
            raise Cancelled
        self._put(events)

    def _put(self, item: Item) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrived, item)

    def _arrived(self, item: Item) -> None:
        self._items.append(item)
        self._arrival.set()

    async def _look(self, seconds: float | None = None) -> bool:
        """Wait for an item, at most so long; whether there is one."""
        if not self._items:
            self._arrival.clear()
            timer = None if seconds is None else self._loop.call_later(seconds, self._arrival.set)
            await self._arrival.wait()
            if timer is not None:
                timer.cancel()
        return bool(self._items)

    def _taken(self) -> Item:
        """The next item, which makes room for another."""
        self._free.release()
        return self._items.popleft()

    async def next(self, request: Request, deadline: float) -> Item:
        """The next item; an error if the client leaves before it, or it is too late."""
        while not await self._look(_LOOK_SECONDS):
            if await request.is_disconnected():
                raise Cancelled
            if time.monotonic() > deadline:
                raise Refusal(503, "the model is busy with other requests: try again later")
        return self._taken()

    async def ready(self) -> Ready:
        """All events that are there, and at least one or the end; whether the work has ended, and its error."""
        await self._look()
        found = Ready()
        while self._items:
            item = self._taken()
            if not isinstance(item, tuple):
                return replace(found, ended=True, error=item)
            found.events.extend(item)
        return found

    def leave(self) -> None:
        """End the work at its next step."""
        self.task.cancelled.set()
        self._free.release()


class Jobs:
    """All work of a studio."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.workers = limits, Workers(limits)

    async def _begun(self, request: Request, model: str, work: Work) -> tuple[Job, tuple[Event, ...]]:
        """Work that has begun, and its first events: an error before them has a status of its own."""
        job, limits = Job(self.limits, work), self.limits
        self.workers.add(model, job.task)
        try:
            item = await job.next(request, time.monotonic() + limits.waiting_seconds)
        except BaseException:
            job.leave()
            raise
        if not isinstance(item, tuple):
            raise item or Cancelled()
        return job, item

    async def all_of(self, request: Request, model: str, work: Work) -> list[Event]:
        """All events of some work."""
        job, events = await self._begun(request, model, work)
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
        return Stream(*await self._begun(request, model, work), show)


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
        leaving = asyncio.ensure_future(self.left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
            found = Ready([*self.first])
            while True:
                events = [*found.events, *([] if found.error is None else [failed(found.error)])]
                text = "".join(map(self.show, events))
                await send({"type": "http.response.body", "body": text.encode(), "more_body": not found.ended})
                if found.ended:
                    return
                found = await self.job.ready()
        finally:
            leaving.cancel()
            self.job.leave()

    async def left(self, receive: Receive) -> None:
        """End the work when the client leaves: at its next step it says so to the stream, which ends too."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.job.leave()

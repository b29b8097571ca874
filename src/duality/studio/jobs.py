"""Work for a request: done in the thread of its model, its events read in the loop that answers.

What must hold: an answer that cannot be given has a status and one sentence before anything else is sent; when a client
leaves, its work ends at its next step; a client that reads slowly holds at most ``Limits.backlog`` events in memory,
and one that has stopped reading is left.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from duality.studio.answers import failed
from duality.studio.generation import Emit, Event
from duality.studio.limits import Cancelled, Limits, Refusal
from duality.studio.patience import Patience
from duality.studio.workers import Task, Workers

Work = Callable[[Emit, Patience], None]
Item = Event | Exception | None  # an event, the error that ended the work, or its end

_LOOK_SECONDS = 0.25  # so often a client that waits for an answer is looked for


class Job:
    """Some work, and its events on their way to the client."""

    def __init__(self, limits: Limits, work: Work) -> None:
        self.limits = limits
        self.task = Task(lambda patience: work(self._emit, patience), self._put)
        self._loop, self._items = asyncio.get_running_loop(), asyncio.Queue[Item]()
        self._free = threading.Semaphore(limits.backlog)

    def _emit(self, event: Event) -> None:
        """Send an event, in the thread of the model, as soon as the client has read enough of those before it."""
        if not self._free.acquire(timeout=self.limits.stalled_seconds) or self.task.cancelled.is_set():
            raise Cancelled
        self._put(event)

    def _put(self, item: Item) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def next(self, request: Request, deadline: float) -> Item:
        """The next item; an error if the client leaves before it, or it is too late."""
        while True:
            try:
                item = await asyncio.wait_for(self._items.get(), _LOOK_SECONDS)
            except asyncio.TimeoutError:
                if await request.is_disconnected():
                    raise Cancelled from None
                if time.monotonic() > deadline:
                    raise Refusal(503, "the model is busy with other requests: try again later") from None
            else:
                self._free.release()
                return item

    async def ready(self) -> list[Item]:
        """All items that are there, and at least one."""
        found = [await self._items.get()]
        while not self._items.empty():
            found.append(self._items.get_nowait())
        self._free.release(len(found))
        return found

    def leave(self) -> None:
        """End the work at its next step."""
        self.task.cancelled.set()
        self._free.release()


class Jobs:
    """All work of a studio."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.workers = limits, Workers(limits)

    async def _begun(self, request: Request, model: str, work: Work) -> tuple[Job, Event]:
        """Work that has begun, and its first event: an error before it has a status of its own."""
        job, limits = Job(self.limits, work), self.limits
        self.workers.add(model, job.task)
        try:
            item = await job.next(request, time.monotonic() + limits.waiting_seconds)
        except BaseException:
            job.leave()
            raise
        if not isinstance(item, dict):
            raise item or Cancelled()
        return job, item

    async def all_of(self, request: Request, model: str, work: Work) -> list[Event]:
        """All events of some work."""
        job, event = await self._begun(request, model, work)
        found, deadline = [event], time.monotonic() + 2 * self.limits.seconds
        try:
            while (item := await job.next(request, deadline)) is not None:
                if isinstance(item, Exception):
                    raise item
                found.append(item)
        finally:
            job.leave()
        return found

    async def stream(self, request: Request, model: str, work: Work, show: Callable[[Event], str]) -> Stream:
        """The events of some work as they come."""
        job, event = await self._begun(request, model, work)

        async def parts() -> AsyncIterator[str]:
            items: list[Item] = [event]
            try:
                while True:
                    shown = [failed(item) if isinstance(item, Exception) else item for item in items]
                    yield "".join(show(item) for item in shown if item is not None)
                    if None in shown or isinstance(items[-1], Exception):
                        return
                    items = await job.ready()
            finally:
                job.leave()

        headers = {"x-accel-buffering": "no"}  # a proxy is not to collect the events
        return Stream(StreamingResponse(parts(), headers=headers, media_type="text/event-stream"), job)


@dataclass(frozen=True)
class Stream:
    """A stream whose work ends with it, also if its client leaves before the first event is sent."""

    response: StreamingResponse
    job: Job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await self.response(scope, receive, send)
        finally:
            self.job.leave()

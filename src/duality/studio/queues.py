"""Work for requests, one after another for each model; its events on their way to the clients.

A model works for one client at a time, in a thread that lasts as long as there is work for it. What must hold: a
request beyond the limit is refused at once; an answer that cannot be given has a status and one sentence before
anything else is sent; when a client leaves, its work ends at its next step, and is not begun if it was still waiting;
an error of one request is no error of the next; a client that reads slowly holds at most ``Limits.backlog`` steps in
memory, and one that has stopped reading is left.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from duality.studio.generation import Check, Emit, Event
from duality.studio.schemas import Cancelled, Limits, Refusal
from duality.studio.server import describe_error

Work = Callable[[Emit, Check], None]
_Item = tuple[Event, ...] | Exception | None  # events, the error that ended the work, or its end
_Events = AsyncGenerator[list[Event], None]


class _Job:
    """Some work, and its events on their way to the client.

    A computation calls ``check`` before every call of its network, so that one that has no steps to watch, such as a
    likelihood, ends as soon as one that has.
    """

    def __init__(self, limits: Limits, closing: threading.Event, work: Work) -> None:
        self.limits, self.closing, self.work = limits, closing, work
        self.cancelled = threading.Event()
        self.deadline = float("inf")
        self._loop, self._items = asyncio.get_running_loop(), asyncio.Queue[_Item]()
        self._free = threading.Semaphore(limits.backlog)

    def check(self) -> None:
        """Raise an error if the client has left, the studio is being closed, or the work has taken too long."""
        if self.cancelled.is_set():
            raise Cancelled
        if self.closing.is_set():
            raise Refusal(503, "the studio is being closed: start it again")
        if time.monotonic() > self.deadline:
            raise Refusal(503, "the request took too long: ask for fewer steps, samples, draws or tokens")

    def run(self) -> None:
        """Do the work, in the thread of its model."""
        self.deadline = time.monotonic() + self.limits.seconds
        try:
            self.check()
            self.work(self._emit, self.check)
            self._put(None)
        except Exception as error:
            self._put(error)

    def _emit(self, *events: Event) -> None:
        """Send events, in the thread of the model, as soon as the client has read enough of those before them."""
        if not self._free.acquire(timeout=self.limits.stalled_seconds) or self.cancelled.is_set():
            raise Cancelled
        self._put(events)

    def _put(self, item: _Item) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def events(self, receive: Receive, each_seconds: float | None) -> _Events:
        """The events as they come, all that are there at a time; the work ends with them, or when the client leaves."""
        watching = asyncio.ensure_future(self._watch(receive))
        seconds: float | None = self.limits.waiting_seconds
        try:
            while True:
                try:
                    items = [await asyncio.wait_for(self._items.get(), seconds)]
                except asyncio.TimeoutError:
                    raise Refusal(503, "the model is busy with other requests: try again later") from None
                while isinstance(items[-1], tuple) and not self._items.empty():
                    items.append(self._items.get_nowait())
                self._free.release(len(items))
                if found := [event for item in items if isinstance(item, tuple) for event in item]:
                    yield found
                if isinstance(items[-1], Exception):
                    raise items[-1]
                if items[-1] is None:
                    return
                seconds = each_seconds
        finally:
            watching.cancel()
            self.leave()

    async def _watch(self, receive: Receive) -> None:
        """End the work when the client leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def leave(self) -> None:
        """End the work at its next step; who waits for its events has no more of them."""
        self.cancelled.set()
        self._items.put_nowait(Cancelled())
        self._free.release()


class Queues:
    """The threads of all models that work, and the jobs that wait for them."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.closing = limits, threading.Event()
        self._models: dict[str, tuple[threading.Thread, deque[_Job]]] = {}
        self._lock = threading.Lock()

    async def collect(self, request: Request, model: str, work: Work) -> list[Event]:
        """All events of some work."""
        events = self.begin(request.receive, model, work, 2 * self.limits.seconds)
        return [event async for found in events for event in found]

    async def stream(self, request: Request, model: str, work: Work, show: Callable[[Event], str]) -> ASGIApp:
        """The events of some work as they come, as an answer; an error before the first has a status of its own."""
        events = self.begin(request.receive, model, work)
        first = await anext(events)

        async def parts() -> AsyncGenerator[str, None]:
            try:
                yield "".join(map(show, first))
                async for found in events:
                    yield "".join(map(show, found))
            except Exception as error:
                yield show(describe_error(error))

        async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
            # a proxy is not to collect the events
            response = StreamingResponse(parts(), 200, {"x-accel-buffering": "no"}, "text/event-stream")
            async with aclosing(events):
                # not ``response`` itself, which begins a group of tasks: a tenth of a step of a small model
                await response.stream_response(send)

        return answer

    def begin(self, receive: Receive, model: str, work: Work, each_seconds: float | None = None) -> _Events:
        """The events of some work, which the thread of a model does after what is waiting; without work it has none.

        Each but the first is waited for so many seconds; a wait without an end costs less.
        """
        job = _Job(self.limits, self.closing, work)
        with self._lock:
            job.check()
            known = self._models.get(model)
            if known is None:
                thread = threading.Thread(target=self._work, args=(model,), name=f"model {model}", daemon=True)
                known = self._models[model] = thread, deque[_Job]()
                thread.start()
            if len(known[1]) >= self.limits.queue:
                words = "requests are waiting for this model: try again when some of them are done"
                raise Refusal(429, f"{self.limits.queue} {words}")
            known[1].append(job)
        return job.events(receive, each_seconds)

    def _work(self, model: str) -> None:
        """Do what waits for a model, until nothing does."""
        while True:
            with self._lock:
                jobs = self._models[model][1]
                if not jobs:
                    del self._models[model]
                    return
                job = jobs.popleft()
            job.run()
            del job  # and all that it refers to, while the thread waits for the lock

    def count_waiting(self) -> int:
        """How many requests wait for any model."""
        with self._lock:
            return sum(len(jobs) for _, jobs in self._models.values())

    def close(self, seconds: float = 5.0) -> None:
        """End all work at its next step, and wait for the threads so long."""
        self.closing.set()
        with self._lock:
            threads = [thread for thread, _ in self._models.values()]
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

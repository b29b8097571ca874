"""Which of several processes this one is.

``torchrun`` starts a command several times, on one machine or on many; the processes are a *job*, and each has a
*rank* from 0. ``join_job`` connects them for the duration of a ``with`` block, and ``job()`` is how code asks where it
is. Without torchrun a process is alone: ``job()`` is ``ALONE``, every method below does nothing or returns what it was
given, and nothing of ``torch.distributed`` is imported.

    rank 0            prepares data, writes every file and prints every message
    the other ranks   compute their share of each batch

What must hold: what rank 0 refuses ends all ranks, with one message, that of rank 0; an error of another rank is
printed by that rank, with its number; a rank that disappears is named by one that is left (``missing_ranks``);
waiting for rank 0 to prepare a corpus never times out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, cast

from duality.files.atomic import is_running, own_process

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

T = TypeVar("T")

_DAYS_OF_PATIENCE = 30  # for messages between ranks; a rank that has died is noticed at once, by its closed connection
_SILENT_SECONDS, _MEETING_SECONDS = 5.0, 300.0  # until a rank says that it waits, and until it gives up
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def divisors(count: int) -> list[int]:
    """The divisors of a number: into how many equal shares it can be divided.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [each for each in range(1, count + 1) if count % each == 0]


class Refused(Exception):
    """Another rank has refused or failed and has said why: this one ends without a message."""


@dataclass(frozen=True)
class Job:
    """This process among the ``size`` processes of its job. ``local_rank`` counts those of its own machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    """How many of the processes are on this machine."""
    restarts: int = 0
    """How often torchrun has started the job again after a failure."""

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Job:
        """The place of this process, as the variables of torchrun say; ``ALONE`` without them.

        >>> Job.from_environment({})
        Job(rank=0, size=1, local_rank=0, local_size=1, restarts=0)
        >>> Job.from_environment({"RANK": "1", "WORLD_SIZE": "2"})
        Traceback (most recent call last):
        ValueError: RANK and WORLD_SIZE are set, and LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not: start the processes \
with torchrun, which sets all of them, or unset these to run alone
        """
        found = os.environ if environment is None else environment
        if "RANK" not in found and "WORLD_SIZE" not in found:
            return ALONE
        missing = [name for name in _VARIABLES if not found.get(name)]
        remedy = "start the processes with torchrun, which sets all of them, or unset these to run alone"
        if missing:
            there = [name for name in _VARIABLES if found.get(name)] or ["RANK"]
            verbs = ["are" if len(names) > 1 else "is" for names in (there, missing)]
            raise ValueError(f"{' and '.join(there)} {verbs[0]} set, and {', '.join(missing)} {verbs[1]} not: {remedy}")
        port = found["MASTER_PORT"]
        if not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"MASTER_PORT is {port!r}: a port is a number from 1 to 65535; {remedy}")
        numbers = {name: found[name] for name in _VARIABLES[:3]}
        if not (all(map(str.isdecimal, numbers.values())) and int(found["RANK"]) < int(found["WORLD_SIZE"])):
            given = ", ".join(f"{name}={value}" for name, value in numbers.items())
            raise ValueError(f"{given}: a rank is a whole number below WORLD_SIZE; {remedy}")
        local_size, restarts = (int(found.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
        rank, size, local_rank = map(int, numbers.values())
        return Job(rank, size, local_rank, local_size or size, restarts)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes and speaks for all."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    @property
    def saving(self) -> ProcessGroup | None:
        """The connection for a thread that writes a checkpoint; None for a process that is alone."""
        return None if self.alone else _connection().saving

    def share(self, count: int) -> slice:
        """The rows of a batch of ``count`` that are this rank's: consecutive ones, as many for each rank.

        >>> Job(rank=1, size=4).share(8)
        slice(2, 4, None)
        >>> Job(size=3).share(8)
        Traceback (most recent call last):
        ValueError: 3 processes cannot have equal shares of a batch of 8: start 1, 2, 4 or 8 processes, or set \
training.batch_size to a multiple of 3
        """
        if count % self.size:
            sizes = ", ".join(map(str, divisors(count)))
            fitting = " or ".join(sizes.rsplit(", ", 1))
            raise ValueError(
                f"{self.size} processes cannot have equal shares of a batch of {count}: start {fitting} processes, or "
                f"set training.batch_size to a multiple of {self.size}"
            )
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def sum_(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the ranks; a number to which the others add 0 keeps all its bits."""
        if not self.alone:
            import torch.distributed as dist

            for tensor in tensors:
                dist.all_reduce(tensor)

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers, 0 if none has a flag. Every rank waits here for all others."""
        if self.alone:
            return number
        import torch
        import torch.distributed as dist

        found = torch.tensor(number)  # a reduction: it stands in every step, and does not grow with the ranks
        dist.all_reduce(found, dist.ReduceOp.MAX, group=_connection().messages)
        return int(found)

    def all_of(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        if self.alone:
            return [value]
        import torch.distributed as dist

        found: list[object] = [None] * self.size
        dist.all_gather_object(found, value, group=_connection().messages)
        return cast(list[T], found)

    def from_first(self, value: T) -> T:
        """Rank 0's value."""
        return cast(T, self.all_of(value if self.first else None)[0])

    def once(self, work: Callable[[], T]) -> T:
        """What ``work`` gives on rank 0, for all ranks; what it raises there ends the others too, without a message.

        The others wait, so rank 0 is alone meanwhile: nothing in ``work`` is divided.
        """
        return work() if self.alone else self.from_first(self._take_turns(work, [self.first]))

    def in_turn(self, work: Callable[[], T]) -> T:
        """What ``work`` gives on each rank: first on rank 0, then on one rank of each other machine, then on the rest.

        So a corpus is prepared once for each cache, and the others find it there.
        """
        on_new_machine = self.local_rank == 0 and not self.first
        turns = [self.first, on_new_machine, not (self.first or on_new_machine)]
        return work() if self.alone else self._take_turns(work, turns)

    def _take_turns(self, work: Callable[[], T], turns: Sequence[bool]) -> T:
        """Work in the turns that are this rank's, while the ranks of another turn wait.

        While others wait, a rank is alone: what it computes is not divided.
        """
        found: list[T] = []

        def work_alone() -> None:
            global _job
            before, _job = _job, ALONE
            try:
                found.append(work())
            finally:
                _job = before

        for own in turns:
            self.together(work_alone if own else lambda: None)
        return cast(T, found[0] if found else None)

    def together(self, work: Callable[[], T]) -> T:
        """What ``work`` gives on each rank, at the same time; what it raises on one rank ends the others too."""
        try:
            result = work()
        except BaseException:
            self.largest(1)
            raise
        if self.largest(0):
            raise Refused
        return result

    def agree(self, facts: Mapping[str, object], remedy: str) -> None:
        """Refuse, on rank 0, a job whose ranks do not have the same facts; what is no text stands for its checksum."""
        texts = {name: json.dumps(value, sort_keys=True) for name, value in facts.items()}
        sums = {name: hashlib.sha256(text.encode("utf-8")).hexdigest()[:12] for name, text in texts.items()}
        own = {name: value if isinstance(value, str) else sums[name] for name, value in facts.items()}
        everyone = self.all_of(own)

        def compare() -> None:
            for rank, name in ((rank, name) for rank in range(self.size) for name in own):
                its, ours = everyone[rank].get(name), own[name]
                if its != ours:
                    raise ValueError(f"rank {rank} has another {name} than rank 0 ({its} there, {ours} here): {remedy}")

        self.once(compare)


ALONE = Job()


@dataclass(frozen=True)
class _Connection:
    """What connects the ranks: a store of short texts, and groups for messages that may wait for ever."""

    store: Store
    messages: ProcessGroup
    saving: ProcessGroup
    """For a thread that writes a checkpoint while training sends messages of its own."""
    processes: list[str]
    """The process of every rank (files/atomic.py)."""

    def gone(self) -> list[str]:
        """The ranks of this machine whose processes have ended."""
        ended = [(rank, process) for rank, process in enumerate(self.processes) if is_running(process) is False]
        return [f"rank {rank} (process {process.split('-')[1]})" for rank, process in ended]


_job = ALONE
_connected: _Connection | None = None


def job() -> Job:
    """This process among those of its job."""
    return _job


def _connection() -> _Connection:
    assert _connected is not None, "ranks are connected inside of ranks.join_job() only"
    return _connected


def _meet(place: Job) -> Store:
    """The store that connects the ranks; a rank that waits says so, and gives up after some minutes."""
    from torch.distributed.rendezvous import rendezvous

    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    words = f"rank {place.rank} of {place.size} waits for the others at {where}, at most {_MEETING_SECONDS:g} s"
    waiting = threading.Timer(_SILENT_SECONDS, lambda: print(f"duality: {words}", file=sys.stderr, flush=True))
    waiting.daemon = True
    waiting.start()
    try:
        patience = timedelta(seconds=_MEETING_SECONDS)
        return cast("Store", next(iter(rendezvous("env://", place.rank, place.size, timeout=patience)))[0])
    except RuntimeError as error:  # the network's, or nobody came in time
        why = str(error).splitlines()[0][:120]
        raise ValueError(
            f"rank {place.rank} of {place.size} does not meet the others at {where} ({why}): "
            "start all ranks with torchrun, at a port that is free and can be reached, or unset RANK and WORLD_SIZE to "
            "run alone"
        ) from None
    finally:
        waiting.cancel()


@contextmanager
def join_job() -> Iterator[Job]:
    """Connect this process with the others of its job, if torchrun has started several."""
    global _job, _connected
    place = Job.from_environment()
    if place.alone:
        yield ALONE
        return
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count()) if gpu else None
    if device is not None:
        torch.cuda.set_device(device)
    store = PrefixStore(f"duality-{place.restarts}", _meet(place))  # what was said before a restart does not count
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, device_id=device)
    try:
        messages, saving = (dist.new_group(backend="gloo", timeout=timedelta(days=_DAYS_OF_PATIENCE)) for _ in range(2))
        _job, _connected = place, _Connection(store, messages, saving, [])
        _connected.processes.extend(place.all_of(own_process()))
        yield place
    finally:
        _job, _connected = ALONE, None
        with contextlib.suppress(Exception):  # the others may be gone
            dist.destroy_process_group()


def first_to_fail() -> bool:
    """Whether no other rank has failed before; the answer is True for one rank only."""
    if _connected is not None:
        with contextlib.suppress(Exception):  # the machine that keeps the store may be gone
            return _connected.store.add("failed", 1) == 1
    return True


def wait_for_others() -> None:
    """Let rank 0 stay a moment for the ranks that fail with it.

    Without torchrun's agent rank 0 keeps the store of the job, and a rank that finds no store cannot know whether
    another has said why the job ends.
    """
    with contextlib.suppress(Exception):
        if _job.first:
            _poll(lambda connected: connected.store.add("failed", 0) >= _job.size - len(connected.gone()) or None)


def missing_ranks() -> str | None:
    """The ranks of this machine whose processes are gone, in words; of other machines nothing is known here.

    A process closes its connections a moment before it is gone, so it is looked for more than once.
    """
    return _poll(lambda connected: " and ".join(connected.gone()) or None)


def _poll(look: Callable[[_Connection], T | None], patience: float = 2.0) -> T | None:
    """What ``look`` finds in the connection of the ranks, within some seconds; None if it finds nothing."""
    until = time.monotonic() + patience
    while _connected is not None:
        if (found := look(_connected)) is not None or time.monotonic() > until:
            return found
        time.sleep(0.02)
    return None

"""How long a GPU needs for a list of kernels: a roofline for each, and a queue between host and device.

A kernel takes at least the time to move its bytes and the time of its operations, whichever is longer:

    seconds = max(bytes / (0.85 bandwidth), operations / (share of the peak), 2.5 microseconds)

The share of the peak is 0.65 for a matrix product and 0.45 (Hopper) or 0.55 (others) for attention, both in bfloat16.
float32 products have the same share of the peak of TF32, if TF32 is allowed, else 0.8 of the peak of float32. The host
needs 6 microseconds to launch a kernel and 1.5 for a view. It runs ahead of the device until it waits for a number:
there the device's queue becomes empty, and the host goes on 12 microseconds after the last kernel.

What is left out: gradients between devices, the data loader, products whose sides are no multiple of 8 (which are
slower on a real device), the arithmetic of float64 (which is slow on GPUs that are not made for it).

What must hold: ratios are right to about 15 %, times to about 30 %. It says that the released code's efficient
curriculum saves 26 % of a step, its authors measured 25 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

_BANDWIDTH, _PRODUCT, _PLAIN_PRODUCT, _SHORTEST = 0.85, 0.65, 0.8, 2.5e-6
_LAUNCH, _VIEW, _WAKE = 6e-6, 1.5e-6, 12e-6

Kind = Literal["kernel", "view", "sync"]
Arithmetic = Literal["bfloat16", "tf32", "float32", "float64", "other"]


@dataclass(frozen=True)
class GPU:
    """Bytes in a second, operations in a second by arithmetic (without sparsity), memory: as its maker states them."""

    name: str
    bandwidth: float
    bfloat16: float
    tf32: float
    float32: float
    float64: float
    memory: float
    attention: float = 0.55
    """the share of the peak that attention reaches"""

    def peak(self, arithmetic: Arithmetic) -> float:
        """Operations in a second."""
        return float({"other": self.bfloat16, **vars(self)}[arithmetic])


# By a part of the device's name; longer names first.
GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("H200", 4.8e12, 989e12, 495e12, 67e12, 34e12, 141e9, 0.45),
        GPU("H100", 3.35e12, 989e12, 495e12, 67e12, 34e12, 80e9, 0.45),
        GPU("A100", 2.04e12, 312e12, 156e12, 19.5e12, 9.7e12, 80e9),
        GPU("L40S", 0.864e12, 362e12, 183e12, 91.6e12, 1.4e12, 48e9),
        GPU("L4", 0.3e12, 121e12, 60e12, 30.3e12, 0.47e12, 24e9),
        GPU("4090", 1.008e12, 165e12, 82.6e12, 82.6e12, 1.3e12, 24e9),
        GPU("3090", 0.936e12, 71e12, 35.6e12, 35.6e12, 0.56e12, 24e9),
    )
}


def find_gpu(name: str) -> GPU | None:
    """The GPU whose name is a part of this one; None if it is not known."""
    return next((gpu for part, gpu in GPUS.items() if part in name), None)


@dataclass(frozen=True)
class Event:
    """What the host does: it launches a kernel, makes a view, or waits for a number of the device.

    ``place`` is the line of this package; ``moved`` are bytes that the kernel reads and writes.
    """

    kind: Kind
    place: str
    name: str = ""
    moved: float = 0.0
    operations: float = 0.0
    arithmetic: Arithmetic = "other"
    attention: bool = False

    @property
    def room(self) -> str:
        """The part of the package: the first name of the place."""
        return self.place.split(":")[0].split("/")[0]

    def seconds(self, gpu: GPU) -> float:
        """The device's time."""
        if self.kind != "kernel":
            return 0.0
        share = gpu.attention if self.attention else _PRODUCT
        if self.arithmetic == "float32":
            share = _PLAIN_PRODUCT
        computed = self.operations / (gpu.peak(self.arithmetic) * share)
        return max(self.moved / (gpu.bandwidth * _BANDWIDTH), computed, _SHORTEST)


@dataclass(frozen=True)
class Cost:
    """Everything that a step launches, in order."""

    events: tuple[Event, ...]

    @property
    def num_kernels(self) -> int:
        return sum(event.kind == "kernel" for event in self.events)

    @property
    def num_syncs(self) -> int:
        return sum(event.kind == "sync" for event in self.events)

    @property
    def moved(self) -> float:
        """Bytes that the device reads and writes."""
        return sum(event.moved for event in self.events)

    @property
    def operations(self) -> float:
        """Operations of products and of attention."""
        return sum(event.operations for event in self.events)

    def part(self, chosen: Callable[[Event], bool]) -> Cost:
        """The events that are chosen."""
        return Cost(tuple(filter(chosen, self.events)))

    def busy_seconds(self, gpu: GPU) -> float:
        """The time of all kernels."""
        return sum(event.seconds(gpu) for event in self.events)

    def seconds(self, gpu: GPU) -> float:
        """The time of the step on this GPU, with waiting."""
        host = device = 0.0
        for event in self.events:
            if event.kind == "view":
                host += _VIEW
            elif event.kind == "sync":
                host = max(host + _LAUNCH, device) + _WAKE
            else:
                host += _LAUNCH
                device = max(device, host) + event.seconds(gpu)
        return max(host, device)


@dataclass(frozen=True)
class Row:
    """The kernels of one place: how many, bytes, operations, and seconds on each GPU."""

    place: str
    kernels: int
    moved: float
    operations: float
    seconds: tuple[float, ...]


def summarise(events: Iterable[Event], group: Callable[[Event], str], gpus: Iterable[GPU]) -> list[Row]:
    """The kernels by group, the longest first."""
    chosen, groups = tuple(gpus), dict[str, list[Event]]()
    for event in events:
        if event.kind == "kernel":
            groups.setdefault(group(event), []).append(event)
    rows = []
    for place, part in groups.items():
        cost = Cost(tuple(part))
        times = tuple(cost.busy_seconds(gpu) for gpu in chosen)
        rows.append(Row(place, len(part), cost.moved, cost.operations, times))
    return sorted(rows, key=lambda row: row.seconds, reverse=True)

"""A pretend GPU: tensors that say ``cuda:0``, compute real numbers on the CPU, and know when the host would wait.

A ``PretendTensor`` is a wrapper around a CPU tensor. Every operator on it comes to ``compute``, which

    refuses mixing   an operator on tensors of both devices is an error, as on a GPU; a CPU tensor of one number
                     (dimension 0) may take part where PyTorch allows it
    records waits    where the host would wait until the GPU has done all that was asked of it: reading a number
                     (``item``, ``tolist``, ``bool``), operators whose shape depends on numbers (``nonzero``, an index
                     of booleans), copies between the devices unless they come from pinned memory and do not block

each with file and line of the package. The library of ``guard.cpp`` must be loaded before torch is imported, and
``install`` called, in a process of its own: PyTorch is changed for all of it (``run_cases``).

What must hold: numbers are those of the CPU, bit for bit; waits are counted as ``torch.cuda.set_sync_debug_mode`` would
on a GPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import duality

Waits = Counter[str]

aten: Any = torch.ops.aten
_share_memory: Any = return_and_correct_aliasing  # torch gives it no type
Mode: Any = TorchDispatchMode  # torch gives it no type
CUDA = torch.device("cuda", 0)
_PACKAGE = str(Path(duality.__file__).parent)
_NAME = "NVIDIA H100 80GB HBM3"

# Operators whose result has a shape, or a value on the host, that depends on numbers of the device.
_WAITING = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.unique_consecutive.default: "unique_consecutive",
    aten.unique_dim.default: "unique",
    aten.equal.default: "equal",
    aten.bincount.default: "bincount",
    aten.repeat_interleave.Tensor: "repeat_interleave by a tensor",
}
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
# Operators that refuse a CPU tensor of one number beside tensors of a GPU.
_STRICT = ("cat", "stack", "mm", "addmm", "bmm", "gather", "scatter", "index_select", "_foreach", "_fused", "lerp")

_waits: Waits | None = None
_pinned: set[int] = set()


def _place(depth: int = 2) -> str:
    """The innermost lines of the package that are being run, ``file:line < file:line``."""
    frame, found = sys._getframe(1), list[str]()
    while frame is not None and len(found) < depth:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            found.append(f"{Path(frame.f_code.co_filename).relative_to(_PACKAGE)}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found) or "outside of the package"


def _wait(why: str) -> None:
    """Record that the host waits here."""
    if _waits is not None:
        _waits[f"{why} at {_place()}"] += 1


@contextmanager
def record_waits() -> Iterator[Waits]:
    """The waits of this block: how often the host waits at which place, and why."""
    global _waits
    before, _waits = _waits, Counter()
    try:
        yield _waits
    finally:
        _waits = before


class PretendTensor(torch.Tensor):
    """A tensor on the pretend GPU; ``numbers`` are on the CPU."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> PretendTensor:
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=CUDA,
        )
        made.numbers = numbers
        return made

    def __init__(self, numbers: torch.Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({self.numbers!r})"

    # With these two PyTorch knows a wrapper, and ``Module.to`` puts a new parameter in the place of the old one.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], _facts: None, _size: Any, _stride: Any) -> PretendTensor:
        return PretendTensor(inner["numbers"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        _wait("tolist")
        return self.numbers.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"numpy of a tensor on cuda:0: use Tensor.cpu() first, at {_place()}")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"numpy of a tensor on cuda:0: use Tensor.cpu() first, at {_place()}")

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, list) for part in parts):
            _wait("a Python list as an index")
            parts = tuple(PretendTensor(_tensor(part)) if isinstance(part, list) else part for part in parts)
        return super().__getitem__(parts if isinstance(index, tuple) else parts[0])


def _is_pretend(value: object) -> bool:
    return isinstance(value, PretendTensor)


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, PretendTensor) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument, which are nested in lists and tuples only."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """The same with each of the tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_each(change, part) for part in value])
    return value


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator gives, on the device where it would be."""
    if func is aten._to_copy.default:
        return _copied(func, args, kwargs)
    if func is aten.copy_.default:
        return _copy_into(*args, **kwargs)
    tensors = list(_tensors((*args, *kwargs.values())))
    pretend = any(map(_is_pretend, tensors))
    if pretend:
        _refuse_mixing(func, args, [value for value in tensors if not _is_pretend(value)])
        _record_wait(func, args)
    device = kwargs.get("device")
    on_gpu = pretend if device is None else torch.device(device).type == "cuda"
    given = {
        name: torch.device("cpu") if name == "device" and value is not None else value for name, value in kwargs.items()
    }
    given = {name: value for name, value in given.items() if name != "pin_memory"}
    if func is aten.mm.dtype:  # a CPU has no product that is more precise than its factors
        func, args = aten.mm.default, tuple(each.to(args[2]) for each in args[:2])
    made = func(*_each(_numbers, args), **{name: _each(_numbers, value) for name, value in given.items()})
    if not on_gpu:
        return made
    made = _each(PretendTensor, made)
    return _share_memory(func, args, kwargs, made) if pretend else made


def _refuse_mixing(func: Any, args: Any, of_cpu: list[torch.Tensor]) -> None:
    """An operator on tensors of both devices is an error, with the exceptions that PyTorch makes."""
    name = func.name().removeprefix("aten::")
    if func in _INDEXING and _is_pretend(args[0]):
        if any(value is index for value in of_cpu for index in args[1]):
            _wait("an index on the CPU")
        of_cpu = [value for value in of_cpu if all(value is not index for index in args[1]) and value.dim()]
    if any(value.dim() for value in of_cpu) or (of_cpu and name.startswith(_STRICT)):
        shapes = ", ".join(f"{tuple(value.shape)} {value.dtype}" for value in of_cpu)
        raise RuntimeError(f"cuda:0 and cpu are mixed by {name} ({shapes} on the CPU) at {_place(3)}")


def _record_wait(func: Any, args: Any) -> None:
    """Record the wait of an operator whose result depends on numbers of the device."""
    if func in _WAITING:
        _wait(_WAITING[func])
    if func in _INDEXING and any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
        _wait("an index of booleans")


def _copied(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """A copy on another device or of another type."""
    source, device = args[0], kwargs.get("device")
    from_gpu = _is_pretend(source)
    to_gpu = from_gpu if device is None else torch.device(device).type == "cuda"
    if from_gpu and not to_gpu:
        _wait("a copy to the CPU")
    if to_gpu and not from_gpu and not (id(source) in _pinned and kwargs.get("non_blocking")):
        _wait("a copy from the CPU that is not pinned")
    given = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
    made: torch.Tensor = func(_numbers(source), *args[1:], **given)
    if made.data_ptr() == _numbers(source).data_ptr():
        made = made.clone()
    return PretendTensor(made) if to_gpu else made


def _copy_into(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``target.copy_(source)``."""
    if _is_pretend(target) != _is_pretend(source) and not (id(source) in _pinned and non_blocking):
        _wait("copy_ between the devices")
    _numbers(target).copy_(_numbers(source))
    return target


class PretendMode(Mode):  # type: ignore[misc]
    """Sends what makes new tensors to ``compute`` too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


_tensor: Callable[..., torch.Tensor] = torch.tensor
_as_tensor: Callable[..., torch.Tensor] = torch.as_tensor
_alive: list[torch.Tensor] = []  # pinned tensors, which are known by their identity


def _made_on_the_cpu(data: Any, *, device: Any = None, **how: Any) -> torch.Tensor:
    """``torch.tensor``, which makes it on the CPU and copies it."""
    made = _tensor(data, **how)
    return made if device is None else made.to(device)


def _as_is(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if isinstance(data, torch.Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    made = _as_tensor(data, dtype=dtype)
    return made if device is None else made.to(device)


def _like(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **how: Any) -> torch.Tensor:
    return _made_on_the_cpu(data, dtype=dtype or self.dtype, device=device or self.device, **how)


def _pin(self: torch.Tensor, *_: Any) -> torch.Tensor:
    if _is_pretend(self):
        raise RuntimeError("only dense CPU tensors can be pinned")
    made = self.clone()
    _alive.append(made)
    _pinned.add(id(made))
    return made


def install() -> None:
    """Make the GPU known to PyTorch; for the rest of the process."""
    properties = SimpleNamespace(name=_NAME, total_memory=80_000_000_000, major=9, minor=0, multi_processor_count=132)
    answers = {
        "_lazy_init": None,
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "current_device": 0,
        "device_count": 1,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "get_device_name": _NAME,
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "mem_get_info": (80_000_000_000, 80_000_000_000),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    for owner, name, function in (
        (torch, "tensor", _made_on_the_cpu),
        (torch, "as_tensor", _as_is),
        (torch.Tensor, "new_tensor", _like),
        (torch.Tensor, "pin_memory", _pin),
    ):
        setattr(owner, name, function)
    PretendMode().__enter__()

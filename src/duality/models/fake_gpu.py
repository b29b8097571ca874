"""A GPU without numbers: code runs as on CUDA, at its true size, on tensors that have a shape and no memory.

``FakeGPU`` records every kernel that would be launched, with the bytes that it reads and writes and the operations of
products and attention (``roofline.Event``), every view, and every place where the host would wait for the device. A
new objective, or a kernel of its own that is registered as an operator of torch, is counted without being known here:
by its inputs and outputs.

It needs no GPU, and no torch that is built for one. The tensors are those of ``FakeTensorMode``. C++ takes them for CPU
tensors, which autograd can differentiate everywhere; Python reads ``cuda:0`` as their device, so that all choices that
this package makes by device are those of a GPU. Autocast on "cuda" becomes that on "cpu", which lowers the same
products. While it runs, ``torch.cuda`` says that there is a GPU: it is for a process of its own.

A number that the host reads is not known. It is False, 1 or 1.0; ``nonzero`` finds a ``share`` of the positions. What a
function reads with ``tolist`` can be given by its name (``answers``): the first numbers, before zeros.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import PyTree

from duality.models.fusion import Compiled, Launches
from duality.models.operators import event_of, num_bytes, tensors_in
from duality.models.roofline import Cost, Event, Kind

CUDA = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_IS_CUDA = vars(torch._C.TensorBase)["is_cuda"].__get__
_PACKAGE = str(Path(__file__).parents[1]) + "/"
_INSTRUMENTS = {str(Path(__file__).with_name(f"{name}.py")) for name in ("fake_gpu", "fusion", "cost")}


def _on_gpu(value: object) -> bool:
    """Whether this is a tensor of the GPU that is pretended."""
    return isinstance(value, FakeTensor) and value._fake_device == CUDA


def _move_there(tensors: Iterable[Tensor]) -> None:
    """Tensors without numbers are on the GPU from here on."""
    for tensor in tensors:
        assert isinstance(tensor, FakeTensor)
        tensor._fake_device = CUDA


def _stand_in(tensor: Tensor) -> bool | int | float:
    """For a number that is not known."""
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.is_floating_point() else 1


def _node_number() -> int | None:
    """The number of the node whose backward pass runs; None in a forward pass, also in one that is done again."""
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return None
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())


class _Places:
    """The line of this package that launches a kernel; of a backward pass, the line of its forward pass."""

    def __init__(self) -> None:
        self.of_node: dict[int, str] = {}

    def find(self) -> str:
        """The innermost line of this package, instruments aside."""
        frame, number = self.frame(), _node_number()
        place = "elsewhere"
        if frame is not None:
            place = f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno}"
        if number is None:
            # the node of an operator is made just before it; what has no node comes after that of another one
            self.of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
            return place
        return f"backward of {self.of_node.get(number, place)}"

    @staticmethod
    def frame() -> FrameType | None:
        """The innermost frame of this package."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(_PACKAGE) and name not in _INSTRUMENTS:
                return frame
            frame = frame.f_back
        return None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what operators launch, and gives their results the device that they would have."""

    def __init__(self, share: float, answers: Mapping[str, Sequence[float]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.share, self.answers = share, answers
        self.events: list[Event] = []
        self.places = _Places()
        self.target = False
        """a tensor is being made on the GPU"""
        self.silent = 0
        self.tracing = False
        """a function is run for its graph"""
        self.graphs: dict[object, Launches] = {}
        self.regions: list[tuple[range, list[Event]]] = []
        """the nodes of a compiled function, and what their backward passes launch together"""

    def add(self, kind: Kind, name: str, moved: float = 0.0) -> None:
        """One more event, at the line that is running."""
        if not self.tracing and (kind == "sync" or not self._is_silent()):
            self.events.append(Event(kind, self.places.find(), name, moved))

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the GPU."""
        return _on_gpu(tensor)

    def find_place(self) -> str:
        """The line that is running."""
        return self.places.find()

    def _is_silent(self) -> bool:
        """Whether nothing is recorded; the first node of a compiled function records the backward pass of all."""
        number = _node_number()
        found = None if number is None else next((each for each in self.regions if number in each[0]), None)
        if found is not None:
            self.events += found[1]
            found[1].clear()
        return self.silent > 0 or self.tracing or found is not None

    def __torch_dispatch__(self, func: OpOverload, types: PyTree, args: PyTree = (), kwargs: PyTree = None) -> PyTree:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return _CPU
        given = tensors_in((args, kwargs))
        here = [tensor for tensor in given if _on_gpu(tensor)]
        made_there = self.target
        if kwargs.get("device") is not None:
            made_there = made_there or torch.device(kwargs["device"]).type == "cuda"
            kwargs = {**kwargs, "device": _CPU}
        if not here and not made_there and not any(isinstance(tensor, FakeTensor) for tensor in given):
            with unset_fake_temporarily():  # on the host everything has numbers
                return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            self.add("sync", "item")
            return _stand_in(args[0])
        if func is torch.ops.aten.nonzero.default:
            return self._find_nonzero(args[0])
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], self._number_indices(args[1]))
            here = [tensor for tensor in tensors_in(args) if _on_gpu(tensor)]
        for tensor in here:
            tensor._fake_device = _CPU  # type: ignore[attr-defined]
        try:
            result = func(*args, **kwargs)
        finally:
            _move_there(here)
        made = [each for each in tensors_in(result) if isinstance(each, FakeTensor)]
        _move_there(made)
        event = None if self._is_silent() else event_of(func, args, kwargs, result, self.places.find())
        if event is not None:
            self.events.append(event)
        return result

    def read_all(self, tensor: FakeTensor) -> PyTree:
        """``Tensor.tolist``: all numbers, with one wait."""
        self.add("sync", "tolist")
        frame = self.places.frame()
        known = () if frame is None else self.answers.get(frame.f_code.co_name, ())
        if known:
            return [*known, *[0] * (len(tensor) - len(known))]

        def nest(shape: tuple[int, ...]) -> PyTree:
            return [nest(shape[1:]) for _ in range(shape[0])] if shape else _stand_in(tensor)

        return nest(tuple(tensor.shape))

    def make(self, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
        """A tensor on the GPU, without counting it."""
        before, self.target = self.target, True
        if strides is None:
            made = torch.empty(tuple(shape), dtype=dtype)
        else:
            made = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
        self.target = before
        _move_there([made])  # if a dispatch is under way, it was not seen
        return made

    def _number_indices(self, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Indices with numbers of positions in place of masks, which the host has to wait for."""
        found: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype != torch.bool:
                found.append(index)
            else:
                count = len(self._find_nonzero(index))
                found += [self.make((count,), torch.int64) for _ in range(index.dim())]
        return found

    def _find_nonzero(self, tensor: Tensor) -> Tensor:
        found = self.make((max(1, int(tensor.numel() * self.share)), tensor.dim()), torch.int64)
        self.add("kernel", "nonzero", moved=3 * num_bytes(tensor) + num_bytes(found))
        self.add("sync", "nonzero")
        return found


class _Devices(TorchFunctionMode):
    """Answers for the device where Python names it: tensors are made on it, and moved."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: OpOverload, types: PyTree, args: PyTree = (), kwargs: PyTree = None) -> PyTree:
        kwargs = dict(kwargs or {})
        if func == _IS_CUDA:
            return _on_gpu(args[0])
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._move(func, args[0], args[1:], kwargs)
        if func is Tensor.pin_memory:
            return args[0]
        device = kwargs.pop("device", None)
        if device is None:
            return func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor):
            return self._move(Tensor.to, func(*args, **kwargs), (device,), {})
        before, self.recorder.target = self.recorder.target, torch.device(device).type == "cuda"
        try:
            return func(*args, device=_CPU, **kwargs)
        finally:
            self.recorder.target = before

    def _move(self, func: PyTree, tensor: Tensor, args: PyTree, kwargs: PyTree) -> Tensor:
        """A tensor on another device, or of another type."""
        device: PyTree = {Tensor.cpu: "cpu", Tensor.cuda: "cuda"}.get(func, kwargs.pop("device", None))
        waits, rest = not kwargs.get("non_blocking", False), list[PyTree]()
        for each in args:
            if isinstance(each, (str, torch.device)):
                device = each
            elif isinstance(each, Tensor):
                device, rest = each.device, [each.dtype]
            elif isinstance(each, bool):
                waits = not each
            elif each is not None:
                rest.append(each)
        if func is Tensor.to and (rest or "dtype" in kwargs or device is None):
            tensor = func(tensor, *rest, **kwargs)
        there, wanted = _on_gpu(tensor), device is not None and torch.device(device).type == "cuda"
        if device is None or there == wanted:
            return tensor
        name = "copy to the device" if wanted else "copy to the host"
        self.recorder.add("kernel", name, moved=num_bytes(tensor))
        if waits:
            self.recorder.add("sync", name)
        if wanted:
            return self.recorder.make(tensor.shape, tensor.dtype)
        with unset_fake_temporarily():
            return torch.full(tensor.shape, _stand_in(tensor), dtype=tensor.dtype)


def _as_cpu(function: Callable[..., object]) -> Callable[..., object]:
    """A function of autocast that takes "cuda" for "cpu"."""

    def call(*args: object) -> PyTree:
        return function(*("cpu" if each == "cuda" else each for each in args))

    return call


def _by_python_device(group: Callable[..., PyTree]) -> Callable[..., object]:
    """Torch groups lists of tensors by device in C++; here the device is what Python reads."""

    def group_again(tensors: list[list[Tensor]], with_indices: bool = False) -> PyTree:
        groups = group(tensors, with_indices).items()
        return {(lists[0][0].device, dtype): (lists, places) for (_, dtype), (lists, places) in groups}

    return group_again


class FakeGPU:
    """Everything inside is recorded; ``reset`` forgets, ``cost`` is what was recorded since."""

    def __init__(self, share: float = 0.5, answers: Mapping[str, Sequence[float]] | None = None) -> None:
        self._recorder = _Recorder(share, answers or {})
        self._stack = ExitStack()

    def __enter__(self) -> FakeGPU:
        answers: dict[str, object] = {
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.is_bf16_supported": lambda including_emulation=True: True,
            "torch.cuda.current_device": lambda: 0,
            "torch.cuda.is_current_stream_capturing": lambda: False,
            "torch.cuda.get_device_capability": lambda device=None: (9, 0),
            "torch.cuda.get_device_name": lambda device=None: "a GPU without numbers",
            "torch._subclasses.fake_tensor.FakeTensor.tolist": lambda tensor: self._recorder.read_all(tensor),
            "torch._C._group_tensors_by_device_and_dtype": _by_python_device(
                torch._C._group_tensors_by_device_and_dtype
            ),
        }
        answers["torch.compile"] = self._compile
        for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
            answers[f"torch.{name}"] = _as_cpu(getattr(torch, name))
        for name, answer in answers.items():
            self._stack.enter_context(patch(name, answer))
        for mode in (FakeTensorMode(allow_non_fake_inputs=True), _Devices(self._recorder), self._recorder):
            self._stack.enter_context(mode)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _compile(self, function: Callable[..., object] | None = None, **options: object) -> Callable[..., object]:
        """``torch.compile``."""
        return self._compile if function is None else Compiled(self._recorder, function)

    def place(self, module: nn.Module) -> nn.Module:
        """The module, which may be on the device "meta", with its weights on the GPU."""
        for part in module.modules():
            for name, value in list(part._parameters.items()):
                if value is not None:
                    made = nn.Parameter(self._recorder.make(value.shape, value.dtype), value.requires_grad)
                    setattr(part, name, made)
            for name, buffer in list(part._buffers.items()):
                if buffer is not None:
                    part._buffers[name] = self._recorder.make(buffer.shape, buffer.dtype)
        return module

    def reset(self) -> None:
        """Forget what was recorded."""
        self._recorder.events.clear()

    @property
    def cost(self) -> Cost:
        """What was recorded since the last ``reset``."""
        return Cost(tuple(self._recorder.events))

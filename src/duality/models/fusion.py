"""What ``torch.compile`` would launch for a function: its graph, forward and backward, and one kernel per group.

The function is traced on tensors without numbers, together with its gradients. Torch's own partitioner divides the
graph: it decides what is kept for the backward pass and what is computed again there. In each half

- a product, attention, and an operator of another library, is a kernel of its own;
- elementwise operations and reductions are fused: a group reads each input from outside once, and writes what is read
  outside. A group has one reduced dimension, or none, and one size. A cheap result that two groups need is computed in
  both, if what it is computed from is no larger than itself.

It is a model of Inductor, whose own scheduler needs a real device: what must hold is its sum of bytes, not its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.fx.node import map_arg
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import PyTree
from torch.utils.flop_counter import flop_registry

from duality.models.operators import VIEWS, event_of, tensors_in
from duality.models.roofline import Event

_VIEWS = VIEWS | {"getitem"}
_REDUCTIONS = frozenset(
    ("sum", "mean", "amax", "amin", "max", "min", "var_mean", "var", "prod", "any", "all", "argmax")
)
_ALONE = frozenset(
    (
        *("sort", "topk", "cumsum", "searchsorted", "index_put", "scatter", "scatter_add", "_embedding_bag"),
        *("embedding_dense_backward", "convolution", "convolution_backward"),
    )
)


def _name_of(node: fx.Node) -> str:
    """The operator's name without its overload."""
    target = node.target
    packet = target.overloadpacket if isinstance(target, OpOverload) else target
    return str(getattr(packet, "__name__", packet))


def _value_of(node: fx.Node) -> Tensor | None:
    """The tensor that a node makes; None if it makes none, or several."""
    value = node.meta.get("val")
    return value if isinstance(value, Tensor) else None


def _num_bytes(node: fx.Node) -> int:
    """The size of what a node makes."""
    values = node.meta.get("val")
    parts = values if isinstance(values, (tuple, list)) else (values,)
    return sum(each.numel() * each.element_size() for each in parts if isinstance(each, Tensor))


def _base_of(node: fx.Node) -> fx.Node:
    """What a view looks at."""
    while node.op == "call_function" and _name_of(node) in _VIEWS:
        node = node.all_input_nodes[0]
    return node


def _stands_alone(node: fx.Node) -> bool:
    """Whether a node is a kernel of its own."""
    target = node.target
    if not isinstance(target, OpOverload):
        return True
    foreign = target.namespace not in ("aten", "prims")
    named = _name_of(node) in _ALONE or _name_of(node).startswith("_scaled_dot_product")
    return foreign or named or target._schema.is_mutable or target.overloadpacket in flop_registry


@dataclass(eq=False)
class _Group:
    """One kernel: the buffers that it makes, and what it reads: for each buffer, the parts of it by view."""

    buffers: list[fx.Node]
    alone: bool
    elements: int
    """the number of results of a reduction, or of elements"""
    reduced: int
    """the number of elements of each result"""
    reads: dict[fx.Node, dict[fx.Node, int]]

    @property
    def size(self) -> int:
        return self.elements * self.reduced

    def read_bytes(self, buffer: fx.Node) -> int:
        """The bytes of a buffer that are read."""
        return min(_num_bytes(buffer), sum(self.reads.get(buffer, {}).values()))

    def fits(self, other: _Group) -> bool:
        """Whether the two go through the same elements."""
        if self.alone or other.alone:
            return False
        if self.reduced > 1 and other.reduced > 1:
            return (self.elements, self.reduced) == (other.elements, other.reduced)
        return self.size == other.size or other.size in (self.elements, self.size) or self.size == other.elements

    def shared_bytes(self, other: _Group) -> int:
        """The bytes that need not be read again if the two are one kernel."""
        common = [each for each in self.reads if each in other.reads]
        made = [each for each in self.buffers if each in other.reads]
        made += [each for each in other.buffers if each in self.reads]
        both = sum(min(self.read_bytes(each), other.read_bytes(each)) for each in common)
        return both + sum(map(_num_bytes, made))

    def merge(self, other: _Group) -> None:
        """Make this kernel compute the other one's buffers too."""
        self.buffers += other.buffers
        if other.reduced > 1:
            self.elements, self.reduced = other.elements, other.reduced
        for buffer, parts in other.reads.items():
            self.reads.setdefault(buffer, {}).update(parts)


_MOST_READS = 4  # what reads more buffers is computed once, if it is needed twice (Inductor's realize_reads_threshold)


def _is_computed(node: fx.Node) -> bool:
    """Whether a node makes numbers, and is no view."""
    return node.op == "call_function" and _name_of(node) not in _VIEWS and _num_bytes(node) > 0


def _find_buffers(graph: fx.Graph) -> list[_Group]:
    """Everything that is a tensor in memory, each as a kernel of its own; the rest is computed where it is read."""
    roots: dict[fx.Node, dict[fx.Node, dict[fx.Node, int]]] = {}
    groups = []
    for node in graph.nodes:
        if not _is_computed(node):
            continue
        reads: dict[fx.Node, dict[fx.Node, int]] = {}
        for source in dict.fromkeys(node.all_input_nodes):
            base = _base_of(source)
            found = roots.get(base, {base: {source: _num_bytes(source)}})
            for buffer, parts in found.items():
                reads.setdefault(buffer, {}).update(parts)
        users = list(_readers(node))
        alone, reducing = _stands_alone(node), _name_of(node) in _REDUCTIONS
        needed = any(user.op == "output" or _stands_alone(user) for user in users)
        if alone or reducing or needed or (len(users) > 1 and len(reads) > _MOST_READS):
            whole, left = _shape_of(node)
            groups.append(_Group([node], alone, left, whole // max(left, 1), reads))
        else:
            roots[node] = reads
    return groups


def _shape_of(node: fx.Node) -> tuple[int, int]:
    """The number of elements that a node goes through, and how many results it makes of them."""
    value = node.meta["val"]
    made = value if isinstance(value, Tensor) else next(each for each in value if isinstance(each, Tensor))
    if _name_of(node) not in _REDUCTIONS:
        return made.numel(), made.numel()
    source = _value_of(node.all_input_nodes[0])
    return (made if source is None else source).numel(), made.numel()


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that read one, through views."""
    for user in node.users:
        if user.op == "call_function" and _name_of(user) in _VIEWS:
            yield from _readers(user)
        else:
            yield user


def _fuse(graph: fx.Graph) -> list[_Group]:
    """The kernels of a graph, in an order in which they can run: those that share most bytes become one first."""
    groups = _find_buffers(graph)
    while True:
        home = {buffer: group for group in groups for buffer in group.buffers}
        before = {group: {home[each] for each in group.reads if each in home} - {group} for group in groups}
        above = _reach(groups, before)
        pairs = [
            (one.shared_bytes(two), place, one, two)
            for place, (one, two) in enumerate(combinations(groups, 2))
            if one.fits(two)
        ]
        for shared, _, one, two in sorted(pairs, key=lambda pair: (-pair[0], pair[1])):
            # no third kernel may stand between the two
            between = [one in above[each] for each in before[two] - {one}]
            between += [two in above[each] for each in before[one] - {two}]
            if shared and not any(between):
                one.merge(two)
                groups.remove(two)
                break
        else:
            order = {group: len(above[group]) for group in groups}
            return sorted(groups, key=order.__getitem__)


def _reach(groups: Sequence[_Group], before: dict[_Group, set[_Group]]) -> dict[_Group, set[_Group]]:
    """All groups that come before each one."""
    found: dict[_Group, set[_Group]] = {}

    def visit(group: _Group) -> set[_Group]:
        if group not in found:
            found[group] = set()
            for each in before[group]:
                found[group] |= {each} | visit(each)
        return found[group]

    for group in groups:
        visit(group)
    return found


def _moved_bytes(groups: Sequence[_Group]) -> dict[_Group, int]:
    """Bytes that each kernel reads and writes: a buffer that only its own kernel reads is never written."""
    moved = {}
    for group in groups:
        own = set(group.buffers)
        elsewhere = {each for other in groups if other is not group for each in other.reads}
        left = (each for each in own if any(user.op == "output" for user in _readers(each)))
        read = sum(group.read_bytes(each) for each in group.reads if each not in own)
        moved[group] = read + sum(map(_num_bytes, (own & elsewhere) | set(left)))
    return moved


def _made_by(node: fx.Node) -> PyTree:
    """What a node makes."""
    return node.meta["val"]


def _events_of(module: fx.GraphModule) -> list[Event]:
    """What a compiled graph launches, in order."""
    groups = _fuse(module.graph)
    moved, events = _moved_bytes(groups), list[Event]()
    for group in groups:
        if group.alone:
            (node,) = group.buffers
            assert isinstance(node.target, OpOverload)
            args, kwargs = (map_arg(each, _made_by) for each in (node.args, node.kwargs))
            event = event_of(node.target, args, kwargs, node.meta["val"], "")
            events += [] if event is None else [event]
        elif moved[group]:
            events.append(Event("kernel", "", f"fused {_name_of(group.buffers[-1])}", float(moved[group])))
    return events


def _trace(
    function: Callable[..., list[Tensor]], primals: Sequence[Tensor], learning: bool
) -> tuple[fx.GraphModule, fx.GraphModule | None]:
    """The graph of a function of tensors that returns tensors, and that of its gradients if it is ``learning``."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    count = 0

    def joint(primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor | None]:
        nonlocal count
        outputs = list(function(*primals))
        count = len(outputs)
        if not learning:
            return [*outputs]
        wanted = [each for each in primals if each.requires_grad]
        made = [each for each in outputs if each.requires_grad]
        found = iter(torch.autograd.grad(made, wanted, list(tangents), allow_unused=True))
        return [*outputs, *(next(found) if each.requires_grad else None for each in primals)]

    outputs = function(*primals)
    tangents = [torch.empty_like(each, requires_grad=False) for each in outputs if each.requires_grad]
    traced = make_fx(joint, decomposition_table=select_decomp_table())(list(primals), tangents)
    traced.graph.eliminate_dead_code()
    if not learning:
        return traced, None
    halves = min_cut_rematerialization_partition(traced, None, num_fwd_outputs=count, compiler="inductor")
    return halves[0], halves[1]


def _substitute(values: PyTree, new: dict[int, Tensor], found: list[Tensor]) -> PyTree:
    """Nested values with other tensors; ``found`` collects those that are there."""
    if isinstance(values, Tensor):
        found.append(values)
        return new.get(id(values), values)
    if isinstance(values, dict):
        return {key: _substitute(value, new, found) for key, value in values.items()}
    if isinstance(values, (tuple, list)):
        parts = [_substitute(value, new, found) for value in values]
        return type(values)(parts) if type(values) in (tuple, list) else type(values)(*parts)  # a named tuple
    if is_dataclass(values) and not isinstance(values, type):
        changed = {each.name: _substitute(getattr(values, each.name), new, found) for each in fields(values)}
        return replace(values, **{name: value for name, value in changed.items() if isinstance(value, (Tensor, list))})
    return values


def _describe(values: PyTree) -> object:
    """What a compiled function depends on: the kinds of tensors, and everything else as it is."""
    if isinstance(values, Tensor):
        return tuple(values.shape), values.stride(), values.dtype, values.requires_grad
    if isinstance(values, dict):
        return tuple((key, _describe(value)) for key, value in values.items())
    if isinstance(values, (tuple, list)):
        return tuple(map(_describe, values))
    if is_dataclass(values) and not isinstance(values, type):
        return type(values), tuple(_describe(getattr(values, each.name)) for each in fields(values))
    return repr(values)


Launches = tuple[list[Event], list[Event]]  # of a function, and of its backward pass


class _Recorder(Protocol):
    """What records events (``fake_gpu``)."""

    events: list[Event]
    silent: int
    tracing: bool
    graphs: dict[object, Launches]
    regions: list[tuple[range, list[Event]]]

    def holds(self, tensor: Tensor) -> bool: ...
    def find_place(self) -> str: ...
    def make(self, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor: ...


class Compiled:
    """A function that ``torch.compile`` was asked to compile: it launches what ``fusion`` makes of its graph."""

    def __init__(self, recorder: _Recorder, function: Callable[..., PyTree]) -> None:
        self.recorder, self.function = recorder, function
        owner = getattr(function, "__self__", None)
        self.module = owner if isinstance(owner, nn.Module) else nn.Module()

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        recorder, learning = self.recorder, torch.is_grad_enabled()
        if recorder.tracing or recorder.silent:
            return self.function(*args, **kwargs)
        weights = dict(self.module.named_parameters())
        lower = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        name = getattr(self.function, "__qualname__", ""), type(self.module)
        key = (name, learning, lower, _describe((args, kwargs)), _describe(weights))
        if key not in recorder.graphs:
            recorder.graphs[key] = self._trace(args, kwargs, weights, learning)
        forward, backward = recorder.graphs[key]
        place, first = recorder.find_place(), torch._C._autograd._get_sequence_nr()
        recorder.events += [replace(event, place=place) for event in forward]
        recorder.silent += 1
        try:
            result = self.function(*args, **kwargs)
        finally:
            recorder.silent -= 1
        nodes = range(first, torch._C._autograd._get_sequence_nr())
        recorder.regions.append((nodes, [replace(event, place=f"backward of {place}") for event in backward]))
        return result

    def _trace(self, args: PyTree, kwargs: PyTree, weights: Mapping[str, Tensor], learning: bool) -> Launches:
        """What the function launches, and its backward pass."""
        given: list[Tensor] = []
        _substitute((args, kwargs), {}, given)
        old = list({id(each): each for each in (*weights.values(), *given) if self.recorder.holds(each)}.values())
        self.recorder.tracing = True
        new = [self.recorder.make(each.shape, each.dtype, each.stride()) for each in old]
        primals = [made.requires_grad_(each.requires_grad) for made, each in zip(new, old)]

        def run(*tensors: Tensor) -> list[Tensor]:
            known = {id(each): tensor for each, tensor in zip(old, tensors)}
            own = {name: known.get(id(value), value) for name, value in weights.items()}
            other_args, other_kwargs = _substitute((args, kwargs), known, [])
            with _reparametrize_module(self.module, own):
                return tensors_in(self.function(*other_args, **other_kwargs))

        own_hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
        try:
            with own_hooks:  # a block that is computed again does not keep what is traced
                forward, backward = _trace(run, primals, learning and any(each.requires_grad for each in old))
        finally:
            self.recorder.tracing = False
        return _events_of(forward), [] if backward is None else _events_of(backward)

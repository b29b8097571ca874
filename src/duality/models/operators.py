"""What an operator of torch costs a GPU: the bytes that it reads and writes, the operations of products and attention.

An operator reads its inputs once and writes its outputs; what it changes in place is read and written. An operator that
is not named here, such as a kernel of this package's own, is counted in the same manner. Look-ups read the rows that
they return. A view launches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import PyTree, tree_flatten
from torch.utils.flop_counter import flop_registry

from duality.models.roofline import Arithmetic, Event

_ARITHMETIC: dict[torch.dtype, Arithmetic] = {
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
VIEWS = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "as_strided", "detach", "alias", "lift_fresh"),
        *("slice", "select", "split", "split_with_sizes", "unbind", "unfold", "diagonal", "view_as_real"),
        *("t", "transpose", "permute", "unsqueeze", "squeeze"),
    )
)
_FREE = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "lift"))
_OVERWRITE = frozenset(("fill_", "zero_", "copy_"))  # their first argument is not read
_LOOK_UP = frozenset(("index", "index_select", "gather", "embedding"))
_WRITE_SOME = frozenset(("index_put_", "_index_put_impl_", "scatter_", "scatter_add_", "index_copy_", "index_add_"))
_ATTENTION = "_scaled_dot_product"


def num_bytes(tensor: Tensor) -> int:
    """The bytes of memory that a kernel touches: an expanded dimension is read once."""
    size = prod(length for length, stride in zip(tensor.shape, tensor.stride()) if stride)
    return size * tensor.element_size() if tensor.numel() else 0


def tensors_in(values: object) -> list[Tensor]:
    """The tensors in nested arguments, each once."""
    found = {id(each): each for each in tree_flatten(values)[0] if isinstance(each, Tensor)}
    return list(found.values())


def event_of(func: OpOverload, args: PyTree, kwargs: PyTree, result: PyTree, place: str) -> Event | None:
    """What an operator launches; None if nothing."""
    packet = func.overloadpacket
    name: str = packet.__name__
    if name in _FREE or func.namespace == "prim":
        return None
    if name in VIEWS:
        return Event("view", place, name)
    given = tensors_in((args, kwargs))
    attention, formula = name.startswith(_ATTENTION), _find_formula(packet)
    operations = 0.0 if formula is None else float(formula(*args, **kwargs, out_val=result))
    if attention:
        operations = _attention_operations(name, args, kwargs)
    first = next((tensor.dtype for tensor in given if tensor.is_floating_point()), None)
    arithmetic = "other" if first is None else _ARITHMETIC.get(first, "other")
    if operations and arithmetic == "float32" and torch.get_float32_matmul_precision() != "highest":
        arithmetic = "tf32"
    moved = _moved_bytes(func, args, kwargs, given, tensors_in(result))
    return Event("kernel", place, name, moved, operations, arithmetic, attention)


def _find_formula(packet: OpOverloadPacket) -> Callable[..., float] | None:
    """Torch's count of the operations of an operator, or of the one that it is in place."""
    if packet.__name__.endswith("_") and packet not in flop_registry:
        packet = getattr(torch.ops.aten, packet.__name__.rstrip("_"), packet)
    return flop_registry.get(packet)


def _attention_operations(name: str, args: PyTree, kwargs: PyTree) -> float:
    """The operations of attention or of its gradients (2.5 times as many, as the scores are computed again)."""
    backward = "backward" in name
    query, key = (args[1], args[2]) if backward else (args[0], args[1])
    causal = any(each is True for each in (*args, *kwargs.values()))
    batch, heads, length, width = query.shape
    pairs: int = batch * heads * length * key.shape[2]
    return float((10 if backward else 4) * pairs * width * (0.5 if causal else 1.0))


def _moved_bytes(func: OpOverload, args: PyTree, kwargs: PyTree, given: list[Tensor], made: list[Tensor]) -> float:
    """Bytes that a kernel reads and writes."""
    name = func.overloadpacket.__name__
    values = {argument.name: value for argument, value in zip(func._schema.arguments, args)} | kwargs
    marked = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    changed = tensors_in([values.get(each) for each in marked])
    unread = {id(each) for each in tensors_in([value for key, value in kwargs.items() if key in marked])}
    if name.endswith("_like"):
        unread |= {id(each) for each in given}
    if name in _OVERWRITE:
        unread |= {id(each) for each in changed[:1]}
    inputs = {id(each) for each in given}
    read: float = sum(num_bytes(each) for each in given if id(each) not in unread)
    written: float = sum(num_bytes(each) for each in made if id(each) not in inputs)
    written += sum(map(num_bytes, changed))
    if name in _LOOK_UP:
        read = written + sum(num_bytes(each) for each in given if not each.is_floating_point())
    elif name in _WRITE_SOME:
        read = sum(num_bytes(each) for each in given if id(each) != id(args[0]))
        written = 2 * read
    elif name == "embedding_dense_backward":
        read *= 2
    elif name == "sort":
        read, written = 8 * read, 4 * written
    return read + written

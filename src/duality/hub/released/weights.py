"""The released network: the names, the order and the shapes of its tensors, and which weight of ours each one is.

    vocab_embed.embedding              embedding          rows of tokens
    sigma_map.mlp.{0,2}                time.mlp           the noise level -log(alpha); not in a causal network
    rotary_emb.inv_freq                (no weight)        the frequencies of the rotary positions
    blocks.i.attn_qkv ...              blocks.i.qkv ...
    output_layer.linear                head

The networks of Duo, MDLM, UDLM, SEDD, D3PM and AR all have these names: with the prefix "backbone." in the code of the
MDLM and Duo papers, without one in that of the SEDD paper. An average of the weights (EMA) is a list without names, in
the order of the parameters.

What must hold: all functions are pure; what does not fit is refused with the tensors that are missing, that nothing
belongs to, or that have another shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from duality.networks.dit import DiT, DiTNetwork
from duality.networks.uninitialised import uninitialised

T = TypeVar("T")
Shape = tuple[int, ...]

EMBEDDING, FREQUENCIES = "vocab_embed.embedding", "rotary_emb.inv_freq"
_COMPLETE = "fetch it again, or give the file of another model"
_ROTARY_BASE = 10_000
MLP_RATIO = 4  # the released networks have no other
_TIME_WIDTH = 128
_SHOWN = 6  # names of tensors in a message

_LINEAR = ("weight", "bias")
_BLOCK = {"norm1": "norm_attention", "attn_qkv": "qkv", "attn_out": "out", "norm2": "norm_mlp"}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a released network."""

    num_states: int
    width: int
    depth: int
    heads: int
    time_width: int = _TIME_WIDTH
    causal: bool = False

    def backbone(self, dropout: float) -> DiT:
        """The configuration of our network of these sizes."""
        return DiT(self.width, self.depth, self.heads, self.time_width, dropout, MLP_RATIO)


def released_names(depth: int, causal: bool) -> dict[str, str | None]:
    """Our name of each tensor by its released name, in the released order; None for the rotary frequencies."""
    names: dict[str, str | None] = {EMBEDDING: "embedding"}
    if not causal:
        names |= {f"sigma_map.mlp.{i}.{kind}": f"time.mlp.{i}.{kind}" for i in (0, 2) for kind in _LINEAR}
    names[FREQUENCIES] = None
    inner = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in _BLOCK.items()}
    inner |= {f"mlp.{i}.{kind}": f"mlp.{i}.{kind}" for i in (0, 2) for kind in _LINEAR}
    if not causal:
        inner |= {f"adaLN_modulation.{kind}": f"modulation.{kind}" for kind in _LINEAR}
    for block in range(depth):
        names |= {f"blocks.{block}.{theirs}": f"blocks.{block}.{ours}" for theirs, ours in inner.items()}
    names["output_layer.norm_final.weight"] = "norm.weight"
    names |= {f"output_layer.linear.{kind}": f"head.{kind}" for kind in _LINEAR}
    if not causal:
        names |= {f"output_layer.adaLN_modulation.{kind}": f"modulation.{kind}" for kind in _LINEAR}
    return names


def weight_names(depth: int, causal: bool) -> dict[str, str]:
    """Our name of each weight by its released name, in the order of the parameters."""
    return {theirs: ours for theirs, ours in released_names(depth, causal).items() if ours is not None}


def released_shapes(sizes: Sizes) -> dict[str, Shape]:
    """The shape of each tensor of a released network, in the released order; the network is built without numbers."""
    with uninitialised():
        network = DiTNetwork(sizes.backbone(0.0), sizes.num_states, sizes.causal)
    ours = {name: tuple(value.shape) for name, value in network.named_parameters()}
    names = released_names(sizes.depth, sizes.causal)
    return {name: (sizes.width // sizes.heads // 2,) if mine is None else ours[mine] for name, mine in names.items()}


def rotary_frequencies(head_width: int) -> Tensor:
    """The buffer of the released rotary positions, computed as there: float32."""
    return 1.0 / (_ROTARY_BASE ** (torch.arange(0, head_width, 2).float() / head_width))


def without_prefix(tensors: Mapping[str, T], where: str) -> tuple[str, dict[str, T]]:
    """The prefix of a file's names, and its tensors without it; those of a teacher, which is not the model, are left.

    What has another prefix keeps its name, so that ``check_shapes`` lists it.
    """
    prefixes = [name.removesuffix(EMBEDDING) for name in tensors if name.endswith(EMBEDDING)]
    found = [prefix for prefix in prefixes if not prefix.startswith("teacher")]
    if len(found) != 1:
        problem = "no tensor" if not found else f"{len(found)} tensors"
        raise ValueError(
            f"{where} has {problem} named {EMBEDDING}, which every released network has once; it has "
            f"{', '.join(list(tensors)[:8]) or 'no tensors'}{', ...' * (len(tensors) > 8)}: give a file of Duo, MDLM, "
            "UDLM, SEDD, D3PM or AR"
        )
    own = {name.removeprefix(found[0]): value for name, value in tensors.items() if not name.startswith("teacher")}
    return found[0], own


def sizes_of(shapes: Mapping[str, Shape], heads: int | None, where: str) -> Sizes:
    """The sizes of the network whose tensors have these shapes; ``heads`` only if its frequencies are not there.

    A tensor that is missing or odd is not looked at here: it is listed by ``check_shapes``.
    """
    if len(shapes[EMBEDDING]) != 2 or min(shapes[EMBEDDING]) < 1:
        raise ValueError(f"{EMBEDDING} of {where} has the shape {shapes[EMBEDDING]}: it must have rows and columns")
    num_states, width = shapes[EMBEDDING]
    blocks = [int(found[1]) for name in shapes if (found := re.match(r"blocks\.(\d{1,6})\.", name))]
    causal = not any(name.startswith("sigma_map.") or ".adaLN_modulation." in name for name in shapes)
    bias = shapes.get("sigma_map.mlp.2.bias") or shapes.get("sigma_map.mlp.0.bias") or (_TIME_WIDTH,)
    frequencies = shapes.get(FREQUENCIES)
    if frequencies is not None and len(frequencies) == 1 and frequencies[0] > 0 and not width % (2 * frequencies[0]):
        heads = width // (2 * frequencies[0])
    if heads is None:
        raise ValueError(
            f"{where} does not say how many heads its attention has, neither in {FREQUENCIES} nor in its "
            "configuration: give --heads; the network of 170 M parameters has 12"
        )
    return Sizes(num_states, width, max(blocks, default=0) + 1, heads, bias[0] if bias else _TIME_WIDTH, causal)


def check_shapes(found: Mapping[str, Shape], expected: Mapping[str, Shape], where: str) -> None:
    """Refuse tensors that are not those of the network; the first that differ are named, and how many more do."""
    missing = [name for name in expected if name not in found and name != FREQUENCIES]
    extra = [name for name in found if name not in expected]
    both = [(name, found[name], shape) for name, shape in expected.items() if name in found]
    wrong = [f"{name} {own} instead of {shape}" for name, own, shape in both if own != shape]
    kinds = {"missing": missing, "not of this network": extra, "of another shape": wrong}
    problems = [
        f"{kind}: {', '.join(names[:_SHOWN])}" + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
        for kind, names in kinds.items()
        if names
    ]
    if problems:
        raise ValueError(f"{where} does not hold the network that its sizes say ({'; '.join(problems)}): {_COMPLETE}")


def check_numbers(tensors: Mapping[str, Tensor], sizes: Sizes, where: str) -> None:
    """Refuse tensors that are no floating-point numbers, and positions that turn at other speeds than ours."""
    if odd := [f"{name} ({value.dtype})" for name, value in tensors.items() if not value.is_floating_point()]:
        raise ValueError(f"{where} has tensors that are no floating-point numbers ({', '.join(odd)}): {_COMPLETE}")
    if odd := [name for name, value in tensors.items() if not value.float().isfinite().all()]:
        raise ValueError(f"{where} has numbers that are not finite in float32 ({', '.join(odd[:8])}): {_COMPLETE}")
    if FREQUENCIES in tensors:
        expected = rotary_frequencies(sizes.width // sizes.heads)
        precision = max(1e-3, torch.finfo(tensors[FREQUENCIES].dtype).eps)  # bfloat16 has 8 bits
        if not torch.allclose(tensors[FREQUENCIES].float(), expected, rtol=precision, atol=0):
            raise ValueError(
                f"{FREQUENCIES} of {where} is not that of rotary positions with base {_ROTARY_BASE}: this network has "
                "other positions, and would write nonsense"
            )


def named_average(shadow: Sequence[Tensor], weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The average by name: it has no names, and is matched to the weights by order and by shape."""
    if len(shadow) != len(weights):
        raise ValueError(
            f"the average (ema) of {where} has {len(shadow)} tensors, and the network {len(weights)} weights: they are "
            f"matched by their order, so there must be one for each; {_COMPLETE}"
        )
    wrong = [
        f"number {number} is {tuple(value.shape)}, {name} is {tuple(weight.shape)}"
        for number, (value, (name, weight)) in enumerate(zip(shadow, weights.items()))
        if value.shape != weight.shape
    ]
    if wrong:
        raise ValueError(f"the average (ema) of {where} does not fit the weights ({'; '.join(wrong)}): {_COMPLETE}")
    return dict(zip(weights, shadow))

"""Frozen parts of a network: weights that a training does not change (``training.freeze``).

    embedding            the embedding                   blocks.0-3          the first four blocks
    blocks               all blocks                      blocks.5.mlp        the MLP of the sixth
    head                 the output projection           none                nothing is frozen

A part is named as the network names its weights, from their beginning. What must hold: a frozen weight and its average
stay the same bit for bit, it has no gradient and no moments; a name that no weight begins with is refused with the
names that there are; something is left to train.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

NOTHING = "none"
_NETWORK = "backbone."  # where a denoiser has its network: not a part of a name that a user writes
_RANGE = re.compile(r"(.+)\.(\d{1,4})-(\d{1,4})")
_NUMBERED = re.compile(r"(.+?)\.(\d+)\..+")


def part_name(weight: str) -> str:
    """The name of a weight as a user writes it.

    >>> part_name("backbone.blocks.0.qkv.weight")
    'blocks.0.qkv.weight'
    """
    return weight.removeprefix(_NETWORK)


def parts_in(weights: Iterable[str]) -> list[str]:
    """The parts of a network with weights of these names, in their order; numbered ones as a range.

    >>> parts_in(["backbone.embedding", "backbone.blocks.0.qkv.weight", "backbone.blocks.1.qkv.weight", "table"])
    ['embedding', 'blocks.0-1', 'table']
    """
    numbers: dict[str, list[int]] = {}
    for name in map(part_name, weights):
        numbered = _NUMBERED.fullmatch(name)
        if numbered is not None and "." not in numbered[1]:
            numbers.setdefault(numbered[1], []).append(int(numbered[2]))
        else:
            numbers.setdefault(name.partition(".")[0], [])
    return [f"{part}.{min(found)}-{max(found)}" if found else part for part, found in numbers.items()]


def named_parts(freeze: str) -> list[str]:
    """The parts that ``training.freeze`` names, one by one.

    >>> named_parts("embedding, blocks.0-2"), named_parts("none")
    (['embedding', 'blocks.0', 'blocks.1', 'blocks.2'], [])
    """
    if freeze == NOTHING:
        return []
    found = []
    for part in (each.strip() for each in freeze.split(",")):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            found.append(part)
            continue
        first, last = int(numbers[2]), int(numbers[3])
        if first > last:
            raise ValueError(f"training.freeze has {part!r}: a range begins with its smaller number")
        found += [f"{numbers[1]}.{number}" for number in range(first, last + 1)]
    return found


def frozen_names(weights: Iterable[str], freeze: str) -> frozenset[str]:
    """Which of the weights ``training.freeze`` names; a part that there is not is refused."""
    names = list(weights)
    frozen: set[str] = set()
    for part in named_parts(freeze):
        own = {name for name in names if f"{part_name(name)}.".startswith(f"{part}.")}
        if not part or not own:
            raise ValueError(
                f"training.freeze has {part!r}, which is no part of the network: choose from "
                f"{', '.join(parts_in(names))} (a part of these too, such as blocks.0-1 or blocks.0.mlp), or {NOTHING}"
            )
        frozen |= own
    return frozenset(frozen)


def trained_names(model: nn.Module, freeze: str) -> list[str]:
    """The weights of a model that are trained; a training without any is refused."""
    weights = dict(model.named_parameters())
    frozen = frozen_names(weights, freeze)
    trained = [name for name, value in weights.items() if value.requires_grad and name not in frozen]
    if not trained:
        raise ValueError(f"training.freeze={freeze} leaves nothing to train: name fewer parts")
    return trained


def freeze_parts(model: nn.Module, freeze: str) -> None:
    """Take the gradients from the weights that ``training.freeze`` names."""
    trained = set(trained_names(model, freeze))
    for name, value in model.named_parameters():
        if name not in trained:
            value.requires_grad_(False)

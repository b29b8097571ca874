"""LoRA (Hu et al., 2021): a finetuning that trains small adapters of the matrices, and not the network itself.

    W + scale B A        A (rank, inputs) random, B (outputs, rank) zero at first, scale = lora_alpha / lora

``training.lora`` is the rank. The matrices are those of attention and MLP, as the network names them
(``muon.HasMatrices``), or those of ``training.lora_layers`` alone, and none in parts that ``training.freeze`` names.
The library `peft` (the extra ``lora``) puts the adapters into the network; it is needed for training only. In a
checkpoint the adapters are tensors of their own, beside the weights that they change:

    blocks.0.qkv.base_layer.weight    blocks.0.qkv.lora_A.default.weight    blocks.0.qkv.lora_B.default.weight

``merged`` makes the weights of the ordinary network from them, wherever a model is loaded. What must hold: with new
adapters the network computes what it did without them; the weights below them never change; names and shapes of a
checkpoint are known without `peft` and without memory.

Frozen parts of a network: weights that a training does not change (``training.freeze``).

    embedding            the embedding                   blocks.0-3          the first four blocks
    blocks               all blocks                      blocks.5.mlp        the MLP of the sixth
    head                 the output projection           none                nothing is frozen

A part is named as the network names its weights, from their beginning. What must hold: a frozen weight and its average
stay the same bit for bit, it has no gradient and no moments; a name that no weight begins with is refused with the
names that there are; something is left to train.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor, nn

from duality.training.muon import HasMatrices
from duality.training.settings import Training

ALL = "all"
_BASE, _WEIGHT = ".base_layer", ".weight"
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"
_LAYER = re.compile(r"(?:.*?\.\d+\.)?(.+)\.weight")
INSTALL = "pip install 'diffusion-duality[lora]'"

Shape = tuple[int, ...]


def peft_library() -> ModuleType:
    """The library that makes adapters."""
    try:
        return import_module("peft")
    except ImportError as error:
        raise ValueError(f"training.lora needs peft, which cannot be imported ({error}): {INSTALL}") from None


# --- which matrices


def layer_of(weight: str) -> str:
    """The layer of a block that a matrix belongs to.

    >>> layer_of("backbone.blocks.0.mlp.2.weight"), layer_of("backbone.mixing.weight")
    ('mlp.2', 'backbone.mixing')
    """
    found = _LAYER.fullmatch(weight)
    return weight if found is None else found[1]


def adapted_matrices(model: nn.Module, training: Training) -> list[str]:
    """The names of the matrices of a plain ``model`` that get an adapter; a training that has none is refused."""
    matrices = {
        id(each) for part in model.modules() if isinstance(part, HasMatrices) for each in part.hidden_matrices()
    }
    weights = dict(model.named_parameters())
    names = [name for name, value in weights.items() if id(value) in matrices]
    if not names:
        raise ValueError(
            f"training.lora is {training.lora}, and no network of {type(model).__name__} has `hidden_matrices` to "
            "adapt: train without it"
        )
    smallest = min(min(weights[name].shape) for name in names)
    if training.lora > smallest:
        raise ValueError(
            f"training.lora is {training.lora}: a rank is at most {smallest}, the smaller side of the smallest matrix"
        )
    frozen = frozen_names(weights, training.freeze)
    chosen = [name for name in chosen_layers(names, training.lora_layers) if name not in frozen]
    if not chosen:
        raise ValueError(
            f"training.freeze={training.freeze} leaves no matrix to adapt: name fewer parts, or other "
            "training.lora_layers"
        )
    return chosen


def chosen_layers(names: Iterable[str], layers: str) -> list[str]:
    """Those of the matrices that are of the named layers."""
    there = {name: layer_of(name) for name in names}
    if layers == ALL:
        return list(there)
    wanted = [each.strip() for each in layers.split(",")]
    for each in wanted:
        if not any(f"{layer}.".startswith(f"{each}.") for layer in there.values()):
            known = ", ".join(dict.fromkeys(there.values()))
            raise ValueError(f"training.lora_layers has {each!r}: the layers are {known}, or {ALL}")
    return [name for name, layer in there.items() if any(f"{layer}.".startswith(f"{each}.") for each in wanted)]


# --- in the network


def choose_trained(model: nn.Module, training: Training) -> None:
    """Leave gradients to the weights that are trained: all but the frozen parts, or adapters, which are added here.

    The first numbers of adapters depend on the seed only.
    """
    if not training.lora:
        freeze_parts(model, training.freeze)
        return
    modules = [name.removesuffix(_WEIGHT) for name in adapted_matrices(model, training)]
    peft = peft_library()
    scaled = training.lora_scale * training.lora
    settings = peft.LoraConfig(
        r=training.lora, lora_alpha=scaled, target_modules=modules, lora_dropout=0.0, bias="none"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        peft.inject_adapter_in_model(settings, model)


class AdapterOutline(nn.Module):
    """A layer with an adapter that computes what that of `peft` computes: to count memory without the library."""

    def __init__(self, base_layer: nn.Linear, training: Training):
        super().__init__()
        self.base_layer, self.scale = base_layer, training.lora_scale
        self.lora_A = nn.Linear(base_layer.in_features, training.lora, bias=False)
        self.lora_B = nn.Linear(training.lora, base_layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base_layer(x)
        update: Tensor = self.lora_B(self.lora_A(x)) * self.scale
        return base + update


def outline_trained(model: nn.Module, training: Training) -> None:
    """``choose_trained`` for a model whose memory alone is of interest."""
    if not training.lora:
        freeze_parts(model, training.freeze)
        return
    names = adapted_matrices(model, training)
    model.requires_grad_(False)
    for name in (each.removesuffix(_WEIGHT) for each in names):
        parent, _, leaf = name.rpartition(".")
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear), "matrices of a network are those of its linear layers"
        setattr(model.get_submodule(parent), leaf, AdapterOutline(layer, training))


def num_trained(model: nn.Module, training: Training) -> int:
    """How many numbers of a plain ``model`` are trained, or how many its adapters will have."""
    weights = dict(model.named_parameters())
    if not training.lora:
        return sum(weights[name].numel() for name in trained_names(model, training.freeze))
    return sum(training.lora * sum(weights[name].shape) for name in adapted_matrices(model, training))


# --- in a checkpoint


def is_adapter(name: str) -> bool:
    """Whether a tensor of a checkpoint is of an adapter."""
    return name.endswith((_A, _B))


def plain_name(name: str) -> str:
    """The name that a weight has without adapters.

    >>> plain_name("blocks.0.qkv.base_layer.weight")
    'blocks.0.qkv.weight'
    """
    stem, found, leaf = name.rpartition(_BASE)
    return f"{stem}{leaf}" if found else name


def adapted_shapes(shapes: Mapping[str, Shape], matrices: Iterable[str], rank: int) -> dict[str, Shape]:
    """Names and shapes of the weights of a network whose ``matrices`` have adapters."""
    found: dict[str, Shape] = {}
    modules = {name.removesuffix(_WEIGHT) for name in matrices}
    for name, shape in shapes.items():
        module, _, leaf = name.rpartition(".")
        found[f"{module}{_BASE}.{leaf}" if module in modules else name] = shape
        if module in modules and f".{leaf}" == _WEIGHT:
            found |= {f"{module}{_A}": (rank, shape[1]), f"{module}{_B}": (shape[0], rank)}
    return found


def merged(tensors: Mapping[str, Tensor], training: Training) -> dict[str, Tensor]:
    """The weights of the ordinary network: every adapter is added to its matrix. Without adapters nothing changes."""
    if not training.lora:
        return dict(tensors)
    made = {}
    for name, value in tensors.items():
        if is_adapter(name):
            continue
        module = name.removesuffix(f"{_BASE}{_WEIGHT}")
        if module != name:
            value = value + training.lora_scale * (tensors[f"{module}{_B}"] @ tensors[f"{module}{_A}"])
        made[plain_name(name)] = value
    return made


# --- frozen parts


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

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
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor, nn

from duality.training.freezing import freeze_parts, frozen_names, trained_names
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

"""What a training changes of a network: all weights, all but frozen parts, or small adapters (LoRA).

Frozen parts (``training.freeze``) are named as the network names its weights, from their beginning:

    embedding            the embedding                   blocks.0-3          the first four blocks
    blocks               all blocks                      blocks.5.mlp        the MLP of the sixth
    head                 the output projection           none                nothing is frozen

Adapters (Hu et al., 2021) are trained beside the matrices of a network, which stay as they are:

    W + scale B A        A (rank, inputs) random, B (outputs, rank) zero at first, scale = lora_alpha / lora

``training.lora`` is the rank. The matrices are those of attention and MLP, as the network names them
(``hidden_matrices``), or those of ``training.lora_layers`` alone, and none in parts that ``training.freeze`` names.
In a checkpoint the adapters are tensors of their own, with the names and the first values of the library `peft`:

    blocks.0.qkv.base_layer.weight    blocks.0.qkv.lora_A.default.weight    blocks.0.qkv.lora_B.default.weight

``merge_adapters`` makes the weights of the ordinary network from them, wherever a model is loaded. The library itself
is not used: a layer with an adapter is twenty lines, and `peft` takes two seconds to import.

What must hold: a weight that is not trained stays the same bit for bit, and so does its average; it has no gradient and
no moments; something is left to train; a name that no weight begins with is refused with the names that there are; with
new adapters the network computes what it did without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from duality.training.muon import hidden_matrices
from duality.training.settings import Training

ALL, NOTHING = "all", "none"
_BASE, _WEIGHT = ".base_layer", ".weight"
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"
_NETWORK = "backbone."  # where a denoiser has its network: not a part of a name that a user writes
_RANGE = re.compile(r"(.+)\.(\d{1,4})-(\d{1,4})")
_NUMBERED = re.compile(r"(\w+)\.(\d+)\..+")
_LAYER = re.compile(r"(?:.*?\.\d+\.)?(.+)\.weight")


# --- which weights


def _begins_with(name: str, part: str) -> bool:
    return f"{name}.".startswith(f"{part}.")


def _parts_in(weights: Iterable[str]) -> list[str]:
    """The parts of a network with weights of these names, in their order; numbered ones as a range.

    >>> _parts_in(["backbone.embedding", "backbone.blocks.0.qkv.weight", "backbone.blocks.1.qkv.weight", "table"])
    ['embedding', 'blocks.0-1', 'table']
    """
    numbers: dict[str, list[int]] = {}
    for name in (weight.removeprefix(_NETWORK) for weight in weights):
        numbered = _NUMBERED.fullmatch(name)
        numbers.setdefault(name.partition(".")[0], []).extend([] if numbered is None else [int(numbered[2])])
    return [f"{part}.{min(found)}-{max(found)}" if found else part for part, found in numbers.items()]


def _frozen_names(weights: Iterable[str], freeze: str) -> frozenset[str]:
    """Which of the weights ``training.freeze`` names; a part that there is not is refused.

    >>> sorted(_frozen_names(["embedding", "blocks.0.out", "blocks.1.out", "blocks.2.out"], "embedding, blocks.0-1"))
    ['blocks.0.out', 'blocks.1.out', 'embedding']
    """
    names, frozen = list(weights), set[str]()
    for part in (each.strip() for each in freeze.split(",") if freeze != NOTHING):
        numbers = _RANGE.fullmatch(part)
        first, last = (0, 0) if numbers is None else (int(numbers[2]), int(numbers[3]))
        if first > last:
            raise ValueError(f"training.freeze has {part!r}: a range begins with its smaller number")
        for one in [part] if numbers is None else [f"{numbers[1]}.{number}" for number in range(first, last + 1)]:
            own = {name for name in names if _begins_with(name.removeprefix(_NETWORK), one)}
            if not one or not own:
                raise ValueError(
                    f"training.freeze has {one!r}, which is no part of the network: choose from "
                    f"{', '.join(_parts_in(names))} (a part of these too, such as blocks.0-1 or blocks.0.mlp), or "
                    f"{NOTHING}"
                )
            frozen |= own
    return frozenset(frozen)


def _adapted_matrices(model: nn.Module, training: Training) -> list[str]:
    """The names of the matrices of a plain ``model`` that get an adapter; a training that has none is refused.

    ``training.lora_layers`` names layers that all blocks have: "mlp.2" of "blocks.0.mlp.2.weight".
    """
    refusal = f"training.lora is {training.lora}, and {{}} to adapt: train without it"
    matrices = {id(each) for each in hidden_matrices(model, refusal)}
    weights = dict(model.named_parameters())
    names = [name for name, value in weights.items() if id(value) in matrices]
    smallest = min(min(weights[name].shape) for name in names)
    if training.lora > smallest:
        raise ValueError(
            f"training.lora is {training.lora}: a rank is at most {smallest}, the smaller side of the smallest matrix"
        )
    frozen = _frozen_names(weights, training.freeze)
    layers = {name: found[1] if (found := _LAYER.fullmatch(name)) else name for name in names}
    wanted = [each.strip() for each in training.lora_layers.split(",") if training.lora_layers != ALL]
    for each in wanted:
        if not any(_begins_with(layer, each) for layer in layers.values()):
            known = ", ".join(dict.fromkeys(layers.values()))
            raise ValueError(f"training.lora_layers has {each!r}: the layers are {known}, or {ALL}")
    named = (name for name in names if not wanted or any(_begins_with(layers[name], each) for each in wanted))
    chosen = [name for name in named if name not in frozen]
    if not chosen:
        raise ValueError(
            f"training.freeze={training.freeze} leaves no matrix to adapt: name fewer parts, or other "
            "training.lora_layers"
        )
    return chosen


def _trained_names(model: nn.Module, freeze: str) -> list[str]:
    """The weights of a model that are trained; a training without any is refused."""
    weights = dict(model.named_parameters())
    frozen = _frozen_names(weights, freeze)
    trained = [name for name, value in weights.items() if value.requires_grad and name not in frozen]
    if not trained:
        raise ValueError(f"training.freeze={freeze} leaves nothing to train: name fewer parts")
    return trained


def num_trained(model: nn.Module, training: Training) -> int:
    """How many numbers of a plain ``model`` are trained, or how many its adapters will have."""
    weights = dict(model.named_parameters())
    if not training.lora:
        return sum(weights[name].numel() for name in _trained_names(model, training.freeze))
    return sum(training.lora * sum(weights[name].shape) for name in _adapted_matrices(model, training))


# --- in the network


class _Adapted(nn.Module):
    """A linear layer with an adapter, which alone is trained."""

    def __init__(self, base_layer: nn.Linear, training: Training):
        super().__init__()
        self.base_layer, self.scale = base_layer, training.lora_scale
        down = nn.Linear(base_layer.in_features, training.lora, bias=False)
        up = nn.Linear(training.lora, base_layer.out_features, bias=False)
        down.reset_parameters()  # a second time, after the draws of B: the first values of `peft`
        nn.init.zeros_(up.weight)
        for each in (down, up):  # drawn on the CPU, so that the device does not change them
            each.weight = nn.Parameter(each.weight.detach().to(base_layer.weight.device))
        self.lora_A, self.lora_B = nn.ModuleDict({"default": down}), nn.ModuleDict({"default": up})

    @property
    def weight(self) -> Tensor:
        """The matrix that is adapted."""
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base_layer(x)
        update: Tensor = self.lora_B["default"](self.lora_A["default"](x)) * self.scale
        return base + update


def choose_trained(model: nn.Module, training: Training) -> None:
    """Leave gradients to the weights that are trained: all but the frozen parts, or adapters, which are added here.

    The first numbers of adapters depend on the seed only.
    """
    if not training.lora:
        trained = set(_trained_names(model, training.freeze))
        for name, value in model.named_parameters():
            value.requires_grad_(name in trained)
        return
    names = _adapted_matrices(model, training)
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        for name in (each.removesuffix(_WEIGHT) for each in names):
            parent, _, leaf = name.rpartition(".")
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.Linear), "matrices of a network are those of its linear layers"
            setattr(model.get_submodule(parent), leaf, _Adapted(layer, training))


# --- in a checkpoint


def plain_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that are of no adapter, by the names that they have without adapters.

    >>> list(plain_weights({"blocks.0.qkv.base_layer.weight": torch.ones(2), "table": torch.ones(2)}))
    ['blocks.0.qkv.weight', 'table']
    """
    return {name.replace(f"{_BASE}.", "."): value for name, value in tensors.items() if not name.endswith((_A, _B))}


def merge_adapters(tensors: Mapping[str, Tensor], training: Training) -> dict[str, Tensor]:
    """The weights of the ordinary network: every adapter is added to its matrix. Without adapters nothing changes."""
    if not training.lora:
        return dict(tensors)
    made = dict(tensors)
    for name, value in tensors.items():
        module = name.removesuffix(f"{_BASE}{_WEIGHT}")
        if module != name:
            made[name] = value + training.lora_scale * (tensors[f"{module}{_B}"] @ tensors[f"{module}{_A}"])
    return plain_weights(made)

"""A trained model, read from a run or from a folder with a model alone.

What must hold: the names and shapes of the weights are compared with those of the network before either is allocated;
whatever is wrong with a folder ends in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from duality.files.atomic import file_sha256
from duality.files.progress import Reporter
from duality.hub import package
from duality.hub.fetch import ModelSource
from duality.hub.package import INSIDE, PretrainedConfig
from duality.models import folder as folders
from duality.models.folder import check_tokenizer, read_identity, read_tokenizer
from duality.models.size import check_network
from duality.models.trained import Origin, TrainedModel
from duality.protocols import Vocabulary
from duality.recipes.recipe import Recipe
from duality.recipes.shapes import parameter_shapes, trained_shapes
from duality.training import checkpoint
from duality.training.adapters import merge_adapters
from duality.training.checkpoint import Shapes, Tensors
from duality.training.state import load_weights

_FLOATS = ("F64", "F32", "F16", "BF16")
_LISTED = 40  # names of tensors in a message
_AGAIN = "fetch the folder again"


def network(recipe: Recipe, vocabulary: Vocabulary, device: torch.device | str = "cpu") -> nn.Module:
    """The untrained network of a recipe; its first weights depend on the recipe's seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return recipe.method.network(recipe.backbone, vocabulary).to(device)


def _trained_network(recipe: Recipe, vocabulary: Vocabulary, tensors: Tensors, device: torch.device) -> nn.Module:
    """The network of a model with its weights, which are not trained any more."""
    check_network(recipe, vocabulary, device)
    made = network(recipe, vocabulary, device)
    load_weights(made, tensors)
    return made.requires_grad_(False)


def read_model(
    source: ModelSource,
    report: Reporter,
    weights: Literal["ema", "model"],
    round: int | None,
    step: int | None,
    device: torch.device,
) -> TrainedModel:
    """The model of a run, or one that is alone in a folder; ``load`` has the arguments."""
    if weights not in ("ema", "model"):
        raise ValueError(f"weights is {weights!r}: choose 'ema' (averaged) or 'model' (raw)")
    if round is not None and step is not None:
        raise ValueError(f"round {round} and step {step}: each says which weights to load; leave one of them out")
    folder, groups = source.folder, (weights,)
    if package.exists(folder) and not folders.exists(folder):
        if round is not None or step is not None:
            raise ValueError(
                f"{source.place} is a model alone: it has neither rounds nor other steps than its own; leave them out"
            )
        config = package.read_config(folder)
        if config.weights != weights:
            raise ValueError(f"{source.place} has the weights {config.weights!r} alone, and {weights!r} were asked for")
        return read_pretrained(source, config, device)
    recipe, tokenizer = folders.read_recipe(folder), read_tokenizer(folder)
    names = tuple(read_identity(folder)["labels"])
    if round is not None:
        path: Path | None = folders.find_round(folder, recipe, round, groups)
    elif step is not None:
        path = checkpoint.kept_step(folder / "checkpoints", step, groups)
    else:
        path = checkpoint.newest_intact(folder / "checkpoints", report, groups)
    if path is None:
        raise ValueError(
            f"{folder} has no checkpoint yet: train it first (duality train {recipe.name} --out {folder} --resume)"
        )
    check_tokenizer(checkpoint.load(path, ()), tokenizer, folder)
    vocabulary = Vocabulary(tokenizer.vocab_size, len(names))
    saved = checkpoint.load(path, groups, trained_shapes(recipe, vocabulary))
    made = _trained_network(recipe, vocabulary, merge_adapters(saved.groups[weights], recipe.training), device)
    origin = Origin(str(folder.resolve()), checkpoint.checksum_of(path, weights) or "", weights, folder)
    return TrainedModel(recipe, saved.step, made, tokenizer, names, origin)


def read_pretrained(source: ModelSource, config: PretrainedConfig, device: torch.device) -> TrainedModel:
    """A model that is alone in a folder."""
    folder, tokenizer = source.folder, read_tokenizer(source.folder)
    found = (tokenizer.vocab_size, tokenizer.fingerprint)
    if found != (config.num_tokens, config.tokenizer_sha256):
        raise ValueError(
            f"{source.place} was trained with a vocabulary of {config.num_tokens} tokens (fingerprint "
            f"{config.tokenizer_sha256[:12]}), but {folder / package.TOKENIZER} has {found[0]} "
            f"({found[1][:12]}): put back the file that belongs to it"
        )
    path = folder / package.WEIGHTS
    if not path.is_file():
        raise ValueError(f"{source.place} has no {path.name}: {_AGAIN}")
    vocabulary = Vocabulary(config.num_tokens, len(config.label_names))
    shapes = parameter_shapes(config.recipe, vocabulary)
    _check_tensors(path, {f"{INSIDE}{name}": shape for name, shape in shapes.items()})
    digest = file_sha256(path)
    if config.weights_sha256 not in (None, digest):
        raise ValueError(f"{path} is not the file that {package.CONFIG} was written for (sha256): {_AGAIN}")
    tensors = {name.removeprefix(INSIDE): value.float() for name, value in load_file(path).items()}
    made = _trained_network(config.recipe, vocabulary, tensors, device)
    place = source.place if source.commit else str(folder.resolve())
    origin = Origin(place, digest, config.weights, folder, source.commit)
    return TrainedModel(config.recipe, config.step, made, tokenizer, config.label_names, origin)


def _check_tensors(path: Path, expected: Shapes) -> None:
    """Refuse a file whose tensors are not those of the network, by the names, shapes and types at its beginning."""
    try:
        with safe_open(path, framework="pt") as content:
            slices = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
            found = {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no valid safetensors file ({error}): {_AGAIN}") from None
    both = sorted(found.keys() & expected.keys())
    problems = {
        "missing": sorted(expected.keys() - found.keys()),
        "unknown": sorted(found.keys() - expected.keys()),
        "of another shape": [
            f"{name} {found[name][0]} instead of {expected[name]}" for name in both if found[name][0] != expected[name]
        ],
        "no numbers that weights can be": [
            f"{name} {found[name][1]}" for name in both if found[name][1] not in _FLOATS
        ],
    }
    words = []
    for kind, names in ((kind, names) for kind, names in problems.items() if names):
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        words.append(f"{len(names)} {kind}: {', '.join(f'{name:.200}' for name in names[:_LISTED])}{more}")
    if words:
        raise ValueError(f"the tensors of {path} do not fit the network of its config.json ({'; '.join(words)})")

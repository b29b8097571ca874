"""``export``: a run in one of the layouts in which others read models like ours.

    duo-hf      a folder with config.json and model.safetensors: the average of the weights, as on the Hugging Face hub
    duo-ckpt    a checkpoint of Lightning: ``state_dict``, ``ema`` and the hyper-parameters

An imported run is written with the names, the order and the types of the tensors that it came with (released.json);
any other run like the released network. Neither layout has a place for the tokenizer: ``import --tokenizer RUN`` takes
that of the run.

What must hold: a run that the layout cannot express is refused with all reasons; import gives back the same weights,
and a model that is sampled and measured in the same manner; a file is complete or absent, and none is overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from duality.files.atomic import flush_to_disk, new_folder, no_empty_folder
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter, silent
from duality.files.temporary import remove_leftovers, temporary_name
from duality.hub.released import weights as released
from duality.hub.released.config import METHOD_NAMES, Settings, checkpoint_config, folder_config
from duality.hub.released.files import CONFIG, SAFE, Layout
from duality.hub.released.weights import Sizes
from duality.methods.ar import AR
from duality.methods.base import last_level
from duality.methods.d3pm import D3PM
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.sedd import SEDD
from duality.methods.udlm import UDLM
from duality.models.folder import read_recipe
from duality.models.provenance import check_tokenizer, read_identity, read_tokenizer
from duality.networks.dit import DiT
from duality.protocols import Method, Vocabulary
from duality.recipes.recipe import Recipe
from duality.recipes.shapes import trained_shapes
from duality.runs.importing import PREFIX, check_free
from duality.runs.listing import RELEASED
from duality.tokenizers.tokenizer import Tokenizer
from duality.training import checkpoint
from duality.training.adapters import merged

_RELEASED_PREFIX = "backbone."  # of the names in both layouts
_ORDINARY_MLP = 4


def export_run(
    run: Path | str, out: Path | str, layout: Layout, step: int | None = None, report: Reporter = silent
) -> Path:
    """Write the weights of a run, at its newest checkpoint or that of a ``step``, in a released layout."""
    folder, target = Path(run).expanduser(), Path(out).expanduser()
    recipe, tokenizer = read_recipe(folder), read_tokenizer(folder)
    labels = len(read_identity(folder)["labels"])
    check_free(target)
    if layout == "duo-ckpt" and target.suffix != ".ckpt":
        raise ValueError(f"{target} does not end with .ckpt, by which a checkpoint is known: give such a name")
    settings, sizes = expressed(recipe, tokenizer, labels)
    checkpoints = folder / "checkpoints"
    groups = ("ema",) if layout == "duo-hf" else ("model", "ema")
    path = (
        checkpoint.newest_intact(checkpoints, report, groups)
        if step is None
        else checkpoint.kept_step(checkpoints, step, groups)
    )
    if path is None:
        raise ValueError(f"{folder} has no checkpoint yet: there is nothing to export")
    check_tokenizer(checkpoint.load(path, ()), tokenizer, folder)
    saved = checkpoint.load(path, groups, trained_shapes(recipe, Vocabulary(tokenizer.vocab_size)))
    kept = kept_facts(folder, layout)
    weights = {name: merged(saved.groups[name], recipe.training) for name in groups}
    tensors = {name: released_tensors(weights[name], sizes, kept) for name in groups}
    if layout == "duo-hf":
        config = kept.get("config") or folder_config(settings, sizes)
        write_folder(target, tensors["ema"], cast("dict[str, object]", config))
    else:
        content = checkpoint_content(tensors, settings, sizes, saved.step, recipe, kept)
        write_checkpoint(target, content)
    count = sum(value.numel() for value in tensors["ema"].values())
    report(f"{target}: {count:,} numbers of step {saved.step} of {folder}")
    return target


def expressed(recipe: Recipe, tokenizer: Tokenizer, num_labels: int) -> tuple[Settings, Sizes]:
    """What a released layout says about the model of a run; one that it cannot express is refused."""
    backbone, method, size = recipe.backbone, recipe.method, tokenizer.vocab_size
    name = type(method).__name__.lower()
    problems = [] if name in METHOD_NAMES else [f"its method is {type(method).__name__}"]
    if num_labels:
        problems.append(f"it has {num_labels} labels")
    problems += network_problems(backbone)
    if problems or not isinstance(backbone, DiT):
        raise not_expressed(problems)
    settings = settings_of(method, recipe.data.length, backbone.dropout, size)
    like = settings.assembled(settings.begin)
    for what in ("sampling_schedule", "sampler", "measure"):
        ours, theirs = (part_of(each, what, size) for each in (method, like))
        if ours != theirs:
            problems.append(f"its {what.replace('_', ' ')} is {ours} instead of {theirs}")
    if problems:
        raise not_expressed(problems)
    process = method.process(size)
    states = size + 1 if process is None else process.vocab_size
    return settings, Sizes(states, backbone.width, backbone.depth, backbone.heads, backbone.time_width, name == "ar")


def network_problems(backbone: object) -> list[str]:
    """What of a network the released layout has no place for."""
    if not isinstance(backbone, DiT):
        return [f"its network is a {type(backbone).__name__}"]
    problems = []
    if backbone.conv:
        problems.append(f"its network has a convolution (backbone.conv={backbone.conv})")
    if backbone.activation != "gelu":
        problems.append(f"its activation is {backbone.activation} (backbone.activation) instead of gelu")
    if backbone.mlp_ratio != _ORDINARY_MLP:
        problems.append(f"its MLP is {backbone.mlp_ratio} times as wide (backbone.mlp_ratio), not {_ORDINARY_MLP}")
    return problems


def not_expressed(problems: list[str]) -> ValueError:
    """The error of a run that a released layout has no place for."""
    return ValueError(
        f"this run cannot be exported in a released layout: {'; '.join(problems)}; the layouts hold the networks of "
        "the papers (backbone=small or mini) without labels, of Duo, UDLM, MDLM, SEDD, D3PM and AR"
    )


def part_of(method: Method, what: str, num_tokens: int) -> object:
    """The schedule, the sampler or the measure of a method."""
    if what == "sampling_schedule":
        return method.sampling_schedule()
    return method.sampler(num_tokens) if what == "sampler" else method.measure(num_tokens)


def settings_of(method: Method, length: int, dropout: float, num_tokens: int) -> Settings:
    """The settings of a method, as a released file says them."""
    name = next(each for each in METHOD_NAMES if each == type(method).__name__.lower())
    settings = Settings(name, length, dropout, time=name != "ar")
    if isinstance(method, (Duo, UDLM, SEDD)):
        settings = replace(settings, eps=last_level(method.training_schedule))
    if isinstance(method, (SEDD, D3PM)):
        settings = replace(settings, noise=method.noise)
    if isinstance(method, D3PM):
        return replace(settings, num_steps=method.num_steps)
    if isinstance(method, AR):
        return replace(settings, begin=num_tokens if method.begin is None else method.begin)
    return replace(settings, time=method.time) if isinstance(method, MDLM) else settings


def kept_facts(folder: Path, layout: Layout) -> dict[str, object]:
    """What an imported run knows of the file that it came from, if that had this layout."""
    path = folder / RELEASED
    found = read_json(path, MIB) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged (it holds no object): restore it from a backup, or delete it")
    return found if found.get("layout") == layout else {}


def released_tensors(weights: Mapping[str, Tensor], sizes: Sizes, kept: Mapping[str, object]) -> dict[str, Tensor]:
    """Our weights with the names, the order and the types of the file that they came from, or of the released code."""
    own = {name.removeprefix(PREFIX): value for name, value in weights.items()}
    found = released.released_weights(own, sizes.depth, sizes.causal)
    frequencies, types = kept.get("frequencies"), kept.get("tensors")
    computed = released.rotary_frequencies(sizes.width // sizes.heads)
    found[released.FREQUENCIES] = torch.tensor(frequencies) if isinstance(frequencies, list) else computed
    standard = released.released_names(sizes.depth, sizes.causal)
    names = types if isinstance(types, dict) and set(types) <= set(standard) else dict.fromkeys(standard, "float32")
    prefix = kept.get("prefix", _RELEASED_PREFIX)
    return {f"{prefix}{name}": found[name].to(getattr(torch, str(kind))) for name, kind in names.items()}


def checkpoint_content(
    tensors: Mapping[str, dict[str, Tensor]],
    settings: Settings,
    sizes: Sizes,
    step: int,
    recipe: Recipe,
    kept: Mapping[str, object],
) -> dict[str, object]:
    """The content of a checkpoint that Lightning and the released code load."""
    made = kept.get("ema")
    average = made if isinstance(made, dict) else {"decay": recipe.training.ema, "num_updates": step}
    progress = {"current": {"completed": 0}}  # the released code asks for it
    return {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.2.1",
        "state_dict": tensors["model"],
        "loops": {"fit_loop": {"epoch_progress": progress, "epoch_loop.batch_progress": progress}},
        "hyper_parameters": {"config": checkpoint_config(settings, sizes)},
        "ema": {
            **average,
            "shadow_params": [
                value for name, value in tensors["ema"].items() if not name.endswith(released.FREQUENCIES)
            ],
        },
    }


def write_folder(target: Path, tensors: dict[str, Tensor], config: dict[str, object]) -> None:
    """Write config.json and model.safetensors into a new folder, which is complete or absent."""
    with new_folder(target) as folder:
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / SAFE, {"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        os.chmod(folder / SAFE, (folder / CONFIG).stat().st_mode)  # it is written for its owner alone
        for file in (folder / SAFE, folder / CONFIG, folder):
            flush_to_disk(file)


def write_checkpoint(target: Path, content: dict[str, object]) -> None:
    """Write a checkpoint, which is complete or absent."""
    with no_empty_folder(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        temporary = temporary_name(target)
        try:
            torch.save(content, temporary)
            flush_to_disk(temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        flush_to_disk(target.parent)

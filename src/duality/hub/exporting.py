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
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from duality.files.atomic import atomic_file, new_folder, no_empty_folder
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter, silent
from duality.hub.importing import PREFIX, check_free
from duality.hub.package import CONFIG, WEIGHTS, flush_model
from duality.hub.released import RECORD
from duality.hub.released import weights as released
from duality.hub.released.config import Settings, checkpoint_config, folder_config
from duality.hub.released.files import Layout
from duality.hub.released.weights import Sizes
from duality.models.folder import check_tokenizer, read_identity, read_recipe, read_tokenizer
from duality.networks.dit import DiT
from duality.protocols import Vocabulary
from duality.recipes.recipe import Recipe
from duality.recipes.shapes import trained_shapes
from duality.tokenizers.tokenizer import Tokenizer
from duality.training import checkpoint
from duality.training.adapters import merge_adapters
from duality.training.checkpoint import write_tensors

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
    settings, sizes = _settings_and_sizes(recipe, tokenizer, labels)
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
    kept = _kept_facts(folder, layout)
    weights = {name: merge_adapters(saved.groups[name], recipe.training) for name in groups}
    tensors = {name: _released_tensors(weights[name], sizes, kept) for name in groups}
    if layout == "duo-hf":
        config = kept.get("config") or folder_config(settings, sizes)
        with new_folder(target) as place:
            write_tensors(place / WEIGHTS, tensors["ema"], {"format": "pt"})
            (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            flush_model(place)
    else:
        content = _checkpoint_content(tensors, settings, sizes, saved.step, recipe, kept)
        with no_empty_folder(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target) as stream:
                torch.save(content, stream.buffer)
    count = sum(value.numel() for value in tensors["ema"].values())
    report(f"{target}: {count:,} numbers of step {saved.step} of {folder}")
    return target


def _settings_and_sizes(recipe: Recipe, tokenizer: Tokenizer, num_labels: int) -> tuple[Settings, Sizes]:
    """What a released layout says about the model of a run; one that it cannot express is refused."""
    backbone, method, size = recipe.backbone, recipe.method, tokenizer.vocab_size
    settings = Settings.of(method, recipe.data.length, getattr(backbone, "dropout", 0.0), size)
    problems = [] if settings is not None else [f"its method is {type(method).__name__}"]
    if num_labels:
        problems.append(f"it has {num_labels} labels")
    if not isinstance(backbone, DiT):
        problems.append(f"its network is a {type(backbone).__name__}")
    else:
        if backbone.conv:
            problems.append(f"its network has a convolution (backbone.conv={backbone.conv})")
        if backbone.activation != "gelu":
            problems.append(f"its activation is {backbone.activation} (backbone.activation) instead of gelu")
        if backbone.mlp_ratio != _ORDINARY_MLP:
            problems.append(f"its MLP is {backbone.mlp_ratio} times as wide (backbone.mlp_ratio), not {_ORDINARY_MLP}")
    if settings is not None and not problems:
        other = settings.build_method(settings.begin)
        ours, theirs = ((m.sampling_schedule(), m.sampler(size), m.measure(size)) for m in (method, other))
        names = ("sampling schedule", "sampler", "measure")  # what a layout must say of a method
        pairs = zip(names, ours, theirs)
        problems = [f"its {name} is {own} instead of {wanted}" for name, own, wanted in pairs if own != wanted]
    if settings is None or problems or not isinstance(backbone, DiT):
        raise ValueError(
            f"this run cannot be exported in a released layout: {'; '.join(problems)}; the layouts hold the networks "
            "of the papers (backbone=small or mini) without labels, of Duo, UDLM, MDLM, SEDD, D3PM and AR"
        )
    process, causal = method.process(size), settings.method == "ar"
    states = size + 1 if process is None else process.vocab_size
    return settings, Sizes(states, backbone.width, backbone.depth, backbone.heads, backbone.time_width, causal)


def _kept_facts(folder: Path, layout: Layout) -> dict[str, object]:
    """What an imported run knows of the file that it came from, if that had this layout."""
    path = folder / RECORD
    found = read_json(path, MIB) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged (it holds no object): restore it from a backup, or delete it")
    return found if found.get("layout") == layout else {}


def _released_tensors(weights: Mapping[str, Tensor], sizes: Sizes, kept: Mapping[str, object]) -> dict[str, Tensor]:
    """Our weights with the names, the order and the types of the file that they came from, or of the released code."""
    frequencies, types = kept.get("frequencies"), kept.get("tensors")
    computed = released.rotary_frequencies(sizes.width // sizes.heads)
    names = released.released_names(sizes.depth, sizes.causal)
    found = {theirs: weights[PREFIX + ours] for theirs, ours in names.items() if ours is not None}
    found[released.FREQUENCIES] = torch.tensor(frequencies) if isinstance(frequencies, list) else computed
    known = types if isinstance(types, dict) and set(types) <= set(names) else dict.fromkeys(names, "float32")
    prefix = kept.get("prefix", _RELEASED_PREFIX)
    return {f"{prefix}{name}": found[name].to(getattr(torch, str(kind))) for name, kind in known.items()}


def _checkpoint_content(
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
    shadow = [value for name, value in tensors["ema"].items() if not name.endswith(released.FREQUENCIES)]
    progress = {"current": {"completed": 0}}  # the released code asks for it
    return {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.2.1",
        "state_dict": tensors["model"],
        "loops": {"fit_loop": {"epoch_progress": progress, "epoch_loop.batch_progress": progress}},
        "hyper_parameters": {"config": checkpoint_config(settings, sizes)},
        "ema": {**average, "shadow_params": shadow},
    }

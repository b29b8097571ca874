"""``import`` and ``export``: a released model of others becomes a run like any other, and a run a released model.

    hf:s-sahoo/duo, a folder, a .ckpt  ->  RUN/ recipe.json, tokenizer.json, corpus.json, released.json, checkpoints/

    duo-hf      a folder with config.json and model.safetensors: the average of the weights, as on the Hugging Face hub
    duo-ckpt    a checkpoint of Lightning: ``state_dict``, ``ema`` and the hyper-parameters

The imported weights are kept as they are, in float32, and with all states of the released vocabulary: for Duo the
50 257 ids of GPT-2 and "[PAD]". Both the raw weights and their average are kept where the file has both; the average is
what is sampled and evaluated. The text that the model was trained on is not known: what needs it takes ``--corpus``.

An imported run is written with the names, the order and the types of the tensors that it came with, which released.json
has beside their rotary frequencies and the configuration; any other run like the released network. Neither layout has a
place for the tokenizer: ``import --tokenizer RUN`` takes that of the run.

What must hold: a file that is refused leaves nothing behind; the run appears at once, complete; ``export`` gives the
same tensors back. A run that the layout cannot express is refused with all reasons; import gives back the same weights,
and a model that is sampled and measured in the same manner; a file is complete or absent, and none is overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from duality.files.atomic import atomic_file, new_folder, no_empty_folder, write_atomically
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter, silent
from duality.hub.fetch import PREFIX, RELEASED_FILES, fetch_folder, hub_name
from duality.hub.package import CONFIG, WEIGHTS
from duality.hub.released import RECORD
from duality.hub.released import weights as released
from duality.hub.released.config import METHOD_NAMES, MethodName, Settings, layout_config, read_settings
from duality.hub.released.files import Layout, Released, read_released
from duality.hub.released.vocabulary import begin_of, find_tokenizer, with_further_state, without_further_state
from duality.hub.released.weights import Sizes
from duality.models.folder import check_tokenizer, read_identity, read_recipe, read_tokenizer, write_facts
from duality.models.size import Outline, expected_vocabulary
from duality.networks.dit import DiT
from duality.protocols import Vocabulary
from duality.recipes.catalogue import modify
from duality.recipes.recipe import IMPORTED, Data, Recipe
from duality.registry import suggestion
from duality.tokenizers.tokenizer import Tokenizer
from duality.training import checkpoint
from duality.training.adapters import merge_adapters
from duality.training.settings import Training

Noise = Literal["absorbing", "uniform"]
_BACKBONE = "backbone."  # of the names of a denoiser's weights here, and of the names in both layouts
_TRAINING = Training()  # the paper's, which is what an imported model would be distilled or trained like


@dataclass(frozen=True)
class ImportRequest:
    """What a user says about a released model; None is what the file says.

    ``assignments`` change fields of the recipe, such as ``generation.steps=8``, but none that the weights depend on.
    """

    method: MethodName | None = None
    tokenizer: str | None = None
    heads: int | None = None
    length: int | None = None
    step: int | None = None
    assignments: tuple[str, ...] = ()
    noise: Noise | None = None

    def __post_init__(self) -> None:
        if self.method is not None and self.method not in METHOD_NAMES:
            raise ValueError(f"method is {self.method!r}: {suggestion(self.method, METHOD_NAMES)}")
        if self.noise not in (None, "absorbing", "uniform"):
            raise ValueError(f"noise is {self.noise!r}: it must be absorbing or uniform")
        for name, least in (("heads", 1), ("length", 1), ("step", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < 1 << 63:
                raise ValueError(f"{name} is {value}: it must be at least {least}, and less than 2**63")


_NOTHING_SAID = ImportRequest()


def import_released(
    source: str | Path, out: Path | str, request: ImportRequest = _NOTHING_SAID, report: Reporter = silent
) -> Path:
    """Make the run ``out`` of a released model: a .ckpt, a folder, or hf:OWNER/NAME of the Hugging Face hub."""
    target = Path(out).expanduser()
    _check_free(target)
    named = hub_name(source) if str(source).startswith(PREFIX) else None
    found = read_released(Path(source).expanduser() if named is None else fetch_folder(*named, files=RELEASED_FILES))
    prefix, tensors = released.without_prefix(found.tensors, found.where)
    settings, sizes = _describe_released(found, tensors, request)
    # the raw weights and their average under the names of a denoiser's weights; without an average, twice the same
    names = released.weight_names(sizes.depth, sizes.causal)
    model = ema = {_BACKBONE + own: tensors[theirs].float() for theirs, own in names.items()}
    if found.average is not None:
        weights = {name: value for name, value in tensors.items() if name != released.FREQUENCIES}
        average = released.named_average(found.average, weights, found.where)
        released.check_numbers(average, sizes, f"the average (ema) of {found.where}")
        ema = {_BACKBONE + own: average[theirs].float() for theirs, own in names.items()}
    made, tokenizer, mask = _imported_recipe(settings, sizes, request.tokenizer, str(source), report)
    if mask is not None:
        model, ema = (with_further_state(weights, mask) for weights in (model, ema))
    recipe = _changed_recipe(made, request.assignments, {name: tuple(value.shape) for name, value in model.items()})
    step = next((each for each in (request.step, found.step) if each is not None), 0)
    frequencies = tensors.get(released.FREQUENCIES)
    record = {
        "source": str(source),
        "layout": found.layout,
        "prefix": prefix,
        "tensors": {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()},
        "frequencies": None if frequencies is None else frequencies.float().tolist(),
        "ema": found.made,
        "mask": mask,
        "config": dict(found.config) if found.layout == "duo-hf" else None,
    }
    with new_folder(target) as folder:
        # which text it was trained on cannot be checked
        identity = {"tokenizer": tokenizer.fingerprint, "labels": [], "train": [], "validation": []}
        about = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
        checkpoint.save(folder / "checkpoints", step, {"model": model, "ema": ema}, about)
        write_atomically(folder / RECORD, json.dumps(record, indent=1))
        write_facts(recipe, folder, tokenizer, identity)
    what = f"{settings.method}, {sum(value.numel() for value in model.values()):,} weights"
    alone = "one set of weights, the average" if found.layout == "duo-hf" else "raw weights alone, without an average"
    kept = alone if found.average is None else "raw weights and their average"
    report(f"{target}: {what}, {sizes.num_states:,} states, step {step}; {kept}")
    return target


def export_run(
    run: Path | str, out: Path | str, layout: Layout, step: int | None = None, report: Reporter = silent
) -> Path:
    """Write the weights of a run, at its newest checkpoint or that of a ``step``, in a released layout."""
    folder, target = Path(run).expanduser(), Path(out).expanduser()
    recipe, tokenizer = read_recipe(folder), read_tokenizer(folder)
    labels = len(read_identity(folder)["labels"])
    _check_free(target)
    if layout == "duo-ckpt" and target.suffix != ".ckpt":
        raise ValueError(f"{target} does not end with .ckpt, by which a checkpoint is known: give such a name")
    settings, sizes = _describe_run(recipe, tokenizer, labels)
    groups = ("ema",) if layout == "duo-hf" else ("model", "ema")
    path = checkpoint.newest_intact(folder / "checkpoints", report, groups, step)
    if path is None:
        raise ValueError(f"{folder} has no checkpoint yet: there is nothing to export")
    check_tokenizer(checkpoint.load(path, ()), tokenizer, folder)
    saved = checkpoint.load(path, groups, Outline(recipe, Vocabulary(tokenizer.vocab_size)).shapes(adapters=True))
    # what an imported run knows of the file that it came from, if that had this layout
    record = read_json(folder / RECORD, MIB) if (folder / RECORD).is_file() else {}
    if not isinstance(record, dict) or not isinstance(mask := record.get("mask"), int | None):
        raise ValueError(f"{folder / RECORD} is damaged: restore it from a backup, or delete it")
    kept = record if record.get("layout") == layout else {}
    weights = {name: merge_adapters(saved.groups[name], recipe.training) for name in groups}
    if mask is not None:
        weights = {name: without_further_state(group, mask) for name, group in weights.items()}
        sizes = replace(sizes, num_states=sizes.num_states - 1)
    tensors = {name: _released_tensors(weights[name], sizes, kept) for name in groups}
    config = kept.get("config") or layout_config(layout, settings, sizes)
    if layout == "duo-hf":
        with new_folder(target) as place:
            checkpoint.write_tensors(place / WEIGHTS, tensors["ema"], {"format": "pt"})
            (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            os.chmod(place / WEIGHTS, (place / CONFIG).stat().st_mode)  # the library writes them for their owner alone
    else:
        # a file that came without an average goes without one
        average = kept.get("ema", {"decay": recipe.training.ema, "num_updates": saved.step})
        content = _checkpoint_content(tensors, saved.step, average, config)
        with no_empty_folder(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target) as stream:
                torch.save(content, stream.buffer)
    count = sum(value.numel() for value in tensors["ema"].values())
    report(f"{target}: {count:,} numbers of step {saved.step} of {folder}")
    return target


def _check_free(target: Path) -> None:
    """Refuse a place where something is."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ValueError(f"{target} exists already, and nothing is overwritten: choose another --out (out=)")


# --- import


def _describe_released(
    found: Released, tensors: Mapping[str, Tensor], request: ImportRequest
) -> tuple[Settings, Sizes]:
    """What file and user say about the model, and its sizes, on which tensors, file and user must agree."""
    where, settings = found.where, read_settings(found.layout, found.config, found.where)
    method, length = request.method or settings.method, request.length or settings.length
    if method is None:
        raise ValueError(f"{where} does not say what model it is: give --method {'|'.join(METHOD_NAMES)}")
    if length is None:
        raise ValueError(f"{where} does not say how long its sequences are: give --length, such as 1024")
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    sizes = released.sizes_of(shapes, request.heads or settings.sizes.get("heads"), where)
    released.check_shapes(shapes, released.released_shapes(sizes), where)
    released.check_numbers(tensors, sizes, where)
    pairs = [(name, value, vars(sizes)[name]) for name, value in settings.sizes.items()]
    if wrong := [f"{name} {value} and {own}" for name, value, own in pairs if value != own]:
        raise ValueError(
            f"the configuration of {where} and its tensors differ ({'; '.join(wrong)}): they are not of one model; "
            "fetch both again"
        )
    if request.heads not in (None, sizes.heads):
        raise ValueError(f"heads is {request.heads}, and the tensors of {where} have {sizes.heads}: leave it out")
    if sizes.causal != (method == "ar"):
        kind = "causal" if sizes.causal else "not causal"
        raise ValueError(f"{where} is said to be {method}, and its network is {kind}: give its own --method")
    if request.noise is not None and method not in ("sedd", "d3pm"):
        raise ValueError(f"noise is {request.noise}, and {method} has its own: it is for sedd and d3pm, leave it out")
    if found.config and request.noise not in (None, settings.noise):
        raise ValueError(f"noise is {request.noise}, and {where} says {settings.noise}: leave it out")
    return replace(settings, method=method, length=length, noise=request.noise or settings.noise), sizes


def _imported_recipe(
    settings: Settings, sizes: Sizes, place: str | None, source: str, report: Reporter
) -> tuple[Recipe, Tokenizer, int | None]:
    """The recipe of an imported run, with a tokenizer that is given or that of released models, and its mask piece."""
    noises = {"duo": "uniform", "udlm": "uniform", "sedd": settings.noise, "d3pm": settings.noise}
    uniform = noises.get(settings.method or "") == "uniform"
    tokenizer, spec, corpus, mask = find_tokenizer(place, sizes.num_states, uniform, report)
    if mask is not None and settings.method == "sedd":
        raise ValueError(
            f"{source} is a SEDD whose mask token is the piece {mask} of its tokenizer: its scores depend on "
            "the number of states, and only a SEDD whose mask token is the last state can be imported"
        )
    assert settings.length is not None, "the length is known"
    recipe = Recipe(
        name=f"imported-{settings.method}",
        summary=f"{settings.method} with {sizes.num_states:,} states, trained by others",
        source=f"{IMPORTED}{source}",
        # a released autoregressive model begins with its tokenizer's token for that; its extra state was never trained
        method=settings.build_method(begin_of(tokenizer) if settings.begin is None else settings.begin),
        data=Data(corpus=corpus, tokenizer=spec, length=settings.length),
        backbone=sizes.backbone(settings.dropout),
        training=_TRAINING,
    )
    return recipe, tokenizer, mask


def _changed_recipe(recipe: Recipe, assignments: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> Recipe:
    """The recipe with other fields; one that would have another tokenizer or other weights is refused."""
    changed = modify(recipe, assignments)
    if changed.data.tokenizer != recipe.data.tokenizer:
        raise ValueError("data.tokenizer cannot be set in an import: name the tokenizer by --tokenizer")
    wanted = Outline(changed, Vocabulary(expected_vocabulary(recipe).num_tokens)).shapes()
    if wanted != shapes:
        odd = sorted(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name))
        raise ValueError(
            f"--set {' '.join(assignments)}: the network would have other weights than the file ({', '.join(odd[:3])}"
            f"{', ...' * (len(odd) > 3)}): leave out what changes the network"
        )
    return changed


# --- export


def _describe_run(recipe: Recipe, tokenizer: Tokenizer, num_labels: int) -> tuple[Settings, Sizes]:
    """What a released layout says about the model of a run; one that it cannot express is refused."""
    backbone, method, size = recipe.backbone, recipe.method, tokenizer.vocab_size
    dit, ratio = backbone if isinstance(backbone, DiT) else DiT(), released.MLP_RATIO
    settings = Settings.of(method, recipe.data.length, dit.dropout, size)
    reasons = {
        f"its method is {type(method).__name__}": settings is None,
        f"it has {num_labels} labels": num_labels > 0,
        f"its network is a {type(backbone).__name__}": dit is not backbone,
        f"its network has a convolution (backbone.conv={dit.conv})": dit.conv > 0,
        f"its activation is {dit.activation} (backbone.activation) instead of gelu": dit.activation != "gelu",
        f"its MLP is {dit.mlp_ratio} times as wide (backbone.mlp_ratio), not {ratio}": dit.mlp_ratio != ratio,
    }
    problems = [reason for reason, holds in reasons.items() if holds]
    if settings is not None and not problems:
        other = settings.build_method(settings.begin)
        ours, theirs = ((m.sampling_schedule(), m.sampler(size), m.measure(size)) for m in (method, other))
        pairs = zip(("sampling schedule", "sampler", "measure"), ours, theirs)  # what a layout must say of a method
        problems = [f"its {name} is {own} instead of {wanted}" for name, own, wanted in pairs if own != wanted]
    if settings is None or problems:
        raise ValueError(
            f"this run cannot be exported in a released layout: {'; '.join(problems)}; the layouts hold the networks "
            "of the papers (backbone=small or mini) without labels, of Duo, UDLM, MDLM, SEDD, D3PM and AR"
        )
    process, causal = method.process(size), settings.method == "ar"
    states = size + 1 if process is None else process.vocab_size
    return settings, Sizes(states, dit.width, dit.depth, dit.heads, dit.time_width, causal)


def _released_tensors(weights: Mapping[str, Tensor], sizes: Sizes, kept: Mapping[str, object]) -> dict[str, Tensor]:
    """Our weights with the names, the order and the types of the file that they came from, or of the released code."""
    frequencies, types = kept.get("frequencies"), kept.get("tensors")
    computed = released.rotary_frequencies(sizes.width // sizes.heads)
    names = released.released_names(sizes.depth, sizes.causal)
    found = {theirs: weights[_BACKBONE + ours] for theirs, ours in names.items() if ours is not None}
    found[released.FREQUENCIES] = torch.tensor(frequencies) if isinstance(frequencies, list) else computed
    known = types if isinstance(types, dict) and set(types) <= set(names) else dict.fromkeys(names, "float32")
    prefix = kept.get("prefix", _BACKBONE)
    return {f"{prefix}{name}": found[name].to(getattr(torch, str(kind))) for name, kind in known.items()}


def _checkpoint_content(
    tensors: Mapping[str, dict[str, Tensor]], step: int, average: Mapping[str, object] | None, config: object
) -> dict[str, object]:
    """The content of a checkpoint from which the released trainer samples, evaluates and trains further.

    Its trainer is Lightning's, which reads its step from the counters of its fit loop, here at the beginning of an
    epoch. There are no moments of the optimizer: it begins with new ones, and with the warm-up of its learning rate.
    """

    def progress(total: int, *more: str) -> dict[str, object]:
        names = ("ready", "completed", *more)
        return {"total": dict.fromkeys(names, total), "current": dict.fromkeys(names, 0)}

    optimizer = {"step": progress(step), "zero_grad": progress(step, "started")}
    loop: dict[str, object] = {
        "state_dict": {},
        "epoch_progress": progress(0, "started", "processed"),
        "epoch_loop.state_dict": {"_batches_that_stepped": step},
        "epoch_loop.batch_progress": {**progress(step, "started", "processed"), "is_last_batch": False},
        "epoch_loop.scheduler_progress": progress(step),
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": optimizer},
    }
    content: dict[str, object] = {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.2.1",
        "state_dict": tensors["model"],
        "loops": {"fit_loop": loop},
        "callbacks": {},
        "optimizer_states": [],
        "lr_schedulers": [],
        "hyper_parameters": {"config": config},
    }
    if average is not None:
        shadow = [value for name, value in tensors["ema"].items() if not name.endswith(released.FREQUENCIES)]
        content["ema"] = {**average, "shadow_params": shadow}
    return content

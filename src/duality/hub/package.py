"""A model alone in a folder, in the layout of the Hugging Face hub: what ``Model.save_pretrained`` writes.

    config.json              the recipe, the step, the names of the labels, versions; what `transformers` wants to know
    model.safetensors        the weights, under ``denoiser.``
    duality_tokenizer.json   our tokenizer
    tokenizer.json, tokenizer_config.json   the same for `transformers`, if it can have it
    corpus.json              checksums of the text that it was trained on, if it comes from a run
    README.md                the model card

A folder is written under a hidden name and renamed when it is complete.

What must hold: a folder of somebody else is data. Every JSON file is bounded, every field of config.json is known and
of its type, the tokenizer is the one that config.json names, and tensors are read only after their names, shapes and
types have been compared with those of the network; nothing is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from duality.files.json_files import MIB, read_json
from duality.recipes import catalogue
from duality.recipes.config import check, field_types
from duality.recipes.recipe import Recipe
from duality.registry import suggestion

CONFIG, WEIGHTS, TOKENIZER, CARD = "config.json", "model.safetensors", "duality_tokenizer.json", "README.md"
MODEL_TYPE, FORMAT = "duality", 1
INSIDE = "denoiser."  # what the names of all tensors begin with

# The layout in which the authors of the paper have released their models.
_RELEASED = frozenset({"model_length", "hidden_dim", "cond_dim", "n_blocks", "n_heads"})

FIELDS = json.loads(resources.files("duality.hub").joinpath("fields.json").read_text(encoding="utf-8"))
# What `transformers` writes and reads in any config.json; it says nothing about a model.
OF_TRANSFORMERS: tuple[str, ...] = tuple(FIELDS["transformers"])


@dataclass(frozen=True)
class PretrainedConfig:
    """The content of config.json: everything that rebuilds a model, but its weights."""

    recipe: Recipe
    step: int
    weights: Literal["ema", "model"]
    label_names: tuple[str, ...]
    num_tokens: int
    tokenizer_sha256: str
    versions: Mapping[str, object]
    weights_sha256: str | None = None

    def to_json(self) -> dict[str, object]:
        """As plain data."""
        own = {"recipe": catalogue.to_json(self.recipe), "label_names": list(self.label_names)}
        return {"model_type": MODEL_TYPE, "format": FORMAT, **vars(self), **own}

    @classmethod
    def read(cls, folder: Path) -> PretrainedConfig:
        """config.json of a folder; anything but a whole one of ours is a ``ValueError`` that names what is wrong."""
        path = folder / CONFIG
        return cls.from_json(read_json(path, MIB, "fetch it again"), str(path))

    @classmethod
    def from_json(cls, data: object, where: str) -> PretrainedConfig:
        """The content of a config.json; ``where`` is its name for errors."""
        if not isinstance(data, dict):
            raise ValueError(f"{where} is no config.json of a model (it holds no object): give another folder")
        if data.keys() >= _RELEASED:
            raise ValueError(
                f"{where} is in the layout in which the authors of the paper have released their models: import it "
                "with `duality import FOLDER --out RUN`, or `duality import hf:OWNER/NAME --out RUN`"
            )
        if data.get("model_type") != MODEL_TYPE:
            raise ValueError(
                f"{where} is of a model of the type {data.get('model_type')!r:.60}, and this library reads "
                f"{MODEL_TYPE!r}: give a folder that Model.save_pretrained or `duality publish` wrote"
            )
        if data.get("format") != FORMAT:
            raise ValueError(
                f"{where} has format {data.get('format')!r:.60}, and this version reads {FORMAT}: use another version "
                "of diffusion-duality"
            )
        if missing := [name for name in _FIELDS if name not in data and name != "weights_sha256"]:
            raise ValueError(f"{where} lacks {', '.join(missing)}: fetch it again")
        for name in data:
            if name not in _FIELDS and name not in OF_TRANSFORMERS:
                raise ValueError(f"{where} has the unknown field {name!r:.60}: {suggestion(name, _FIELDS)}")
        try:
            fields: dict[str, Any] = {
                name: check(data[name], hint, name) for name, hint in _FIELDS.items() if name in data
            }
            del fields["model_type"], fields["format"]
            recipe, names = catalogue.from_json(fields["recipe"]), fields["label_names"]
            if fields["step"] < 0 or fields["num_tokens"] < 1:
                raise ValueError(
                    f"step is {fields['step']} and num_tokens {fields['num_tokens']}: they count steps from 0 and "
                    "tokens from 1"
                )
            if not all(isinstance(name, str) for name in names):
                raise ValueError(f"label_names is {names!r:.80}: it must be a list of text")
            return cls(**fields | {"recipe": recipe, "label_names": tuple(names)})
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(f"{where}: {str(error)[:500]}") from error


# The fields of config.json and their types in JSON.
_FIELDS: dict[str, object] = {"model_type": str, "format": int, **field_types(PretrainedConfig)}
_FIELDS |= {"recipe": dict, "label_names": list, "versions": dict}


def exists(folder: Path) -> bool:
    """Whether a folder has a model alone, of any library; a run has none."""
    return (folder / CONFIG).is_file()


def is_ours(folder: Path) -> bool:
    """Whether a folder has a model alone, of this library."""
    return exists(folder) and (folder / TOKENIZER).is_file()

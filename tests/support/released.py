"""Released models on a small scale: the tensors of the reference networks, written as the released files are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from duality.tokenizers.tokenizer import NumberTokenizer

NUM_TOKENS = 37  # of both reference networks; the causal one has a state more

HF_CONFIG: dict[str, Any] = {
    "architectures": ["DUO"],
    "auto_map": {"AutoConfig": "config.DUOConfig"},
    "model_type": "duo",
    "vocab_size": 37,
    "model_length": 12,
    "hidden_dim": 64,
    "cond_dim": 129,  # as released: the tensors have 128
    "n_blocks": 2,
    "n_heads": 4,
    "dropout": 0.1,
    "causal": False,
    "var_min": False,
    "torch_dtype": "float32",
    "transformers_version": "4.48.0",
}
LIGHTNING_CONFIG: dict[str, Any] = {
    "algo": {"name": "duo", "causal_attention": False, "time_conditioning": True, "T": 0},
    "model": {"hidden_size": 64, "cond_dim": 128, "length": 12, "n_blocks": 2, "n_heads": 4, "dropout": 0.1},
    "noise": {"type": "log-linear", "eps": 1e-3},
}
SEDD_CONFIG: dict[str, Any] = {
    "ngpus": 8,
    "tokens": 36,
    "training": {"batch_size": 512, "n_iters": 1300001, "ema": 0.9999},
    "data": {"train": "openwebtext"},
    "graph": {"type": "absorb", "file": "data", "report_all": False},
    "noise": {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20},
    "model": {
        "name": "small",
        "type": "ddit",
        "hidden_size": 64,
        "cond_dim": 128,
        "length": 12,
        "n_blocks": 2,
        "n_heads": 4,
        "scale_by_sigma": True,
        "dropout": 0.1,
    },
}


def reference_tensors(golden: Path, file: str = "dit_tiny.npz") -> dict[str, Tensor]:
    """The weights of a reference network under their released names, in the released order."""
    data = np.load(golden / file)
    return {
        name.removeprefix("state_dict/"): torch.from_numpy(data[name])
        for name in data.files
        if name.startswith("state_dict/")
    }


def prefixed(tensors: Mapping[str, Tensor], prefix: str = "backbone.") -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def changed(config: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A configuration with other fields; None removes one."""
    return {name: value for name, value in {**config, **fields}.items() if value is not None}


def write_folder(folder: Path, tensors: Mapping[str, Tensor], config: object = HF_CONFIG) -> Path:
    """A folder as on the Hugging Face hub."""
    folder.mkdir(parents=True)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def averaged(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """An average that differs from the weights, without the buffer, in the order of the parameters."""
    return [
        value + 0.01 * (number + 1) for number, (name, value) in enumerate(tensors.items()) if "inv_freq" not in name
    ]


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], **fields: Any) -> Path:
    """A checkpoint as Lightning writes it, with an average; ``fields`` replace parts of it."""
    content = {
        "epoch": 3,
        "global_step": 1000,
        "pytorch-lightning_version": "2.2.1",
        "state_dict": prefixed(tensors),
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(3.0)}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(1000.0)}}, "param_groups": [{"lr": 3e-4}]}],
        "hyper_parameters": {"config": LIGHTNING_CONFIG},
        "ema": {"decay": 0.9999, "num_updates": 1000, "shadow_params": averaged(tensors)},
    }
    torch.save({**content, **fields}, path)
    return path


def numbers_folder(folder: Path, num_tokens: int = NUM_TOKENS) -> Path:
    """A folder with a tokenizer of so many tokens: numbers, and the end of a text."""
    NumberTokenizer(num_tokens - 1).save(folder)
    return folder

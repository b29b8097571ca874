"""Checkpoints as the trainers of the released code write them: all that Lightning keeps, and the classes of others.

Their packages are not needed: classes with the names of theirs stand in for them while a file is written.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PosixPath
from typing import Any
from unittest.mock import patch

import torch
from support.released import prefixed
from torch import Tensor

_MODEL = {"name": "tiny", "type": "ddit", "hidden_size": 64, "cond_dim": 128, "length": 12, "n_blocks": 2, "n_heads": 4}
_MODEL |= {"scale_by_sigma": True, "dropout": 0.1, "tie_word_embeddings": False}
_TRAINING = {"ema": 0.9999, "antithetic_sampling": True, "sampling_eps": 1e-3, "loss_precision": "bf16"}
_REST = {
    "mode": "train",
    "seed": 1,
    "loader": {"global_batch_size": 512, "num_workers": 8, "pin_memory": True},
    "sampling": {"predictor": "ancestral", "steps": 1000, "noise_removal": "ancestral", "p_nucleus": 1.0},
    "data": {"train": "openwebtext-train", "valid": "openwebtext-valid", "wrap": True},
    "optim": {"weight_decay": 0, "lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "trainer": {"_target_": "lightning.Trainer", "max_steps": 1_000_000, "precision": "bf16"},
    "eval": {"checkpoint_path": "", "disable_ema": False, "generate_samples": True},
    "model": _MODEL,
    "training": _TRAINING,
}


def paper_config(algorithm: str, eps: float = 0.0, **algo: Any) -> dict[str, Any]:
    """The configuration of the Duo paper's code: until February 2026 it says 0 for eps, and trains with 1e-3."""
    own = {"name": algorithm, "backbone": "dit", "time_conditioning": True, "T": 0, "causal_attention": False} | algo
    return {**_REST, "algo": own, "noise": {"type": "log-linear", "eps": eps}, "prior": {"type": "none"}}


def mdlm_config(parameterization: str = "subs", **fields: Any) -> dict[str, Any]:
    """The configuration of the MDLM paper's code."""
    own = {"parameterization": parameterization, "backbone": "dit", "diffusion": "absorbing_state", "T": 0}
    noise = {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20}
    return {**_REST, **own, "time_conditioning": False, "subs_masking": False, "noise": noise, **fields}


def sdtt_config(**model: Any) -> dict[str, Any]:
    """The configuration of the SDTT paper's code, which its folders on the hub have as config.json."""
    distillation = {
        "name": "multi-round-sdtt",
        "num_distill_steps": 2,
        "distill_mode": "kl-bwd",
        "grow_dt_every": 10_000,
    }
    others: dict[str, Any] = {
        "parameterization": {**distillation, "checkpoint_path": "kuleshov-group/mdlm-owt", "start_from_hf": True},
        "data_preprocess": {"data_cache": "x", "min_seq_len": -1, "legacy_start_end_bos": True, "add_eos": True},
        "lr_scheduler": {"_target_": "transformers.get_constant_schedule_with_warmup", "num_warmup_steps": 500},
        "strategy": {"_target_": "lightning.pytorch.strategies.DDPStrategy", "find_unused_parameters": False},
        "callbacks": {"checkpoint_every_n_steps": {"save_top_k": -1, "every_n_train_steps": 10_000}},
        "checkpointing": {"save_dir": "x", "resume_from_ckpt": True},
        "wandb": {"project": "text-diffusion", "tags": ["loglinear"], "name": None},
        "tokenizer": {"name": "gpt2"},
        "compile": False,
        "eval_every": 5_000_000,
    }
    made = mdlm_config(T=1024) | others
    made = {name: value for name, value in made.items() if name not in ("backbone", "diffusion", "subs_masking")}
    return {**made, "model": {**_MODEL, "type": "ddit-orig", **model}}


def fewer_states(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The weights of a network with the first states alone."""
    rows = ("vocab_embed.embedding", "output_layer.linear.weight", "output_layer.linear.bias")
    return {name: value[:count].clone() if name in rows else value for name, value in tensors.items()}


@contextmanager
def classes_of_others() -> Iterator[Callable[[str], Any]]:
    """Makes classes of packages that are not there, by their full names, for as long as something is written."""

    def named(path: str) -> Any:
        module, _, name = path.rpartition(".")
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            place = ".".join(parts[:end])
            if not hasattr(sys.modules.get(place), "of_others"):
                sys.modules[place] = types.ModuleType(place)
                sys.modules[place].of_others = True  # type: ignore[attr-defined]
        home = sys.modules[module]
        if not hasattr(home, name):
            setattr(home, name, type(name, (), {"__module__": module, "__qualname__": name}))
        return getattr(home, name)

    with patch.dict(sys.modules):
        yield named


def omegaconf_node(value: Any, named: Callable[[str], Any]) -> Any:
    """A value as omegaconf keeps it."""
    if isinstance(value, dict):
        made = named("omegaconf.dictconfig.DictConfig")()
        resolved: dict[str, Any] = defaultdict(dict, cached={"type": Any})
        made.__dict__ = {
            "_content": {key: omegaconf_node(item, named) for key, item in value.items()},
            "_metadata": resolved,
        }
    else:
        made = named("omegaconf.nodes.AnyNode")()
        made.__dict__ = {"_val": value, "_metadata": dict}
    return made


def write_trained(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    tokenizer: str = "transformers.models.gpt2.tokenization_gpt2_fast.GPT2TokenizerFast",
    average: bool = True,
) -> Path:
    """A checkpoint of Lightning with everything that a training keeps; ``tokenizer`` is the class of its tokenizer."""
    weights = [value for name, value in tensors.items() if "inv_freq" not in name]
    shadow = [value + 1e-4 * (number + 1) for number, value in enumerate(weights)]
    moments = {
        number: {"step": torch.tensor(1000.0), "exp_avg": value * 0, "exp_avg_sq": value * 0}
        for number, value in enumerate(weights)
    }
    group = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-8, "params": list(range(len(weights)))}
    counts = {"total": {"ready": 1000, "completed": 1000}, "current": {"ready": 10, "completed": 10}}
    with classes_of_others() as named:
        made = named(tokenizer)()
        made.__dict__ = {"name_or_path": "x", "init_kwargs": {"bos_token": "[BOS]"}, "bytes": b"\xff\x00"}
        content: dict[str, Any] = {
            "epoch": 3,
            "global_step": 1000,
            "pytorch-lightning_version": "2.2.1",
            "state_dict": OrderedDict(prefixed(tensors)),
            "loops": {
                "fit_loop": {"state_dict": {}, "epoch_progress": counts, "epoch_loop.batch_progress": counts},
                "validate_loop": {"state_dict": {}},
            },
            "callbacks": {"ModelCheckpoint{'monitor': 'val/nll'}": {"dirpath": PosixPath("x"), "best_k_models": {}}},
            "optimizer_states": [{"state": moments, "param_groups": [group]}],
            "lr_schedulers": [{"last_epoch": 1000, "lr_lambdas": [{"num_warmup_steps": 2500}], "_last_lr": [3e-4]}],
            "MixedPrecision": {},
            "hparams_name": "kwargs",
            "hyper_parameters": OrderedDict(config=omegaconf_node(dict(config), named), tokenizer=made),
            "sampler": {"random_state": None},
        }
        if average:
            content["ema"] = {"decay": 0.9999, "num_updates": 1000, "shadow_params": shadow}
        torch.save(content, path)
    return path

"""How a recipe is optimised (steps, batch, learning rate, precision, processes), and the device that computes it.

A device is given by name: "auto" is a GPU if there is one, else the CPU. A rank of a job has its own GPU.

Memory that is freed stays with the process. A training step allocates and frees the same large tensors again and again.
The C library of Linux (glibc) gives large blocks back to the system at once, and the system clears every page when it
hands it out again: a tenth of the time of a small training was that. ``keep_freed_memory`` asks the library to keep
blocks up to 32 MiB, the most it allows. Numbers do not change. Elsewhere it does nothing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.utils._triton import has_triton

from duality.noise import check_seed
from duality.ranks import job
from duality.training import Precision
from duality.training.precision import dtype_on

OptimizerName = Literal["adamw", "muon"]
Strategy = Literal["auto", "ddp", "fsdp"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_LARGEST_BLOCK = 32 << 20
_MOST_KEPT = 2**31 - 1  # bytes at the end of the heap


@dataclass(frozen=True)
class Training:
    """How a recipe is optimised; defaults are the paper's.

    ``precision`` is what the network computes in (``training.precision``); a run keeps what "auto" meant when it began.
    ``recompute`` and ``compile`` change how a step is computed, not its result (but for rounding): the first saves
    memory by computing each block again in the backward pass, the second compiles the blocks with ``torch.compile``
    (``Network.prepare``); "auto" compiles for a GPU, if Triton and the C compiler that it needs are there.
    ``optimizer`` "muon" trains the matrices of attention and MLP with Muon (``training.muon``).
    ``phase_steps`` divides the phases of a method as for that many steps, the last one going on to ``steps``: a run
    that was trained longer has it, so that a phase that had ended does not begin again. 0 leaves the last one alone.
    ``checkpoint`` "sharded" lets every rank of a job write its part of the weights (``training.parallel``), for models
    that do not fit into one machine's memory; "whole" is one file for each group of tensors.
    ``freeze`` names parts of the network that stay as they are, such as ``embedding,blocks.0-3`` (``adapters``).
    ``lora`` is the rank of the adapters that are trained instead of the network itself (``adapters``); 0 has none.
    They are multiplied by ``lora_alpha`` / ``lora``, by 2 if no alpha is given. ``lora_layers`` are the layers of a
    block that have one, such as ``qkv,out``; "all" is attention and MLP.
    """

    steps: int = 1_000_000
    batch_size: int = 512
    micro_batch: int = 0
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 3e-4
    warmup: int = 2_500
    decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.9999
    label_dropout: float = 0.1
    seed: int = 1
    precision: Precision = "auto"
    recompute: bool = False
    compile: Literal["auto"] | bool = "auto"
    log_every: int = 100
    eval_every: int = 10_000
    save_every: int = 10_000
    keep: int = 2
    checkpoint: Literal["whole", "sharded"] = "whole"
    phase_steps: int | None = None
    freeze: str = "none"
    lora: int = 0
    lora_alpha: float | None = None
    lora_layers: str = "all"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}: it must be at least 1")
        if self.phase_steps is not None and self.phase_steps < 0:
            raise ValueError(f"training.phase_steps is {self.phase_steps}: it must not be negative, or none")
        check_seed(self.seed, "training.seed")
        for name in ("micro_batch", "warmup", "eval_every", "weight_decay", "clip", "lora"):
            if getattr(self, name) < 0:
                raise ValueError(f"training.{name} is {getattr(self, name)}: it must not be negative (0 turns it off)")
        if not self.learning_rate > 0:
            raise ValueError(f"training.learning_rate is {self.learning_rate}: it must be positive")
        for name in ("decay", "ema", "label_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}: it must be in [0, 1]")
        if self.lora_alpha is not None and not self.lora_alpha > 0:
            raise ValueError(f"training.lora_alpha is {self.lora_alpha}: it must be positive, or none for 2 x the rank")
        if not self.lora and (self.lora_alpha, self.lora_layers) != (None, "all"):
            raise ValueError(
                "training.lora_alpha and training.lora_layers are settings of adapters, and there are none: set their "
                "rank, such as training.lora=8"
            )

    @property
    def lora_scale(self) -> float:
        """What the product of an adapter's two matrices is multiplied by."""
        return 2.0 if self.lora_alpha is None else self.lora_alpha / self.lora

    def rate(self, step: int) -> float:
        """Learning rate at ``step``: linear warm-up, constant, linear to zero over the last ``decay`` of the steps."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        cooling = round(self.decay * self.steps)
        cool = min(1.0, (self.steps - step) / cooling) if cooling else 1.0
        return self.learning_rate * warm * cool

    def dtype_on(self, device: torch.device) -> torch.dtype:
        """The type of the factors of a product on a device (``training.precision``)."""
        return dtype_on(self.precision, device)

    def compiles_on(self, device: torch.device) -> bool:
        """Whether the blocks are compiled for a device."""
        if self.compile == "auto":
            compilers = filter(None, (os.environ.get("CC"), "gcc", "clang", "cc"))
            return device.type == "cuda" and has_triton() and any(map(shutil.which, compilers))
        return self.compile

    def of_all_weights(self) -> Training:
        """The settings without adapters and without frozen parts."""
        return replace(self, freeze="none", lora=0, lora_alpha=None, lora_layers="all")


@dataclass(frozen=True)
class Parallel:
    """How a training in several processes (``torchrun``) divides its weights; alone it has no effect.

    ``strategy`` "ddp" gives every rank all weights, "fsdp" a part of them; "auto" is ddp if weights, gradients, moments
    and average leave half of a device's memory free. ``shard`` is the number of ranks that share the weights; 0 is all.
    Neither changes what is learnt.
    """

    strategy: Strategy = "auto"
    shard: int = 0

    def __post_init__(self) -> None:
        if self.shard < 0:
            raise ValueError(f"parallel.shard is {self.shard}: it must not be negative; 0 divides over all processes")


def device_named(name: torch.device | str) -> torch.device:
    """A device that exists on this machine; for a CPU, freed memory is kept from here on."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)
    if device == torch.device("cuda") and not job().alone:
        device = torch.device("cuda", torch.cuda.current_device())  # each rank has its own
    if device.type == "mps":
        raise ValueError(
            f"device is {str(name)!r}: GPUs of Apple have no float64, in which noise and its levels are computed so "
            "that results are the same on every device; use device cpu there, or a GPU of NVIDIA or AMD (cuda)"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device is {str(name)!r}: torch sees no GPU here; use device cpu, or install a CUDA build of torch"
        )
    if device.type == "cpu":
        keep_freed_memory()
    return device


def keep_freed_memory() -> bool:
    """Keep freed memory for the next allocation; whether the C library can."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _MOST_KEPT))

"""How a recipe is trained: settings, state, the loop, checkpoints, distillation.

settings       ``Training``: steps, batch, learning rate, precision; ``Parallel``: weights over processes; the device
precision      in which numbers a network computes: float32, TensorFloat-32, bfloat16
parallel       one training in many processes: DDP, FSDP2, parts of tensors, checkpoints in parts
loop           weights, their average, the optimizer, a teacher; one step
adapters       what is trained: all weights, all but frozen parts, or adapters (LoRA)
metrics        metrics.jsonl and its loss curve
checkpoint     atomic, verified, safetensors; loading runs no code; large ones are written in a thread
distillation   DCD and SDTT: rounds in which a model learns from itself
"""

from typing import Literal

from duality.diffusion import Compare as Compare
from duality.registry import Registry

Growth = Literal["double", "linear"]
TeacherCopy = Literal["weights", "ema"]
Precision = Literal["auto", "float32", "tf32", "bfloat16"]

DISTILLATIONS = Registry(
    "distillation",
    {
        "dcd": "duality.training.distillation:DCD",
        "sdtt": "duality.training.distillation:SDTT",
    },
)

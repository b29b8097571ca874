"""How a recipe is trained: settings, state, the loop, checkpoints, distillation.

settings       ``Training``: steps, batch, learning rate, precision; ``Parallel``: weights over processes
parallel       one training in many processes: DDP, FSDP2, parts of tensors
state          weights, their average, the optimizer, a teacher
loop           one step, and ``fit``; signals that end training between two steps
adapters       what is trained: all weights, all but frozen parts, or adapters (LoRA)
devices        the device by name; freed memory stays with the process
metrics        metrics.jsonl and its loss curve
sharded        checkpoints of which every process writes its part
checkpoint     atomic, verified, safetensors; loading runs no code
saving         large checkpoints are written in a thread
round_changes  the fields of a distillation that a user may set, and the rounds for a number of sampling steps
distillation   DCD and SDTT: rounds in which a model learns from itself
"""

from typing import Literal

from duality.diffusion import Compare as Compare
from duality.registry import Registry

Growth = Literal["double", "linear"]
TeacherCopy = Literal["weights", "ema"]

DISTILLATIONS = Registry(
    "distillation",
    {
        "dcd": "duality.training.distillation:DCD",
        "sdtt": "duality.training.distillation:SDTT",
    },
)

"""Trackers: the log of a training in other programs.

``TRACKERS`` are the trackers that ``--log`` can name.
"""

from duality.registry import Registry

TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": "duality.runs.trackers.tensorboard:TensorBoard",
        "wandb": "duality.runs.trackers.wandb:WeightsAndBiases",
    },
)

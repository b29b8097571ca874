"""What the commands share: kinds of arguments, with the help of those that mean the same everywhere.

The names of choices come from the registries, without torch.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from tyro.conf import Positional, UseAppendAction, arg

from duality.training import DISTILLATIONS
from duality.training import Precision as PrecisionName

_Request = TypeVar("_Request")
Name = Annotated[str, Positional, arg(metavar="RECIPE")]
MaybeName = Annotated[str | None, Positional, arg(metavar="[RECIPE]")]
_DEVICE = "where to compute; auto takes a GPU of NVIDIA or AMD (cuda) if there is one. mps is not supported."
Start = Annotated[str | None, arg(name="from", metavar="SOURCE")]
# mps is a choice so that its refusal says why
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], arg(help=_DEVICE)]
_PRECISION = (
    "what the network computes in; auto is bfloat16 on a GPU that has it, float32 elsewhere; tf32 is float32 with the "
    "quicker products of a GPU."
)
Precision = Annotated[PrecisionName, arg(help=_PRECISION)]
Folder = Annotated[Path, Positional, arg(metavar="RUN", help="the run folder.")]
_MODEL = "the run folder, a folder of `duality publish`, or a model of the Hugging Face hub (hf:OWNER/NAME@REVISION)."
AnyModel = Annotated[Path, Positional, arg(metavar="RUN", help=_MODEL)]
Folders = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN ...")]
Assignments = Annotated[tuple[str, ...], UseAppendAction, arg(name="set", metavar="FIELD=VALUE")]
_LOG = (
    "show the training in TensorBoard (tensorboard) or Weights & Biases (wandb, which is offline; wandb:online), or in "
    "a tracker of yours (module:Class); can be repeated."
)
Log = Annotated[tuple[str, ...], UseAppendAction, arg(name="log", metavar="TRACKER", help=_LOG)]
Column = Annotated[str | None, arg(aliases=["--key"], metavar="NAME")]
Weights = Annotated[Literal["ema", "model"], arg(help="averaged (ema) or raw (model) weights.")]
Step = Annotated[int | None, arg(name="step", metavar="N")]
_STEP = "the weights at this training step instead of the newest; the run must have kept that checkpoint."
KeptStep = Annotated[int | None, arg(name="step", metavar="N", help=_STEP)]
_ROUND = "after this round of a distillation instead of the last; 0 is what it began from."
Round = Annotated[int | None, arg(name="round", metavar="N", help=_ROUND)]
if TYPE_CHECKING:  # a type checker knows no registries
    DistillationName = str
else:
    DistillationName = Literal[tuple(DISTILLATIONS)]


def make_flags(request: type[_Request], **kinds: object) -> type[_Request]:
    """The dataclass of a request with other types for some of its fields: those that the command line reads."""
    changed = [(each.name, kinds[each.name], copy(each)) for each in fields(request) if each.name in kinds]  # type: ignore[arg-type]
    return make_dataclass(request.__name__, changed, bases=(request,), frozen=True)

"""What the commands share: kinds of arguments. The names of choices come from the registries, without torch."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import tyro

from duality.samplers import GRIDS, SAMPLERS
from duality.training import DISTILLATIONS

_Request = TypeVar("_Request")
Device = Literal["auto", "cpu", "cuda"]
TailName = Literal["ancestral", "greedy", "posterior"]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
MaybeName = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]")]
Start = Annotated[str | None, tyro.conf.arg(name="from", metavar="SOURCE")]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Assignments = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="set", metavar="FIELD=VALUE")]
Log = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="log", metavar="TRACKER")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Column = Annotated[str | None, tyro.conf.arg(aliases=["--key"], metavar="NAME")]
KeptStep = Annotated[int | None, tyro.conf.arg(name="step", metavar="N")]
Round = Annotated[int | None, tyro.conf.arg(name="round", metavar="N")]
if TYPE_CHECKING:  # a type checker knows no registries
    SamplerName = str
    GridName = str
    DistillationName = str
else:
    SamplerName = Literal[("own", *SAMPLERS)]
    GridName = Literal[tuple(GRIDS)]
    DistillationName = Literal[tuple(DISTILLATIONS)]


def make_flags(request: type[_Request], **kinds: object) -> type[_Request]:
    """The dataclass of a request with other types for some of its fields: those that the command line reads."""
    changed = [(each.name, kinds[each.name], each) for each in fields(request) if each.name in kinds]  # type: ignore[arg-type]
    return make_dataclass(request.__name__, changed, bases=(request,), frozen=True)

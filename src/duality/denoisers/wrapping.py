"""What all wrappers share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from duality.fused.lazy import Belief, Bend
from duality.protocols import Denoiser


@runtime_checkable
class Wrapper(Protocol):
    """A denoiser around another one."""

    @property
    def denoiser(self) -> Any: ...


def needs_belief(denoiser: object, who: str, instead: str) -> None:
    """Refuse a model that answers with ratios or vectors."""
    if not isinstance(denoiser, Denoiser):
        raise ValueError(f"{who} acts on probabilities, and a {type(denoiser).__name__} gives none: {instead}")


def bent(belief: Belief, bend: Bend) -> Belief:
    """A belief that ``bend`` acts on, row by row, where it is read."""
    return replace(belief, bends=(*belief.bends, bend))


def bare(denoiser: Any) -> Any:
    """The model under the wrappers."""
    while isinstance(denoiser, Wrapper):
        denoiser = denoiser.denoiser
    return denoiser

"""What all wrappers share: a wrapper is a denoiser around another one, in the attribute ``denoiser``.

A wrapper passes labels on to the denoiser inside; so labels reach the network through any number of wrappers. There
is no list of wrapper classes: whatever has an attribute ``denoiser`` is one (``protocols.Wrapper``).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from duality.protocols import AnyDenoiser, Denoiser, Network, VectorDenoiser, Wrapper


@runtime_checkable
class Readout(Protocol):
    """A denoiser that is a network and the meaning of its numbers."""

    @property
    def backbone(self) -> Network: ...


def needs_belief(denoiser: object, name: str, remedy: str) -> None:
    """Refuse a model that gives ratios or vectors."""
    if not isinstance(denoiser, Denoiser):
        raise ValueError(f"{name} acts on probabilities, and a {type(denoiser).__name__} gives none: {remedy}")


def unwrapped(denoiser: AnyDenoiser) -> AnyDenoiser:
    """The model inside all wrappers."""
    while isinstance(denoiser, Wrapper):
        denoiser = denoiser.denoiser
    return denoiser


def network_of(denoiser: AnyDenoiser) -> Network:
    """The network inside a denoiser."""
    inner = unwrapped(denoiser)
    if not isinstance(inner, Readout):
        raise ValueError(f"a {type(inner).__name__} has no network inside: use a denoiser that a method built")
    return inner.backbone


def num_labels_of(denoiser: AnyDenoiser) -> int:
    """How many labels a denoiser knows; 0 for one without a network."""
    inner = unwrapped(denoiser)
    return inner.backbone.num_labels if isinstance(inner, Readout) else 0


def vector_denoiser(denoiser: AnyDenoiser) -> VectorDenoiser:
    """A Gaussian model; any other is refused."""
    if not isinstance(denoiser, VectorDenoiser):
        raise ValueError(
            f"a Gaussian model is needed, which moves vectors, and a {type(denoiser).__name__} reads tokens: use "
            "the objective and the sampler of its own method"
        )
    return denoiser

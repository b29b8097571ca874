"""What all wrappers share: a wrapper is a denoiser around another one, in the attribute ``denoiser``.

A wrapper passes labels on to the denoiser inside; so labels reach the network through any number of wrappers. There
is no list of wrapper classes: whatever has an attribute ``denoiser`` is one (``protocols.Wrapper``). ``network_of``
finds the network inside all of them, and ``count_calls`` counts how often it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from duality.fused.lazy import Belief, belief_of, materialised_log_probs
from duality.protocols import AnyDenoiser, Denoiser, Dropout, Labels, Latent, Network, Valid, VectorDenoiser, Wrapper


@runtime_checkable
class Readout(Protocol):
    """A denoiser that is a network and the meaning of its numbers."""

    @property
    def backbone(self) -> Network: ...


def needs_belief(denoiser: object, name: str, remedy: str) -> None:
    """Refuse a model that gives ratios or vectors."""
    if not isinstance(denoiser, Denoiser):
        raise ValueError(f"{name} acts on probabilities, and a {type(denoiser).__name__} gives none: {remedy}")


def unwrap(denoiser: AnyDenoiser) -> AnyDenoiser:
    """The model inside all wrappers."""
    while isinstance(denoiser, Wrapper):
        denoiser = denoiser.denoiser
    return denoiser


def network_of(denoiser: AnyDenoiser) -> Network:
    """The network inside a denoiser."""
    inner = unwrap(denoiser)
    if not isinstance(inner, Readout):
        raise ValueError(f"a {type(inner).__name__} has no network inside: use a denoiser that a method built")
    return inner.backbone


def num_labels_of(denoiser: AnyDenoiser) -> int:
    """How many labels a denoiser knows; 0 for one without a network."""
    inner = unwrap(denoiser)
    return inner.backbone.num_labels if isinstance(inner, Readout) else 0


def vector_denoiser(denoiser: AnyDenoiser) -> VectorDenoiser:
    """A Gaussian model; any other is refused."""
    if not isinstance(denoiser, VectorDenoiser):
        raise ValueError(
            f"a Gaussian model is needed, which moves vectors, and a {type(denoiser).__name__} reads tokens: use "
            "the objective and the sampler of its own method"
        )
    return denoiser


@dataclass
class _Calls:
    """How many sequences a network was called with."""

    sequences: int = 0


@contextmanager
def count_calls(network: Network, check: Callable[[], None] = lambda: None) -> Iterator[_Calls]:
    """Count the sequences that the network is called with, for the duration of a ``with`` block.

    ``check`` runs before every call and ends the work by an error. Every call goes through ``hidden``, and not every
    one through the head. A wrapper around the denoiser would not see that a memo saves calls or that guidance doubles
    them.
    """
    calls, hidden = _Calls(), network.hidden

    def count(
        z: Latent, condition: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Tensor:
        check()
        vectors = hidden(z, condition, valid, dropout, labels)
        calls.sequences += len(vectors)
        return vectors

    own = vars(network).get("hidden")  # not None inside another such block
    vars(network)["hidden"] = count
    try:
        yield calls
    finally:
        if own is None:
            del vars(network)["hidden"]
        else:
            vars(network)["hidden"] = own


@dataclass(frozen=True)
class SeesAll:
    """The belief of a network that sees every position, whatever an objective takes for valid."""

    denoiser: AnyDenoiser

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        return belief_of(self.denoiser, z, alpha, None, dropout, labels)

    log_probs = materialised_log_probs

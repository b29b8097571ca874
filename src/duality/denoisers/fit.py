"""Whether a denoiser fits a process: the same states, and the same mask token or none.

Objectives and samplers call ``check_fits`` before the first network call. A network with fewer states than the noise
would be read outside its table, and one with more would write tokens that no text has; a belief that gives the mask
token a probability would leave mask tokens in the text, and its loss would be no bound. Only what a denoiser is made
of is looked at, not a tensor: the check costs nothing on any device. A denoiser without a network inside is known by
its answers alone: for these ``check_states`` compares the number of states.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from duality.denoisers.readouts import CausalDenoiser, MeanDenoiser
from duality.denoisers.wrapping import Readout, unwrapped
from duality.protocols import AnyDenoiser, Denoiser, Process, Score


@runtime_checkable
class _OfProcess(Protocol):
    """A denoiser that was built for one process."""

    @property
    def process(self) -> Process: ...


def check_fits(denoiser: AnyDenoiser, process: Process) -> None:
    """Refuse a denoiser of tokens whose states or mask token are not those of the process."""
    model = unwrapped(denoiser)
    if not isinstance(model, (Denoiser, Score)) or not isinstance(model, Readout):
        return
    name = type(model).__name__
    if isinstance(model, CausalDenoiser):
        raise ValueError(
            f"a {name} reads the clean tokens before a position, and {process} is noise on all of them: use its own "
            "objective (NextToken) and its own sampler (autoregressive)"
        )
    check_states(model.backbone.num_states, process)
    if isinstance(model, MeanDenoiser) and process.mask_id is not None:
        raise ValueError(
            f"the denoiser gives the mask token of {process} a probability, so its loss would be no bound and its "
            "samples would contain mask tokens: use SubsDenoiser, which excludes it"
        )
    if isinstance(model, _OfProcess) and model.process.mask_id != process.mask_id:
        raise ValueError(
            f"the {name} was built for {model.process}, and it is used with {process}, whose mask token is "
            f"{process.mask_id}: use the process that it was built for"
        )


def check_states(num_states: int, process: Process) -> None:
    """Refuse another number of states than that of the process."""
    if num_states != process.vocab_size:
        raise ValueError(
            f"the denoiser has {num_states} states and {process} {process.vocab_size}: build the network with "
            f"{process.vocab_size}"
        )

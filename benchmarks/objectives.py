"""The cost of each objective: a step (loss and backward pass) over the bare network's, in time and in peak memory.

Methods whose networks have the same shape run in turns with one bare network. A method with a teacher is measured
against a bare network with as many further forward passes as the teacher has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from benchmarks.models import BARE, Batch, Scale, bare_step, frozen_copy, learning_step, network_of
from benchmarks.rows import Report, Row, Size, memory_row, spaced, time_row
from benchmarks.timing import Runner, take_turns
from duality.methods.ar import AR
from duality.methods.bert_mouth import BertMouth
from duality.methods.d3pm import D3PM
from duality.methods.diffusion_bert import DiffusionBERT
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.plaid import Plaid
from duality.methods.sedd import SEDD
from duality.methods.udlm import UDLM
from duality.protocols import Method, Phase
from duality.training.distillation import DCD, SDTT

STEP_BAR = 1.20
MEMORY_BAR = 0.75


@dataclass(frozen=True)
class Entry:
    """A method by name, and its distillation, if there is one."""

    name: str
    method: Method
    distillation: DCD | SDTT | None = None

    def phases(self, states: int, denoiser: nn.Module) -> tuple[tuple[str, Phase], ...]:
        """The phases of training by name; of a distillation, the first round."""
        if self.distillation is not None:
            teacher: Any = frozen_copy(denoiser)
            return ((self.name, self.distillation.phases(self.method, states, teacher)[0]),)
        phases = self.method.phases(states, 1000)
        return tuple((self.name if len(phases) == 1 else f"{self.name}, {phase.name}", phase) for phase in phases)


@dataclass(frozen=True)
class Group:
    """Methods that share a bare network, named ``against``, which has ``teacher_calls`` further forward passes."""

    against: str
    entries: tuple[Entry, ...]
    bar: float | None = None
    teacher_calls: int = 0


DUO = Entry("Duo", Duo())

GROUPS = (
    Group(BARE, (DUO, Entry("SEDD uniform", SEDD(noise="uniform"))), STEP_BAR),
    Group(BARE, (Entry("MDLM", MDLM()), Entry("SEDD absorbing", SEDD())), STEP_BAR),
    Group("bare causal network", (Entry("AR", AR()),), STEP_BAR),
    Group("bare network + forward", (Entry("DCD", Duo(), DCD()),), STEP_BAR, teacher_calls=1),
)
# Diffusion-LM is not here: its network's output is an embedding, so its bare network has no vocabulary.
OTHERS = (
    Group(BARE, (Entry("UDLM", UDLM()), Entry("D3PM uniform", D3PM(noise="uniform")))),
    Group(
        BARE,
        (Entry("D3PM absorbing", D3PM()), Entry("DiffusionBERT", DiffusionBERT()), Entry("BERT-Mouth", BertMouth())),
    ),
    Group("bare network of vectors", (Entry("Plaid", Plaid()),)),
    Group("bare network + 2 forwards", (Entry("SDTT", MDLM(), SDTT()),), teacher_calls=2),
)


def runners_of(group: Group, scale: Scale, size: Size) -> list[Runner]:
    """The bare network, then every objective of the group."""
    batch, runners = Batch.of(size), list[Runner]()
    for entry in group.entries:
        denoiser = network_of(entry.method, scale.backbone, size.states)
        if not runners:
            runners.append(bare_step(denoiser, batch, group.teacher_calls))
        for name, phase in entry.phases(size.states, denoiser):
            runners.append(learning_step(name, denoiser, phase.objective, batch))
    return runners


def measure(group: Group, scale: Scale, size: Size, repeats: int) -> Iterator[Row]:
    """Time and memory of a group."""
    runners = runners_of(group, scale, size)
    timings = take_turns(runners, repeats, memory=True)
    for runner in runners[1:]:
        yield time_row("objectives", timings, runner.name, BARE, group.against, size, group.bar)
    for runner in runners[1:]:
        bar = MEMORY_BAR if runner.name.startswith(DUO.name) else None
        yield memory_row("memory", timings, runner.name, BARE, group.against, size, bar)


def section(scale: Scale, report: Report) -> Iterator[Row]:
    """All groups at the paper's two vocabularies, the others at the first."""
    for number, states in enumerate(scale.vocabularies):
        for group in GROUPS + (() if number else OTHERS):
            report(f"K = {spaced(states)}: {', '.join(entry.name for entry in group.entries)}")
            repeats = scale.few if group.bar is None or number else scale.repeats
            yield from measure(group, scale, scale.size(states), repeats)

"""What a user asks of a training or a distillation: one dataclass each, for the library and the command line.

A field's docstring is its help text. What must hold: the fields and their help are known without torch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from duality.diffusion import Divergence
from duality.training import Compare, Growth, TeacherCopy

if TYPE_CHECKING:
    from duality.protocols import Distillation
    from duality.recipes.recipe import Recipe
    from duality.runs.corpus import TrainingData
else:  # the command line reads the types of the fields
    Recipe = TrainingData = object


@dataclass(frozen=True)
class TrainRequest:
    """A training: the arguments of ``duality.train`` that decide its numbers and its folder."""

    recipe: str | Recipe | None = None
    """a name that `duality recipes` lists. With --from it may be left out: then it is the recipe of SOURCE, with a
    tenth of its steps and a fifth of its learning rate. With --resume it may be left out too."""
    start: Path | str | None = None
    """finetune: begin from the model in this run folder, with its tokenizer. Network, tokenizer and labels stay as they
    are; --data and all settings of training may be others."""
    out: Path | str | None = None
    """the run folder; runs/RECIPE if not given."""
    data: TrainingData | None = None
    """a text file, a .jsonl file with a document per line, a .csv or .tsv file with one per row, a folder of such
    files, or a source that `duality data list` names. A text file is one document; with --set data.documents=lines
    every line of it is one. With --set data.packing=document a sequence never has two documents. With --resume it is
    where the run's own text is now, if it was moved."""
    column: str | None = None
    """where the text is: the key of a .jsonl file, the column of a .csv or .tsv file; text if not given. Short for
    --set data.column=NAME."""
    steps: int | None = None
    """number of training steps; short for --set training.steps=N. With --resume a run that is there goes on to this
    number of steps."""
    seed: int | None = None
    """seed of weights, data order and noise; short for --set training.seed=N."""
    set: Sequence[str] = ()
    """change a field of the recipe, such as --set training.learning_rate=1e-3 or --set backbone=mini; can be
    repeated."""
    resume: bool = False
    """continue the run in --out where its last checkpoint is, with the settings it was started with; start it if there
    is none. A job that torchrun starts again after a failure does so without being told."""

    def changes(self) -> tuple[str, ...]:
        """The changes of the recipe's fields, those with a short name first."""
        short = {"training.steps": self.steps, "training.seed": self.seed}
        return (*(f"{name}={value}" for name, value in short.items() if value is not None), *self.set)


@dataclass(frozen=True)
class RoundChanges:
    """Fields of ``distillation.Rounds`` and of its kinds; None leaves a field as it is."""

    rounds: int | None = None
    """how often the teacher becomes a copy of the student; 5 if not given."""
    round_steps: int | None = None
    """training steps of each round; if not given, a hundredth of the run's own steps, but at least 150."""
    teacher: TeacherCopy | None = None
    """which copy of the student is the teacher: its weights (the default) or their average (ema)."""
    delta: float | None = None
    """the first round's step, as a fraction of the time from data to noise; 1/512 (dcd) or 1/1024 (sdtt)."""
    growth: Growth | None = None
    """from round to round delta doubles (double, the default), or grows linearly (linear)."""
    divergence: Divergence | None = None
    """the distance between student and teacher; kl-backward (the default) is KL(student || teacher)."""
    compare: Compare | None = None
    """what dcd compares: the networks' outputs (output, the paper's, the default), or these together with the noisy
    tokens (posterior)."""
    for_steps: int | None = None
    """choose rounds and delta for sampling with N steps: in the last round the student learns steps of length 1/N."""

    def given_fields(self, standard: Distillation) -> dict[str, object]:
        """The fields that are set; ``standard`` is the unchanged distillation.

        ``for_steps`` is no field: in its place are the number of rounds, and delta of the first, for a model that will
        be sampled with so many equal steps of time. In the last round a step of the student, which is
        ``deltas_per_step`` deltas, is 1 / ``for_steps`` long. Rounds are as many as there are from the standard delta
        on, where student and teacher hardly differ, but no more than the standard has. Either of ``rounds`` and
        ``delta`` may be given; the other one is chosen for it.

        >>> from duality.training.distillation import DCD, SDTT
        >>> RoundChanges(for_steps=32).given_fields(DCD())  # the paper's: 1/512, 1/256, 1/128, 1/64, 1/32
        {'rounds': 5, 'delta': 0.001953125}
        >>> RoundChanges(for_steps=8).given_fields(DCD())
        {'rounds': 5, 'delta': 0.0078125}
        >>> RoundChanges(for_steps=8, rounds=3).given_fields(DCD())
        {'rounds': 3, 'delta': 0.03125}
        >>> RoundChanges(for_steps=8, delta=1 / 64).given_fields(DCD())
        {'rounds': 4, 'delta': 0.015625}
        >>> RoundChanges(for_steps=256).given_fields(DCD())
        {'rounds': 2, 'delta': 0.001953125}
        >>> RoundChanges(for_steps=32).given_fields(SDTT())  # with two steps of the teacher
        {'rounds': 5, 'delta': 0.0009765625}
        """
        if self.compare is not None and "compare" not in inspect.signature(type(standard)).parameters:
            raise ValueError(
                f"compare is {self.compare!r}, and {type(standard).__name__} has no such field: it is for DCD; at a "
                "mask token output and posterior are the same, so leave it out"
            )
        fields = asdict(self)
        steps, rounds, delta = fields.pop("for_steps"), self.rounds, self.delta
        if steps is not None:
            if rounds is not None and delta is not None:
                raise ValueError(
                    f"for_steps is {steps} and chooses rounds and delta, which are both given: leave one of the three "
                    "out"
                )
            if steps < 1:
                raise ValueError(f"for_steps is {steps}: a sample takes at least 1 step")
            if delta is not None and not delta > 0:
                raise ValueError(f"delta is {delta}: it is a fraction of the time from data to noise, in (0, 1]")
            last, doubles = 1 / (steps * standard.deltas_per_step), (self.growth or standard.growth) == "double"
            if rounds is None:
                first = standard.delta_of_round(1) if delta is None else delta
                grown = last / first * (1 + 1e-9)  # a quotient may be rounded below its number
                rounds = max(1, 1 + math.floor(math.log2(grown)) if doubles else math.floor(grown))
                rounds = min(rounds, standard.rounds) if delta is None else rounds
            if delta is None:
                delta = last / (2 ** (rounds - 1) if doubles else max(rounds, 1))
        fields |= {"rounds": rounds, "delta": delta}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class DistillRequest:
    """A distillation: the arguments of ``duality.distill`` that decide its numbers and its folder."""

    run: Path | str
    """the run folder of the trained model, a folder of `duality publish`, or a model of the hub (hf:OWNER/NAME)."""
    method: str | None = None
    """discrete consistency distillation (dcd, for uniform noise) or self-distillation through time (sdtt, for absorbing
    noise); what suits the model if not given."""
    changes: RoundChanges = field(default_factory=RoundChanges)
    """the rounds."""
    out: Path | str | None = None
    """the new run folder; RUN-METHOD if not given."""
    corpus: Path | str | None = None
    """where the corpus of RUN is now, if it was moved; its text must be the one that RUN was trained on."""
    seed: int | None = None
    """seed of data order and noise; short for --set training.seed=N."""
    set: Sequence[str] = ()
    """change a field of the recipe, such as --set training.learning_rate=1e-3; can be repeated."""
    resume: bool = False
    """continue the distillation in --out where its last checkpoint is; start it if there is none."""

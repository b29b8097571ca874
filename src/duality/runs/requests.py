"""What a user asks of a training or a distillation: one dataclass each, for the library and the command line.

A field's docstring is its help text. What must hold: the fields and their help are known without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from duality.training.round_changes import RoundChanges

if TYPE_CHECKING:
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

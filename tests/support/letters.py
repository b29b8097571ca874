"""A source of samples for sweeps, and a judge, whose calls are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from support.judges import table_judge
from torch import Tensor

from duality.evaluation.judge import Judge
from duality.evaluation.samples import Case, Row, Samples
from duality.evaluation.sweep import RunSampler, Sweep

CASE = Case(label="duo", run=Path("runs/duo"), steps=4, num=3, length=8)


@dataclass
class Letters(RunSampler):
    """A source of samples of letters, a judge whose calls are counted, and the reported messages."""

    out: Path
    weights_now: str = "step 1, first"
    written: list[Case] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    name: str = "counted"
    fails_at: int | None = None

    def weights(self, case: Case) -> str:
        return self.weights_now

    def sample(self, case: Case, advance: Callable[[int], None]) -> Samples:
        if case.steps == self.fails_at:
            raise RuntimeError("out of memory")
        self.written.append(case)
        advance(case.steps)
        source = torch.Generator().manual_seed(case.steps + 100 * case.seed)
        tokens = torch.randint(97, 105, (case.num, case.length), generator=source)
        return Samples(
            tokens, [bytes(row).decode() for row in tokens.tolist()], 0.5, float(case.steps), self.weights_now
        )

    @property
    def judge(self) -> Judge:
        base = table_judge()

        def logits(ids: Tensor, valid: Tensor) -> Tensor:
            self.read.append(len(ids))
            return base.logits(ids, valid)

        return replace(base, logits=logits, name=self.name)

    def sweep(self, judged: bool = True, real: Samples | None = None) -> Sweep:
        return Sweep(self.out, self, self.said.append, self.judge if judged else None, real)

    def measure(self, *cases: Case, judged: bool = True, real: Samples | None = None) -> list[Row]:
        self.written.clear()
        self.read.clear()
        self.said.clear()
        return self.sweep(judged, real).measure(cases)


def four_texts() -> Samples:
    texts = ["abcdefgh", "the cats", "sat on a", "mat then"]
    return Samples(torch.tensor([list(text.encode()) for text in texts]), texts, 0.0, 0.0, "validation")

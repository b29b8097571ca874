"""A recipe: everything that rebuilds a run, as one frozen dataclass, saved beside the weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from duality.backbones.dit import DiT
from duality.baselines import BertMouth, DiffusionBERT, DiffusionLM, Plaid
from duality.data import BPE, DEFAULT_SOURCE, Bytes, Characters, Pretrained
from duality.methods import AR, D3PM, MDLM, SEDD, UDLM, Duo
from duality.train import Training

Method = AR | BertMouth | D3PM | DiffusionBERT | DiffusionLM | Duo | MDLM | Plaid | SEDD | UDLM


@dataclass(frozen=True)
class Data:
    """What is learnt: a corpus (a named source, a file, a folder), how it becomes tokens and sequences."""

    corpus: str = DEFAULT_SOURCE
    tokenizer: Bytes | Characters | BPE | Pretrained = BPE(vocab_size=2048)
    length: int = 128
    validation: float = 0.05
    split: Literal["auto", "document", "position"] = "auto"
    packing: Literal["wrap", "document"] = "wrap"
    labels: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"data.length is {self.length}: a sequence needs at least 1 token")
        if self.labels and self.packing == "wrap":
            raise ValueError(
                "data.labels with data.packing=wrap: a wrapped sequence may hold several documents and so several "
                "labels; set data.packing=document"
            )


@dataclass(frozen=True)
class Recipe:
    """A run before it runs."""

    name: str
    summary: str
    source: str
    method: Method
    data: Data
    backbone: DiT
    training: Training


def duo_of(base: Recipe) -> Duo:
    """The method of a Duo recipe."""
    assert isinstance(base.method, Duo)
    return base.method


def derived(base: Recipe, name: str, summary: str, source: str, method: Method, **training: Any) -> Recipe:
    """``base`` with another method, and what else of its training that method needs."""
    return replace(
        base,
        name=name,
        summary=summary,
        source=source,
        method=method,
        training=replace(base.training, **training),
    )

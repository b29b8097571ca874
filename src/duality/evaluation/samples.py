"""Samples in files, and real text that is cut like samples.

A file of samples is JSON lines: first the case, the weights and the cost, then one line for each sample. It is read
again only if it is complete and its case and weights are the requested ones. Otherwise the samples are made again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from duality.data.files import write_atomically
from duality.data.packing import Sequences
from duality.data.tokenizers import Tokenizer
from duality.evaluation.cases import REAL_TEXT, Case
from duality.protocols import Reporter


@dataclass(frozen=True)
class Samples:
    """Samples as ids (N, L) and as texts, the cost of one in seconds and network calls, and the weights that made them.

    ``weights`` is an identifier: the same weights have the same one.
    """

    tokens: Tensor
    texts: list[str]
    seconds_per_sample: float
    nfe: float
    weights: str

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.tokens):
            raise ValueError(
                f"{len(self.texts)} texts and {len(self.tokens)} rows of tokens: each text needs its own row"
            )


def write_samples(path: Path, case: Case, samples: Samples) -> None:
    """Write samples with their settings and weights."""
    if tuple(samples.tokens.shape) != (case.num, case.length):
        raise ValueError(
            f"{case.label}: asked for {case.num} samples of {case.length} tokens, got tokens of shape "
            f"{tuple(samples.tokens.shape)}"
        )
    cost = {"seconds_per_sample": samples.seconds_per_sample, "nfe": samples.nfe}
    lines: list[dict[str, object]] = [{"case": case.to_json(), "weights": samples.weights, **cost}]
    for index, (tokens, text) in enumerate(zip(samples.tokens.tolist(), samples.texts)):
        lines.append({"index": index, "seed": case.seed, "tokens": tokens, "text": text})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def kept_samples(path: Path, case: Case, weights: str, report: Reporter) -> Samples | None:
    """The samples in ``path``, if they are whole and were made by these settings and weights."""
    if not path.is_file():
        return None
    try:
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        before, made = {**head["case"]}, head["weights"]
        before.pop("label")
        tokens = torch.tensor([line["tokens"] for line in lines])
        texts = [str(line["text"]) for line in lines]
        samples = Samples(tokens, texts, float(head["seconds_per_sample"]), float(head["nfe"]), made)
        if [line["index"] for line in lines] != list(range(case.num)) or tuple(tokens.shape) != (case.num, case.length):
            raise ValueError(f"{len(lines)} of {case.num} samples, tokens {tuple(tokens.shape)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        report(f"{path} is damaged or incomplete ({type(error).__name__}: {error}): sampling again")
        return None
    if before != case.settings() or made != weights:
        what = f"other weights ({made}, now {weights})" if made != weights else "other settings"
        report(f"{path} was made by {what}: sampling again")
        return None
    return samples


def real_text(sequences: Sequences, tokenizer: Tokenizer, num: int) -> Samples | None:
    """At most ``num`` whole sequences, evenly spread; None if every sequence is shorter than its row.

    Where a sequence is not whole, the next whole one is taken.
    """
    starts, stops = sequences.windows(np.arange(len(sequences)))
    whole = np.flatnonzero(stops - starts == sequences.length)
    if not len(whole):
        return None
    count = min(num, len(sequences))
    places = np.searchsorted(whole, np.arange(count) * len(sequences) // count)
    tokens, _ = sequences.rows(np.unique(whole[places.clip(max=len(whole) - 1)]))
    return Samples(tokens, [tokenizer.decode(row) for row in tokens.tolist()], 0.0, 0.0, REAL_TEXT)


def real_text_case(samples: Samples) -> Case:
    """The case of real text: no run, no steps."""
    num, length = samples.tokens.shape
    return Case(label=REAL_TEXT, run=Path(), steps=0, num=num, length=length, sampler="none", tail="none")

"""Samples in files, and real text that is cut like samples.

A file of samples is JSON lines: first the case, the weights and the cost, then one line for each sample. It is read
again only if it is complete and its case and weights are the requested ones. Otherwise the samples are made again.
``FORMAT`` is 2 since texts end at the first end-of-text token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from duality.data.packing import Sequences
from duality.evaluation.sweep.cases import REAL_TEXT, Case
from duality.files.atomic import write_atomically
from duality.files.progress import Reporter
from duality.tokenizers.tokenizer import Tokenizer, text_before_end

FORMAT = 2


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
    lines: list[dict[str, object]] = [{"format": FORMAT, "case": case.to_json(), "weights": samples.weights, **cost}]
    for index, (tokens, text) in enumerate(zip(samples.tokens.tolist(), samples.texts)):
        lines.append({"index": index, "seed": case.seed, "tokens": tokens, "text": text})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def kept_samples(path: Path, case: Case, weights: str, report: Reporter) -> Samples | None:
    """The samples in ``path``, if they are whole and were made by these settings and weights."""
    if not path.is_file():
        return None
    try:
        before, made_in, samples = _read(path, case)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        report(f"{path} is damaged or incomplete ({type(error).__name__}: {error}): sampling again")
        return None
    if made_in != FORMAT:
        report(f"{path} was made by an older version, which did not end texts at the end-of-text: sampling again")
        return None
    if before != case.settings() or samples.weights != weights:
        other = f"other weights ({samples.weights}, now {weights})"
        report(f"{path} was made by {other if samples.weights != weights else 'other settings'}: sampling again")
        return None
    return samples


def stored_samples(path: Path, case: Case) -> Samples:
    """The samples of a case that was measured before, whichever weights made them."""
    try:
        return _read(path, case)[2]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"no samples of {case.label} in {path} ({type(error).__name__}: {error}): measure it again with `duality "
            f"quality --out {path.parent.parent}`"
        ) from error


def _read(path: Path, case: Case) -> tuple[dict[str, object], int, Samples]:
    """The settings in the file of a case, its format, and its samples; an error if the file is not whole."""
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    before = {**head["case"]}
    before.pop("label")
    tokens = torch.tensor([line["tokens"] for line in lines])
    texts = [str(line["text"]) for line in lines]
    samples = Samples(tokens, texts, float(head["seconds_per_sample"]), float(head["nfe"]), head["weights"])
    if [line["index"] for line in lines] != list(range(case.num)) or tuple(tokens.shape) != (case.num, case.length):
        raise ValueError(f"{len(lines)} of {case.num} samples, tokens {tuple(tokens.shape)}")
    return before, head.get("format", 1), samples


def real_text(sequences: Sequences, tokenizer: Tokenizer, num: int) -> Samples | None:
    """At most ``num`` whole sequences, evenly spread; None if every sequence is shorter than its row.

    Where a sequence is not whole, the next whole one is taken. Padding that is modelled makes a sequence whole. A text
    ends before the first end-of-text, like that of a sample.
    """
    starts, stops = sequences.windows(np.arange(len(sequences)))
    whole = np.flatnonzero((stops - starts == sequences.length) | sequences.models_padding)
    if not len(whole):
        return None
    count = min(num, len(sequences))
    places = np.searchsorted(whole, np.arange(count) * len(sequences) // count)
    tokens, _ = sequences.rows(np.unique(whole[places.clip(max=len(whole) - 1)]))
    return Samples(tokens, [text_before_end(tokenizer, row) for row in tokens.tolist()], 0.0, 0.0, REAL_TEXT)


def real_text_case(samples: Samples) -> Case:
    """The case of real text: no run, no steps."""
    num, length = samples.tokens.shape
    return Case(label=REAL_TEXT, run=Path(), steps=0, num=num, length=length, sampler="none", tail="none")

"""Traces: a JSON file with every step of every sample.

    {"format": 1, "about": {...}, "mask": 2048, "vocabulary": {"17": " the", ...}, "samples":
     [{"index": 0, "frames": [{"step": 0, "alpha": 0.0, "tokens": [...]},
                              {"step": 1, "alpha": 0.1, "changed": [[place, token], ...]}, ...], "text": "..."}, ...]}

The first frame of a sample has all tokens, the others what changed. What must hold: ``read_trace`` gives back all
tokens of every step; a damaged or foreign file is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from duality.files.atomic import write_atomically
from duality.samplers.generate import Frame
from duality.tokenizers.pieces import PART, Pieces

FORMAT = 1
T = TypeVar("T")
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\n": "⏎", "\x7f": "␡"}


def changes(before: Sequence[int] | None, after: Sequence[int]) -> dict[int, int]:
    """Place and token where a row differs from the one before it, new places included; none if there was no row."""
    if before is None:
        return {}
    return {place: index for place, index in enumerate(after) if place >= len(before) or index != before[place]}


@dataclass(frozen=True)
class Moment:
    """A sample after a step, and what the step has changed."""

    step: int
    alpha: float
    tokens: tuple[int, ...]
    changed: Mapping[int, int]


@dataclass(frozen=True)
class TracedSample:
    """A sample after every step, and how it reads after the last."""

    index: int
    frames: tuple[Moment, ...]
    text: str


@dataclass(frozen=True)
class Recording:
    """What a trace file holds, with all tokens of every step."""

    about: dict[str, object]
    mask_id: int | None
    vocabulary: dict[int, str]
    samples: tuple[TracedSample, ...]

    def sample(self, index: int) -> TracedSample:
        """The sample with this index."""
        there = {sample.index: sample for sample in self.samples if sample.frames}
        if index not in there:
            raise ValueError(f"the trace has no sample {index}: choose from {', '.join(map(str, there)) or 'none'}")
        return there[index]


class Trace:
    """Collects frames, and writes them as one JSON object in which all but the first of a sample are differences.

    ``about`` says where they come from.
    """

    def __init__(self, pieces: Pieces, about: Mapping[str, object]) -> None:
        self.pieces, self.about = pieces, about
        self.complete: set[int] = set()
        self._frames: dict[int, list[dict[str, object]]] = {}
        self._last: dict[int, tuple[int, list[int]]] = {}  # step and tokens
        self._seen: set[int] = set()

    def add(self, frame: Frame) -> None:
        """One more step of every sample of the batch."""
        for index, row in enumerate(frame.tokens.tolist(), frame.first):
            step, before = self._last.get(index, (-1, None))
            if frame.step <= step:
                raise ValueError(
                    f"step {frame.step} of sample {index} after its step {step}: a trace holds one "
                    "generation, whose steps go up; begin another trace"
                )
            if before is not None and len(row) < len(before):
                raise ValueError(f"sample {index} shrinks from {len(before)} to {len(row)} tokens: it can only grow")
            changed = changes(before, row)
            content = {"tokens": row} if before is None else {"changed": list(changed.items())}
            self._seen.update(row if before is None else changed.values())
            self._frames.setdefault(index, []).append({"step": frame.step, "alpha": frame.alpha, **content})
            self._last[index] = frame.step, row
            if frame.step == frame.steps:
                self.complete.add(index)

    def write(self, path: Path, only_complete: bool = False) -> None:
        """Write all samples, or those that are complete; the file is written whole, or not at all."""
        ids = sorted(self._seen - {self.pieces.mask_id})
        samples = [
            {"index": index, "frames": frames, "text": self.pieces.text(self._last[index][1])}
            for index, frames in sorted(self._frames.items())
            if index in self.complete or not only_complete
        ]
        whole = {
            "format": FORMAT,
            "about": self.about,
            "mask": self.pieces.mask_id,
            "vocabulary": {str(index): self.pieces.of(index) for index in ids},
            "samples": samples,
        }
        write_atomically(path, json.dumps(whole, separators=(",", ":")))


def read_trace(path: Path) -> Recording:
    """What ``Trace.write`` wrote, with all tokens of every step."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): give a file that `duality sample --trace` wrote") from None
    if not isinstance(whole, dict) or not {"format", "about", "samples"} <= whole.keys():
        raise ValueError(f"{path} is no trace of a generation: give a file that `duality sample --trace` wrote")
    if whole["format"] != FORMAT:
        raise ValueError(f"{path} has format {whole['format']!r}, this version reads {FORMAT}: write the trace again")
    try:
        mask = None if whole["mask"] is None else _count(whole["mask"])
        vocabulary = {int(index): _of(str, text) for index, text in _of(dict, whole["vocabulary"]).items()}
        samples = tuple(_sample(sample, {*vocabulary, mask}) for sample in _of(list, whole["samples"]))
        return Recording(_of(dict, whole["about"]), mask, vocabulary, samples)
    except (KeyError, ValueError, TypeError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged ({reason}): write the trace again") from None


def _sample(sample: dict[str, object], known: set[int | None]) -> TracedSample:
    """A sample of a file, its differences added up."""
    tokens: list[int] = []
    moments: list[Moment] = []
    index = _count(sample["index"])
    for number, frame in enumerate(_of(list, sample["frames"])):
        step = _count(frame["step"])
        if moments and step <= moments[-1].step:
            raise ValueError(f"step {step} of sample {index} comes after step {moments[-1].step}")
        changed = frame["changed"] if number else enumerate(_of(list, frame["tokens"]))
        for place, token in changed:
            if _count(token) not in known:
                raise ValueError(f"token {token} at step {step} of sample {index} is not in the vocabulary")
            if _count(place) > len(tokens):
                raise ValueError(f"place {place} at step {step} of sample {index} is beyond its {len(tokens)} tokens")
            tokens[place : place + 1] = [token]
        before = moments[-1].tokens if moments else None
        moments.append(Moment(step, float(frame["alpha"]), tuple(tokens), changes(before, tokens)))
    return TracedSample(index, tuple(moments), _of(str, sample["text"]))


def _of(kind: type[T], value: object) -> T:
    """The value, which must be of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value


def _count(value: object) -> int:
    """The value, which must be a whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise TypeError(f"{str(value)[:40]!r} is no whole number from 0 on")
    return value


def visible(text: str, kept: str = "") -> str:
    """The text without anything that moves a cursor: a new line is "⏎", other control characters are pictures.

    Characters that are ``kept`` stay as they are.

    >>> visible("two\\n\\tlines \\x1b[31m", kept="\\n\\t")
    'two\\n\\tlines ␛[31m'
    """

    def picture(character: str) -> str:
        if character.isspace() and ord(character) > 0x9F:
            return " "
        return _PICTURES.get(character, PART)

    return "".join(each if each.isprintable() or each in kept else picture(each) for each in text)

"""A trace of a generation: reading gives what was written, and a damaged file is refused."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.frames import LETTERS, NO_TEXT, frame
from support.oracles import absorbing_toy

from duality.cli.watch import Watcher
from duality.diffusion.schedules import LogLinear
from duality.models.trace import Trace, read_trace
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import Frame, generate
from duality.tokenizers.pieces import Pieces
from duality.tokenizers.tokenizer import CharTokenizer


def trace_of(*frames: Frame) -> Trace:
    """A trace of these frames."""
    trace = Trace(Pieces(LETTERS, NO_TEXT), {"run": "runs/letters", "seed": 3})
    for one in frames:
        trace.add(one)
    return trace


@st.composite
def batches(draw: st.DrawFn) -> list[Frame]:
    """The frames of a few batches; rows may grow from frame to frame."""
    made, first = [], 0
    for size in draw(st.lists(st.integers(1, 3), max_size=3)):
        length = 0
        for step in range(draw(st.integers(1, 4))):
            length += draw(st.integers(0, 3))
            row = st.lists(st.integers(0, 6), min_size=length, max_size=length)
            alpha = draw(st.floats(0, 1))
            made.append(frame(step, *[draw(row) for _ in range(size)], alpha=alpha, first=first))
        first += size
    return made


@given(frames=batches())
def test_a_trace_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, frames: list[Frame]) -> None:
    path = tmp_path_factory.getbasetemp() / "trace.json"
    trace_of(*frames).write(path)
    recording = read_trace(path)
    read = {
        (sample.index, moment.step, moment.alpha): moment.tokens
        for sample in recording.samples
        for moment in sample.frames
    }
    added = {
        (one.first + number, one.step, one.alpha): tuple(row)
        for one in frames
        for number, row in enumerate(one.tokens.tolist())
    }
    assert read == added
    used = {token for row in added.values() for token in row}
    assert recording.vocabulary == {token: Pieces(LETTERS).of(token) for token in used - {NO_TEXT}}
    assert [sample.index for sample in recording.samples] == sorted({index for index, _, _ in added})
    assert (recording.mask_id, recording.about) == (NO_TEXT, {"run": "runs/letters", "seed": 3})


def test_the_file_in_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace_of(
        frame(0, [6, 6], [6, 6], alpha=0.0), frame(1, [6, 1], [6, 6]), frame(2, [0, 1, 5], [2, 2, 2], alpha=1.0)
    ).write(path)
    assert json.loads(path.read_text()) == {
        "format": 1,
        "about": {"run": "runs/letters", "seed": 3},
        "mask": 6,
        "vocabulary": {"0": "\n", "1": "a", "2": "b", "5": "<|endoftext|>"},
        "samples": [
            {
                "index": 0,
                "frames": [
                    {"step": 0, "alpha": 0.0, "tokens": [6, 6]},
                    {"step": 1, "alpha": 0.5, "changed": [[1, 1]]},
                    {"step": 2, "alpha": 1.0, "changed": [[0, 0], [2, 5]]},
                ],
                "text": "\na<|endoftext|>",
            },
            {
                "index": 1,
                "frames": [
                    {"step": 0, "alpha": 0.0, "tokens": [6, 6]},
                    {"step": 1, "alpha": 0.5, "changed": []},
                    {"step": 2, "alpha": 1.0, "changed": [[0, 2], [1, 2], [2, 2]]},
                ],
                "text": "bbb",
            },
        ],
    }
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


def test_a_trace_is_of_one_generation() -> None:
    trace = trace_of(frame(0, [1]), frame(1, [1]))
    with pytest.raises(ValueError, match="step 0 of sample 0 after its step 1: a trace holds one generation"):
        trace.add(frame(0, [1]))
    with pytest.raises(ValueError, match="sample 0 shrinks from 1 to 0 tokens"):
        trace.add(frame(2, []))


def damaged(change: Callable[[Any], Any]) -> str:
    """A file with a change of its contents."""
    whole: Any = {
        "format": 1,
        "about": {},
        "mask": None,
        "vocabulary": {"1": "a"},
        "samples": [
            {
                "index": 0,
                "frames": [
                    {"step": 0, "alpha": 0, "tokens": [1]},
                    {"step": 1, "alpha": 1, "changed": [[1, 1]]},
                ],
                "text": "aa",
            }
        ],
    }
    change(whole)
    return json.dumps(whole)


def second_frame(**fields: Any) -> Callable[[Any], None]:
    """Other fields in the second frame."""

    def change(whole: Any) -> None:
        whole["samples"][0]["frames"][1].update(fields)

    return change


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is damaged .*: give a file that `duality sample --trace` wrote"),
        ("\ud800", "is damaged"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a":' * 40 + "0" + "}" * 40, "is nested more than 32 levels deep"),
        ("9" * 5000, "is damaged"),
        (damaged(second_frame(step=10**400)), "is no whole number from 0"),
        ("[1]", "is no trace of a generation: give a file"),
        ('{"text": "a"}', "is no trace of a generation"),
        (damaged(lambda whole: whole.update(format=2)), "has format 2, this version reads 1: write the trace again"),
        (damaged(lambda whole: whole.pop("mask")), r"is damaged \('mask' is missing\): write the trace again"),
        (damaged(lambda whole: whole.update(mask=-1)), "'-1' is no whole number"),
        (damaged(lambda whole: whole.update(vocabulary=[])), r"'\[\]' is no dict"),
        (damaged(lambda whole: whole.update(vocabulary={"x": "a"})), "is damaged"),
        (damaged(lambda whole: whole["samples"][0].pop("text")), "'text' is missing"),
        (damaged(lambda whole: whole["samples"][0]["frames"].pop(0)), "'tokens' is missing"),
        (damaged(second_frame(step=0)), "step 0 of sample 0 comes after step 0"),
        (damaged(second_frame(changed=[[2, 1]])), "place 2 at step 1 of sample 0 is beyond its 1 tokens"),
        (damaged(second_frame(changed=[[-1, 1]])), "'-1' is no whole number"),
        (damaged(second_frame(changed=[[0, 7]])), "token 7 at step 1 of sample 0 is not in the vocabulary"),
        (damaged(second_frame(changed=[[0, True]])), "'True' is no whole number"),
        (damaged(second_frame(changed=[3])), "is damaged"),
        (damaged(second_frame(changed=None)), "is damaged"),
        (damaged(second_frame(alpha="high")), "is damaged"),
    ],
)
def test_a_damaged_or_foreign_file(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "any.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + reason):
        read_trace(path)


@pytest.mark.parametrize("number", [0, 1], ids=["one sample", "all samples together"])
def test_a_small_file_that_says_a_state_many_times_is_refused(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame without a change takes thirty bytes of the file, and in memory as many tokens as a sample has."""
    path = tmp_path / "any.json"
    frames = [[frame(step, [1] * 20) for step in range(count)] for count in ((25, 25) if number else (50,))]
    trace_of(*(replace(each, first=index) for index, group in enumerate(frames) for each in group)).write(path)
    monkeypatch.setattr("duality.models.trace._MOST_TOKENS", 1000)
    assert sum(len(sample.frames) for sample in read_trace(path).samples) == 50
    monkeypatch.setattr("duality.models.trace._MOST_TOKENS", 999)
    with pytest.raises(ValueError, match=r"any\.json has more than 999 tokens in all its frames: record fewer samples"):
        read_trace(path)


def test_the_undamaged_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    path.write_text(damaged(lambda whole: None))
    (sample,) = read_trace(path).samples
    assert [moment.tokens for moment in sample.frames] == [(1,), (1, 1)]


def test_a_generation_from_start_to_end(tmp_path: Path) -> None:
    """Masked diffusion of the toy language: three samples in two batches, watched and traced."""
    _, process, denoiser = absorbing_toy()
    pieces = Pieces(CharTokenizer("xy"), process.mask_id)
    trace, out = Trace(pieces, {}), io.StringIO()

    def watch(one: Frame) -> None:
        trace.add(one)
        watcher.show(one)

    with Watcher(Console(file=out, _environ={}), pieces) as watcher:
        sampler = Ancestral(process)
        tokens = generate(denoiser, LogLinear(), sampler, num=3, length=2, steps=4, batch_size=2, watch=watch)
    trace.write(tmp_path / "trace.json")
    recording = read_trace(tmp_path / "trace.json")
    assert [sample.frames[-1].tokens for sample in recording.samples] == [tuple(row) for row in tokens.tolist()]
    assert all(sample.frames[0].tokens == (process.mask_id,) * 2 for sample in recording.samples)
    assert [[moment.step for moment in sample.frames] for sample in recording.samples] == [[0, 1, 2, 3, 4]] * 3
    assert [sample.text for sample in recording.samples] == [pieces.text(row) for row in tokens.tolist()]
    # Every token is unmasked once, so each is in brackets once.
    assert out.getvalue().count("[") == 6
    assert out.getvalue().count("start") == 2

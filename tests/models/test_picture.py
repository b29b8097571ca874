"""The moving picture of denoising shows what the trace holds: every text, every change, one frame at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frames import frame
from support.oracles import absorbing_toy

from duality.cli.main import main
from duality.diffusion.schedules import LogLinear
from duality.models.trace import Recording, Trace, _Token, _wrap, picture, read_trace
from duality.registry import visible
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import Frame, generate
from duality.tokenizers.pieces import MASK, Pieces
from duality.tokenizers.tokenizer import CharTokenizer

SVG = "{http://www.w3.org/2000/svg}"
DIFFICULT = CharTokenizer("\x00\t\n \"&'<>]ab\x7fé\u2028中😀")
MASK_ID = DIFFICULT.vocab_size

# (character, highlighted) of a frame, in reading order
Characters = list[tuple[str, bool]]


def recording_of(frames: Sequence[Frame], folder: Path, about: dict[str, str] | None = None) -> Recording:
    """Frames as they come back from a trace file."""
    trace = Trace(Pieces(DIFFICULT, MASK_ID), about or {})
    for one in frames:
        trace.add(one)
    trace.write(folder / "trace.json")
    return read_trace(folder / "trace.json")


def frames_of(svg: str) -> list[ElementTree.Element]:
    """The frames of a picture, in the order of time."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return [group for group in root.iter(f"{SVG}g") if "frame" in (group.get("class") or "").split()]


def characters(group: ElementTree.Element) -> Characters:
    """What a frame shows of the sample."""
    found: Characters = []
    for line in group.iter(f"{SVG}text"):
        if line.get("class") == "small":
            continue
        found += [(character, False) for character in line.text or ""]
        for part in line:
            found += [(character, part.get("class") == "changed") for character in part.text or ""]
            found += [(character, False) for character in part.tail or ""]
    return found


def expected(before: Sequence[int] | None, after: Sequence[int], recording: Recording) -> Characters:
    """What a frame must show, from the tokens alone."""
    found: Characters = []
    for place, index in enumerate(after):
        changed = before is not None and (place >= len(before) or before[place] != index)
        text = MASK if index == recording.mask_id else visible(recording.vocabulary[index])
        found += [(character, changed) for character in text]
    return found


@st.composite
def generations(draw: st.DrawFn) -> list[Frame]:
    """The frames of a sample, which may grow from frame to frame as an autoregressive one does."""
    made, row = [], list[int]()
    for step in range(draw(st.integers(1, 5))):
        tokens = st.lists(st.integers(0, MASK_ID), min_size=len(row), max_size=len(row) + 4)
        row = draw(tokens)
        made.append(frame(step, row, alpha=draw(st.floats(0, 1))))
    return made


@given(frames=generations(), columns=st.integers(1, 9))
def test_every_frame_shows_its_text_and_highlights_its_changes(
    tmp_path_factory: pytest.TempPathFactory, frames: list[Frame], columns: int
) -> None:
    recording = recording_of(frames, tmp_path_factory.getbasetemp())
    groups, before = frames_of(picture([recording], columns=columns)), None
    assert len(groups) == len(frames)
    for group, moment in zip(groups, recording.samples[0].frames):
        assert characters(group) == expected(before, moment.tokens, recording)
        before = moment.tokens


def test_a_generation_of_the_toy(tmp_path: Path) -> None:
    """Masked diffusion: a token is unmasked once, and highlighted in that step alone."""
    _, process, denoiser = absorbing_toy()
    trace = Trace(Pieces(CharTokenizer("xy"), process.mask_id), {"recipe": 'a <toy> & "more"'})
    generate(denoiser, LogLinear(eps=0.0), Ancestral(process), num=2, length=2, steps=4, watch=trace.add)
    trace.write(tmp_path / "trace.json")
    recording = read_trace(tmp_path / "trace.json")
    assert main(["trace", str(tmp_path / "trace.json"), "--svg", str(tmp_path / "out.svg"), "--sample", "1"]) == 0
    svg = (tmp_path / "out.svg").read_text(encoding="utf-8")
    assert svg == picture([recording], 1)
    groups = frames_of(svg)
    assert "".join(character for character, _ in characters(groups[0])) == MASK * 2
    assert "".join(character for character, _ in characters(groups[-1])) == recording.samples[1].text
    assert [group.get("class") for group in groups] == ["frame"] * 4 + ["frame last"]
    highlighted = [part for group in groups for part in group.iter(f"{SVG}tspan") if part.get("class") == "changed"]
    assert len(highlighted) == 2
    counters = [group.find(f"{SVG}text") for group in groups]
    assert [each.text for each in counters if each is not None] == [f"step {step} of 4" for step in range(5)]
    title = ElementTree.fromstring(svg).find(f"{SVG}title")
    assert title is not None
    assert title.text == 'A text being denoised in 4 steps (a <toy> & "more")'


def test_the_bar_is_as_long_as_alpha(tmp_path: Path) -> None:
    recording = recording_of([frame(step, [11], alpha=alpha) for step, alpha in enumerate((0.0, 0.25, 1.0))], tmp_path)
    root = ElementTree.fromstring(picture([recording]))
    (rail,) = (each for each in root.iter(f"{SVG}rect") if each.get("class") == "rail")
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "bar"]
    shares = [float(bar.get("width") or "nan") / float(rail.get("width") or "nan") for bar in bars]
    assert shares == pytest.approx([0.0, 0.25, 1.0], abs=1e-3)


def shown_at(svg: str, share: float) -> list[str]:
    """The frames that are visible at a percentage of the loop: a rule holds until the next one (step-end)."""
    found = []
    for number, body in re.findall(r"@keyframes k(\w+) \{ (.*) \}", svg):
        stops = re.findall(r"([\d.]+)% \{ visibility: (\w+) \}", body)
        assert stops[0][0] == "0.000"
        if [value for start, value in stops if float(start) <= share][-1] == "visible":
            found.append(number)
    return found


@pytest.mark.parametrize("count", [1, 2, 33])
def test_one_frame_at_a_time_and_a_pause_at_the_end(tmp_path: Path, count: int) -> None:
    recording = recording_of([frame(step, [step % 9]) for step in range(count)], tmp_path)
    svg = picture([recording])
    seconds = 0.3 * (count - 1) + 4.0
    assert svg.count(f"{seconds:g}s step-end infinite") == count
    for tick in range(int(seconds * 20)):  # 20 times per second, between the borders
        time = (tick + 0.5) / 20
        assert shown_at(svg, 100 * time / seconds) == [f"f{min(int(time / 0.3), count - 1)}"]


def test_the_file_needs_nothing_else(tmp_path: Path) -> None:
    """No script, no link, no other file; and without animation the last frame is visible."""
    svg = picture([recording_of([frame(step, [11] * 8) for step in range(3)], tmp_path)])
    root = ElementTree.fromstring(svg)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        "svg",
        "title",
        "style",
        "rect",
        "g",
        "text",
        "tspan",
    }
    assert not re.search(r"href|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", svg)
    style = root.findtext(f"{SVG}style") or ""
    still, _, moving = style.partition("@media (prefers-reduced-motion: no-preference) {")
    assert "animation" not in still
    assert moving.count("animation") == 3
    assert ".frame { visibility: hidden } .frame.last { visibility: visible }" in still


def words(*texts: str) -> list[_Token]:
    return [(text, False, False) for text in texts]


def test_lines_break_before_spaces() -> None:
    lines = _wrap(words("The", " cat", " s", "at", " on", "ly"), 10)
    assert ["".join(text for text, *_ in line) for line in lines] == ["The cat", " sat only"]
    lines = _wrap(words("abc", "def", "ghi"), 7)
    assert ["".join(text for text, *_ in line) for line in lines] == ["abcdef", "ghi"]


@given(st.lists(st.sampled_from(["a", " b", "cd", " e ", "fgh"]), max_size=30), st.integers(3, 12))
def test_no_line_is_too_long_and_no_token_is_lost(texts: list[str], columns: int) -> None:
    lines = _wrap(words(*texts), columns)
    assert [text for line in lines for text, *_ in line] == texts
    assert max(sum(len(text) for text, *_ in line) for line in lines) <= columns


def test_refusals(tmp_path: Path) -> None:
    recording = recording_of([frame(0, [1], [2], first=3)], tmp_path)
    with pytest.raises(ValueError, match="the trace has no sample 0: choose from 3, 4"):
        picture([recording])
    with pytest.raises(ValueError, match="choose from none"):
        picture([recording_of([], tmp_path)])


def test_a_picture_of_too_many_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recording_of([frame(step, [1] * 20) for step in range(5)], tmp_path)
    monkeypatch.setattr("duality.models.trace._MOST_DRAWN", 199)
    assert picture([recording])
    with pytest.raises(ValueError, match="has 200 tokens in its frames, and at most 199 can be drawn: make a page"):
        picture([recording, recording])


def test_a_race_is_one_picture(tmp_path: Path) -> None:
    """Panes begin together; one that needs fewer steps shows its last frame until the end."""
    few = recording_of([frame(step, [11] * 8) for step in range(3)], tmp_path, {"recipe": "few <steps>"})
    many = recording_of([frame(step, [step]) for step in range(6)], tmp_path, {"recipe": "many"})
    svg = picture([few, many])
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{SVG}title") == "A race: few <steps> in 2 steps, many in 5 steps"
    groups = frames_of(svg)
    assert [group.get("id") for group in groups] == ["f0", "f1", "f2", "p1f0", "p1f1", "p1f2", "p1f3", "p1f4", "p1f5"]
    assert [group.get("class") for group in groups].count("frame last") == 2
    for number in range(6):
        share = 100 * (number + 0.5) * 0.3 / (5 * 0.3 + 4.0)
        assert shown_at(svg, share) == [f"f{min(number, 2)}", f"p1f{number}"]
    assert shown_at(svg, 99) == ["f2", "p1f5"]

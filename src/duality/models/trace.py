"""Traces: a JSON file with every step of every sample, and the moving pictures that are made of some of them.

    {"format": 1, "about": {...}, "mask": 2048, "vocabulary": {"17": " the", ...}, "samples":
     [{"index": 0, "frames": [{"step": 0, "alpha": 0.0, "tokens": [...]},
                              {"step": 1, "alpha": 0.1, "changed": [[place, token], ...]}, ...], "text": "..."}, ...]}

The first frame of a sample has all tokens, the others what changed. There are two pictures, an animated SVG and a page
that plays. Several traces stand one below the other and begin together: a race, in network calls. A token reads as in
the trace's vocabulary; a part of a character is "�" there.

In the SVG every step of one sample is a frame: the text, with the tokens that the step changed highlighted, the number
of the step, and a bar for the signal level alpha. The loop pauses at the last frame. The animation is CSS inside the
file: no script, no font, no other file, and a background of its own, for README files on light and dark pages. Without
animation the last frame is shown.

The page is one HTML file that plays and scrubs, from any folder, without a server or a network: player.html with the
studio's own modules (page/dom.js, page/player.js, page/share.js), its colours (page/tokens.css) and the recording as
JSON. Its Content-Security-Policy allows this script and this style, by their checksums, and nothing else.

What must hold: ``read_trace`` gives back all tokens of every step; a damaged or foreign file is refused, and one whose
frames do not fit into memory; in a page text is data and never markup, also if it is ``</script>``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from pathlib import Path
from string import Template
from typing import TypeVar
from xml.sax.saxutils import escape, quoteattr

from duality.files.atomic import write_atomically
from duality.files.json_files import MIB, read_json
from duality.registry import visible
from duality.samplers.generate import Frame
from duality.tokenizers.pieces import MASK, Pieces

FORMAT = 1
_MOST_BYTES = 256 * MIB  # as plain data it takes up to twenty times as many
_MOST_TOKENS = 1 << 26  # of all frames: a frame that changes nothing is short in the file, and has all tokens here
_MOST_DRAWN = 1 << 22  # of all frames of a picture, which shows every token of every frame
T = TypeVar("T")
_ADVANCE, _LINE, _MARGIN, _TOP = 9.0, 24.0, 20.0, 64.0  # pixels: of a character, of a line, around, above the text
_SECONDS, _LAST_SECONDS = 0.3, 4.0  # for which a frame and the last frame are shown
_MODULES = ("dom.js", "player.js", "share.js")
_EMPTY = '{"panes":[]}'
_START = 'start(JSON.parse(document.getElementById("recording").textContent), document.querySelector("main"));\n'


def changes(before: Sequence[int] | None, after: Sequence[int]) -> dict[int, int]:
    """Place and token where a row differs from the one before it, new places included; none if there was no row."""
    if before is None:
        return {}
    return {place: index for place, index in enumerate(after) if place >= len(before) or index != before[place]}


@dataclass(frozen=True)
class _Moment:
    """A sample after a step, and what the step has changed."""

    step: int
    alpha: float
    tokens: tuple[int, ...]
    changed: Mapping[int, int]


@dataclass(frozen=True)
class _TracedSample:
    """A sample after every step, and how it reads after the last."""

    index: int
    frames: tuple[_Moment, ...]
    text: str


@dataclass(frozen=True)
class Recording:
    """What a trace file holds, with all tokens of every step."""

    about: dict[str, object]
    mask_id: int | None
    vocabulary: dict[int, str]
    samples: tuple[_TracedSample, ...]

    def sample(self, index: int) -> _TracedSample:
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
        mask = self.pieces.mask_id
        vocabulary = {str(index): self.pieces.of(index) for index in sorted(self._seen - {mask})}
        samples = [
            {"index": index, "frames": frames, "text": self.pieces.text(self._last[index][1])}
            for index, frames in sorted(self._frames.items())
            if index in self.complete or not only_complete
        ]
        whole = {"format": FORMAT, "about": self.about, "mask": mask, "vocabulary": vocabulary, "samples": samples}
        write_atomically(path, json.dumps(whole, separators=(",", ":")))


def read_trace(path: Path) -> Recording:
    """What ``Trace.write`` wrote, with all tokens of every step."""
    whole = read_json(path, _MOST_BYTES, "give a file that `duality sample --trace` wrote")
    if not isinstance(whole, dict) or not {"format", "about", "samples"} <= whole.keys():
        raise ValueError(f"{path} is no trace of a generation: give a file that `duality sample --trace` wrote")
    if whole["format"] != FORMAT:
        raise ValueError(f"{path} has format {whole['format']!r}, this version reads {FORMAT}: write the trace again")
    try:
        mask = None if whole["mask"] is None else _count(whole["mask"])
        vocabulary = {int(index): _of(str, text) for index, text in _of(dict, whole["vocabulary"]).items()}
        samples, free = list[_TracedSample](), _MOST_TOKENS
        for sample in _of(list, whole["samples"]):
            samples.append(_sample(sample, {*vocabulary, mask}, free))
            free -= _count_tokens(samples[-1])
        return Recording(_of(dict, whole["about"]), mask, vocabulary, tuple(samples))
    except MemoryError:
        raise ValueError(
            f"{path} has more than {_MOST_TOKENS:,} tokens in all its frames: record fewer samples or fewer steps"
        ) from None
    except (KeyError, ValueError, TypeError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged ({reason}): write the trace again") from None


def _count_tokens(sample: _TracedSample) -> int:
    """The tokens of all frames of a sample."""
    return sum(len(frame.tokens) for frame in sample.frames)


def _sample(sample: dict[str, object], known: set[int | None], free: int) -> _TracedSample:
    """A sample of a file, its differences added up; more than ``free`` tokens in its frames are a ``MemoryError``."""
    tokens, moments, index = list[int](), list[_Moment](), _count(sample["index"])
    for number, frame in enumerate(_of(list, sample["frames"])):
        step, alpha, before = _count(frame["step"]), frame["alpha"], tuple(tokens) if number else None
        here = f"at step {step} of sample {index}"
        if number and step <= moments[-1].step:
            raise ValueError(f"step {step} of sample {index} comes after step {moments[-1].step}")
        for place, token in frame["changed"] if number else enumerate(_of(list, frame["tokens"])):
            if _count(token) not in known:
                raise ValueError(f"token {token} {here} is not in the vocabulary")
            if _count(place) > len(tokens):
                raise ValueError(f"place {place} {here} is beyond its {len(tokens)} tokens")
            tokens[place : place + 1] = [token]
        if (free := free - len(tokens)) < 0:
            raise MemoryError
        if type(alpha) not in (int, float) or not 0 <= alpha <= 1:
            raise ValueError(f"alpha {here} is {str(alpha)[:40]}, no number in [0, 1]")
        moments.append(_Moment(step, float(alpha), tuple(tokens), changes(before, tokens)))
    return _TracedSample(index, tuple(moments), _of(str, sample["text"]))


def _of(kind: type[T], value: object) -> T:
    """The value, which must be of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value


def _count(value: object) -> int:
    """The value, which must be a whole number from 0 on that a page can count with."""
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise TypeError(f"{str(value)[:40]!r} is no whole number from 0 to 2**53 - 1")
    return value


# --- the animated picture


_Token = tuple[str, bool, bool]  # as a frame shows it: its text, whether the step changed it, whether it is masked


def picture(recordings: Sequence[Recording], number: int = 0, columns: int = 72) -> str:
    """The SVG of sample ``number`` of some traces; a line is at least as long as the longest token."""
    columns = max([columns, *(len(visible(text)) for each in recordings for text in each.vocabulary.values())])
    drawn = sum(_count_tokens(recording.sample(number)) for recording in recordings)
    if drawn > _MOST_DRAWN:
        raise ValueError(
            f"a picture of sample {number} has {drawn:,} tokens in its frames, and at most {_MOST_DRAWN:,} can be "
            "drawn: make a page with --html, or record fewer steps"
        )
    panes = [_slides(recording, number, columns) for recording in recordings]
    heights = [_TOP + max(len(lines) for _, lines in slides) * _LINE for slides in panes]
    width, height = 2 * _MARGIN + columns * _ADVANCE, sum(heights)
    known = [str(recording.about.get("recipe", "a trace")) for recording in recordings]
    steps = [slides[-1][0].step for slides in panes]
    title = f"A text being denoised in {steps[0]} steps ({known[0]})"
    if len(panes) > 1:
        title = "A race: " + ", ".join(f"{name} in {count} steps" for name, count in zip(known, steps))
    style = resources.files("duality.models").joinpath("picture.css").read_text(encoding="utf-8")
    rail = f'<rect class="rail" x="{_MARGIN:g}" y="36" width="{width - 2 * _MARGIN:g}" height="4" rx="2"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label={quoteattr(title)}>',
        f"<title>{escape(title)}</title>",
        f"<style>{style}{_animation(list(map(len, panes)))}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
    ]
    for pane, slides in enumerate(panes):
        name = f"{known[pane]} · " if len(panes) > 1 else ""
        parts += [f'<g transform="translate(0 {sum(heights[:pane]):g})">', rail]
        for index, (moment, lines) in enumerate(slides):
            last = " last" if moment is slides[-1][0] else ""
            frame = f"p{pane}f{index}" if pane else f"f{index}"
            parts.append(f'<g class="frame{last}" id="{frame}">')
            parts += _frame_markup(moment, lines, f"{name}step {moment.step} of {steps[pane]}", width)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _slides(recording: Recording, number: int, columns: int) -> list[tuple[_Moment, list[list[_Token]]]]:
    """The frames of a sample, and the lines of each; in the first one nothing has changed yet."""
    mask, slides = recording.mask_id, []
    texts: dict[int | None, str] = {index: visible(text) for index, text in recording.vocabulary.items()}
    texts[mask] = MASK
    for frame in recording.sample(number).frames:
        tokens = [(texts[index], place in frame.changed, index == mask) for place, index in enumerate(frame.tokens)]
        slides.append((frame, _wrap(tokens, columns)))
    return slides


def _wrap(tokens: Sequence[_Token], columns: int) -> list[list[_Token]]:
    """Lines of at most ``columns`` characters, broken before a token that begins with a space where there is one."""
    lines: list[list[_Token]] = [[]]
    for token in tokens:
        line = lines[-1]
        if line and sum(len(text) for text, *_ in (*line, token)) > columns:
            spaces = [place for place in range(1, len(line)) if line[place][0].startswith(" ")]
            cut = len(line) if token[0].startswith(" ") or not spaces else spaces[-1]
            if sum(len(text) for text, *_ in (*line[cut:], token)) > columns:
                cut = len(line)
            lines[-1:] = [line[:cut], line[cut:]]
        lines[-1].append(token)
    return lines


def _frame_markup(moment: _Moment, lines: list[list[_Token]], step: str, width: float) -> list[str]:
    """A frame: the step, the bar of alpha, the text. ``textLength`` gives every font the same width.

    In a line of text there is an element for each changed token and for each run of mask tokens.
    """
    parts = [
        f'<text class="small" x="{_MARGIN:g}" y="26">{escape(visible(step))}</text>',
        f'<text class="small" x="{width - _MARGIN:g}" y="26" text-anchor="end">alpha {moment.alpha:.3f}</text>',
        f'<rect class="bar" x="{_MARGIN:g}" y="36" width="{(width - 2 * _MARGIN) * moment.alpha:.1f}" height="4" '
        'rx="2"/>',
    ]
    for row, line in enumerate(lines):
        size = sum(len(text) for text, *_ in line)
        if not size:
            continue
        parts.append(
            f'<text x="{_MARGIN:g}" y="{_TOP + row * _LINE:g}" textLength="{size * _ADVANCE:g}" xml:space="preserve">'
        )
        for (changed, masked), run in groupby(line, key=lambda token: token[1:]):
            texts, kind = [escape(text) for text, *_ in run], "changed" if changed else "mask" if masked else None
            texts = texts if changed else ["".join(texts)]
            parts[-1] += "".join(f'<tspan class="{kind}">{text}</tspan>' if kind else text for text in texts)
        parts[-1] += "</text>"
    return [*parts, "</g>"]


def _animation(counts: Sequence[int]) -> str:
    """The style rules that show the frames of each pane one after the other, and its last one until the end."""
    seconds, rules = (max(counts) - 1) * _SECONDS + _LAST_SECONDS, []
    for pane, count in enumerate(counts):
        for number in range(count):
            last, name = number == count - 1, f"p{pane}f{number}" if pane else f"f{number}"
            start, end = (100 * index * _SECONDS / seconds for index in (number, number + 1))
            final = "visible" if last else "hidden"  # the first frame is visible from 0 % on
            stops = {0.0: "hidden", start: "visible", 100.0 if last else end: final, 100.0: final}
            body = " ".join(f"{share:.3f}% {{ visibility: {value} }}" for share, value in stops.items())
            rules.append(f"@keyframes k{name} {{ {body} }}")
            rules.append(f"#{name} {{ animation: k{name} {seconds:g}s step-end infinite }}")
    return "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}\n"


# --- the page


def page(recordings: Sequence[Recording], number: int = 0) -> str:
    """The HTML file of sample ``number`` of some traces, each in a pane of its own."""
    panes = [_pane(recording, recording.sample(number)) for recording in recordings]
    names = " · ".join(str(each["name"]) for each in panes)
    return _fill({"title": names if len(panes) == 1 else f"A race: {names}", "panes": panes})


def shell() -> str:
    """The file without a recording: one that is empty stands where it belongs."""
    folder = resources.files("duality.studio") / "page"
    texts = [(folder / name).read_text(encoding="utf-8") for name in (*_MODULES, "tokens.css")]
    # one module instead of three: what they import from each other is in the same scope
    script = "\n" + "\n".join(re.sub(r"^import .*\n", "", text, flags=re.MULTILINE) for text in texts[:-1]) + _START
    style = "\n" + texts[-1]
    sums = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode() for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{sums[0]}'; style-src 'sha256-{sums[1]}'; base-uri 'none'; "
        "form-action 'none'"
    )
    text = resources.files("duality.models").joinpath("player.html").read_text(encoding="utf-8")
    return Template(text).substitute(policy=policy, style=style, data=_EMPTY, script=script)


def _fill(data: object) -> str:
    """The file with a recording."""
    return shell().replace(_EMPTY, json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def _pane(recording: Recording, sample: _TracedSample) -> dict[str, object]:
    """A sample for the player; all frames but the first are differences."""
    frames = [
        {"step": frame.step, "alpha": frame.alpha}
        | ({"changed": list(frame.changed.items())} if number else {"tokens": frame.tokens})
        for number, frame in enumerate(sample.frames)
    ]
    texts = {str(index): text for index, text in recording.vocabulary.items()}
    if recording.mask_id is not None:
        texts[str(recording.mask_id)] = MASK
    known = recording.about.get("run") or recording.about.get("recipe") or "a trace"
    name = f"{known}, {sample.frames[-1].step} steps"
    return {"name": name, "mask": recording.mask_id, "vocabulary": texts, "frames": frames, "text": sample.text}

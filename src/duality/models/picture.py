"""A moving picture of denoising: an animated SVG from traces that `duality sample --trace` wrote.

Every step of one sample is a frame: the text, with the tokens that the step changed highlighted, the number of the
step, and a bar for the signal level alpha. Several traces stand one below the other and begin together: a race, in
network calls. The loop pauses at the last frame. The animation is CSS inside the file: no script, no font, no other
file, and a background of its own, for README files on light and dark pages. Without animation the last frame is shown.
A token reads as in the trace's vocabulary; a part of a character is "�" there.

A generation or a race as one HTML file: it plays and scrubs, from any folder, without a server or a network.

The file is made of the page's own modules (page/dom.js, page/player.js, page/share.js), its colours (page/tokens.css)
and the recording as JSON. Its Content-Security-Policy allows this script and this style, by their checksums, and
nothing else. What must hold: text is data and never markup, also if it is ``</script>``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from duality.models.trace import Recording, TracedSample, changes, chosen_sample, visible
from duality.tokenizers.pieces import MASK

_ADVANCE, _LINE, _MARGIN, _TOP = 9.0, 24.0, 20.0, 64.0  # pixels: of a character, of a line, around, above the text
_STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d1d9;
       white-space: pre }
.small { font-size: 13px; fill: #8b949e } .mask { fill: #484f58 } .changed { fill: #ffa657; font-weight: bold }
.paper { fill: #0d1117; stroke: #30363d } .rail { fill: #21262d } .bar { fill: #3fb950 }
.frame { visibility: hidden } .frame.last { visibility: visible }
"""


@dataclass(frozen=True)
class Token:
    """A token of a frame as it is shown; ``changed`` by the step that leads to the frame."""

    text: str
    changed: bool
    masked: bool


Line = tuple[Token, ...]


@dataclass(frozen=True)
class Slide:
    """A frame of the picture."""

    step: int
    alpha: float
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Timing:
    """Seconds for which a frame and the last frame are shown."""

    frame: float = 0.3
    last: float = 4.0

    def windows(self, count: int) -> list[tuple[float, float]]:
        """When each of ``count`` frames is shown, as percentages of the loop."""
        total = self.total(count)
        starts = [100 * index * self.frame / total for index in range(count)]
        return list(zip(starts, [*starts[1:], 100.0]))

    def total(self, count: int) -> float:
        """Seconds of the loop."""
        return (count - 1) * self.frame + self.last


TIMING = Timing()


def shown(index: int, changed: bool, recording: Recording) -> Token:
    """A token of the trace as it is shown."""
    masked = index == recording.mask_id
    return Token(MASK if masked else visible(recording.vocabulary[index]), changed, masked)


def wrapped(tokens: Sequence[Token], columns: int) -> tuple[Line, ...]:
    """Lines of at most ``columns`` characters, broken before a token that begins with a space where there is one."""
    lines: list[list[Token]] = [[]]
    for token in tokens:
        line = lines[-1]
        if line and sum(len(each.text) for each in (*line, token)) > columns:
            spaces = [place for place in range(1, len(line)) if line[place].text.startswith(" ")]
            cut = len(line) if token.text.startswith(" ") or not spaces else spaces[-1]
            if sum(len(each.text) for each in (*line[cut:], token)) > columns:
                cut = len(line)
            lines[-1:] = [line[:cut], line[cut:]]
        lines[-1].append(token)
    return tuple(map(tuple, lines))


def slides_of(recording: Recording, number: int, columns: int) -> list[Slide]:
    """The frames of a sample; in the first one nothing has changed yet."""
    slides: list[Slide] = []
    before: tuple[int, ...] | None = None
    for moment in chosen_sample(recording, number).frames:
        changed = changes(before, moment.tokens)
        tokens = [shown(index, place in changed, recording) for place, index in enumerate(moment.tokens)]
        slides.append(Slide(moment.step, moment.alpha, wrapped(tokens, columns)))
        before = moment.tokens
    return slides


def line_markup(line: Line) -> str:
    """A line of text: an element of its own for each changed token and for each run of mask tokens."""
    parts: list[str] = []
    for (changed, masked), run in groupby(line, key=lambda token: (token.changed, token.masked)):
        texts = [escape(token.text) for token in run]
        if changed:
            parts += [f'<tspan class="changed">{text}</tspan>' for text in texts]
        else:
            whole = "".join(texts)
            parts.append(f'<tspan class="mask">{whole}</tspan>' if masked else whole)
    return "".join(parts)


def frame_markup(slide: Slide, identity: str, last: Slide, name: str, width: float) -> str:
    """A frame: the step, the bar of alpha, the text. ``textLength`` gives every font the same width."""
    rail = width - 2 * _MARGIN
    step = f"{name}step {slide.step} of {last.step}"
    parts = [
        f'<g class="frame{" last" if slide is last else ""}" id="{identity}">',
        f'<text class="small" x="{_MARGIN:g}" y="26">{escape(visible(step))}</text>',
        f'<text class="small" x="{width - _MARGIN:g}" y="26" text-anchor="end">alpha {slide.alpha:.3f}</text>',
        f'<rect class="bar" x="{_MARGIN:g}" y="36" width="{rail * slide.alpha:.1f}" height="4" rx="2"/>',
    ]
    for row, line in enumerate(slide.lines):
        size = sum(len(token.text) for token in line)
        if size:
            place = f'x="{_MARGIN:g}" y="{_TOP + row * _LINE:g}" textLength="{size * _ADVANCE:g}"'
            parts.append(f'<text {place} xml:space="preserve">{line_markup(line)}</text>')
    return "\n".join([*parts, "</g>"])


def animation(counts: Sequence[int], timing: Timing) -> str:
    """The style rules that show the frames of each pane one after the other, and its last one until the end."""
    longest = max(counts)
    windows, rules = timing.windows(longest), []
    for pane, count in enumerate(counts):
        for number, (start, end) in enumerate(windows[:count]):
            until = end if number < count - 1 else 100.0
            stops = [(0.0, "hidden"), (start, "visible"), (until, "hidden")]
            # the first frame is visible from 0 % on; at 100 % the loop begins again
            kept = [stop for stop in stops[1 if start == 0 else 0 :] if stop[0] < 100]
            body = " ".join(f"{share:.3f}% {{ visibility: {value} }}" for share, value in [*kept, (100, kept[-1][1])])
            name = frame_id(pane, number)
            rules.append(f"@keyframes k{name} {{ {body} }}")
            rules.append(f"#{name} {{ animation: k{name} {timing.total(longest):g}s step-end infinite }}")
    return "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}\n"


def frame_id(pane: int, number: int) -> str:
    """The name of a frame in the file."""
    return f"f{number}" if pane == 0 else f"p{pane}f{number}"


def pane_markup(slides: Sequence[Slide], pane: int, name: str, width: float) -> str:
    """The frames of a trace, one upon the other."""
    rail = f'<rect class="rail" x="{_MARGIN:g}" y="36" width="{width - 2 * _MARGIN:g}" height="4" rx="2"/>'
    frames = [
        frame_markup(slide, frame_id(pane, number), slides[-1], name, width) for number, slide in enumerate(slides)
    ]
    return "\n".join([rail, *frames])


def picture(recordings: Sequence[Recording], number: int = 0, columns: int = 72, timing: Timing = TIMING) -> str:
    """The SVG of sample ``number`` of some traces; a line is at least as long as the longest token."""
    texts = [visible(text) for recording in recordings for text in recording.vocabulary.values()]
    columns = max([columns, *map(len, texts)])
    panes = [slides_of(recording, number, columns) for recording in recordings]
    heights = [_TOP + max(len(slide.lines) for slide in slides) * _LINE for slides in panes]
    width, height = 2 * _MARGIN + columns * _ADVANCE, sum(heights)
    known = [str(recording.about.get("recipe", "a trace")) for recording in recordings]
    title = f"A text being denoised in {panes[0][-1].step} steps ({known[0]})"
    if len(panes) > 1:
        title = "A race: " + ", ".join(f"{name} in {slides[-1].step} steps" for name, slides in zip(known, panes))
    names = [f"{name} · " if len(panes) > 1 else "" for name in known]
    tops = [sum(heights[:pane]) for pane in range(len(panes))]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-label={quoteattr(title)}>',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}{animation(list(map(len, panes)), timing)}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
            *(
                f'<g transform="translate(0 {top:g})">\n{pane_markup(slides, pane, names[pane], width)}\n</g>'
                for pane, (slides, top) in enumerate(zip(panes, tops))
            ),
            "</svg>\n",
        ]
    )


# --- one HTML file


MODULES = ("dom.js", "player.js", "share.js")
EMPTY = '{"panes":[]}'
_START = 'start(JSON.parse(document.getElementById("recording").textContent), document.querySelector("main"));\n'
_SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>duality</title>
<style>{style}</style>
</head>
<body>
<main class="shared"><noscript><p>This file plays with JavaScript; it loads nothing.</p></noscript></main>
<script type="application/json" id="recording">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page_file(name: str) -> str:
    """A file of the page."""
    return (resources.files("duality.studio") / "page" / name).read_text(encoding="utf-8")


def shell() -> str:
    """The file without a recording: ``EMPTY`` stands where it belongs."""
    # one module instead of three: what they import from each other is in the same scope
    modules = [re.sub(r"^import .*\n", "", page_file(name), flags=re.MULTILINE) for name in MODULES]
    script, style = "\n" + "\n".join(modules) + _START, "\n" + page_file("tokens.css")
    policy = (
        f"default-src 'none'; script-src '{checksum(script)}'; style-src '{checksum(style)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    return _SHELL.format(policy=policy, style=style, data=EMPTY, script=script)


def checksum(content: str) -> str:
    """How a policy names a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode()}"


def html(recordings: Sequence[Recording], number: int = 0, title: str | None = None) -> str:
    """The HTML file of sample ``number`` of some traces, each in a pane of its own."""
    panes = [pane(recording, chosen_sample(recording, number)) for recording in recordings]
    names = " · ".join(str(each["name"]) for each in panes)
    return filled({"title": title or (names if len(panes) == 1 else f"A race: {names}"), "panes": panes})


def filled(data: object) -> str:
    """The file with a recording."""
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    before, after = shell().split(EMPTY)
    return before + content + after


def pane(recording: Recording, sample: TracedSample) -> dict[str, object]:
    """A sample for the player; all frames but the first are differences."""
    frames: list[dict[str, object]] = []
    before: tuple[int, ...] | None = None
    for moment in sample.frames:
        frame: dict[str, object] = {"step": moment.step, "alpha": moment.alpha}
        if before is None:
            frame["tokens"] = list(moment.tokens)
        else:
            frame["changed"] = list(changes(before, moment.tokens).items())
        frames.append(frame)
        before = moment.tokens
    texts = {str(index): text for index, text in recording.vocabulary.items()}
    if recording.mask_id is not None:
        texts[str(recording.mask_id)] = "▒"
    return {
        "name": name_of(recording, sample),
        "mask": recording.mask_id,
        "vocabulary": texts,
        "frames": frames,
        "text": sample.text,
    }


def name_of(recording: Recording, sample: TracedSample) -> str:
    """What a pane is called: the run or the recipe, and the number of steps."""
    known = recording.about.get("run") or recording.about.get("recipe") or "a trace"
    return f"{known}, {sample.frames[-1].step} steps"

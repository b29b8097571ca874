"""A moving picture of denoising: an animated SVG from traces that `duality sample --trace` wrote.

Every step of one sample is a frame: the text, with the tokens that the step changed highlighted, the number of the
step, and a bar for the signal level alpha. Several traces stand one below the other and begin together: a race, in
network calls. The loop pauses at the last frame. The animation is CSS inside the file: no script, no font, no other
file, and a background of its own, for README files on light and dark pages. Without animation the last frame is shown.
A token reads as in the trace's vocabulary; a part of a character is "�" there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from duality.models.trace import Moment, Recording, changes, chosen_sample, visible
from duality.tokenizers.pieces import MASK

_ADVANCE, _LINE, _MARGIN, _TOP = 9.0, 24.0, 20.0, 64.0  # pixels: of a character, of a line, around, above the text
_SECONDS = 0.3, 4.0  # for which a frame and the last frame are shown


@dataclass(frozen=True)
class _Token:
    """A token of a frame as it is shown; ``changed`` by the step that leads to the frame."""

    text: str
    changed: bool
    masked: bool


_Slide = tuple[Moment, list[list[_Token]]]  # a frame of the picture, its tokens in lines


def picture(
    recordings: Sequence[Recording], number: int = 0, columns: int = 72, seconds: tuple[float, float] = _SECONDS
) -> str:
    """The SVG of sample ``number`` of some traces; a line is at least as long as the longest token.

    ``seconds`` are those for which a frame and the last frame are shown.
    """
    texts = [visible(text) for recording in recordings for text in recording.vocabulary.values()]
    columns = max([columns, *map(len, texts)])
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
        f"<style>{style}{_animation(list(map(len, panes)), *seconds)}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
    ]
    for pane, slides in enumerate(panes):
        name = f"{known[pane]} · " if len(panes) > 1 else ""
        parts += [f'<g transform="translate(0 {sum(heights[:pane]):g})">', rail]
        for index, (moment, lines) in enumerate(slides):
            last = " last" if index == len(slides) - 1 else ""
            parts.append(f'<g class="frame{last}" id="{_frame_id(pane, index)}">')
            parts += _frame_markup(moment, lines, f"{name}step {moment.step} of {steps[pane]}", width)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _slides(recording: Recording, number: int, columns: int) -> list[_Slide]:
    """The frames of a sample; in the first one nothing has changed yet."""
    slides: list[_Slide] = []
    before: tuple[int, ...] | None = None
    for moment in chosen_sample(recording, number).frames:
        changed, tokens = changes(before, moment.tokens), []
        for place, index in enumerate(moment.tokens):
            masked = index == recording.mask_id
            text = MASK if masked else visible(recording.vocabulary[index])
            tokens.append(_Token(text, place in changed, masked))
        slides.append((moment, _wrap(tokens, columns)))
        before = moment.tokens
    return slides


def _wrap(tokens: Sequence[_Token], columns: int) -> list[list[_Token]]:
    """Lines of at most ``columns`` characters, broken before a token that begins with a space where there is one."""
    lines: list[list[_Token]] = [[]]
    for token in tokens:
        line = lines[-1]
        if line and sum(len(each.text) for each in (*line, token)) > columns:
            spaces = [place for place in range(1, len(line)) if line[place].text.startswith(" ")]
            cut = len(line) if token.text.startswith(" ") or not spaces else spaces[-1]
            if sum(len(each.text) for each in (*line[cut:], token)) > columns:
                cut = len(line)
            lines[-1:] = [line[:cut], line[cut:]]
        lines[-1].append(token)
    return lines


def _frame_markup(moment: Moment, lines: list[list[_Token]], step: str, width: float) -> list[str]:
    """A frame: the step, the bar of alpha, the text. ``textLength`` gives every font the same width."""
    parts = [
        f'<text class="small" x="{_MARGIN:g}" y="26">{escape(visible(step))}</text>',
        f'<text class="small" x="{width - _MARGIN:g}" y="26" text-anchor="end">alpha {moment.alpha:.3f}</text>',
        f'<rect class="bar" x="{_MARGIN:g}" y="36" width="{(width - 2 * _MARGIN) * moment.alpha:.1f}" height="4" '
        'rx="2"/>',
    ]
    for row, line in enumerate(lines):
        size = sum(len(token.text) for token in line)
        if size:
            place = f'x="{_MARGIN:g}" y="{_TOP + row * _LINE:g}" textLength="{size * _ADVANCE:g}"'
            parts.append(f'<text {place} xml:space="preserve">{_line_markup(line)}</text>')
    return [*parts, "</g>"]


def _line_markup(line: Sequence[_Token]) -> str:
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


def _frame_id(pane: int, number: int) -> str:
    """The name of a frame in the file."""
    return f"f{number}" if pane == 0 else f"p{pane}f{number}"


def _animation(counts: Sequence[int], frame: float, last: float) -> str:
    """The style rules that show the frames of each pane one after the other, and its last one until the end."""
    seconds, rules = (max(counts) - 1) * frame + last, []
    for pane, count in enumerate(counts):
        for number in range(count):
            start, end = (100 * index * frame / seconds for index in (number, number + 1))
            until = end if number < count - 1 else 100.0
            stops = [(0.0, "hidden"), (start, "visible"), (until, "hidden")]
            # the first frame is visible from 0 % on; at 100 % the loop begins again
            kept = [stop for stop in stops[1 if start == 0 else 0 :] if stop[0] < 100]
            body = " ".join(f"{share:.3f}% {{ visibility: {value} }}" for share, value in [*kept, (100, kept[-1][1])])
            name = _frame_id(pane, number)
            rules.append(f"@keyframes k{name} {{ {body} }}")
            rules.append(f"#{name} {{ animation: k{name} {seconds:g}s step-end infinite }}")
    return "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}\n"

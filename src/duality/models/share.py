"""A generation or a race as one HTML file: it plays and scrubs, from any folder, without a server or a network.

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
from importlib import resources

from duality.models.trace import Recording, TracedSample, changes, chosen_sample

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

"""A generation or a race as one HTML file: it plays and scrubs, from any folder, without a server or a network.

The file is player.html with the studio's own modules (page/dom.js, page/player.js, page/share.js), its colours
(page/tokens.css) and the recording as JSON. Its Content-Security-Policy allows this script and this style, by their
checksums, and nothing else. What must hold: text is data and never markup, also if it is ``</script>``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from string import Template

from duality.models.trace import Recording, TracedSample, changes, chosen_sample
from duality.tokenizers.pieces import MASK

_MODULES = ("dom.js", "player.js", "share.js")
_EMPTY = '{"panes":[]}'
_START = 'start(JSON.parse(document.getElementById("recording").textContent), document.querySelector("main"));\n'


def html(recordings: Sequence[Recording], number: int = 0, title: str | None = None) -> str:
    """The HTML file of sample ``number`` of some traces, each in a pane of its own."""
    panes = [_pane(recording, chosen_sample(recording, number)) for recording in recordings]
    names = " · ".join(str(each["name"]) for each in panes)
    return _fill({"title": title or (names if len(panes) == 1 else f"A race: {names}"), "panes": panes})


def shell() -> str:
    """The file without a recording: one that is empty stands where it belongs."""
    page = resources.files("duality.studio") / "page"
    texts = [(page / name).read_text(encoding="utf-8") for name in (*_MODULES, "tokens.css")]
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
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    before, after = shell().split(_EMPTY)
    return before + content + after


def _pane(recording: Recording, sample: TracedSample) -> dict[str, object]:
    """A sample for the player; all frames but the first are differences."""
    first, last = sample.frames[0], sample.frames[-1]
    frames: list[dict[str, object]] = [{"step": first.step, "alpha": first.alpha, "tokens": list(first.tokens)}]
    for before, after in zip(sample.frames, sample.frames[1:]):
        changed = list(changes(before.tokens, after.tokens).items())
        frames.append({"step": after.step, "alpha": after.alpha, "changed": changed})
    texts = {str(index): text for index, text in recording.vocabulary.items()}
    if recording.mask_id is not None:
        texts[str(recording.mask_id)] = MASK
    known = recording.about.get("run") or recording.about.get("recipe") or "a trace"
    name = f"{known}, {last.step} steps"
    return {"name": name, "mask": recording.mask_id, "vocabulary": texts, "frames": frames, "text": sample.text}

"""A recording as one HTML file: it holds the trace, nothing of it as markup, and its policy fits its script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.frames import LETTERS, NO_TEXT, frame

from duality.cli.main import main
from duality.models.trace import _EMPTY, Trace, _fill, page, shell
from duality.tokenizers.pieces import Pieces
from duality.tokenizers.tokenizer import CharTokenizer


class Parts(HTMLParser):
    """The elements of a file with their attributes and texts."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", {}, ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def traced(path: Path, about: dict[str, str] | None = None) -> Path:
    """A trace of two steps."""
    trace = Trace(Pieces(LETTERS, NO_TEXT), about or {"run": "runs/letters"})
    for step, row in enumerate([[6, 6, 6], [6, 1, 6], [2, 1, 3, 5]]):
        trace.add(frame(step, row, steps=2))
    trace.write(path)
    return path


def test_the_file_holds_the_trace(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    assert main(["trace", str(traced(tmp_path / "trace.json")), "--html", str(out)]) == 0
    (data, text), (module, _) = Parts(out.read_text(encoding="utf-8")).of("script")
    assert (data["type"], module["type"]) == ("application/json", "module")
    found = json.loads(text)
    assert found["title"] == "runs/letters, 2 steps"
    (pane,) = found["panes"]
    assert [each.get("tokens", each.get("changed")) for each in pane["frames"]] == [
        [6, 6, 6],
        [[1, 1]],
        [[0, 2], [2, 3], [3, 5]],
    ]
    assert pane["vocabulary"] == {"1": "a", "2": "b", "3": "c", "5": "<|endoftext|>", "6": "▒"}
    assert pane["mask"] == 6


def test_the_policy_allows_its_script_and_its_style_alone() -> None:
    parts = Parts(_fill({"title": "", "panes": []}))
    (policy,) = (each["content"] or "" for each, _ in parts.of("meta") if each.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, content in (("script-src", parts.of("script")[1][1]), ("style-src", parts.of("style")[0][1])):
        digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert not re.search(r"^\s*import\b|\bimport\(", parts.of("script")[1][1], re.MULTILINE)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", shell())


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!-- <script>", "]]>", "\u2028", _EMPTY])
def test_text_is_data(text: str) -> None:
    content = _fill({"title": text, "panes": []})
    parts = Parts(content)
    assert len(parts.of("script")) == 2
    assert json.loads(parts.of("script")[0][1])["title"] == text


def test_a_vocabulary_of_markup(tmp_path: Path) -> None:
    trace = Trace(Pieces(CharTokenizer("&'/<>")), {"run": "</title><script>"})
    trace.add(frame(0, [3, 2, 4, 0, 1], steps=0))
    trace.write(tmp_path / "trace.json")
    assert main(["trace", str(tmp_path / "trace.json"), "--html", str(tmp_path / "out.html")]) == 0
    assert len(Parts((tmp_path / "out.html").read_text(encoding="utf-8")).of("script")) == 2


def test_a_race_has_a_pane_for_each_trace(tmp_path: Path) -> None:
    files = [str(traced(tmp_path / f"{name}.json", {"run": name})) for name in ("one", "two", "three")]
    assert main(["trace", *files, "--html", str(tmp_path / "out.html"), "--svg", str(tmp_path / "out.svg")]) == 0
    data = json.loads(Parts((tmp_path / "out.html").read_text(encoding="utf-8")).of("script")[0][1])
    assert [pane["name"] for pane in data["panes"]] == ["one, 2 steps", "two, 2 steps", "three, 2 steps"]
    assert data["title"].startswith("A race: ")
    assert page([])


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.svg"
    out.write_text("mine")
    assert main(["trace", str(traced(tmp_path / "trace.json")), "--svg", str(out)]) == 2
    assert "exists: give the name of a new file" in capsys.readouterr().err
    assert out.read_text() == "mine"

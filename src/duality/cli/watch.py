"""The live view of sampling: the text of some samples, step by step, with the changed tokens highlighted."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import groupby

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from duality.models.trace import changes
from duality.registry import visible
from duality.samplers.generate import Frame
from duality.tokenizers.pieces import Cell, Pieces
from duality.tokenizers.tokenizer import END_OF_DOCUMENT

CHANGED = "bold reverse green"
DIM = "dim"
END = "∎"  # the end of a document
_SECONDS = 6.0  # that the steps of the first batch are shown for, all together
_LONGEST = 0.5  # seconds that one step is shown for


def _text_of(cell: Cell) -> str:
    """How a cell is shown: as its text, but the end of a document, of which a row may have many, as one sign."""
    return END if cell.text == END_OF_DOCUMENT else visible(cell.text)


def _style_cells(cells: Sequence[Cell], places: Collection[int]) -> Text:
    """Cells in colours: those at changed places highlighted, mask tokens and ends dim, the others plain."""

    def style(cell: Cell) -> str:
        return CHANGED if cell.touches(places) else DIM if cell.masked or cell.text == END_OF_DOCUMENT else ""

    runs = groupby(cells, style)
    return Text.assemble(*(("".join(map(_text_of, run)), name) for name, run in runs))


def _bracket_changes(cells: Sequence[Cell], places: Collection[int]) -> str:
    """Cells without colours: those at changed places in [brackets]."""
    return "".join(f"[{_text_of(cell)}]" if cell.touches(places) else _text_of(cell) for cell in cells)


class Watcher:
    """Shows the first samples of each batch, at most ``most`` of them, while they are written.

    On a terminal: in place, as many as fit, each step for at least ``delay`` seconds (None: so that the first batch
    takes a few seconds and later ones go as fast as they can); it is removed at the end, when the samples are printed.
    Elsewhere: a block of lines a step, without colours and without waiting.
    """

    def __init__(self, console: Console, pieces: Pieces, *, most: int = 3, delay: float | None = None) -> None:
        if most < 1:
            raise ValueError(f"most is {most}: at least 1 sample is shown")
        if delay is not None and delay < 0:
            raise ValueError(f"delay is {delay}: a step is shown for 0 seconds or more")
        self.console, self.pieces, self.most, self.delay = console, pieces, most, delay
        # Standard output may go elsewhere than this console, so the view does not redirect it.
        view = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live = view if console.is_interactive else None
        self._fitting = most
        self._due = 0.0
        self._rows: dict[int, list[int]] = {}

    def __enter__(self) -> Watcher:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, frame: Frame) -> None:
        """Draw a step; it stays for its time, of which the time that the network takes for the next one is a part."""
        if frame.step == 0:  # a batch begins
            self._rows, self._fitting = {}, self.most
        rows = dict(enumerate(frame.tokens[: self.most].tolist(), frame.first))
        if self._live:
            self._wait()
            self._live.update(self._view(frame, rows), refresh=True)
            pace = 0.0 if frame.first else min(_LONGEST, _SECONDS / frame.steps)
            self._due = time.monotonic() + (pace if self.delay is None else self.delay)
            if frame.step == frame.steps:
                self._wait()
        else:
            lines = [self._header(frame, rows)]
            for index, row in rows.items():
                text = _bracket_changes(self.pieces.cells(row), changes(self._rows.get(index), row))
                lines.append(f"sample {index + 1}: {text}")
            self.console.print(Text("\n".join(lines)), soft_wrap=True)
        self._rows = rows

    def _wait(self) -> None:
        """Leave the step on the screen for its time."""
        time.sleep(max(0.0, self._due - time.monotonic()))

    def _header(self, frame: Frame, rows: dict[int, list[int]]) -> str:
        """The line above these samples."""
        count = sum(len(changes(self._rows.get(index), row)) for index, row in rows.items())
        changed = f"{count} token{'' if count == 1 else 's'} changed" if frame.step else "start"
        return f"step {frame.step} of {frame.steps} · alpha {frame.alpha:.2f} · {changed}"

    def _view(self, frame: Frame, rows: dict[int, list[int]]) -> Group:
        """A step on the screen; a sample that did not fit once is left out from then on, so the others do not move."""
        space = self.console.height - 2  # below the header, above the line where the cursor is
        blocks: dict[int, list[Text]] = {}
        for index, row in list(rows.items())[: self._fitting]:
            text = _style_cells(self.pieces.cells(row), changes(self._rows.get(index), row))
            block = [Text(f"sample {index + 1}", DIM), *text.wrap(self.console, self.console.width)]
            if blocks and sum(map(len, blocks.values())) + len(block) > space:
                break
            blocks[index] = block
        self._fitting = len(blocks)
        grows = any(len(rows[index]) > len(self._rows.get(index, rows[index])) for index in blocks)
        title = Text(self._header(frame, {index: rows[index] for index in blocks}), no_wrap=True, overflow="ellipsis")
        return Group(title, *_fit_lines([line for block in blocks.values() for line in block], space, grows))


def _fit_lines(lines: list[Text], space: int, end: bool) -> list[Text]:
    """As many lines as fit, from the beginning or up to the end, and "…" for those that are left out."""
    if len(lines) <= space:
        return lines
    kept, more = max(space - 1, 1), Text("…", DIM)
    return [more, *lines[-kept:]] if end else [*lines[:kept], more]

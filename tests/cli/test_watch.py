"""Watching a generation: changed positions are highlighted, pieces join to the text, the terminal is restored."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.style import Style
from rich.text import Text
from support.frames import LETTERS, NO_TEXT, frame

from duality.cli.watch import CHANGED, DIM, END, Watcher, _bracket_changes, _fit_lines, _style_cells, _text_of
from duality.models.trace import changes
from duality.registry import visible
from duality.tokenizers.library import _byte_pairs, _word_pieces
from duality.tokenizers.pieces import MASK, Pieces
from duality.tokenizers.specs import BPE, Characters
from duality.tokenizers.tokenizer import ByteTokenizer, Tokenizer

TEXTS = ["the cat sat on the mat. " * 20, "Ünïcödé 😀 “€” 漢字\n\n" * 9]
WORDS = _word_pieces(["[PAD]", "[UNK]", "[SEP]", "the", "cat", "##s", "s", "a", "##a", ".", "'", "n't", "do", "not"])
# A token may begin inside one character and end inside the next: here the last byte of "€" with the first of "é".
CHAIN = _byte_pairs({piece: index for index, piece in enumerate([*"âĤ¬Ã©ð", "¬Ã", "Ġ", "a", "<|endoftext|>"])}, ["¬ Ã"])
TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "characters": Characters().train(TEXTS),
    "bpe": BPE(300).train(TEXTS),
    "chain": CHAIN,
    "wordpiece": WORDS,
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


def piped(most: int = 3) -> tuple[Watcher, io.StringIO]:
    """A watcher whose output is not a terminal."""
    out = io.StringIO()
    return Watcher(Console(file=out, width=20, _environ={}), Pieces(LETTERS, NO_TEXT), most=most), out


def on_screen(height: int = 20, width: int = 80, most: int = 3) -> tuple[Watcher, io.StringIO]:
    """A watcher on a terminal in memory."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system="standard", _environ={})
    return Watcher(console, Pieces(LETTERS, NO_TEXT), most=most, delay=0), out


def screens(out: io.StringIO) -> list[Text]:
    """The screens that were drawn, one per step, with their styles; the last one is drawn again at the end."""
    drawn = re.split(r"(?:\r?(?:\x1b\[1A)?\x1b\[2K)+", re.sub(r"\x1b\[\?25[lh]", "", out.getvalue()))
    return [Text.from_ansi(screen) for screen in drawn if screen]


def stretches(text: Text, attribute: str) -> list[str]:
    """The parts of the text that have an attribute, in order."""
    styles = [(span, Style.parse(str(span.style))) for span in text.spans]
    return [text.plain[span.start : span.end] for span, style in styles if getattr(style, attribute)]


def highlighted(text: Text) -> list[str]:
    """The highlighted parts: bold as well as reversed, for terminals that have only one of them."""
    assert stretches(text, "bold") == stretches(text, "reverse")
    return stretches(text, "reverse")


# The text of ids


@every_tokenizer
@given(data=st.data())
def test_cells_join_to_the_text_and_cover_every_position_once(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    cells = Pieces(tokenizer).cells(ids)
    assert "".join(cell.text for cell in cells) == tokenizer.decode(ids)
    assert [place for cell in cells for place in range(cell.start, cell.stop)] == list(range(len(ids)))


@given(text=st.text(alphabet="aé€😀 \ufffd", max_size=12))
@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_real_text_is_cut_between_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).tolist()
    pieces = Pieces(tokenizer)
    assert pieces.text(ids) == text
    if name == "bytes":
        assert [cell.text for cell in pieces.cells(ids)] == list(text)


def test_tokens_that_share_no_character_are_separate_cells() -> None:
    """Bytes that do not form one character are separate cells, for any number of them."""
    lone = [0xC3, 0xC3, 0x80, 0x80, 0xFF, 0xE2, 0x82, 0x41, 0xF0, 256, 0x9F]
    cells = Pieces(ByteTokenizer()).cells(lone)
    assert [cell.stop - cell.start for cell in cells] == [1, 2, 1, 1, 2, 1, 1, 1, 1]
    assert [cell.text for cell in cells] == [
        "\ufffd",
        "À",
        "\ufffd",
        "\ufffd",
        "\ufffd",
        "A",
        "\ufffd",
        "<|endoftext|>",
        "\ufffd",
    ]


def test_a_character_of_several_tokens_is_highlighted_as_a_whole() -> None:
    pieces = Pieces(ByteTokenizer())
    before, after = list("aé€".encode()), list("aè€".encode())
    assert changes(before, after) == {2: 0xA8}
    assert _bracket_changes(pieces.cells(after), changes(before, after)) == "a[è]€"


def test_spaces_of_words_depend_on_what_comes_before() -> None:
    pieces = Pieces(WORDS, mask_id=WORDS.vocab_size)
    the, cat, s, end, stop, mask = 3, 4, 5, 2, 9, WORDS.vocab_size
    assert [cell.text for cell in pieces.cells([the, cat, s, stop])] == ["the", " cat", "s", "."]
    assert [cell.text for cell in pieces.cells([the, end, cat, s])] == ["the", "<|endoftext|>", "cat", "s"]
    assert [cell.text for cell in pieces.cells([mask, cat, mask, s])] == [MASK, " cat", MASK, "s"]
    assert [pieces.of(index) for index in (the, s, stop, end, mask)] == [" the", "s", ".", "<|endoftext|>", MASK]


def test_an_id_by_itself() -> None:
    assert [Pieces(ByteTokenizer()).of(index) for index in (0x41, 0xC3, 256)] == ["A", "\ufffd", "<|endoftext|>"]
    assert Pieces(CHAIN).of(6) == "\ufffd\ufffd"  # a part of a character at either end
    bpe = TOKENIZERS["bpe"]
    assert "".join(map(Pieces(bpe).of, bpe.encode("the cat sat").tolist())) == "the cat sat"


def test_mask_tokens_separate_the_parts_of_a_character() -> None:
    cells = Pieces(ByteTokenizer(), 257).cells([0xC3, 257, 0xA9, 257, 0xC3, 0xA9])
    assert [cell.text for cell in cells] == ["\ufffd", MASK, "\ufffd", MASK, "é"]
    assert [cell.masked for cell in cells] == [False, True, False, True, False]
    with pytest.raises(ValueError, match="id 257 at position 0 is outside"):
        Pieces(ByteTokenizer()).text([257])


@given(st.text())
def test_no_control_code_of_a_text_reaches_the_terminal(text: str) -> None:
    assert visible(text).isprintable()
    assert len(visible(text)) == len(text)


def test_symbols_of_control_characters() -> None:
    assert visible("a\n\t\x1b[2J\x7f\x9b\xa0b") == "a⏎␉␛[2J␡\ufffd b"


def test_the_end_of_a_document_is_one_sign_and_the_same_letters_in_a_text_are_not() -> None:
    pieces = Pieces(ByteTokenizer())
    text = [65, 256, 256, *b"<|endoftext|>"]
    assert _bracket_changes(pieces.cells(text), {1}) == f"A[{END}]{END}<|endoftext|>"
    assert [str(span.style) for span in _style_cells(pieces.cells(text), ()).spans] == [DIM]


# What changed


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=20), st.lists(st.integers(0, 6), max_size=5))
def test_exactly_the_changed_positions_are_highlighted(pairs: list[tuple[int, int]], more: list[int]) -> None:
    before, after = [left for left, _ in pairs], [right for _, right in pairs] + more
    cells = Pieces(LETTERS, NO_TEXT).cells(after)
    text = _style_cells(cells, changes(before, after))
    at = 0
    for place, cell in enumerate(cells):
        changed = place >= len(before) or after[place] != before[place]
        want = CHANGED if changed else DIM if after[place] == NO_TEXT or _text_of(cell) == END else ""
        for character in range(at, at := at + len(_text_of(cell))):
            assert [span.style for span in text.spans if span.start <= character < span.end] == [want] * bool(want)
    assert at == len(text.plain)


def test_nothing_has_changed_at_the_start() -> None:
    assert changes(None, [1, 2]) == {}
    assert changes([], [1, 2]) == {0: 1, 1: 2}


# The view


def test_the_view_highlights_what_changed() -> None:
    watcher, out = on_screen()
    with watcher:
        watcher.show(frame(0, [6, 6, 1, 2], [1, 1, 1, 1], alpha=0.0))
        watcher.show(frame(1, [6, 4, 1, 0], [1, 1, 2, 1], alpha=0.376))
        watcher.show(frame(2, [6, 4, 1, 0], [1, 1, 2, 2]))
    start, first, second, _ = screens(out)
    assert start.plain == "step 0 of 9 · alpha 0.00 · start\nsample 1\n▒▒ab\nsample 2\naaaa"
    assert first.plain == "step 1 of 9 · alpha 0.38 · 3 tokens changed\nsample 1\n▒da⏎\nsample 2\naaba"
    assert highlighted(start) == []
    assert highlighted(first) == ["d", "⏎", "b"]
    assert stretches(first, "dim") == ["sample 1", "▒", "sample 2"]
    assert highlighted(second) == ["b"]
    assert "· 1 token changed" in second.plain


def test_a_batch_begins_without_changes() -> None:
    watcher, out = on_screen()
    with watcher:
        watcher.show(frame(0, [1, 1]))
        watcher.show(frame(9, [2, 2]))
        watcher.show(frame(0, [3, 3], first=1))
        watcher.show(frame(9, [3, 4], first=1))
        watcher.show(frame(0, [1, 1], first=1))  # of another generation
    seen = screens(out)
    assert [highlighted(screen) for screen in seen[:5]] == [[], ["bb"], [], ["d"], []]
    assert ["sample 2" in screen.plain for screen in seen[:4]] == [False, False, True, True]


def test_as_many_samples_as_fit_are_shown_and_the_number_never_grows() -> None:
    watcher, out = on_screen(height=8, width=10)
    long, short = [1] * 15, [1] * 5  # two lines and one
    with watcher:
        watcher.show(frame(0, short, short, short, short))
        watcher.show(frame(1, long, long, long, long))
        watcher.show(frame(2, short, short, short, short))
        watcher.show(frame(0, short, short, short, short, first=4))
    counts = [screen.plain.count("sample") for screen in screens(out)]
    assert counts[:4] == [3, 2, 2, 3]
    assert all(len(screen.plain.splitlines()) < 8 for screen in screens(out))


def test_a_long_sample_is_cut_to_the_screen() -> None:
    watcher, out = on_screen(height=6, width=10)
    with watcher:
        watcher.show(frame(0, [1] * 10 + [2] * 50))
        watcher.show(frame(1, [1] * 10 + [2] * 50 + [3]))
    standing, growing, _ = screens(out)
    assert standing.plain.splitlines()[1:] == ["sample 1", "a" * 10, "b" * 10, "…"]
    assert growing.plain.splitlines()[1:] == ["…", "b" * 10, "b" * 10, "c"]
    assert highlighted(growing) == ["c"]
    lines = [Text("a"), Text("b")]
    assert _fit_lines(lines, 2, False) == lines


def test_a_narrow_terminal() -> None:
    watcher, out = on_screen(width=12)
    with watcher:
        watcher.show(frame(0, [1, 2]))
    assert screens(out)[0].plain.splitlines() == ["step 0 of 9…", "sample 1", "ab"]


def test_a_sample_may_grow_from_no_tokens() -> None:
    watcher, out = on_screen()
    log, lines = piped()
    for view in (watcher, log):
        with view:
            for length in range(3):
                view.show(frame(length, [1, 2, 3][:length], [4, 4, 4][:length]))
    assert [highlighted(screen) for screen in screens(out)[:3]] == [[], ["a", "d"], ["b", "d"]]
    assert lines.getvalue().splitlines()[-3:] == [
        "step 2 of 9 · alpha 0.50 · 2 tokens changed",
        "sample 1: a[b]",
        "sample 2: d[d]",
    ]


def test_a_pipe_gets_lines_without_codes() -> None:
    watcher, out = piped(most=2)
    with watcher:
        watcher.show(frame(0, [6, 6, 6], [6, 6, 6], [6, 6, 6]))
        watcher.show(frame(1, [6, 0, 6], [1, 1, 1], [6, 6, 6]))
        watcher.show(frame(0, [2] * 30, first=3))
    assert out.getvalue().splitlines() == [
        "step 0 of 9 · alpha 0.50 · start",
        "sample 1: ▒▒▒",
        "sample 2: ▒▒▒",
        "step 1 of 9 · alpha 0.50 · 4 tokens changed",
        "sample 1: ▒[⏎]▒",
        "sample 2: [a][a][a]",
        "step 0 of 9 · alpha 0.50 · start",
        "sample 4: " + "b" * 30,
    ]


def test_the_first_batch_is_slow_enough_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("duality.cli.watch.time.monotonic", lambda: now[0])
    monkeypatch.setattr("duality.cli.watch.time.sleep", sleep)
    watcher, _ = on_screen()
    watcher.delay = None
    with watcher:
        for step in range(25):
            now[0] += 0.05 if step else 0.0  # the time of the network is part of the pause; the clock is simulated
            watcher.show(frame(step, [1, 2], steps=24))
        assert now[0] == pytest.approx(25 * 6 / 24)
        for step in range(25):
            watcher.show(frame(step, [1, 2], steps=24, first=1))
    assert sum(slept) == pytest.approx(25 * 6 / 24 - 24 * 0.05)
    watcher, _ = on_screen()
    watcher.delay = None
    with watcher:
        watcher.show(frame(2, [1], steps=2))
    assert slept[-1] == 0.5


def test_settings_that_show_nothing_are_refused() -> None:
    pieces = Pieces(LETTERS)
    with pytest.raises(ValueError, match="most is 0"):
        Watcher(Console(), pieces, most=0)
    with pytest.raises(ValueError, match=r"delay is -1"):
        Watcher(Console(), pieces, delay=-1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_terminal_is_restored_after_an_error(error: type[BaseException]) -> None:
    watcher, out = on_screen()

    def fail() -> None:
        with watcher:
            watcher.show(frame(0, [1]))
            raise error

    with pytest.raises(error):
        fail()
    assert re.findall(r"\x1b\[\?25[lh]", out.getvalue()) == ["\x1b[?25l", "\x1b[?25h"]
    assert out.getvalue().endswith("\x1b[1A\x1b[2K" * 3)  # the three lines are erased


def test_ctrl_c_on_a_real_terminal() -> None:
    """A process on its own terminal, interrupted while it waits; what it prints to stdout is not changed."""
    script = (
        # a process that was started in the background may ignore SIGINT
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys, torch\nfrom rich.console import Console\n"
        "from duality.tokenizers.tokenizer import CharTokenizer\nfrom duality.samplers.generate import Frame\n"
        "from duality.tokenizers.pieces import Pieces\nfrom duality.cli.watch import Watcher\n"
        "with Watcher(Console(stderr=True), Pieces(CharTokenizer('ab')), delay=60) as watcher:\n"
        "    print('result', flush=True)\n"
        "    for step in range(3): watcher.show(Frame(step, 2, 0.5, torch.tensor([[0, 1]]), 0))\n"
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "40", "LINES": "10"}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=slave, env=environment, text=True
    )
    os.close(slave)
    shown = read_until(master, lambda text: "ab" in text)
    process.send_signal(signal.SIGINT)
    shown += read_until(master, lambda text: False)
    os.close(master)
    assert process.communicate(timeout=60)[0] == "result\n"
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in shown
    assert re.findall(r"\x1b\[\?25[lh]", shown) == ["\x1b[?25l", "\x1b[?25h"]


def read_until(terminal: int, enough: Callable[[str], bool]) -> str:
    """The output of a terminal, until the condition holds or the output ends."""
    shown = b""
    while not enough(shown.decode("utf-8", "replace")):
        ready, _, _ = select.select([terminal], [], [], 120)
        assert ready, f"nothing new for two minutes after {shown!r}"
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    return shown.decode("utf-8", "replace")

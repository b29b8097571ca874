"""Text files, read as a stream and strictly: UTF-8, plain or compressed (.gz, .xz, .bz2, .zst).

A text file is read in pieces of about a million characters. A piece ends before white space that follows another
character. No tokenizer here joins characters across such a border, so encoding piece by piece equals encoding the
whole text:

    "...at last.| It was the devious-cruising Rachel,| that in..."

A text without such a border in a million characters is cut elsewhere, but not inside a number of up to 20 digits.

A byte order mark at the start of a file (the bytes EF BB BF, which some programs write before UTF-8) is no text: it is
left out, and counts in the places that errors name.

What must hold: the pieces joined are the file's text, character for character, including line ends; the lines are
those of the text, without their line ends ("\\n" or "\\r\\n"); a file that is not text is an error that names the file
and the byte.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, cast

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
PIECE_BYTES = 1 << 20
_LAST_BORDER = re.compile(r".*(?<=\S)(?=[ \n])", re.DOTALL)
DIGITS = "0123456789"
LONGEST_NUMBER = 20  # longer runs of digits are text, which may be cut


@dataclass(frozen=True)
class TextFile:
    """The pieces of a UTF-8 file, cut at borders between words; each iteration reads the file again."""

    path: Path
    piece_bytes: int = PIECE_BYTES

    def __iter__(self) -> Iterator[str]:
        """Read the file piece by piece."""
        held = ""
        for chunk in decode_lines(self.path, self.piece_bytes):
            held += chunk
            border = _LAST_BORDER.match(held)
            if border is None:
                # Text without any border is cut at its end, so that the memory in use stays small, or before the
                # digits there, which the next piece may continue.
                end = len(held.rstrip(DIGITS))
                end = end if len(held) - end <= LONGEST_NUMBER else len(held)
            else:
                end = border.end()
            if end > 0:
                yield held[:end]
            held = held[end:]
        if held:
            yield held


@dataclass(frozen=True)
class Excerpt:
    """The characters from place ``start`` up to, not including, ``stop`` of some pieces, again in pieces."""

    pieces: Iterable[str]
    start: int
    stop: int | None
    in_bytes: bool = False
    """whether the two places are counted in bytes; a character belongs to the place where it begins"""

    def __iter__(self) -> Iterator[str]:
        """Read the pieces and keep the characters between the two places."""
        position = 0
        for piece in self.pieces:
            if self.stop is not None and position >= self.stop:
                return
            first, last = max(0, self.start - position), None if self.stop is None else self.stop - position
            size = len(piece)
            if self.in_bytes:
                data = piece.encode("utf-8")
                size = len(data)
                # a character that is cut in two counts as one before the cut
                first = len(data[:first].decode("utf-8", "replace"))
                last = None if last is None else len(data[:last].decode("utf-8", "replace"))
            if part := piece[first:last]:
                yield part
            position += size


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each line of a text file that is not blank."""
    for number, line in enumerate(decode_lines(path), 1):
        if line.strip():
            yield number, line.removesuffix("\n").removesuffix("\r")


def decode_lines(path: Path, chunk_bytes: int | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file with their line ends, or its text in chunks of so many bytes.

    A file that is not text is an error that names the byte.
    """

    def refuse(problem: str, place: int) -> NoReturn:
        unpacked = " after unpacking" if path.name.lower().endswith(COMPRESSIONS) else ""
        raise ValueError(f"{path} is not text: {problem} at byte {place}{unpacked}; give a UTF-8 text file") from None

    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(path) as (stream, offset):
        held_back = 0  # bytes of a character that lies across two chunks; its position is that of its first byte
        for data in stream if chunk_bytes is None else iter(partial(stream.read, chunk_bytes), b""):
            if (zero := data.find(b"\0")) >= 0:
                refuse("a NUL byte", offset + zero)
            try:
                yield data.decode("utf-8") if chunk_bytes is None else decoder.decode(data)
            except UnicodeDecodeError as error:
                refuse("no UTF-8", offset - held_back + error.start)
            offset += len(data)
            if chunk_bytes is not None:
                held_back = len(decoder.getstate()[0])
        if held_back := len(decoder.getstate()[0]):
            refuse("half a UTF-8 character", offset - held_back)


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[io.BufferedReader, int]]:
    """The file's bytes behind a byte order mark if it has one, unpacked if its name has the ending of a compression.

    The number is that of the bytes of the mark.
    """
    openers: dict[str, Callable[..., AbstractContextManager[object]]]
    openers = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _open_zstandard}
    opener = openers.get(path.suffix.lower(), open)
    try:
        with opener(path, "rb") as opened:
            stream = cast(io.BufferedReader, opened)
            mark = len(codecs.BOM_UTF8) if stream.peek(3).startswith(codecs.BOM_UTF8) else 0
            stream.read(mark)
            yield stream, mark
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        # An error of a file has a number; that of bz2 and of Zstandard, for a damaged file, has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} is no whole {path.suffix} file ({error}); make or download it again") from None


@contextmanager
def _open_zstandard(path: Path, _mode: str) -> Iterator[io.BufferedReader]:
    """The unpacked bytes of a .zst file, of all its frames; Arrow says if the last one is cut short."""
    try:
        import pyarrow as arrow
    except ImportError:
        raise ValueError(
            f"{path} is compressed with Zstandard, which needs a library that is not installed: "
            "pip install 'diffusion-duality[data]', or compress it as .gz or .xz"
        ) from None
    with arrow.input_stream(str(path), compression="zstd") as unpacked:
        yield io.BufferedReader(unpacked, PIECE_BYTES)


def ending_of(path: Path) -> str:
    """The ending of a file's name in lower case, without that of a compression: ".txt" of "A.TXT.gz"."""
    name = path.name.lower()
    return Path(name[: -len(path.suffix)] if name.endswith(COMPRESSIONS) else name).suffix

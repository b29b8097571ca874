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
from pathlib import Path
from typing import IO, Protocol, cast

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
PIECE_BYTES = 1 << 20
LAST_BORDER = re.compile(r".*(?<=\S)(?=[ \n])", re.DOTALL)
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
        for chunk in decoded_chunks(self.path, self.piece_bytes):
            held += chunk
            border = LAST_BORDER.match(held)
            # Text without any border is cut at its end or before a number there: the memory in use stays small.
            end = border.end() if border else before_number(held)
            if end > 0:
                yield held[:end]
            held = held[end:]
        if held:
            yield held


def before_number(text: str) -> int:
    """The length of a text without the digits at its end, which the next piece may continue."""
    end = len(text.rstrip(DIGITS))
    return end if len(text) - end <= LONGEST_NUMBER else len(text)


@dataclass(frozen=True)
class Excerpt:
    """The characters from ``start`` up to, not including, ``stop`` of some pieces, again in pieces."""

    pieces: Iterable[str]
    start: int
    stop: int

    def __iter__(self) -> Iterator[str]:
        """Read the pieces and keep the characters between the two positions."""
        position = 0
        for piece in self.pieces:
            if position >= self.stop:
                return
            part = piece[max(0, self.start - position) : self.stop - position]
            if part:
                yield part
            position += len(piece)


@dataclass(frozen=True)
class Span:
    """The characters of some pieces that begin at a byte from ``start`` up to, not including, ``stop``."""

    pieces: Iterable[str]
    start: int
    stop: int | None

    def __iter__(self) -> Iterator[str]:
        """Read the pieces and keep the characters between the two places."""
        position = 0
        for piece in self.pieces:
            data = piece.encode("utf-8")
            if self.stop is not None and position >= self.stop:
                return
            first = at_character(data, max(0, self.start - position))
            last = len(data) if self.stop is None else at_character(data, self.stop - position)
            if first < last:
                yield data[first:last].decode("utf-8")
            position += len(data)


def at_character(data: bytes, place: int) -> int:
    """The place itself, or that of the next character if it lies within one; at most the length."""
    while place < len(data) and data[place] & 0xC0 == 0x80:
        place += 1
    return min(place, len(data))


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each line of a text file that is not blank."""
    for number, line in enumerate(decoded_lines(path), 1):
        if line.strip():
            yield number, line.removesuffix("\n").removesuffix("\r")


def decoded_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their line ends; a file that is not text is an error that names the byte."""
    with open_bytes(path) as stream:
        offset = stream.tell()
        for line in stream:
            if (zero := line.find(b"\0")) >= 0:
                raise ValueError(not_text(path, "a NUL byte", offset + zero))
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(not_text(path, "no UTF-8", offset + error.start)) from None
            offset += len(line)


def decoded_chunks(path: Path, chunk_bytes: int) -> Iterator[str]:
    """The text of a UTF-8 file in chunks; a file that is not text is an error that names the byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(path) as stream:
        offset = stream.tell()
        while chunk := stream.read(chunk_bytes):
            if (zero := chunk.find(b"\0")) >= 0:
                raise ValueError(not_text(path, "a NUL byte", offset + zero))
            # The decoder holds back a character that lies across two chunks; its position is that of its first byte.
            held_back = len(decoder.getstate()[0])
            try:
                yield decoder.decode(chunk)
            except UnicodeDecodeError as error:
                raise ValueError(not_text(path, "no UTF-8", offset - held_back + error.start)) from None
            offset += len(chunk)
        held_back = len(decoder.getstate()[0])
        if held_back:
            raise ValueError(not_text(path, "half a UTF-8 character", offset - held_back))


def not_text(path: Path, problem: str, offset: int) -> str:
    """The message for a file that is not UTF-8 text."""
    unpacked = " after unpacking" if path.name.lower().endswith(COMPRESSIONS) else ""
    return f"{path} is not text: {problem} at byte {offset}{unpacked}; give a UTF-8 text file"


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes behind a byte order mark if it has one, unpacked if its name has the ending of a compression."""
    openers: dict[str, Callable[..., AbstractContextManager[object]]]
    openers = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": open_zstandard}
    opener = openers.get(path.suffix.lower(), open)
    damage = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
    try:
        with opener(path, "rb") as opened:
            stream = cast(io.BufferedReader, opened)
            if stream.peek(len(codecs.BOM_UTF8))[: len(codecs.BOM_UTF8)] == codecs.BOM_UTF8:
                stream.read(len(codecs.BOM_UTF8))
            yield stream
    except damage as error:
        raise ValueError(broken(path, error)) from None
    except OSError as error:
        if error.errno is None:  # of the bz2 module, which has no other word for a damaged file
            raise ValueError(broken(path, error)) from None
        raise


def broken(path: Path, error: Exception) -> str:
    """The message for a compressed file that cannot be unpacked."""
    return f"{path} is no whole {path.suffix} file ({error}); make or download it again"


@contextmanager
def open_zstandard(path: Path, _mode: str) -> Iterator[io.BufferedReader]:
    """The unpacked bytes of a .zst file."""
    try:
        import zstandard
    except ImportError:
        raise ValueError(
            f"{path} is compressed with Zstandard, which needs a library that is not installed: "
            "pip install 'diffusion-duality[data]', or compress it as .gz or .xz"
        ) from None
    with path.open("rb") as packed:
        try:
            yield io.BufferedReader(Frames(packed, lambda: zstandard.ZstdDecompressor().decompressobj()), PIECE_BYTES)
        except zstandard.ZstdError as error:
            raise ValueError(broken(path, error)) from None


class Frame(Protocol):
    """One compressed frame that is being read."""

    @property
    def eof(self) -> bool:
        """Whether it has ended."""

    @property
    def unused_data(self) -> bytes:
        """What follows it."""

    def decompress(self, data: bytes, /) -> bytes:
        """What can be unpacked so far."""


class Frames(io.RawIOBase):
    """The bytes of one or more compressed frames; a file that ends within a frame is an error."""

    def __init__(self, packed: IO[bytes], new_frame: Callable[[], Frame]):
        self.packed, self.new_frame = packed, new_frame
        self.frame: Frame | None = None
        self.waiting = b""
        self.position = 0

    def tell(self) -> int:
        return self.position

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer can be one
        while not self.waiting:
            unused = self.frame.unused_data if self.frame is not None and self.frame.eof else b""
            chunk = unused or self.packed.read(1 << 17)
            if not chunk:
                if self.frame is not None and not self.frame.eof:
                    raise EOFError("it ends too early")
                return 0
            if self.frame is None or self.frame.eof:
                self.frame = self.new_frame()
            self.waiting = self.frame.decompress(chunk)
        count = min(len(buffer), len(self.waiting))
        buffer[:count], self.waiting = self.waiting[:count], self.waiting[count:]
        self.position += count
        return count


def has_mark(path: Path) -> bool:
    """Whether a file begins with a byte order mark; its first bytes are read."""
    with open_bytes(path) as stream:
        return stream.tell() > 0

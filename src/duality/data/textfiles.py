"""Files into text, as a stream and strictly: UTF-8, plain or compressed (.gz, .xz).

A text file is read in pieces of about a million characters. A piece ends before white space that follows a
letter or sign; no tokenizer here joins characters across such a border, so encoding piece by piece equals
encoding the whole:

    "...at last.| It was the devious-cruising Rachel,| that in..."

What must hold: the pieces joined are the file's text, character for character, line ends included; a file
that is not text is an error naming the file and the byte.
"""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

COMPRESSIONS = (".gz", ".xz")
PIECE_BYTES = 1 << 20
LAST_BORDER = re.compile(r".*(?<=\S)(?=[ \n])", re.DOTALL)


@dataclass(frozen=True)
class TextFile:
    """The pieces of a UTF-8 file, cut at borders between words; each run through them reads the file anew."""

    path: Path
    piece_bytes: int = PIECE_BYTES

    def __iter__(self) -> Iterator[str]:
        """Read the file piece by piece."""
        held = ""
        for chunk in decoded_chunks(self.path, self.piece_bytes):
            held += chunk
            border = LAST_BORDER.match(held)
            # A chunk without any border is given out as it is: no file may fill the memory.
            end = border.end() if border else len(held)
            if end > 0:
                yield held[:end]
            held = held[end:]
        if held:
            yield held


@dataclass(frozen=True)
class Excerpt:
    """The characters from `start` to before `stop` of some pieces, again in pieces."""

    pieces: Iterable[str]
    start: int
    stop: int

    def __iter__(self) -> Iterator[str]:
        """Run through the pieces and keep what lies inside."""
        position = 0
        for piece in self.pieces:
            if position >= self.stop:
                return
            part = piece[max(0, self.start - position) : self.stop - position]
            if part:
                yield part
            position += len(piece)


def json_texts(path: Path, label: str | None = None) -> Iterator[tuple[int, str, str | None]]:
    """Line number, "text" and "label" (without one, that of the file) of a .jsonl file; blank lines hold nothing."""
    offset = 0
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                text, own = json_text(line, f"{path}, line {number}", offset)
                yield number, text, json_label(own, label)
            offset += len(line)


def json_text(line: bytes, where: str, offset: int) -> tuple[str, Any]:
    """The values of "text" and "label" in one line of a .jsonl file, which begins at byte `offset`."""
    rule = "each line must be an object with a string under the key 'text'"
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        place = f"byte {offset + error.start} of the file"
        raise ValueError(f"{where}: not UTF-8 text at {place}; convert the file to UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error}); {rule}") from None
    match record:
        case {"text": str(text)}:
            return whole_characters(text, where), record.get("label")
        case dict():
            raise ValueError(f"{where}: no 'text' (got the keys {sorted(record)}); {rule}")
        case _:
            raise ValueError(f"{where}: no 'text' (got a {type(record).__name__}); {rule}")


def json_label(value: Any, default: str | None) -> str | None:
    """A string or a whole number as a label, the default where there is none."""
    match value:
        case None:
            return default
        case bool():
            return None
        case str() | int():
            return str(value)
        case _:
            # No error here: who asks for labels gets one that names the document, others need none.
            return None


def whole_characters(text: str, where: str) -> str:
    """The text itself; JSON can hold half of a surrogate pair, which UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = f"character {error.start} of 'text'"
        raise ValueError(f"{where}: half a surrogate pair at {place}, which is no character; repair it") from None
    return text


def decoded_chunks(path: Path, chunk_bytes: int) -> Iterator[str]:
    """The text of a UTF-8 file in chunks; a file that is not text is an error that says where."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with open_bytes(path) as stream:
        while chunk := stream.read(chunk_bytes):
            if (zero := chunk.find(b"\0")) >= 0:
                raise ValueError(not_text(path, "a NUL byte", offset + zero))
            # A character cut in two by the chunk's border is held back by the decoder, and counts from there.
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
    """The file's bytes, unpacked if its name ends in .gz or .xz."""
    name = path.name.lower()
    opener = gzip.open if name.endswith(".gz") else lzma.open if name.endswith(".xz") else open
    try:
        with opener(path, "rb") as stream:
            yield cast(IO[bytes], stream)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} is no whole {path.suffix} file ({error}); make or download it again") from None

"""Readers: the text of files of every format, read as a stream and strictly, as pieces, as lines or as records.

A text file is UTF-8, plain or compressed (.gz, .xz, .bz2, .zst). It is read in pieces of about a million characters. A
piece ends before white space that follows another character. No tokenizer here joins characters across such a border,
so encoding piece by piece equals encoding the whole text:

    "...at last.| It was the devious-cruising Rachel,| that in..."

A text without such a border in a million characters is cut elsewhere, but not inside a number of up to 20 digits.

A byte order mark at the start of a file (the bytes EF BB BF, which some programs write before UTF-8) is no text: it is
left out, and counts in the places that errors name.

Records are the texts of tables and of lists of objects, with their line numbers and labels:

    a .jsonl file    {"text": "It was", "label": "good"}    an object per line, its text under a key
    a .csv file      id,text,label                          the first row names the columns, commas between them
    a .tsv file      the same with tabs
    a .parquet, .arrow or .feather file    a table of Arrow, read batch by batch; its lines are its rows, from 1
    a .fasta, .fa, .fna file               ">name" before each sequence of letters, whose lines are joined

The key, or the name of the column, is "text" if nothing else is chosen. The key or column "label", if there is one,
holds the label of the text: a string or a whole number. A value of a .csv or .tsv file may be quoted ("..."); it may
then contain commas, tabs, line ends, and quotation marks as two of them.

What must hold: the pieces joined are the file's text, character for character, including line ends; the lines are
those of the text, without their line ends ("\\n" or "\\r\\n"); a file that is not text is an error that names the file
and the byte. Every record gives one text, in order and unchanged, also an empty one; blank lines are no records; a line
that is no record, or has no such text, is an error that names the file, the line, what was found and what to do.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from duality.data import TEXT_COLUMN
from duality.extras import import_extra
from duality.registry import one_line, suggestion

if TYPE_CHECKING:
    from pyarrow import RecordBatch

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
PIECE_BYTES = 1 << 20
_LAST_BORDER = re.compile(r".*(?<=\S)(?=[ \n])", re.DOTALL)
DIGITS = "0123456789"
LONGEST_NUMBER = 20  # longer runs of digits are text, which may be cut
ARROW_ENDINGS = (".parquet", ".arrow", ".feather")
FASTA_ENDINGS = (".fasta", ".fa", ".fna")
_SEPARATORS = {".csv": (",", "commas"), ".tsv": ("\t", "tabs")}
TABLE_ENDINGS = tuple(_SEPARATORS)
# The files of a folder that are read are those of the first of these kinds that it has.
KINDS = ((".txt", ".text", ".md", ".jsonl"), (*TABLE_ENDINGS, *ARROW_ENDINGS), FASTA_ENDINGS)
_LABEL_COLUMN = "label"
# Bytes of a line or of a sequence of FASTA, or characters of a value in a table: it is in memory as a whole, and a
# small file may unpack to more.
_LONGEST = 1 << 28
_SHOWN_NAMES = 10

Record = tuple[int, str, str | None]


@dataclass(frozen=True)
class Repeatable:
    """The pieces of a text, which are made again each time that they are read."""

    make: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[str]:
        return self.make()


def read_pieces(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[str]:
    """The pieces of a UTF-8 file, cut at borders between words."""
    held = ""
    for chunk in decode_lines(path, piece_bytes):
        held += chunk
        last = max(held.rfind(" "), held.rfind("\n"))  # the expression would go back to it character by character
        if border := _LAST_BORDER.match(held, 0, last + 1):
            end = border.end()
        else:
            # Text without any border is cut at its end, so that the memory in use stays small, or before the
            # digits there, which the next piece may continue.
            end = len(held.rstrip(DIGITS))
            end = end if len(held) - end <= LONGEST_NUMBER else len(held)
        if end > 0:
            yield held[:end]
        held = held[end:]
    if held:
        yield held


def excerpt(pieces: Iterable[str], start: int, stop: int | None, in_bytes: bool = False) -> Iterator[str]:
    """The characters from place ``start`` up to, not including, ``stop`` of some pieces, again in pieces.

    With ``in_bytes`` the two places are counted in bytes; a character belongs to the place where it begins.
    """
    position = 0
    for piece in pieces:
        if stop is not None and position >= stop:
            return
        first, last = max(0, start - position), None if stop is None else stop - position
        size = len(piece)
        if in_bytes:
            data = piece.encode("utf-8")
            size = len(data)
            # a character that is cut in two counts as one before the cut
            first = len(data[:first].decode("utf-8", "replace"))
            last = None if last is None else len(data[:last].decode("utf-8", "replace"))
        if part := piece[first:last]:
            yield part
        position += size


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
        for data in _read_lines(path, stream) if chunk_bytes is None else iter(partial(stream.read, chunk_bytes), b""):
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


def _read_lines(path: Path, stream: io.BufferedReader) -> Iterator[bytes]:
    """The lines of a file that is open; one that is too long for the memory is an error."""
    for number, line in enumerate(iter(partial(stream.readline, _LONGEST + 1), b""), 1):
        if len(line) > _LONGEST:
            raise ValueError(f"{path}, line {number}: more than {_LONGEST:,} bytes; write its text as several lines")
        yield line


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
    arrow = import_extra("data", f"{path}, a .zst file,", "pyarrow", instead=", or compress it as .gz or .xz")
    with arrow.input_stream(str(path), compression="zstd") as unpacked:
        yield io.BufferedReader(unpacked, PIECE_BYTES)


def ending_of(path: Path) -> str:
    """The ending of a file's name in lower case, without that of a compression: ".txt" of "A.TXT.gz"."""
    name = path.name.lower()
    return Path(name[: -len(path.suffix)] if name.endswith(COMPRESSIONS) else name).suffix


def has_records(path: Path) -> bool:
    """Whether the texts of a file stand under a key or in a column."""
    return ending_of(path) in (".jsonl", *TABLE_ENDINGS, *ARROW_ENDINGS, *FASTA_ENDINGS)


def read_records(path: Path, column: str = TEXT_COLUMN, label: str | None = None) -> Iterator[Record]:
    """Line number, text and label (else the file's label) of each record of a file, or of each line of a text file."""
    ending = ending_of(path)
    if ending in FASTA_ENDINGS:
        return _read_fasta(path, label)
    if not has_records(path):
        lines = ((number, line) for number, line in enumerate(decode_lines(path), 1) if line.strip())
        return ((number, line.removesuffix("\n").removesuffix("\r"), label) for number, line in lines)
    read = _read_table if ending in TABLE_ENDINGS else _read_arrow if ending in ARROW_ENDINGS else _read_json_lines
    return read(path, column, label)


def make_record(row: Mapping[str, object], column: str, name: str, number: int, label: str | None = None) -> Record:
    """The record of a row of named values; ``name`` is that of the table, for messages."""
    if column not in row:
        raise _no_column(name, row, column)
    remedy = "choose another column with --column NAME (data.column), or change the row"
    return _check_record(number, row, column, label, f"{name}, row {number}", remedy)


def _read_json_lines(path: Path, column: str, label: str | None) -> Iterator[Record]:
    """The records of the lines of a .jsonl file that are not blank."""
    rule = f"each line must be an object with a string under the key {column!r}"
    with open_bytes(path) as (stream, offset):
        for number, line in enumerate(_read_lines(path, stream), 1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    record = json.loads(line.decode("utf-8"))
                except UnicodeDecodeError as error:
                    place = f"byte {offset + error.start} of the file"
                    raise ValueError(f"{where}: not UTF-8 text at {place}; convert the file to UTF-8") from None
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{where}: not JSON ({error}); {rule}") from None
                if not isinstance(record, dict):
                    raise ValueError(f"{where}: no {column!r} (got {_describe_kind(record)}); {rule}")
                if column not in record:
                    listed, near = _list_names(sorted(record), column)
                    raise ValueError(
                        f"{where}: no {column!r} (got the keys {listed}); {rule}: choose another key with --column "
                        f"NAME (data.column){near}"
                    )
                yield _check_record(number, record, column, label, where, "change the line")
            offset += len(line)


def _check_record(
    number: int, row: Mapping[str, object], column: str, label: str | None, where: str, remedy: str
) -> Record:
    """The record of a row: a string as its text, a string or a whole number as its label, the default if there is none.

    Half a surrogate pair in the text, which JSON can hold and UTF-8 cannot, is an error. Another value of the label is
    no error here: if labels are requested, a later error names the document.
    """
    text, own = row[column], row.get(_LABEL_COLUMN)
    if not isinstance(text, str):
        raise ValueError(f"{where}: the value of {column!r} is {_describe_kind(text)}; it must be a string: {remedy}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = f"character {error.start} of {column!r}"
        raise ValueError(f"{where}: half a surrogate pair at {place}, which is no character; repair it") from None
    if own is None:
        return number, text, label
    return number, text, str(own) if isinstance(own, (str, int)) and not isinstance(own, bool) else None


def _describe_kind(value: object) -> str:
    """What a value of JSON is, in words."""
    if isinstance(value, (bool, int, float)):
        return f"a {'truth value' if isinstance(value, bool) else 'number'} ({json.dumps(value)[:24]})"
    return {type(None): "null", str: "a string", list: "a list"}.get(type(value), "an object")


def _read_table(path: Path, column: str, label: str | None) -> Iterator[Record]:
    """The records of the rows of a .csv or .tsv file that are not blank, each with the number of its first line."""
    separator, separators = _SEPARATORS[ending := ending_of(path)]
    csv.field_size_limit(_LONGEST)
    # Strict: otherwise a quotation mark that is never closed takes the rest of the file into one value.
    reader = csv.reader(decode_lines(path), delimiter=separator, strict=True)
    names, number = list[str](), 1
    try:
        for row in reader:
            if row and not names:
                names = row
                more = f", and put {separators} between the columns of a {ending} file"
                _check_columns(path, names, column, "one of them in its first row", more)
            elif row:
                if len(row) != len(names):
                    raise ValueError(
                        f"{path}, line {number}: {len(row)} value(s), but the first row names {len(names)} columns; "
                        f"repair the line, and quote values that contain {separators} or line ends"
                    )
                own = row[names.index(_LABEL_COLUMN)] if _LABEL_COLUMN in names else ""
                yield number, row[names.index(column)], own or label
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: not CSV ({error}); write a value with quotation marks in it as "
            '"..." and each mark inside as ""'
        ) from None
    if not names:
        raise ValueError(f"{path} has no first row with the names of its columns; write one, such as id,{column}")


def _check_columns(path: Path, names: Sequence[str], column: str, rename: str, more: str = "") -> list[str]:
    """Which of the columns that a table has are read; each must be there once, and that of the texts must be there."""
    if column not in names:
        raise _no_column(str(path), names, column, more)
    chosen = [name for name in dict.fromkeys((column, _LABEL_COLUMN)) if name in names]
    if twice := [name for name in chosen if names.count(name) > 1]:
        raise ValueError(f"{path} has the column {twice[0]!r} twice; rename {rename}")
    return chosen


def _no_column(name: str, names: Iterable[str], column: str, more: str = "") -> ValueError:
    """The error of a table without the column."""
    listed, near = _list_names(list(names), column)
    return ValueError(
        f"{name} has no column {column!r}: its columns are {listed}; choose one with --column NAME (data.column)"
        f"{near}{more}"
    )


def _read_arrow(path: Path, column: str, label: str | None) -> Iterator[Record]:
    """The records of the rows of a table of Arrow."""
    arrow = import_extra("data", f"{path}, a table of Arrow,", "pyarrow", instead=", or convert it to .jsonl")
    try:
        if (ending := ending_of(path)) == ".parquet":
            table = import_module("pyarrow.parquet").ParquetFile(path, page_checksum_verification=True)
            names, batches = table.schema_arrow.names, table.iter_batches(batch_size=1024)
        else:
            source = arrow.OSFile(str(path))  # a file that changes while it is mapped into memory ends the process
            try:
                file = arrow.ipc.open_file(source)
                batches = (file.get_batch(index) for index in range(file.num_record_batches))
            except arrow.ArrowInvalid:
                source.seek(0)
                file = batches = arrow.ipc.open_stream(source)  # as the library `datasets` keeps its tables
            names = file.schema.names
        chosen = _check_columns(path, names, column, "one of them, and write the table again")
        rows = (row for batch in batches for row in _read_batch(batch.select(chosen)))
        for number, row in enumerate(rows, 1):
            yield make_record(row, column, str(path), number, label)
    except (arrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no whole {ending} file ({one_line(error)}); make or download it again") from None


def _read_batch(batch: RecordBatch) -> list[dict[str, object]]:
    """The rows of a batch, of which every offset and index is checked before it is followed."""
    batch.validate(full=True)
    try:
        return list(batch.to_pylist())
    except ValueError as error:  # a time that is no date
        raise OverflowError(error) from None


def _read_fasta(path: Path, label: str | None) -> Iterator[Record]:
    """The line number of each name, its sequence, and the label of the file."""
    start, sequence = 0, bytearray()  # not a list of lines, which may have one letter each
    for number, line in enumerate(decode_lines(path), 1):
        if line.startswith(">"):
            if start:
                yield start, sequence.decode("utf-8"), label
            start, sequence = number, bytearray()
        elif line.strip() and not line.startswith(";"):
            if not start:
                raise ValueError(
                    f"{path}, line {number}: a sequence without a name; a FASTA file has a line that begins with '>' "
                    "before each sequence: add it, or rename the file to .txt"
                )
            sequence += line.strip().encode("utf-8")
            if len(sequence) > _LONGEST:
                raise ValueError(
                    f"{path}, line {start}: a sequence of more than {_LONGEST:,} bytes; divide it into several, each "
                    "with a line that begins with '>'"
                )
    if start:
        yield start, sequence.decode("utf-8"), label


def _list_names(names: Sequence[str], wanted: str) -> tuple[str, str]:
    """The names in quotation marks, of many the first ones; and ': did you mean ...?' if one is close to the wanted."""
    shown = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:_SHOWN_NAMES])
    listed = shown + (f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else "")
    text = suggestion(wanted, names)
    return listed, f": {text}" if text.startswith("did you mean") else ""

"""Records: the texts of tables and of lists of objects, with their line numbers and labels.

    a .jsonl file    {"text": "It was", "label": "good"}    an object per line, its text under a key
    a .csv file      id,text,label                          the first row names the columns, commas between them
    a .tsv file      the same with tabs
    a .parquet, .arrow or .feather file    a table of Arrow, read batch by batch; its lines are its rows, from 1
    a .fasta, .fa, .fna file               ">name" before each sequence of letters, whose lines are joined

The key, or the name of the column, is "text" if nothing else is chosen. The key or column "label", if there is one,
holds the label of the text: a string or a whole number. A value of a .csv or .tsv file may be quoted ("..."); it may
then contain commas, tabs, line ends, and quotation marks as two of them.

What must hold: every record gives one text, in order and unchanged, also an empty one; blank lines are no records; a
line that is no record, or has no such text, is an error that names the file, the line, what was found and what to do.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from duality.data.readers.text import decoded_lines, open_bytes
from duality.registry import suggestion

TEXT_COLUMN = "text"
LABEL_COLUMN = "label"
SEPARATORS = {".csv": (",", "commas"), ".tsv": ("\t", "tabs")}
ARROW_ENDINGS = (".parquet", ".arrow", ".feather")
FASTA_ENDINGS = (".fasta", ".fa", ".fna")
LONGEST_VALUE = (1 << 31) - 1  # characters of a value in a table; the csv module refuses more than 131 072 by itself
SHOWN_NAMES = 10

Record = tuple[int, str, str | None]


def json_records(path: Path, column: str = TEXT_COLUMN, label: str | None = None) -> Iterator[Record]:
    """Line number, text and label (else the file's label) of each line of a .jsonl file that is not blank."""
    with open_bytes(path) as stream:
        offset = stream.tell()
        for number, line in enumerate(stream, 1):
            if line.strip():
                text, own = json_text(line, column, f"{path}, line {number}", offset)
                yield number, text, json_label(own, label)
            offset += len(line)


def json_text(line: bytes, column: str, where: str, offset: int) -> tuple[str, object]:
    """The text and the value of "label" in one line of a .jsonl file, which begins at byte ``offset``."""
    rule = f"each line must be an object with a string under the key {column!r}"
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        place = f"byte {offset + error.start} of the file"
        raise ValueError(f"{where}: not UTF-8 text at {place}; convert the file to UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); {rule}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: no {column!r} (got {kind_of(record)}); {rule}")
    if column not in record:
        raise ValueError(
            f"{where}: no {column!r} (got the keys {listed(sorted(record))}); {rule}: choose another key with "
            f"--column NAME (data.column){nearest(column, record)}"
        )
    text = record[column]
    if not isinstance(text, str):
        raise ValueError(f"{where}: the value of {column!r} is {kind_of(text)}; it must be a string: change the line")
    return whole_characters(text, column, where), record.get(LABEL_COLUMN)


def json_label(value: object, default: str | None) -> str | None:
    """A string or a whole number as a label, the default if there is no value."""
    match value:
        case None:
            return default
        case bool():
            return None
        case str() | int():
            return str(value)
        case _:
            # This is no error: if labels are requested, a later error names the document.
            return None


def kind_of(value: object) -> str:
    """What a value of JSON is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return f"a truth value ({json.dumps(value)})"
        case int() | float():
            return f"a number ({json.dumps(value)[:24]})"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def whole_characters(text: str, column: str, where: str) -> str:
    """The text itself; half a surrogate pair, which JSON can hold and UTF-8 cannot, is an error."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = f"character {error.start} of {column!r}"
        raise ValueError(f"{where}: half a surrogate pair at {place}, which is no character; repair it") from None
    return text


def table_records(path: Path, ending: str, column: str = TEXT_COLUMN, label: str | None = None) -> Iterator[Record]:
    """First line number, text and label (else the file's label) of each row of a .csv or .tsv file."""
    names: list[str] = []
    for number, row in table_rows(path, ending):
        if not names:
            check_names(path, ending, row, column)
            names = row
            continue
        if len(row) != len(names):
            raise ValueError(
                f"{path}, line {number}: {len(row)} value(s), but the first row names {len(names)} columns; repair the "
                f"line, and quote values that contain {SEPARATORS[ending][1]} or line ends"
            )
        own = row[names.index(LABEL_COLUMN)] if LABEL_COLUMN in names else ""
        yield number, row[names.index(column)], own or label
    if not names:
        raise ValueError(f"{path} has no first row with the names of its columns; write one, such as id,{column}")


def table_rows(path: Path, ending: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not blank, each with the number of its first line."""
    csv.field_size_limit(LONGEST_VALUE)
    # Strict: otherwise a quotation mark that is never closed takes the rest of the file into one value.
    reader = csv.reader(decoded_lines(path), delimiter=SEPARATORS[ending][0], strict=True)
    number = 1
    try:
        for row in reader:
            if row:
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: not CSV ({error}); write a value with quotation marks in it as "
            '"..." and each mark inside as ""'
        ) from None


def check_names(path: Path, ending: str, names: Sequence[str], column: str) -> None:
    """Refuse a table without the column, or with two of them."""
    if column not in names:
        raise ValueError(
            f"{path} has no column {column!r}: its columns are {listed(names)}; choose one with --column NAME "
            f"(data.column){nearest(column, names)}, and put {SEPARATORS[ending][1]} between the columns of a "
            f"{ending} file"
        )
    for name in (column, LABEL_COLUMN):
        if names.count(name) > 1:
            raise ValueError(f"{path} has the column {name!r} twice; rename one of them in its first row")


class Column(Protocol):
    """A column of a batch of Arrow."""

    def to_pylist(self) -> list[object]:
        """Its values."""


class Batch(Protocol):
    """Some rows of a table of Arrow."""

    def column(self, name: str) -> Column:
        """One of its columns."""


def arrow_records(path: Path, ending: str, column: str = TEXT_COLUMN, label: str | None = None) -> Iterator[Record]:
    """Row number from 1, text and label (else the file's label) of each row of a table of Arrow."""
    number = 0
    for names, batches in [arrow_table(path, ending)]:
        check_column(column, names, str(path))
        for batch in batches:
            texts = batch.column(column).to_pylist()
            labels = batch.column(LABEL_COLUMN).to_pylist() if LABEL_COLUMN in names else [None] * len(texts)
            for text, own in zip(texts, labels):
                number += 1
                yield number, row_text(text, column, f"{path}, row {number}"), json_label(own, label)


def row_record(row: Mapping[str, object], column: str, name: str, number: int) -> Record:
    """The record of a row that is not read from a file."""
    check_column(column, list(row), name)
    return number, row_text(row[column], column, f"{name}, row {number}"), json_label(row.get(LABEL_COLUMN), None)


def check_column(column: str, names: Sequence[str], where: str) -> None:
    """Refuse a column that a table does not have."""
    if column not in names:
        raise ValueError(
            f"{where} has no column {column!r}: its columns are {listed(names)}; choose one with --column NAME "
            f"(data.column){nearest(column, names)}"
        )


def row_text(text: object, column: str, where: str) -> str:
    """The text of a row."""
    if not isinstance(text, str):
        raise ValueError(
            f"{where}: the value of {column!r} is {kind_of(text)}; it must be a string: choose another "
            "column with --column NAME (data.column), or change the row"
        )
    return whole_characters(text, column, where)


def arrow_table(path: Path, ending: str) -> tuple[list[str], Iterable[Batch]]:
    """The names of the columns of a table of Arrow, and its rows in batches."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path} is a table of Arrow, which needs a library that is not installed: "
            "pip install 'diffusion-duality[data]', or convert it to .jsonl"
        ) from None
    try:
        if ending == ".parquet":
            table = parquet.ParquetFile(path)
            return table.schema_arrow.names, table.iter_batches(batch_size=1024)
        source = arrow.memory_map(str(path))
        try:
            file = arrow.ipc.open_file(source)
        except arrow.ArrowInvalid:
            stream = arrow.ipc.open_stream(source)  # as the library `datasets` keeps its tables
            return stream.schema.names, stream
        return file.schema.names, (file.get_batch(number) for number in range(file.num_record_batches))
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is no whole {ending} file ({reason}); make or download it again") from None


def fasta_records(path: Path, label: str | None = None) -> Iterator[Record]:
    """The line number of each name, its sequence, and the file's label."""
    start, parts = 0, list[str]()
    for number, line in enumerate(decoded_lines(path), 1):
        if line.startswith(">"):
            if start:
                yield start, "".join(parts), label
            start, parts = number, []
        elif line.strip() and not line.startswith(";"):
            if not start:
                raise ValueError(
                    f"{path}, line {number}: a sequence without a name; a FASTA file has a line that begins with '>' "
                    "before each sequence: add it, or rename the file to .txt"
                )
            parts.append(line.strip())
    if start:
        yield start, "".join(parts), label


def nearest(name: str, names: Iterable[str]) -> str:
    """': did you mean ...?' if a name is close to one of these."""
    text = suggestion(name, names)
    return f": {text}" if text.startswith("did you mean") else ""


def listed(names: Sequence[str]) -> str:
    """The names in quotation marks; of many the first ones."""
    shown = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:SHOWN_NAMES])
    return shown + (f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else "")

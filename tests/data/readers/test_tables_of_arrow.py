"""Tables of Arrow, FASTA files and further compressions: the same documents as the plain files, and clear errors."""

from __future__ import annotations

import bz2
import random
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from duality.data.documents import read_documents
from duality.data.readers import read_records
from duality.data.survey import inspect

if TYPE_CHECKING:
    from pyarrow import Table

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra `data`")

TEXTS = ["one", "zwei\ntrois", "", "äö " * 1000]


def texts(path: Path, column: str = "text") -> list[str]:
    return ["".join(document.pieces) for document in read_documents(path, column=column)]


@pytest.fixture(params=[".parquet", ".arrow", ".feather", "stream"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table in each of its forms; the last one is that of the library `datasets`."""
    import pyarrow.feather
    import pyarrow.parquet

    made = arrow.table(
        {"text": TEXTS, "other": [1, 2, 3, 4], "label": arrow.array(["a", "b", "a", "b"]).dictionary_encode()}
    )
    path = tmp_path / f"t{'.arrow' if request.param == 'stream' else request.param}"
    if request.param == ".parquet":
        pyarrow.parquet.write_table(made, path)
    elif request.param == ".feather":
        pyarrow.feather.write_feather(made, path)
    else:
        new = arrow.ipc.new_stream if request.param == "stream" else arrow.ipc.new_file
        with new(str(path), made.schema) as writer:
            writer.write_table(made, max_chunksize=2)
    return path


def test_a_table_has_its_texts_and_labels(table: Path) -> None:
    documents = list(read_documents(table))
    assert ["".join(document.pieces) for document in documents] == TEXTS
    assert [document.label for document in documents] == ["a", "b", "a", "b"]
    assert documents[2].name.endswith(":3")
    assert inspect(table).size.num_documents == 4


def test_a_column_that_is_not_there_names_the_nearest(table: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'texts': its columns are 'text', .*did you mean text\?"):
        texts(table, "texts")
    with pytest.raises(ValueError, match=r"row 1: the value of 'other' is a number \(1\); it must be a string"):
        texts(table, "other")


def test_a_table_that_is_cut_short_is_refused(table: Path) -> None:
    table.write_bytes(table.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"is no whole \.\w+ file \("):
        texts(table)


def write_stream(path: Path, made: Table) -> Path:
    """A table as the library `datasets` keeps it."""
    with arrow.ipc.new_stream(str(path), made.schema) as writer:
        writer.write_table(made)
    return path


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = write_stream(tmp_path / "t.arrow", arrow.table([TEXTS, TEXTS], names=["text", "text"]))
    with pytest.raises(ValueError, match=r"t\.arrow has the column 'text' twice; rename one of them"):
        texts(path)


def test_an_index_outside_a_dictionary_is_refused(tmp_path: Path) -> None:
    indices, words = arrow.array([0, 7], arrow.int32()), arrow.array(["one", "two"])
    column = arrow.DictionaryArray.from_arrays(indices, words, safe=False)
    path = write_stream(tmp_path / "t.arrow", arrow.table({"text": column}))
    with pytest.raises(ValueError, match=r"is no whole \.arrow file \(.*; make or download it again"):
        texts(path)


def test_a_time_that_is_no_date_is_refused(tmp_path: Path) -> None:
    times = arrow.array([1 << 60] * 4, arrow.timestamp("s"))
    path = write_stream(tmp_path / "t.arrow", arrow.table({"text": TEXTS, "label": times}))
    with pytest.raises(ValueError, match=r"is no whole \.arrow file \(.*(too large|out of range)"):
        texts(path)


_READ_ALL = """
import sys
from pathlib import Path
from duality.data.readers import read_records
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, flush=True)
    try:
        list(read_records(path))
    except ValueError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1, error
print("all")
"""


def test_no_damaged_table_ends_the_process(table: Path, tmp_path: Path) -> None:
    """Five flipped bits, 100 times per format: the rows, or a sentence that names the file."""
    draw, whole, folder = random.Random(0), table.read_bytes(), tmp_path / "damaged"
    folder.mkdir()
    for number in range(100):
        damaged = bytearray(whole)
        for _ in range(5):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        (folder / f"{number}{table.suffix}").write_bytes(damaged)
    done = subprocess.run([sys.executable, "-c", _READ_ALL, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all"), done.stderr


def test_a_page_that_does_not_match_its_checksum_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    how = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pyarrow.parquet.write_table(arrow.table({"text": TEXTS}), path, **how)
    path.write_bytes(path.read_bytes().replace(b"trois", b"troiz"))
    with pytest.raises(ValueError, match=r"is no whole \.parquet file \(.*CRC.*; make or download it again"):
        texts(path)


def test_a_folder_of_tables_is_read(table: Path) -> None:
    assert texts(table.parent) == TEXTS


@pytest.mark.parametrize("ending", [".bz2", ".zst"])
def test_compressed_text_is_the_text(ending: str, tmp_path: Path) -> None:
    path, text = tmp_path / f"a.txt{ending}", "wörds and\nlines " * 50_000
    compress = bz2.compress if ending == ".bz2" else partial(arrow.compress, codec="zstd", asbytes=True)
    path.write_bytes(compress(text.encode()))
    assert texts(path) == [text]
    path.write_bytes(compress(b"first ") + compress(b"second"))  # two files, one behind the other
    assert texts(path) == ["first second"]
    path.write_bytes(compress(text.encode())[:-30])
    with pytest.raises(ValueError, match=rf"is no whole \{ending} file"):
        texts(path)
    path.write_bytes(b"no such file at all")
    with pytest.raises(ValueError, match=rf"is no whole \{ending} file"):
        texts(path)
    path.write_bytes(compress(b"\xef\xbb\xbfmark"))
    assert texts(path) == ["mark"]
    path.write_bytes(compress(b"ab\xff"))
    with pytest.raises(ValueError, match="no UTF-8 at byte 2 after unpacking"):
        texts(path)


def test_a_fasta_file_has_a_document_for_each_sequence(tmp_path: Path) -> None:
    path = tmp_path / "genome.fa"
    path.write_text(">one first\nACGT\nacgn\n\n>two\n;a comment\nTTTT\n>three\n")
    documents = list(read_documents(path))
    assert ["".join(document.pieces) for document in documents] == ["ACGTacgn", "TTTT", ""]
    assert documents[1].name.endswith("genome.fa:5")
    path.write_text("ACGT\n")
    with pytest.raises(ValueError, match="line 1: a sequence without a name"):
        list(read_documents(path))


def test_a_fasta_record_of_too_many_lines_for_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of it is long: what counts is their sum, for each record."""
    monkeypatch.setattr("duality.data.readers._LONGEST", 1000)
    path = tmp_path / "genome.fa"
    path.write_text(">one\n" + "ACGT\n" * 200 + ">two\n" + "ACGT\n" * 250)
    assert [len(text) for _, text, _ in read_records(path)] == [800, 1000]
    path.write_text(">one\nACGT\n>two\n" + "ACGT\n" * 251)
    with pytest.raises(ValueError, match=r"line 3: a sequence of more than 1,000 bytes; divide it into several"):
        list(read_records(path))


def test_the_lines_of_a_fasta_record_take_little_memory(tmp_path: Path) -> None:
    """A line of two letters would be an object of fifty bytes and more."""
    path, lines = tmp_path / "genome.fa", 100_000
    path.write_text(">one\n" + "AC\n" * lines)
    tracemalloc.start()
    try:
        ((_, text, _),) = read_records(path)
        assert len(text) == 2 * lines
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()

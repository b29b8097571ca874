"""`--column` and `--key`: a run is trained on a column, keeps its name, and is measured on columns of other files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import duality
from duality.cli.main import main
from duality.models.folder import read_recipe

SMALL = ["--set", "data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.batch_size=4"]
ROWS = "".join(f'{number},"Sentence {number}, of a table\nwith two lines."\n' for number in range(150))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a command that must exit with 2."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .csv file with a text in the column "abstract"."""
    path = tmp_path_factory.mktemp("tables") / "papers.csv"
    path.write_text("id,abstract\n" + ROWS)
    return path


@pytest.fixture(scope="module")
def trained(table: Path) -> Path:
    """A run on that column."""
    out = table.parent / "run"
    given = ["--data", str(table), "--column", "abstract", "--out", str(out), "--steps", "1"]
    assert main(["train", "duo-laptop", *given, *SMALL]) == 0
    return out


def test_a_run_remembers_its_column(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_recipe(trained).data.column == "abstract"
    assert duality.load(trained).recipe.data.column == "abstract"
    assert main(["eval", str(trained), "--draws", "1", "--json"]) == 0
    held_out = json.loads(capsys.readouterr().out)["num_tokens"]
    texts = [f"Sentence {number}, of a table\nwith two lines." for number in range(142, 150)]
    assert held_out == sum(len(text) + 1 for text in texts)


def test_other_data_is_read_with_the_runs_own_column_or_another(
    trained: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"abstract": "a" * 40, "body": "b" * 70}
    other, plain = table.with_name("other.jsonl"), table.with_name("plain.txt")
    other.write_text(json.dumps(line) + "\n")
    plain.write_text("c" * 90)
    for given, count in (([other], 41), ([other, "--key", "body"], 71), ([plain], 91)):
        assert main(["eval", str(trained), "--draws", "1", "--json", "--data", *map(str, given)]) == 0
        assert json.loads(capsys.readouterr().out)["num_tokens"] == count


def test_wrong_columns(trained: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("text " * 100)
    out = tmp_path / "out"
    cases = {
        ("train", "duo-laptop", "--out", out, "--data", table): "no column 'text': its columns are 'id', 'abstract'",
        ("train", "duo-laptop", "--out", out, "--data", table, "--key", "titel"): "no column 'titel'",
        ("train", "duo-laptop", "--out", out, "--data", table, "--column", ""): "the value of --column is empty",
        ("train", "duo-laptop", "--out", out, "--data", plain, "--column", "x"): "has no .jsonl, .csv or .tsv file",
        ("train", "duo-laptop", "--out", trained, "--resume", "--column", "id"): "data.column: 'abstract' -> 'id'",
        ("compare", "duo-laptop", "--out", out, "--data", table, "--column", "titel"): "no column 'titel'",
        ("eval", trained, "--column", "id"): "the column 'id' belongs to other data",
        ("eval", trained, "--data", table, "--column", "titel"): "no column 'titel'",
    }
    for arguments, message in cases.items():
        assert message in refused(capsys, *arguments), arguments


def test_data_from_memory_has_no_column(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column='x' belongs to files; data from memory has no columns"):
        duality.train("duo-laptop", data=["a text"], column="x", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

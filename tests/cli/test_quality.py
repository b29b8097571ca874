"""`duality quality` with scorers and temperatures, and `duality plot` of what it measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import session
from support.runs import quiet, small_recipe

from duality.cli.evaluate import _Readers
from duality.cli.main import main

SCORES = """
def lengths(texts):
    return {"length": [len(text) for text in texts], "words": [len(text.split()) for text in texts]}


def short(texts):
    return {"length": [1.0]}


def broken(texts):
    return {"length": [1 / len(text[:0]) for text in texts]}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, english: Path) -> list[Path]:
    """A Duo run and an MDLM run, of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("duo-laptop", "mdlm-laptop"):
        session.train(small_recipe(english, "training.steps=2", name=name), folder / name, report=quiet)
    return [folder / "duo-laptop", folder / "mdlm-laptop"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's scorers, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_scores.py").write_text(SCORES)
    monkeypatch.delitem(sys.modules, "my_scores", raising=False)
    return tmp_path


def test_who_reads_the_samples() -> None:
    assert _Readers().resolve() == ("smollm2", ())
    assert _Readers(score="molecules").resolve() == (None, ("molecules",))
    assert _Readers(judge="gpt2", score="molecules, mine:f").resolve() == ("gpt2", ("molecules", "mine:f"))
    assert _Readers(judge="none").resolve() == (None, ())


def test_scores_over_temperature(runs: list[Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs at three temperatures: the table, the comparison at equal diversity, and `plot` says the same."""
    options = ["--steps", "2", "--temperature", "0.5,0.8,1", "--num", "6", "--score", "my_scores:lengths"]
    assert main(["quality", *map(str, runs), *options, "--device", "cpu", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "| steps | temperature | duo-laptop: length | duo-laptop: words | mdlm-laptop: length |" in printed
    compared = (here / "out" / "frontiers.md").read_text()
    assert compared in printed
    assert "| model | against | entropy | length |" in compared
    rows = json.loads((here / "out" / "quality.json").read_text())["rows"]
    assert [row["temperature"] for row in rows] == [0.5, 0.8, 1.0] * 2
    assert set(rows[0]["scores"]) == {"length", "words"}
    assert main(["plot", "out", "--out", "steps.png", "--frontiers", "frontiers.png"]) == 0
    assert compared in capsys.readouterr().out
    assert main(["plot", "out", "--quality", "words", "--diversity", "distinct_2"]) == 0
    assert "| distinct_2 | words |" in capsys.readouterr().out
    assert all((here / name).read_bytes().startswith(b"\x89PNG") for name in ("steps.png", "frontiers.png"))
    assert main(["plot", "out", "--quality", "validity"]) == 2
    assert "was not measured by 'validity': choose from entropy" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_one_temperature_has_no_frontier(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "2", "--num", "3", "--score", "my_scores:lengths", "--device", "cpu", "--out", "out"]
    assert main(["quality", str(runs[0]), *options]) == 0
    assert "Frontiers" not in capsys.readouterr().out
    assert not Path("out", "frontiers.png").exists()
    assert main(["plot", "out"]) == 0
    Path("quality.png").unlink()
    capsys.readouterr()
    assert main(["plot", "out", "--quality", "length"]) == 2
    refused = capsys.readouterr()
    assert "frontiers need more than one temperature" in refused.err
    assert (refused.out, Path("quality.png").exists()) == ("", False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0.5,warm"], "--temperature 'warm': write numbers"),
        (["--temperature", "0"], "each above 0"),
        (["--score", "molecule"], "no scorer 'molecule'"),
        (["--score", "my_scores:absent"], "no scorer 'my_scores:absent'"),
        (["--score", "my_scores:short"], "'length' of the scorer 'my_scores:short' has 1 numbers for"),
        (["--score", "my_scores:broken"], "the scorer 'my_scores:broken' has failed (ZeroDivisionError"),
        (["--score", "my_scores:lengths", "--judge", "RUN"], "is a run of Duo and no judge"),
    ],
)
@pytest.mark.usefixtures("here")
def test_mistakes_are_one_line(
    runs: list[Path], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(runs[0]) if word == "RUN" else word for word in options]
    command = ["quality", str(runs[0]), "--steps", "2", "--num", "3", "--device", "cpu", "--out", "out", *given]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()  # nothing was sampled: real text is read first


@pytest.mark.usefixtures("here")
def test_molecules_are_drawn(runs: list[Path]) -> None:
    pytest.importorskip("rdkit")
    options = ["--steps", "2", "--num", "3", "--score", "molecules", "--device", "cpu", "--out", "out"]
    assert main(["quality", str(runs[0]), *options]) == 0
    assert Path("out", "molecules.svg").read_text().lstrip().startswith("<?xml")
    assert Path("out", "molecules.png").read_bytes().startswith(b"\x89PNG")
    (row,) = json.loads(Path("out", "quality.json").read_text())["rows"]
    assert list(row["scores"]) == ["validity", "coverage", "uniqueness", "novelty", "diversity"]

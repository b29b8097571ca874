"""Every guide can be followed: its blocks of code run from top to bottom, on a tiny budget."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.pages import TINY, Follower
from support.runs import ROOT

from duality.cli import COMMANDS

GUIDES = ROOT / "docs" / "guides"
SMILES = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "C1CC1CO", "OCC(O)CO", "CC(C)CO", "C#CC1CCC(O)C1=O", "COc1cncn1", "CC=O"]
MOLECULES = ("--data", "molecules.txt", "--set", "data.documents=lines")

# What is prepared by the test instead of fetched, or needs a network or GPUs: a command of duality is parsed only.
FETCHED: dict[str, Mapping[str, list[str] | None]] = {
    "own-data.md": {"duality data get": None, "cp ~/.cache": None},
    "molecules.md": {"duality data get": None},
    "many-gpus.md": {"torchrun --standalone --nproc-per-node 8": None},
    "released-weights.md": {"duality import hf:": None, "duality import duo.ckpt": None},
}
# Text of Python blocks that stands for time, and what it is in the test.
SMALLER = {
    "own-data.md": {"DRAWS = 256": "DRAWS = 2", "steps=16": "steps=2"},
    "molecules.md": {"num=16": "num=2", "steps=32": "steps=2"},
    "class-conditional.md": {
        'read_documents("qm9")': 'read_documents("molecules.txt", "lines")',
        "NUM = 128": "NUM = 4",
        "steps=16": "steps=2",
    },
    "add-a-sampler.md": {"NUM = 4000": "NUM = 40", "NUM = 256": "NUM = 4", "(4, 8, 16)": "(2,)"},
}
WITH_RDKIT = ("molecules.md", "add-a-sampler.md", "distill-in-ten-minutes.md")
RUN = ("own-data.md", "class-conditional.md", "many-gpus.md", "released-weights.md", *WITH_RDKIT)


@pytest.fixture
def beside_data(tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the data that the guides fetch, or that a reader has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_text.txt", "other_text.txt"):
        shutil.copy(english, name)
    for name in ("molecules.txt", "my_molecules.txt"):
        Path(name).write_text("\n".join(SMILES * 4) + "\n", encoding="utf-8")
    with Path("papers.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "abstract"), (1, "A text."), (2, "Another one.")])


def test_every_guide_is_run() -> None:
    assert sorted(RUN) == sorted(path.name for path in GUIDES.glob("*.md"))


@pytest.mark.slow
@pytest.mark.usefixtures("beside_data")
@pytest.mark.parametrize("name", RUN)
def test_a_guide_can_be_followed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in WITH_RDKIT:
        pytest.importorskip("rdkit", reason="needs the extra molecules")
    page = (GUIDES / name).read_text(encoding="utf-8").partition("\n## 4. Publish")[0]  # test_docs.py has a hub for it
    missing = {words.split()[1] for words in re.findall(r"^duality \w+", page, re.MULTILINE)} - set(COMMANDS)
    if missing:
        pytest.skip(f"this version has no duality {', '.join(sorted(missing))}")
    data = MOLECULES if name in (*WITH_RDKIT, "class-conditional.md") else ()
    tiny = TINY if data else {**TINY, "data.tokenizer": "bytes", "data.length": "32"}
    known = set(sys.modules)
    try:
        blocks = Follower(FETCHED.get(name, {}), SMALLER.get(name, {}), data, tiny).follow(page)
    finally:
        for module in {"confident", "label_molecules"} & (set(sys.modules) - known):  # a page's own modules
            del sys.modules[module]
    assert blocks >= 3
    assert len(capsys.readouterr().out) > 300

"""Every guide can be followed: its blocks of code run from top to bottom, on a tiny budget, and print what it shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.pages import TINY, Follower, compare_output
from support.runs import ROOT

from duality.cli import COMMANDS

GUIDES = ROOT / "docs" / "guides"
SMILES = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "C1CC1CO", "OCC(O)CO", "CC(C)CO", "C#CC1CCC(O)C1=O", "COc1cncn1", "CC=O"]
QM9 = "instead-of-qm9.txt"
MOLECULES = ("--data", QM9, "--set", "data.documents=lines")

BOOKS = "~/.cache/duality/sources/gutenberg-prose"
NOVEL = {f"cp {BOOKS}/austen-emma.txt": ["cp $ENGLISH my_text.txt"]}
# What is prepared by the test instead of fetched, or needs a network or GPUs: a command of duality is parsed only.
FETCHED: dict[str, Mapping[str, list[str] | None]] = {
    "own-data.md": {"duality data get": None, **NOVEL},
    "molecules.md": {"duality data get": None},
    "many-gpus.md": {
        "torchrun --standalone --nproc-per-node 8": None,
        "duality data get": None,
        **NOVEL,
    },
    "released-weights.md": {
        "duality import hf:": None,
        "duality import duo.ckpt": None,
        "duality data get": None,
        **NOVEL,
        f"cp {BOOKS}/carroll-alice.txt": ["cp $ENGLISH other_text.txt"],
    },
}
# Text of Python blocks that stands for time, and what it is in the test.
SMALLER = {
    "own-data.md": {"DRAWS = 256": "DRAWS = 2", "steps=16": "steps=2"},
    "molecules.md": {"num=16": "num=2", "steps=32": "steps=2"},
    "class-conditional.md": {
        'read_documents("qm9")': f'read_documents("{QM9}", "lines")',
        "NUM = 128": "NUM = 4",
        "steps=16": "steps=2",
    },
    "add-a-sampler.md": {"NUM = 4000": "NUM = 40", "NUM = 256": "NUM = 4", "(4, 8, 16)": "(2,)"},
}
# What a model has written, or a text decides, in the outputs of a guide; and what stands for it.
FREE = {
    "own-data.md": {r"^examples .*": "examples", r"^ talked .*": "", r"^She was .*": "She was"},
    "class-conditional.md": {r"best as \w+": "best as KIND"},
    "molecules.md": {r"^.*C1 (not )?valid$": "MOLECULE valid"},
}
# How many outputs of each guide are compared, and how those begin whose commands are not run.
COMPARED = {
    "own-data.md": 5,
    "class-conditional.md": 4,
    "many-gpus.md": 5,
    "released-weights.md": 1,
    "molecules.md": 3,
    "add-a-sampler.md": 2,
    "distill-in-ten-minutes.md": 2,
}
PASSED_OVER = {
    "molecules.md": ["qm9: 130 744 small organic molecules"],
    "released-weights.md": ["duality: error: this run cannot be exported"],
}
WITH_RDKIT = ("molecules.md", "add-a-sampler.md", "distill-in-ten-minutes.md")
RUN = ("own-data.md", "class-conditional.md", "many-gpus.md", "released-weights.md", *WITH_RDKIT)


@pytest.fixture
def empty_folder(tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with nothing but what stands for the corpus that the guides of molecules train on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ENGLISH", str(english))
    Path(QM9).write_text("\n".join(SMILES * 4) + "\n", encoding="utf-8")


def test_every_guide_is_run() -> None:
    assert sorted(RUN) == sorted(path.name for path in GUIDES.glob("*.md"))


def test_no_two_pages_train_into_the_same_folder() -> None:
    """A reader who follows them one after another, in one folder, is not told that a run is there already."""
    found: dict[str, str] = {}
    pages = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", *sorted(GUIDES.glob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = re.findall(r"^.*duality (?:train|distill|import|export) .*$", text, re.MULTILINE)
        targets = {out for line in lines if "--resume" not in line for out in re.findall(r"--out ([\w/.-]+)", line)}
        for out in targets:
            assert found.setdefault(out, page.name) == page.name, f"{out} in {page.name} and {found[out]}"
    assert len(found) > 20


SHOWN = "step 3, loss 0.5\nstep 4, loss 0.4\n…\n--- sample 1 of 2\nabc\nread at /home/you/a.txt\n"


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        ("step 1,  loss nan\n--- sample 1 of 9\nxyz\nread at /tmp/a.txt\n", ""),
        ("step 1, loss 9\nmore\nof it\n--- sample 1 of 9\nxyz\nread at /tmp/a.txt\n", ""),
        ("step 1, loss 9\n--- sample 1 of 9\nxyz\nread at /tmp/b.txt\n", "the page shows 'read at /.../a.txt', and"),
        ("step 1, loss: 9\n--- sample 1 of 9\nxyz\nread at /tmp/a.txt\n", "the page shows 'step #, loss #', and this"),
        ("step 1, loss 9\n--- sample 1 of 9\nxyz\n", "the page shows 'read at /.../a.txt', and that is not printed"),
        ("step 1, loss 9\n--- sample 1 of 9\nx\nread at /tmp/a.txt\nend\n", r"does not show what is printed: \['end'"),
        ("read at /tmp/a.txt\nstep 1, loss 9\n--- sample 1 of 9\nxyz\n", "and this is printed: 'read at"),
    ],
)
def test_an_output_is_compared_word_by_word(printed: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem) if problem else nullcontext():
        compare_output(SHOWN, printed, {})


@pytest.mark.slow
@pytest.mark.usefixtures("empty_folder")
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
    known, texts = set(sys.modules), list[str]()

    def read() -> str:
        """What was printed; the messages of a command come before its results."""
        found = capsys.readouterr()
        texts.append(found.err + found.out)
        return texts[-1]

    try:
        follower = Follower(
            FETCHED.get(name, {}), SMALLER.get(name, {}), data, tiny, read=read, free=FREE.get(name, {})
        )
        blocks = follower.follow(page)
    finally:
        for module in {"confident", "label_molecules"} & (set(sys.modules) - known):  # a page's own modules
            del sys.modules[module]
    assert blocks >= 3
    assert sum(map(len, texts)) > 300
    assert len(follower.compared) == COMPARED[name], follower.compared
    passed_over = PASSED_OVER.get(name, [])
    assert all(map(str.startswith, follower.passed_over, passed_over)), follower.passed_over
    assert len(follower.passed_over) == len(passed_over), follower.passed_over

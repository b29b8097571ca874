"""Every command of the README runs, and `make demo` is what the README says it is."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.runs import ROOT

from duality.cli.main import main

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line and not line.startswith("#")]
SMALLER = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.steps=3", "training.batch_size=4"]


def test_there_are_commands_of_every_kind() -> None:
    kinds = {" ".join(shlex.split(command)[:2]) for command in COMMANDS}
    assert {"make demo", "make test"} <= kinds
    for command in ("train", "distill", "eval", "sample", "quality", "plot", "compare", "recipes", "data"):
        assert f"duality {command}" in kinds


def test_every_duality_command_runs(
    tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the README's order, in an empty folder, then its Python; trainings are made small and given a text."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(english, "my_text.txt")
    for author in ("austen", "melville"):
        Path("by_author", author).mkdir(parents=True)
        shutil.copy(english, Path("by_author", author, "book.txt"))
    for command in COMMANDS:
        program, *arguments = shlex.split(command, comments=True)
        if program != "duality" or arguments[:2] == ["data", "get"]:
            continue
        if arguments[0] in ("train", "compare"):
            if "--data" not in arguments:
                arguments += ["--data", "by_author" if "duo-laptop-authors" in arguments else "my_text.txt"]
            arguments += ["--set", *SMALLER]
        if arguments[0] == "distill":
            arguments[arguments.index("--round-steps") + 1] = "2"
        if arguments[0] == "quality":  # a judge is large, and needs packages of its own
            arguments[arguments.index("--judge") + 1] = "none"
            arguments += ["--num", "2"]
        assert main(arguments) == 0, command
    for snippet in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(snippet, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 1000


@pytest.mark.network
def test_the_corpus_can_be_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    command = next(command for command in COMMANDS if command.startswith("duality data get"))
    code = main(shlex.split(command)[1:])
    output = capsys.readouterr()
    if code == 2 and "cannot download" in output.err:
        pytest.skip("the package index cannot be reached: " + output.err.strip())
    assert code == 0
    assert all(Path(line).stat().st_size > 50_000 for line in output.out.splitlines())


def test_make_demo_is_what_the_readme_lists() -> None:
    plan = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for command in ("duality train duo-laptop --out runs/demo --resume", "duality eval runs/demo"):
        assert command in COMMANDS
        assert command in plan
    assert "for steps in 8 32" in plan
    assert "for tail in ancestral greedy" in plan


def test_nothing_is_left_to_fill_in() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert "@@" not in page.read_text(encoding="utf-8"), page


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"

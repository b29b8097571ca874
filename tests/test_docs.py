"""The documentation is true: its commands and code run, its links and names exist, nothing is left to fill in."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import hub as hubs
from support.runs import ROOT

from duality.cli import COMMANDS as CLI
from duality.cli.main import main

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README, COMMAND_LINE, EXTENDING, ARCHITECTURE, HUB = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/cli.md", "docs/extending.md", "docs/architecture.md", "docs/hub.md")
)
SMALLER = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.steps=3", "training.batch_size=4"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> list[str]:
    return [line for block in blocks(page, "bash") for line in block.splitlines() if line and not line.startswith("#")]


def test_there_are_commands_of_every_kind() -> None:
    assert {"make demo", "make test"} <= set(commands(README))
    kinds = {" ".join(shlex.split(command)[:2]) for command in commands(COMMAND_LINE)}
    assert {f"duality {name}" for name in CLI} <= kinds
    for name in CLI:
        assert f"`duality {name}" in COMMAND_LINE, f"{name} has no row in the table of docs/cli.md"


def run_commands(page: str) -> None:
    """In the page's order; trainings are made small and given a text."""
    for command in commands(page):
        program, *arguments = shlex.split(command, comments=True)
        # what would download much, or take long: tests/data and tests/reproduction do it on a small scale
        if program != "duality" or arguments[:2] == ["data", "get"] or arguments[0] == "reproduce":
            continue
        # what others have released is not on this machine: tests/runs/test_importing.py has it on a small scale
        if arguments[0] in ("import", "export"):
            continue
        if arguments[0] == "studio":  # it answers until it is ended: tests/studio starts it
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


@pytest.fixture
def beside_texts(tmp_path: Path, english: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the texts that the pages name."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(english, "my_text.txt")
    for author in ("austen", "melville"):
        Path("by_author", author).mkdir(parents=True)
        shutil.copy(english, Path("by_author", author, "book.txt"))
    paragraphs = english.read_text(encoding="utf-8").split("\n\n")
    with Path("papers.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "abstract"), *enumerate(paragraphs)])
    Path("other.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in paragraphs), encoding="utf-8")


@pytest.mark.usefixtures("beside_texts")
@pytest.mark.parametrize("page", [README, COMMAND_LINE], ids=["README.md", "cli.md"])
def test_every_duality_command_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_commands(page)
    assert len(capsys.readouterr().out) > 500


@pytest.mark.usefixtures("beside_texts")
def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = blocks(README, "python")
    assert len(snippet.splitlines()) <= 13
    exec(compile(snippet, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 100


@pytest.mark.usefixtures("beside_texts")
def test_the_page_about_the_hub_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code and its commands in their order, with a small hub on loopback."""
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    assert main(["train", "duo-laptop", "--out", "runs/mine", "--data", "my_text.txt", "--set", *SMALLER]) == 0
    with hubs.serving() as hub:
        hubs.use(monkeypatch, hub.endpoint, Path("cache").resolve())
        for language, block in re.findall(r"```(bash|python)\n(.*?)```", HUB, re.DOTALL):
            if language == "python":
                exec(compile(block, "hub.md", "exec"), {})
            else:
                run_commands(f"```bash\n{block}```")
    assert len(capsys.readouterr().out) > 500


@pytest.mark.parametrize("number", range(len(blocks(EXTENDING, "python"))))
def test_every_example_of_extending_runs(number: int, tmp_path: Path) -> None:
    """Each in a process of its own, because it registers what it adds."""
    script = tmp_path / "example.py"
    script.write_text(blocks(EXTENDING, "python")[number], encoding="utf-8")
    found = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.network
def test_the_corpus_can_be_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    command = next(command for command in commands(COMMAND_LINE) if command.startswith("duality data get"))
    code = main(shlex.split(command)[1:])
    output = capsys.readouterr()
    if code == 2 and "cannot download" in output.err:
        pytest.skip("the package index cannot be reached: " + output.err.strip())
    assert code == 0
    files = [word for line in output.out.splitlines() for word in line.split() if word.endswith(".txt")]
    assert len(files) == 11
    assert all(Path(file).stat().st_size > 50_000 for file in files)


@pytest.mark.parametrize(("target", "page"), [("demo", "demo.md"), ("demo-molecules", "molecules.md")])
def test_a_demo_is_what_its_page_lists(target: str, page: str) -> None:
    plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    planned = [f"duality {line.partition('/duality ')[2]}" for line in plan.splitlines() if "/duality " in line]
    listed = commands((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(planned) >= 4
    assert listed[: len(planned)] == planned


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "@@" not in text
    assert "TODO" not in text
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)\)", prose):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_every_name_that_the_architecture_links_is_defined_there() -> None:
    links = re.findall(r"\[`([\w.]+)(?:\(\))?`\]\(\.\./(src/[\w/]+\.py)\)", ARCHITECTURE)
    assert len(links) > 30
    for name, file in links:
        text = (ROOT / file).read_text(encoding="utf-8")
        leaf = name.rpartition(".")[2]
        known = re.search(rf"^\s*(def|class) {leaf}\b|^{leaf}\b.*=", text, re.MULTILINE)
        assert known or file.endswith((f"/{leaf}.py", f"/{leaf}/__init__.py")), f"{file} has no {name}"


def test_every_module_stands_in_the_architecture() -> None:
    for path in (ROOT / "src" / "duality").rglob("*.py"):
        if not path.stem.startswith("_"):
            assert re.search(rf"\b{path.stem}\b", ARCHITECTURE), f"{path.stem} is not in docs/architecture.md"


def test_the_hooks_use_the_pinned_formatter() -> None:
    pinned = re.search(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert pinned
    assert f"rev: v{pinned.group(1)}" in hooks

"""The documentation is true: its commands and code run, its links and names exist, nothing is left to fill in."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from support import hub as hubs
from support.pages import BLOCK, MORE, compare_output, without_texts
from support.runs import ROOT

from duality.cli import COMMANDS as CLI
from duality.cli.main import main

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README, QUICKSTART, COMMAND_LINE, EXTENDING, ARCHITECTURE, RELEASED = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in (
        "README.md",
        "docs/quickstart.md",
        "docs/cli.md",
        "docs/extending.md",
        "docs/architecture.md",
        "docs/guides/released-weights.md",
    )
)
HUB = RELEASED.partition("\n## 4. ")[2]  # tests/test_guides.py follows what stands before it
SMALLER = ["data.tokenizer=bytes", "data.length=32", "backbone=nano", "training.steps=3", "training.batch_size=4"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> list[str]:
    return [line for block in blocks(page, "bash") for line in block.splitlines() if line and not line.startswith("#")]


def generator() -> ModuleType:
    """The program that writes the generated parts of pages; docs/site is no package."""
    specification = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "site" / "generate.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


# Files that a reader of a page makes, and those of the past.
MADE_BY_READERS = {
    "samplers/renoise.py",
    "samplers/confident.py",
    "trackers/latest.py",
    "experiments/denoising_picture.py",
}


def test_files_that_are_named_exist() -> None:
    """``room/module.py`` in a page, or in the comments of the project's settings, is a file that is there."""
    known = {
        str(path.relative_to(ROOT))
        for room in ("src", "tests", "benchmarks", "experiments", "docs")
        for path in (ROOT / room).rglob("*.py")
    }
    for page in (*PAGES, ROOT / "pyproject.toml", ROOT / "tests" / "golden" / "README.md"):
        for name in re.findall(r"\b(?:[a-z_]+/)+[a-z_]+\.py\b", page.read_text(encoding="utf-8")):
            there = name.endswith(tuple(MADE_BY_READERS)) or any(f"/{path}".endswith(f"/{name}") for path in known)
            assert there, f"{page.name} names {name}"


def test_there_are_commands_of_every_kind() -> None:
    assert {"make demo", "make test"} <= set(commands(README))
    kinds = {" ".join(shlex.split(command)[:2]) for command in commands(QUICKSTART)}
    assert {f"duality {name}" for name in CLI} <= kinds
    for name in CLI:
        assert f"\n## duality {name}\n\nExamples: [Quickstart](quickstart.md)" in COMMAND_LINE


@pytest.mark.parametrize("name", ["architecture.md", "cli.md"])
def test_generated_parts_are_up_to_date(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert generator().renewed(name) == page, "run `python docs/site/generate.py`"


def test_help_loses_its_rules_and_a_sentence_ends_before_the_next() -> None:
    module = generator()
    assert module.without_rules("usage: x\n\n options\n -----\n  -h  help\n") == "usage: x\n\noptions:\n  -h  help"
    assert module.first_sentence(ROOT / "src" / "duality" / "noise.py") == "Randomness as a function instead of a state"


def run_commands(page: str) -> None:
    """In the page's order; trainings are made small and given a text."""
    for command in commands(page):
        program, *arguments = shlex.split(command, comments=True)
        # what would download much, or take long: tests/data and tests/papers do it on a small scale
        if program != "duality" or arguments[:2] == ["data", "get"] or arguments[0] == "reproduce":
            continue
        # what others have released is not on this machine: tests/hub/test_importing.py has it on a small scale
        if arguments[0] in ("import", "export"):
            continue
        if arguments[0] == "studio":  # it answers until it is ended: tests/studio starts it
            continue
        if arguments[0] == "doctor":
            arguments += ["--objectives", "ar"]
        if arguments[0] in ("train", "compare"):
            if "--data" not in arguments:
                arguments += ["--data", "by_author" if "duo-laptop-authors" in arguments else "my_text.txt"]
            arguments += ["--set", *SMALLER]
        if arguments[0] == "distill":
            if "--round-steps" not in arguments:
                arguments += ["--round-steps", "2"]
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
@pytest.mark.parametrize("page", [README, QUICKSTART], ids=["README.md", "quickstart.md"])
def test_every_duality_command_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_commands(page)
    assert len(capsys.readouterr().out) > 500


@pytest.mark.usefixtures("beside_texts")
def test_the_demo_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Word by word, but for numbers, the corpus and the samples; "…" stands for what the page leaves out."""
    demo, printed = QUICKSTART.partition("\n## The demo\n")[2].partition("\n## ")[0], ""
    for command in commands(demo):
        run_commands(f"```bash\n{command}\n```")
        found = capsys.readouterr()
        printed += found.err + (without_texts(found.out) if command.startswith("duality sample ") else found.out)
    shown = [code for language, code in BLOCK.findall(demo) if not language]
    assert len(shown) == 2
    compare_output("".join(shown), printed, {r"on validation of \S+": "on validation of the corpus"}, MORE)


@pytest.mark.usefixtures("beside_texts")
def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = blocks(README, "python")
    assert len(snippet.splitlines()) <= 13
    exec(compile(snippet, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 100


@pytest.mark.usefixtures("beside_texts")
def test_what_is_said_about_the_hub_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code and its commands in their order, with a small hub on loopback."""
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    assert main(["train", "duo-laptop", "--out", "runs/bytes", "--data", "my_text.txt", "--set", *SMALLER]) == 0
    with hubs.serving() as hub:
        hubs.use(monkeypatch, hub.endpoint, Path("cache").resolve())
        for language, block in re.findall(r"```(bash|python)\n(.*?)```", HUB, re.DOTALL):
            if language == "python":
                exec(compile(block, "released-weights.md", "exec"), {})
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
    command = next(command for command in commands(QUICKSTART) if command.startswith("duality data get"))
    code = main(shlex.split(command)[1:])
    output = capsys.readouterr()
    if code == 2 and "cannot download" in output.err:
        pytest.skip("the package index cannot be reached: " + output.err.strip())
    assert code == 0
    files = [word for line in output.out.splitlines() for word in line.split() if word.endswith(".txt")]
    assert len(files) == 11
    assert all(Path(file).stat().st_size > 50_000 for file in files)


@pytest.mark.parametrize(("target", "page"), [("demo", "quickstart.md"), ("demo-molecules", "guides/molecules.md")])
def test_a_demo_is_what_its_page_lists(target: str, page: str) -> None:
    plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    planned = [f"duality {line.partition('/duality ')[2]}" for line in plan.splitlines() if "/duality " in line]
    assert len(planned) >= 4
    assert "\n".join(["", *planned, "```"]) in (ROOT / "docs" / page).read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """What a page says outside its blocks of code; of a notebook, its cells of text."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        text = "\n".join(
            "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
        )
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The places of a page that a link may name: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "@@" not in text
    assert "TODO" not in text
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            place = page.parent / file if file else page
            assert place.exists(), target
            assert not anchor or anchor in anchors_of(place), target


def test_every_name_that_the_architecture_links_is_defined_there() -> None:
    links = re.findall(r"\[`([\w.]+)(?:\(\))?`\]\(\.\./(src/[\w/]+\.py)\)", ARCHITECTURE)
    assert len(links) > 30
    for name, file in links:
        text = (ROOT / file).read_text(encoding="utf-8")
        leaf = name.rpartition(".")[2]
        known = re.search(rf"^\s*(def|async def|class) {leaf}\b|^{leaf}\b.*=", text, re.MULTILINE)
        assert known or file.endswith((f"/{leaf}.py", f"/{leaf}/__init__.py")), f"{file} has no {name}"


def test_every_module_stands_in_the_architecture() -> None:
    for path in (ROOT / "src" / "duality").rglob("*.py"):
        if not path.stem.startswith("_"):
            assert re.search(rf"^ *{path.stem}(\.py)? ", ARCHITECTURE, re.MULTILINE), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_the_code_of_a_page_imports_exists(page: Path) -> None:
    """Also in blocks that no test runs, and in names in the text."""
    text = page.read_text(encoding="utf-8")
    for module, names in re.findall(r"^from (duality[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        for name in names.split(", "):
            found = import_module(module)
            assert hasattr(found, name.split(" as ")[0]) or import_module(f"{module}.{name}"), f"{module} has no {name}"
    if page.name == "CHANGELOG.md":
        return
    for name in re.findall(r"`(duality\.[a-z_]+\.[a-z_.]+)(?:\(\))?`|^::: (duality[\w.]+)$", text, re.MULTILINE):
        assert exists("".join(name)), "".join(name)


def exists(name: str) -> bool:
    """Whether a module, or what stands in one, has this name."""
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, leaf = name.rpartition(".")
        return hasattr(import_module(module), leaf)
    return True


def test_paths_that_contributing_names_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Where do I add")[2].partition("\n## ")[0]
    for path in re.findall(r"`([\w/]+(?:/|\.py|\.js|\.yml))`", table):
        assert (ROOT / "src" / "duality" / path).exists() or (ROOT / path).exists(), path
    for registry, path in re.findall(r"`([A-Z_]+)` \(`([\w/]+\.py)`\)", table):
        assert re.search(rf"^{registry}\b", (ROOT / "src" / "duality" / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_error_messages_name_pages_that_exist() -> None:
    for path in (ROOT / "src" / "duality").rglob("*.py"):
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / page).exists(), f"{path} names {page}"


def test_the_hooks_use_the_pinned_formatter() -> None:
    pinned = re.search(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert pinned
    assert f"rev: v{pinned.group(1)}" in hooks

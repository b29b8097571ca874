"""docs/paper.md is written from the index; its GPU-days, numbers, links and commands are true."""

from __future__ import annotations

import functools
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.runs import ROOT

from duality.cli import COMMANDS
from duality.cli import main as command_line
from duality.papers.duo.page import (
    DEVICES,
    FIGURES,
    GPU_DAYS,
    REMARKS,
    TABLES,
    _Measured,
    _sum_days,
    _trainings,
    _write_page,
)
from duality.recipes import catalogue

DOCS = ROOT / "docs"
PAGE = (DOCS / "paper.md").read_text(encoding="utf-8")
INDEXED: tuple[_Measured, ...] = (
    *(series for table in TABLES.values() for series in table.series),
    *FIGURES.values(),
    *REMARKS,
)
# Suites of test sets are measured where `duality eval` has the option.
MEASURED = "suite" in inspect.signature(COMMANDS["eval"]).parameters
EVERY_COMMAND = sorted(
    {command for each in INDEXED for command in each.commands} | {each.plan for each in _trainings()}
)
KNOWN_COMMANDS = [command for command in EVERY_COMMAND if MEASURED or "--suite" not in command]


def test_the_page_is_that_of_the_index() -> None:
    assert _write_page() == PAGE, "the index has changed: run `python -m duality.papers.duo.page > docs/paper.md`"


def test_every_row_figure_and_command_is_on_the_page() -> None:
    for table in TABLES.values():
        section = PAGE.partition(f"\n## Table {table.number}: ")[2].partition("\n## ")[0]
        for number, row in enumerate(table.rows):
            lines = [line for line in section.splitlines() if line.startswith(f"| {table.row_label(number)} |")]
            assert lines, row.label
            shown = {cell.strip() for line in lines for cell in line.split("|")}
            assert {value for value in row.numbers if value != "-"} <= shown
    for figure in FIGURES.values():
        assert f"\n| {figure.number} | {figure.title} |" in PAGE
    printed = set(PAGE.splitlines())
    assert {command for each in INDEXED for command in each.commands} <= printed


def test_every_training_has_its_gpu_days() -> None:
    assert set(GPU_DAYS) == {each.plan for each in _trainings()}, "run `python -m duality.papers.duo.page days`"
    assert all(value > 0 for value in GPU_DAYS.values())


def test_a_distillation_includes_its_base_and_a_training_is_counted_once() -> None:
    series = TABLES[7].series[0]
    base, distilled = (GPU_DAYS[each.plan] for each in series.trainings)
    assert _sum_days(series.trainings) == pytest.approx(base + distilled)
    assert _sum_days((*series.trainings, *series.trainings)) == pytest.approx(base + distilled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar-lm1b", "duo-owt --distill dcd"])
def test_gpu_days_are_days_times_devices_of_the_plan(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command itself. What changes a step by less than this needs no new numbers."""
    recipe, _, option = name.partition(" ")
    plan = f"duality plan {recipe} {DEVICES} {option}".rstrip()
    assert command_line.main([*shlex.split(plan)[1:], "--json"]) == 0
    days = json.loads(capsys.readouterr().out)["speed"]["days"]
    again = "the cost of a step has changed: run `python -m duality.papers.duo.page days`"
    assert GPU_DAYS[plan] == pytest.approx(days * 8, rel=0.1), again


def test_our_numbers_are_those_of_the_results() -> None:
    results = (DOCS / "results.md").read_text(encoding="utf-8")
    assert TABLES[1].small
    assert TABLES[3].small
    for name, value in (*TABLES[1].small.items(), *TABLES[3].small.items()):
        (line,) = [
            line
            for line in results.splitlines()
            if line.startswith(f"| {name} | 1.") or line.startswith(f"| {name} | 0.")
        ]
        assert f"| {value} |" in line


def anchor(heading: str) -> str:
    """The anchor that Markdown gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_to_headings() -> None:
    links = re.findall(r"\]\((\w+\.md)#([\w-]+)\)", PAGE)
    assert len(links) >= 7
    for file, target in links:
        headings = re.findall(r"^#+ (.*)$", (DOCS / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert target in {anchor(heading) for heading in headings}, target


def stub(command: Callable[..., int]) -> Callable[..., int]:
    """A command with the same arguments that does nothing."""

    @functools.wraps(command)
    def nothing(*_arguments: object, **_options: object) -> int:
        return 0

    return nothing


def test_every_command_is_understood(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command_line, "COMMANDS", {name: stub(command) for name, command in COMMANDS.items()})
    assert len(KNOWN_COMMANDS) > 60
    for command in KNOWN_COMMANDS:
        program, *arguments = shlex.split(command)
        assert program == "duality"
        assert command_line.main(arguments) == 0, (command, capsys.readouterr().err)
    with pytest.raises(SystemExit):  # of the parser: a wrong option would be seen
        command_line.main(["plan", "duo-owt", "--device", "8"])


def test_every_change_of_a_recipe_is_accepted() -> None:
    for command in EVERY_COMMAND:
        words = shlex.split(command)
        if words[1] in ("train", "plan") and "--set" in words:
            assert catalogue.recipe(words[2], tuple(words[words.index("--set") + 1 :])) != catalogue.recipe(words[2])


def test_showing_a_table_imports_no_torch() -> None:
    script = (
        "import sys\nfrom duality.cli.main import main\n"
        "assert main(['recipes', '--table', '2']) == 0\nassert 'torch' not in sys.modules"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in shown.splitlines() if "Duo (Ours)    duo-owt" in line]
    assert line.split()[-7:] == list(TABLES[2].rows[7].numbers)
    assert "duality eval runs/duo-owt --suite zero-shot" in shown


@pytest.mark.parametrize("number", TABLES)
def test_every_table_can_be_shown(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["recipes", "--table", str(number)]) == 0
    shown = capsys.readouterr().out
    for series in TABLES[number].series:
        assert all(f"  {command}\n" in shown for command in series.commands)
    for row in TABLES[number].rows:
        assert all(value in shown for value in row.numbers if value != "-")

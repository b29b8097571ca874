"""Wheel and sdist: what is in them, and one version everywhere. `make dist` also installs them."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.runs import ROOT

import duality

CACHES = {"__pycache__", ".ipynb_checkpoints"}


def built(kind: str, folder: Path) -> Path:
    """The wheel or the sdist of the working tree, by the build backend itself: no network, no isolated environment."""
    pytest.importorskip("hatchling", reason="needs the extra dev")
    call = f"import hatchling.build as build; print(build.build_{kind}({str(folder)!r}))"
    made = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder / made.stdout.split()[-1]


def files_below(folder: str) -> set[str]:
    """The files of a folder of the repository, without caches."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and not CACHES & set(path.parts))
    return {path.relative_to(ROOT).as_posix() for path in found}


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(built("wheel", tmp_path)) as wheel:
        names = set(wheel.namelist())
        information = {Path(name).name: wheel.read(name).decode() for name in names if ".dist-info/" in name}
    content = {name for name in names if ".dist-info/" not in name}
    assert content == {name.removeprefix("src/") for name in files_below("src/duality")}
    assert {"duality/py.typed", "duality/runs/recipe_list.json"} <= content
    assert f"\nVersion: {duality.__version__}\n" in information["METADATA"]
    assert "duality = duality.cli.main:script" in information["entry_points.txt"]
    assert "LICENSE" in information


@pytest.mark.slow
def test_the_sdist_has_what_the_tests_and_the_documentation_need(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("src", "tests", "benchmarks", "experiments", "docs", ".ci", ".github/workflows")
    needed = set[str]().union(*(files_below(folder) for folder in folders))
    single = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff", "Makefile", "constraints.txt"}
    single |= {"mkdocs.yml", "pyproject.toml", ".pre-commit-config.yaml"}
    assert not (needed | single) - names
    assert not [name for name in names if name.startswith(("runs/", "build/", ".venv/", "dist/"))]


def test_the_version_stands_in_one_place() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE).group(1) == duality.__version__  # type: ignore[union-attr]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project
    assert 'path = "src/duality/__init__.py"' in project


@pytest.mark.parametrize("program", [["-m", "duality"], ["-m", "duality.cli"]], ids=" ".join)
def test_the_command_says_its_version(program: list[str]) -> None:
    said = subprocess.run([sys.executable, *program, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"duality {duality.__version__}\n"


def test_every_extra_stands_in_the_quickstart() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", section, re.MULTILINE)
    table = (
        (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8").partition("## Extras")[2].partition("\n## ")[0]
    )
    rows = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    assert len(extras) > 8
    assert set(extras) == set(re.findall(r"`(\w+)`", rows))

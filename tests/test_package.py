"""The package as a whole: imports point downwards, are quick, and touch neither network nor pickle."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import duality

SOURCE = Path(duality.__file__).parent

# From the ground up: a room imports from the rooms before it and from itself.
ROOMS = (
    "noise",
    "protocols",
    "diffusion",
    "fused",
    "networks",
    "denoisers",
    "objectives",
    "samplers",
    "methods",
    "data",
    "training",
    "recipes",
    "evaluation",
    "runs",
    "cli",
)
# In these rooms a file may import its room's ``base`` only: siblings never import each other.
SEPARATE = ("objectives", "samplers", "methods")


def module_of(path: Path) -> str:
    return str(path.relative_to(SOURCE).with_suffix("")).replace("/", ".").removesuffix(".__init__")


MODULES = {module_of(path) for path in SOURCE.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("duality"):
            base = node.module.removeprefix("duality").lstrip(".")
            for alias in node.names:
                joined = f"{base}.{alias.name}".lstrip(".")
                found.add(joined if joined in MODULES else base)
    return found - {""}


def test_the_root_has_nothing_but_rooms() -> None:
    found = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_") and path.name != "py.typed"}
    assert found == set(ROOMS)


def test_imports_point_downwards() -> None:
    for path in SOURCE.rglob("*.py"):
        module = module_of(path)
        room = module.split(".")[0]
        if room in ("__init__", "__main__"):
            continue
        for imported in imports_of(path):
            assert ROOMS.index(imported.split(".")[0]) <= ROOMS.index(room), f"{module} imports {imported}"


def seconds(code: str) -> float:
    script = f"import time; import torch; start = time.process_time()\n{code}\nprint(time.process_time() - start)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(result.stdout)


def test_import_adds_little_to_torch() -> None:
    """Everything but plots, at most 2 s of computing more than torch; the best of three, as the machine may be busy."""
    all_rows = "import duality\nfor name in duality.__all__: getattr(duality, name)"
    assert min(seconds(all_rows) for _ in range(3)) < 2.0


def test_import_opens_no_connection() -> None:
    script = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network at import')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "import duality\nfor name in duality.__all__: getattr(duality, name)\nimport duality.cli.main"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_exists() -> None:
    for name in duality.__all__:
        assert getattr(duality, name) is not None
    assert duality.__version__


def test_nothing_loads_a_pickle() -> None:
    forbidden = re.compile(
        r"\btorch\.load\b|\bpickle\b|allow_pickle=True|\bjoblib\b|\bmarshal\b|(?<!\.)\beval\(|\bexec\("
    )
    for path in SOURCE.rglob("*.py"):
        assert not forbidden.search(path.read_text()), path


def test_files_stay_readable() -> None:
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, f"{path} is one idea too many"

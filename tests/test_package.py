"""The package as a whole: imports point downwards, are quick, and touch neither network nor pickle."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import duality

SOURCE = Path(duality.__file__).parent

# From the ground up; a module may import from earlier lines only.
# Siblings of objectives and samplers never import each other.
LAYERS = [
    ["noise", "files"],
    ["protocols"],
    ["functional", "gaussian", "config", "checkpoint", "metrics", "grids", "divergences"],
    ["schedules", "processes", "answers"],
    ["wrappers", "generate", "backbones.dit", "theory", "heads"],
    ["bounds", "formulas"],
    ["denoiser", "vlb", "routing"],
    [
        "objectives.autoregressive",
        "objectives.consistency",
        "objectives.curriculum",
        "objectives.discrete_time",
        "objectives.masked",
        "objectives.nelbo",
        "objectives.score_entropy",
        "objectives.sdtt",
        "samplers.analytic",
        "samplers.ancestral",
        "samplers.autoregressive",
        "samplers.psi",
    ],
    ["objectives", "samplers", "data"],
    ["baselines.bert_mouth", "baselines.diffusion_bert", "baselines.diffusion_lm", "baselines.plaid"],
    ["baselines"],
    ["distillation", "methods", "train", "evaluate.likelihood", "evaluate.judge", "provenance"],
    ["evaluate.quality"],
    ["evaluate", "recipes", "report.curves", "report.quality"],
    ["model", "console"],
    ["run"],
    ["compare", "shaping", "describe", "quality", "watch"],
    ["commands"],
    ["cli"],
]


def layer_of(module: str) -> int:
    """The deepest entry that names the module or a package above it."""
    for depth, names in enumerate(LAYERS):
        if module in names:
            return depth
    parent = module.rpartition(".")[0]
    assert parent, f"{module} has no layer: add it to LAYERS"
    return layer_of(parent)


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    names = {
        str(p.relative_to(SOURCE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for p in SOURCE.rglob("*.py")
    }
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("duality"):
            base = node.module.removeprefix("duality").lstrip(".")
            for alias in node.names:
                joined = f"{base}.{alias.name}".lstrip(".")
                found.add(joined if joined in names else base)
    return found - {""}


def test_imports_point_downwards() -> None:
    for path in SOURCE.rglob("*.py"):
        module = str(path.relative_to(SOURCE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        if module in ("__init__", "__main__", "backbones", "report"):
            continue
        for imported in imports_of(path):
            inside = module.split(".")[0] == imported.split(".")[0] and module.split(".")[0] in (
                "commands",
                "data",
                "recipes",
            )
            assert inside or layer_of(imported) < layer_of(module), f"{module} imports {imported}"


def seconds(code: str) -> float:
    script = f"import time; import torch; start = time.process_time()\n{code}\nprint(time.process_time() - start)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(result.stdout)


def test_import_adds_little_to_torch() -> None:
    """Everything but plots, at most 2 s of computing more than torch; the best of three, as the machine may be busy."""
    everything = "import duality\nfor name in duality.__all__: getattr(duality, name)"
    assert min(seconds(everything) for _ in range(3)) < 2.0


def test_import_opens_no_connection() -> None:
    script = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network at import')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "import duality\nfor name in duality.__all__: getattr(duality, name)\nimport duality.cli"
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

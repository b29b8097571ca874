"""Every kernel compiles for the GPUs that people have, and keeps all its numbers in registers. No GPU is needed."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed: make test-gpu")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)
row_kernels, residual_kernels = map(import_module, ("duality.fused.row_kernels", "duality.networks.residual_kernels"))
GPUTarget, ASTSource = import_module("triton.backends.compiler").GPUTarget, import_module("triton.compiler").ASTSource

LOGITS, KINDS = ("bf16", "fp32"), ("kl-backward", "kl-forward", "mse", "tvd")
REDUCE, PULL = {"K": 50257, "BLOCK": 2048}, {"K": 50257, "BLOCK": 1024, "ROWS": 64, "SUMS": True}
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "reduce_exponentials": (16, {**REDUCE, "TOTAL": False}),
    "reduce_exponentials with total": (16, {**REDUCE, "TOTAL": True}),
    "reduce_log_count": (16, REDUCE),
    "pull_exponentials": (4, {**PULL, "SHARES": False}),
    "pull_exponentials of shares": (4, {**PULL, "SHARES": True}),
    **{f"reduce_divergence {kind}": (16, {**REDUCE, "KIND": kind}) for kind in KINDS},
    **{f"pull_divergence {kind}": (4, {**PULL, "KIND": kind}) for kind in KINDS},
}
POINTERS = {
    "logits": "*{}", "student_ptr": "*{}", "target_ptr": "*{}", "student": "*{}", "target": "*{}", "out": "*fp64",
    "kappa_ptr": "*fp64", "evidence": "*fp32", "factors": "*fp32", "sums": "*fp32", "ld": "i32", "target_ld": "i32",
    "n": "i32",
}  # fmt: skip


def build(module: Any, name: str, types: dict[str, str], constants: dict[str, Any], warps: int, target: str) -> Any:
    """The kernel, compiled ahead of time as it is started: pointers and widths of rows are multiples of 16."""
    function = getattr(module, name)
    signature = {each: "constexpr" if each in constants else types.get(each, "*i64") for each in function.arg_names}
    places = {each: place for place, each in enumerate(function.arg_names)}
    aligned = {
        (places[each],): [["tt.divisibility", 16]]
        for each, kind in signature.items()
        if kind.startswith("*") or each.endswith("ld")
    }
    source = ASTSource(function, signature, {(places[each],): value for each, value in constants.items()}, aligned)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": warps})


def count_spills(kernel: Any, target: str, folder: Path) -> int:
    """Numbers that do not fit into registers, as the assembler reports them."""
    if target.startswith("gfx"):
        return sum(int(count) for count in re.findall(r"\.[sv]gpr_spill_count: +(\d+)", kernel.asm["amdgcn"]))
    source = folder / "kernel.ptx"
    source.write_text(kernel.asm["ptx"])
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    arch = target + ("a" if target == "sm_90" else "")
    command = [str(tools / "ptxas"), "-v", f"-arch={arch}", str(source), "-o", str(folder / "kernel.cubin")]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "registers" in report
    return sum(int(count) for count in re.findall(r"(\d+) bytes spill", report))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["add_dropped", "pull_dropped"])
def test_kernels_of_dropout_compile_without_spills(name: str, target: str, tmp_path: Path) -> None:
    types = {"length": "i32", "level": "i32", "scale": "fp32", "x_ptr": "*fp32", "slope_ptr": "*fp32", "sums": "*fp32"}
    types |= {"update_ptr": "*bf16", "gate_ptr": "*bf16", "out": "*fp32" if name == "add_dropped" else "*bf16"}
    for width in (768, 1024):
        constants = {"D": width, "GATE": True, "ROWS": 32, "WORDS": 64}
        kernel = build(residual_kernels, name, types, constants, 2, target)
        assert count_spills(kernel, target, tmp_path) == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_row_kernels_compile_without_spills(case: str, target: str, tmp_path: Path) -> None:
    warps, constants = CASES[case]
    for dtype in LOGITS if target == "sm_90" else LOGITS[:1]:
        types = {name: kind.format(dtype) for name, kind in POINTERS.items()}
        kernel = build(row_kernels, case.split()[0], types, constants, warps, target)
        assert count_spills(kernel, target, tmp_path) == 0

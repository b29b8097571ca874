"""`duality doctor`: it runs for real, on this machine; what fails is reported and decides the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from duality.cli.main import main
from duality.files.progress import silent
from duality.fused.formulas import CrossEntropy
from duality.runs import checks, doctor
from duality.runs.checks import Check, list_checks, run_check

CPU = torch.device("cpu")


def test_the_command_checks_and_times_and_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "doctor.json"
    assert main(["doctor", "--device", "cpu", "--objectives", "ar", "duo, bound", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "nothing failed" in printed
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["passed"]
    assert found["facts"]["torch"] == torch.__version__
    assert {check["name"] for check in found["checks"]} == {name for name, _ in list_checks(CPU)}
    assert all(check["error"] <= check["allowed"] for check in found["checks"])
    assert [step["name"] for step in found["steps"]] == ["duo, bound", "ar"]
    for step in found["steps"]:
        assert step["tokens_per_second"] > 0
        assert any("mm" in name for name in step["operators"])


def test_what_fails_is_reported_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such kernel\non this device")

    monkeypatch.setattr(checks, "_check_noise", fail)
    monkeypatch.setattr(doctor, "network", fail)
    out = tmp_path / "doctor.json"
    assert main(["doctor", "--device", "cpu", "--objectives", "ar", "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "something failed" in printed
    assert printed.count("RuntimeError: no such kernel") == 2
    found = json.loads(out.read_text(encoding="utf-8"))
    assert not found["passed"]
    assert [check["name"] for check in found["checks"] if not check["passed"]] == ["noise"]
    assert found["steps"][0]["problem"] == "RuntimeError: no such kernel"


def test_a_wrong_loss_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that is wrong in float32 alone, as a kernel may be."""
    read = CrossEntropy.read

    def wrong(self: CrossEntropy, logits: torch.Tensor) -> object:
        if logits.dtype == torch.float32:
            logits[:, 0] += 1
        return read(self, logits)

    monkeypatch.setattr(CrossEntropy, "read", wrong)
    found = {name: run_check(name, check) for name, check in list_checks(CPU)}
    assert [name for name, check in found.items() if not check.passed] == ["loss, cross-entropy"]


def test_an_error_that_is_no_number_fails() -> None:
    assert not Check("loss", float("nan"), 1.0).passed


def test_an_objective_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no objective 'gan': choose from duo, curriculum; duo, bound; mdlm"):
        doctor.examine(CPU, silent, ("gan",))

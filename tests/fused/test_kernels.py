"""Where kernels run, with triton and without it."""

from __future__ import annotations

import pytest
import torch

from duality.fused import kernels
from duality.fused.formulas import CrossEntropy
from duality.fused.lazy import Belief
from duality.fused.row_readers import find_reader

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUALITY_KERNELS", raising=False)
    kernels.find_fault.cache_clear()


def test_kernels_run_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_fault", lambda _device: None)
    assert kernels.kernels_run(GPU)
    assert not kernels.kernels_run(CPU)
    assert not kernels.kernels_run(torch.device("mps"))


def test_without_triton_pytorch_reads_the_rows_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda _name: None)
    assert kernels.find_fault(GPU) == "triton is not installed"
    assert not kernels.kernels_run(GPU)
    assert not recwarn.list


def test_a_compiler_that_fails_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that PyTorch does not find here stands for what stops triton elsewhere."""
    monkeypatch.setattr(kernels, "find_spec", lambda _name: "there")
    with pytest.warns(UserWarning, match="PyTorch computes the losses instead"):
        assert not kernels.kernels_run(GPU)
    assert not kernels.kernels_run(GPU)  # a second warning would be an error
    assert kernels.find_fault(GPU)


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = Belief(torch.zeros(1, 2, 4), torch.nn.Linear(4, 6), 6, 6)
    formula = CrossEntropy(torch.zeros(2, dtype=torch.int64), torch.ones(2))
    assert find_reader(lazy, formula) is None
    monkeypatch.setenv("DUALITY_KERNELS", "on")
    assert find_reader(lazy, formula) is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert find_reader(lazy, formula) is not None
    with torch.autocast("cpu", torch.float16):
        assert find_reader(lazy, formula) is None
    monkeypatch.setenv("DUALITY_KERNELS", "off")
    assert not kernels.kernels_run(GPU)
    monkeypatch.setenv("DUALITY_KERNELS", "yes")
    with pytest.raises(ValueError, match="choose from auto, on, off"):
        kernels.kernels_run(GPU)

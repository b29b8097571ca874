"""Every method and sampler on a pretend GPU: no operator mixes CPU and GPU, and the host hardly ever waits.

A training step waits twice at most: to know which positions have a loss, and to know whether the weights may be
changed. A sampling step does not wait at all. There is no GPU: ``device`` says what is pretended. The cases of a group
run in one process of their own, as the library that makes PyTorch believe in a GPU has to be loaded first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import cast

import pytest
import torch
from gpu.cases import GROUPS, LIKELIHOOD, RUNS, SAMPLING, TRAINING
from support.runs import ROOT

from duality.methods import METHODS

HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: install g++, or name one in CXX")

Found = dict[str, int] | str | None  # how often the host waits where; a traceback; None if waits are not counted
Groups = Callable[[str], dict[str, Found]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``guard.cpp`` as a library for this PyTorch."""
    from torch.utils.cpp_extension import include_paths

    out = tmp_path_factory.mktemp("guard") / "guard.so"
    where = Path(torch.__file__).parent / "lib"
    command = [str(COMPILER), "-O0", "-std=c++20", "-shared", "-fPIC", *(f"-I{path}" for path in include_paths())]
    linked = [f"-L{where}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{where}"]
    done = subprocess.run([*command, str(HERE / "guard.cpp"), *linked, "-o", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def groups(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """What the cases of a group gave; each group runs once."""

    @lru_cache
    def run(name: str) -> dict[str, Found]:
        folder = tmp_path_factory.mktemp(name)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(ROOT), *sys.path])
        done = subprocess.run(
            [sys.executable, str(HERE / "run_cases.py"), str(library), name, str(folder)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return cast(dict[str, Found], json.loads(done.stdout))

    return run


def waits_of(found: Found, most: int) -> None:
    """A case that ended well, and whose host waits at most so often."""
    assert not isinstance(found, str), found
    places = "\n".join(f"  {count} x {place}" for place, count in (found or {}).items())
    assert sum((found or {}).values()) <= most, f"the host waits for the device:\n{places}"


def test_every_method_is_there() -> None:
    for group in (TRAINING, SAMPLING, LIKELIHOOD):
        assert group.keys() >= set(METHODS)


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_step_waits_twice_at_most(name: str, groups: Groups) -> None:
    waits_of(groups("training")[name], 2)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_sampling_step_never_waits(name: str, groups: Groups) -> None:
    waits_of(groups("sampling")[name], 0)


@pytest.mark.parametrize("name", LIKELIHOOD)
def test_a_likelihood_mixes_no_devices(name: str, groups: Groups) -> None:
    waits_of(groups("likelihood")[name], 0)


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run_mixes_no_devices(name: str, groups: Groups) -> None:
    waits_of(groups("runs")[name], 0)


@pytest.mark.parametrize("name", GROUPS["device"])
def test_the_pretend_device(name: str, groups: Groups) -> None:
    """That it sees what a GPU would refuse, or wait for, and that its numbers are those of the CPU."""
    waits_of(groups("device")[name], 0)

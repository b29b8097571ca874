"""What a machine can do: its versions, its kernels against their reference, and a step of every objective.

    facts       device, versions, threads, instruction sets, the compilers that Triton and ``torch.compile`` need
    checks      numbers of the device against float64 on a CPU (``checks``)
    steps       some training steps of every objective: tokens in a second, the share of the peak, the lines at which
                the host waits for the device (by CUDA's own report), the operators that take longest

Everything runs on any device, at a size that takes a minute at most. A part that fails is reported, and the others go
on: this is for a machine on which something is wrong.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from types import FrameType

import torch

from duality import __version__
from duality.data.loader import Batch
from duality.files.progress import Reporter, working
from duality.fused import kernels
from duality.models.plan import operations_per_second
from duality.models.size import expected_vocabulary
from duality.models.trained import network
from duality.noise import Noise
from duality.recipes import catalogue
from duality.recipes.derive import derive_distillation, method_phases
from duality.recipes.recipe import Recipe
from duality.runs.checks import Check, list_checks, run_check
from duality.training.loop import TrainState, take_step
from duality.training.precision import has_bfloat16

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_EXTRAS = ("triton", "tokenizers", "safetensors", "transformers", "datasets")
_STEPS = 3  # timed, after two more


@dataclass(frozen=True)
class Timing:
    """The training steps of an objective; ``waits`` are lines and how often the host waits there in a step."""

    name: str
    tokens_per_second: float
    step_seconds: float
    mfu: float | None
    waits: dict[str, int] | None
    operators: dict[str, float]
    """seconds of the operators that take longest"""
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class Findings:
    """Everything that was found."""

    facts: dict[str, str]
    checks: tuple[Check, ...]
    timings: tuple[Timing, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(each.passed for each in self.checks) and all(each.passed for each in self.timings)

    def as_json(self) -> dict[str, object]:
        """All of it, for a file."""
        checks = [{**asdict(each), "passed": each.passed} for each in self.checks]
        return {"passed": self.passed, "facts": self.facts, "checks": checks, "steps": list(map(asdict, self.timings))}


def examine(device: torch.device, report: Reporter, names: tuple[str, ...] = ()) -> Findings:
    """Check a device, and time the objectives of these names, all of them if none is given."""
    known = _recipes(device)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no objective {unknown[0]!r}: choose from {'; '.join(known)}")
    objectives = {name: recipe for name, recipe in known.items() if not names or name in names}
    parts = [*list_checks(device), *((name, None) for name in objectives)]
    checks, timings = list[Check](), list[Timing]()
    with working(report, "examining", len(parts), "parts") as advance:
        for name, check in parts:
            if check is not None:
                checks.append(run_check(name, check))
            else:
                timings.append(_try_steps(name, objectives[name], device))
            advance(1)
    return Findings(_find_facts(device), tuple(checks), tuple(timings))


# --- facts


def _find_facts(device: torch.device) -> dict[str, str]:
    """What device and software there are."""
    versions = {"duality": __version__, "python": platform.python_version(), "torch": torch.__version__}
    facts = {"system": platform.platform(), **versions, **{name: _version(name) for name in _EXTRAS}}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        facts |= {
            "device": f"{found.name}, {found.total_memory / 1e9:.0f} GB, {found.multi_processor_count} processors",
            "capability": f"{found.major}.{found.minor}",
            "cuda": f"{torch.version.cuda or torch.version.hip}, {torch.cuda.device_count()} devices",
        }
    else:
        facts |= {
            "device": f"CPU {_cpu_name()}, {torch.backends.cpu.get_cpu_capability()}",
            "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        }
    facts["bfloat16"] = "native" if has_bfloat16(device) else "emulated, slow"
    facts["kernels"] = _describe_kernels(device)
    facts["compiled"] = _describe_compiler(device)
    return facts


def _version(package: str) -> str:
    """The version of a package, if it is there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    """The name of the processor."""
    with_names = Path("/proc/cpuinfo")
    lines = with_names.read_text(encoding="utf-8").splitlines() if with_names.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _c_compiler() -> str | None:
    """The C compiler that Triton takes."""
    names = filter(None, (os.environ.get("CC"), "gcc", "clang"))
    return next((name for name in names if shutil.which(name)), None)


def _describe_kernels(device: torch.device) -> str:
    """Which implementation of the losses is used, and why."""
    if kernels.kernels_run(device):
        return "used"
    if os.environ.get(kernels.VARIABLE, "auto") == "off":
        return f"not used: {kernels.VARIABLE} is off"
    if device.type != "cuda":
        return "not used: PyTorch's formulas are the ones for a CPU"
    return f"not used: {kernels.find_fault(device)}"


def _describe_compiler(device: torch.device) -> str:
    """Whether ``torch.compile`` can be used."""
    if device.type == "cuda":
        missing = "triton" if _version("triton") == "not installed" else None if _c_compiler() else "a C compiler"
        return "yes" if missing is None else f"no: {missing} is missing"
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return f"yes, with {name}" if shutil.which(name) else f"no: there is no C++ compiler {name}"


# --- steps


def _recipes(device: torch.device) -> dict[str, Recipe]:
    """A recipe for every objective: of the paper's size on a GPU, of a laptop's elsewhere."""
    size, changes = ("owt", ()) if device.type == "cuda" else ("laptop", ("data.tokenizer=bytes",))
    rows = 8 if device.type == "cuda" else 16
    settings = (*changes, f"training.batch_size={rows}", "training.micro_batch=0")

    def make(name: str) -> Recipe:
        return catalogue.recipe(f"{name}-{size}", settings)

    def make_taught(name: str, kind: str) -> Recipe:
        found = derive_distillation(make(name), kind, 1000)
        return replace(found, training=replace(found.training, batch_size=rows))

    names = ("mdlm", "ar", "sedd-absorb", "sedd-uniform")
    return {
        "duo, curriculum": make("duo"),
        "duo, bound": catalogue.modify(make("duo"), ("method.curriculum=0",)),
        **{name: make(name) for name in names},
        "dcd": make_taught("duo", "dcd"),
        "sdtt": make_taught("mdlm", "sdtt"),
    }


@dataclass(frozen=True)
class _RandomRows:
    """Batches of random tokens."""

    recipe: Recipe
    num_tokens: int

    def batch(self, step: int) -> Batch:
        rows, length = self.recipe.training.batch_size, self.recipe.data.length
        return Batch(Noise.of(0, step, torch.arange(rows)).integers("token", self.num_tokens, length), None)


def _try_steps(name: str, recipe: Recipe, device: torch.device) -> Timing:
    """The steps of an objective, or why they failed."""
    try:
        return _time_steps(name, recipe, device)
    except Exception as error:  # a report of the failure is what is wanted
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        return Timing(name, 0.0, 0.0, None, None, {}, problem)


def _time_steps(name: str, recipe: Recipe, device: torch.device) -> Timing:
    """Some steps: two to begin with, some that are timed, one that is watched."""
    from torch.autograd.profiler import profile

    vocabulary, training = expected_vocabulary(recipe), recipe.training
    model = network(recipe, vocabulary, device)
    teacher = None if recipe.distillation is None else network(recipe, vocabulary, device)
    state = TrainState.fresh(model, training, teacher)
    phases = method_phases(recipe, vocabulary.num_tokens, teacher)
    loader = _RandomRows(recipe, vocabulary.num_tokens)

    def step() -> None:
        take_step(state, loader, phases, training)  # type: ignore[arg-type]

    def settle() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    for _ in range(2):
        step()
    begun = settle()
    for _ in range(_STEPS):
        step()
    seconds = (settle() - begun) / _STEPS
    with _waits(device) as waits:
        step()
    on_gpu = device.type == "cuda"
    with profile(use_device="cuda" if on_gpu else None, use_kineto=on_gpu) as seen:
        step()
        settle()
    rate, peak = training.batch_size * recipe.data.length / seconds, operations_per_second(recipe, device)
    mfu = None if peak is None else peak[0] * rate / peak[1]
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    slowest = sorted(seen.key_averages(), key=lambda each: -float(getattr(each, own)))[:8]
    operators = {each.key[:80]: float(getattr(each, own)) / 1e6 for each in slowest}
    return Timing(name, rate, seconds, mfu, dict(waits) if on_gpu else None, operators)


@contextmanager
def _waits(device: torch.device) -> Iterator[Counter[str]]:
    """The lines of this package at which the host waits for a GPU, and how often."""
    found = Counter[str]()
    if device.type != "cuda":
        yield found
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")

            def note(message: object, *_: object, **__: object) -> None:
                if "synchroniz" in str(message):
                    found[_line()] += 1

            warnings.showwarning = note
            yield found
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _line() -> str:
    """The innermost line of this package that is running, this file aside."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and name != __file__:
            return f"{name.removeprefix(_PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"

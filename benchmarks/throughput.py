"""Absolute speed on this machine: tokens per second in training, sequences per second in generation.

Training is ``take_step`` as a run does it: loader, loss, gradients, clipping, optimizer, moving average. Generation of
Duo and MDLM is compared with an autoregressive model of the same size that caches keys and values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.models import Scale, network_of
from benchmarks.rows import Report, Row, Size, spaced
from benchmarks.timing import Runner, Spread, take_turns
from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.loader import Loader
from duality.data.packing import Sequences
from duality.denoisers.memo import Memoized
from duality.methods.ar import AR
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.networks import SIZES
from duality.protocols import Method, Phase
from duality.recipes.catalogue import recipe
from duality.recipes.recipe import Recipe
from duality.samplers.generate import generate
from duality.tokenizers.tokenizer import Tokenizer
from duality.training.loop import TrainState, take_step

LAPTOP = "duo-laptop"
LAPTOP_STATES = 2048
NUM_TOKENS = 1 << 17


@dataclass(frozen=True)
class RandomIds(Tokenizer):
    """A tokenizer whose ids are random: the loader does not depend on their meaning."""

    num_ids: int
    kind = "random"
    separator = 0

    @property
    def vocab_size(self) -> int:
        return self.num_ids

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """One id per character."""
        return np.random.default_rng(0).integers(self.vocab_size, size=len(text))

    def read(self, ids: npt.NDArray[np.int64]) -> str:
        return " ".join(map(str, ids.tolist()))


@dataclass(frozen=True)
class Run:
    """A training and its next step."""

    state: TrainState
    loader: Loader
    phases: tuple[Phase, ...]
    chosen: Recipe
    size: Size

    def step(self, phase: Phase) -> None:
        take_step(self.state, self.loader, (phase,), self.chosen.training)


def run_of(folder: Path, chosen: Recipe, states: int) -> Run:
    """A recipe on random ids."""
    store = write_store(folder, [Document("random", ("-" * NUM_TOKENS,))], RandomIds(states))
    training = chosen.training
    loader = Loader(Sequences(store, chosen.data.length), training.batch_size, training.seed)
    endless = tuple(replace(phase, until=1 << 30) for phase in chosen.method.phases(states, training.steps))
    # the learning rate does not matter for speed, but weights must stay finite
    calm = replace(chosen, training=replace(training, learning_rate=1e-5, warmup=0, decay=0.0))
    state = TrainState.fresh(network_of(chosen.method, chosen.backbone, states), training)
    return Run(state, loader, endless, calm, Size(states, training.batch_size, chosen.data.length))


def laptop_run(folder: Path, scale: Scale) -> Run:
    """The laptop recipe; for ``QUICK`` with the small network."""
    chosen = recipe(LAPTOP)
    if scale.backbone.width < SIZES["micro"]().width:
        chosen = replace(chosen, backbone=scale.backbone)
    return run_of(folder, chosen, LAPTOP_STATES)


def larger_run(folder: Path, scale: Scale) -> Run:
    """The same recipe with the network of the other sections, with dropout as in training."""
    base = recipe(LAPTOP)
    chosen = replace(
        base,
        method=Duo(),
        backbone=replace(scale.backbone, dropout=0.1),
        data=replace(base.data, length=scale.length),
        training=replace(base.training, batch_size=scale.batch),
    )
    return run_of(folder, chosen, scale.vocabularies[0])


def training(scale: Scale, report: Report) -> Iterator[Row]:
    """Tokens per second in each phase."""
    makers: dict[str, Callable[[Path, Scale], Run]] = {LAPTOP: laptop_run, "mini": larger_run}
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as place:
            run = make(Path(place) / "store", scale)
            report(f"training, {name}: K = {spaced(run.size.states)}")
            runners = [Runner(phase.name, partial(run.step, phase)) for phase in run.phases]
            timings, tokens = take_turns(runners, scale.repeats), run.size.batch * run.size.length
            for phase in run.phases:
                speed = Spread.of([tokens / taken for taken in timings.times[phase.name].wall])
                yield Row("training", f"{name}, {phase.name}", "", run.size, speed, "tokens/s")


def writer(method: Method, denoiser: Any, size: Size, steps: int) -> Callable[[], None]:
    """Generation of one batch, as ``Model.generate`` does it."""

    def run() -> None:
        transformed = Memoized(denoiser) if isinstance(method, MDLM) else denoiser
        sampler = method.sampler(size.states)
        generate(transformed, method.sampling_schedule(), sampler, num=size.batch, length=size.length, steps=steps)

    return run


def generation(scale: Scale, report: Report) -> Iterator[Row]:
    """Sequences per second, and as a multiple of the autoregressive model's. Measured once, as it takes minutes."""
    size = Size(scale.vocabularies[0], scale.batch, scale.generation_length)
    methods: dict[str, Method] = {"AR": AR(), "Duo": Duo(), "MDLM": MDLM()}
    denoisers = {
        name: network_of(method, scale.backbone, size.states).requires_grad_(False) for name, method in methods.items()
    }
    for name, method in methods.items():  # a warm-up of two steps instead of whole sequences
        writer(method, denoisers[name], replace(size, length=2), 2)()
    speeds, autoregressive = [], []
    for steps in scale.generation_steps:
        report(f"generation, {steps} steps")
        counts = {name: size.length if name == "AR" else steps for name in methods}
        runners = [Runner(name, writer(methods[name], denoisers[name], size, counts[name])) for name in methods]
        timings = take_turns(runners, 1, warm_up=False)
        autoregressive.append(size.batch / timings.seconds("AR"))
        for name in ("Duo", "MDLM"):
            times = timings.ratios("AR", name)[0].median
            speeds.append((f"{name}, {steps} steps", size.batch / timings.seconds(name), times))
    name = f"AR, {size.length} steps with KV cache"
    yield Row("generation", name, "", size, Spread.of(autoregressive), "sequences/s")
    for name, speed, times in speeds:
        note, details = f"{times:.3g} of AR's", {"times_ar": times}
        yield Row("generation", name, "", size, Spread.of([speed]), "sequences/s", note=note, details=details)

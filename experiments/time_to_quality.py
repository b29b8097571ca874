"""Time to quality: validation nats against CPU seconds, on equal data, network, batches and learning rates.

    Duo           the library, curriculum and bound
    Duo (dense)   the same training with the plain dense implementation, ``benchmarks/reference.py``
    MDLM          the library
    AR            the library; its nats are exact, those of the others are bounds

    python -m experiments.time_to_quality OUT --minutes 60

writes OUT/time_to_quality.json (after every measurement) and OUT/time_to_quality.png, and prints a table. All take the
same number of steps. They take turns, a block of steps each, so that other programs slow all of them alike. Counted is
the CPU time of the process during training steps, batches included; measuring is not counted. Everybody is measured
by the library's own likelihood, with averaged weights, on the same sequences with the same noise.

The plain implementation computes in float32, in which 1 - alpha has no digits left near alpha = 1: its levels are at
most 1 - 1e-4. Dropout is off, because it has none. What must hold: two contestants differ in nothing but their
method or its implementation; the plain one has the expected loss of the library's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import reference
from benchmarks.models import plain_network
from duality.data.corpus import Corpus
from duality.data.loader import Loader
from duality.data.packing import Sequences
from duality.diffusion.processes import Uniform
from duality.evaluation.tables import table
from duality.files.atomic import write_atomically
from duality.models.model import Model, network
from duality.noise import Noise
from duality.objectives.base import loss_of_nats
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound
from duality.protocols import AnyDenoiser, Loss, Objective, Phase, Valid, Vocabulary
from duality.recipes.catalogue import recipe as find
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Recipe
from duality.runs.start import make_state
from duality.training.loop import TrainState, load_weights, take_step

MOST_ALPHA = 1 - 1e-4
DENSE = "Duo (dense)"
NAMES = {"Duo": "duo", DENSE: "duo", "MDLM": "mdlm", "AR": "ar"}


@dataclass(frozen=True)
class DenseObjective:
    """An objective of Duo, computed by the plain implementation; its noise comes from a generator of its own."""

    objective: Objective

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        like, generator = self.objective, torch.Generator().manual_seed(int(noise.keys[0]) >> 1 & (1 << 62) - 1)
        assert isinstance(like, (TemperedBound, ContinuousTimeBound)), "Duo has these two"
        alpha, slope = like.schedule.alpha(t).clamp_max(MOST_ALPHA), like.schedule.alpha_prime(t)
        logits = plain_network(denoiser)
        if isinstance(like, TemperedBound):
            eps = torch.randn(*x.shape, like.schedule.vocab_size, generator=generator)
            w = reference.gaussian_latent(x, like.schedule.mu(t), eps)
            return loss_of_nats(reference.curriculum(logits, w, x, alpha, slope, like.tau), valid)
        assert isinstance(like.process, Uniform)
        z = reference.corrupt(x, alpha, like.process.prior(), generator)
        return loss_of_nats(reference.duo(logits, z, x, alpha, slope), valid)


@dataclass(frozen=True)
class Settings:
    """``every`` steps everybody is measured on ``limit`` sequences with ``draws`` draws; turns have ``block`` steps."""

    family: str = "laptop"
    every: int = 100
    block: int = 10
    limit: int = 256
    draws: int = 2
    assignments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.every, self.block, self.limit, self.draws) < 1 or self.every % self.block:
            raise ValueError(f"{self}: all must be at least 1, and every a multiple of block")

    def recipe(self, name: str, steps: int) -> Recipe:
        """The recipe of a contestant."""
        return find(
            f"{NAMES[name]}-{self.family}", (*self.assignments, "backbone.dropout=0", f"training.steps={steps}")
        )


@dataclass(frozen=True)
class Point:
    """What a contestant has reached after so many steps and CPU seconds."""

    step: int
    cpu_seconds: float
    nats: float
    stderr: float
    kind: str


@dataclass
class Contestant:
    """A training in progress."""

    name: str
    recipe: Recipe
    corpus: Corpus
    state: TrainState
    phases: tuple[Phase, ...]
    loader: Loader
    cpu_seconds: float = 0.0
    points: list[Point] = field(default_factory=list)

    @staticmethod
    def started(name: str, recipe: Recipe, corpus: Corpus) -> Contestant:
        phases = method_phases(recipe, corpus.tokenizer.vocab_size)
        if name == DENSE:
            phases = tuple(replace(phase, objective=DenseObjective(phase.objective)) for phase in phases)
        rows = make_sequences(recipe.data, corpus.train, corpus.tokenizer)
        loader = Loader(rows, recipe.training.batch_size, recipe.training.seed)
        return Contestant(name, recipe, corpus, make_state(recipe, corpus, "cpu"), phases, loader)

    def train(self, steps: int) -> None:
        """Take some steps, and count their CPU time."""
        before = time.process_time()
        for _ in range(min(steps, self.recipe.training.steps - self.state.step)):
            take_step(self.state, self.loader, self.phases, self.recipe.training)
        self.cpu_seconds += time.process_time() - before

    def measure(self, held_out: Sequences, settings: Settings) -> None:
        """Add a point: the likelihood of the averaged weights."""
        tokenizer, names = self.corpus.tokenizer, self.corpus.label_names
        denoiser = network(self.recipe, Vocabulary(tokenizer.vocab_size, len(names)))
        load_weights(denoiser, self.state.ema)
        model = Model(self.recipe, self.state.step, denoiser.requires_grad_(False), tokenizer, names)
        found = model.likelihood(held_out, limit=settings.limit, num_draws=settings.draws)
        self.points.append(Point(self.state.step, self.cpu_seconds, found.nats_per_token, found.stderr, found.kind))


def race(steps: int, settings: Settings, after: Callable[[list[Contestant]], None]) -> list[Contestant]:
    """All contestants to step ``steps``; ``after`` is called after every measurement of all of them."""
    recipes = {name: settings.recipe(name, steps) for name in NAMES}
    corpora = {name: prepare_corpus(recipe) for name, recipe in recipes.items()}
    racers = [Contestant.started(name, recipe, corpora[name]) for name, recipe in recipes.items()]
    corpus = corpora["Duo"]
    held_out = make_sequences(recipes["Duo"].data, corpus.validation, corpus.tokenizer)
    for done in range(settings.block, steps + settings.block, settings.block):
        for racer in racers:
            racer.train(settings.block)
        if done % settings.every == 0 or done >= steps:
            for racer in racers:
                racer.measure(held_out, settings)
            after(racers)
    return racers


def steps_within(minutes: float, settings: Settings) -> int:
    """How many steps fit, from the wall time of a race of a few steps with one measurement."""
    if not minutes > 0:
        raise ValueError(f"minutes is {minutes}: it must be positive")
    few = replace(settings, every=settings.block)
    clock = [time.monotonic()]
    race(settings.block, few, lambda racers: None)
    clock.append(time.monotonic())
    trained, once = 4 * settings.block, replace(few, every=4 * settings.block, block=4 * settings.block)
    race(trained, once, lambda racers: None)
    clock.append(time.monotonic())
    # the second race has more steps and the same measurement
    each_step = max(1e-6, (clock[2] - clock[1]) - (clock[1] - clock[0])) / (trained - settings.block)
    measuring = max(0.0, clock[1] - clock[0] - settings.block * each_step)
    steps = int((60 * minutes - (clock[2] - clock[0])) / (each_step + measuring / settings.every))
    if steps < settings.every:
        raise ValueError(
            f"{minutes} minutes are enough for {max(0, steps)} steps of everybody, fewer than one measurement needs "
            f"({settings.every}): give more minutes, a smaller --every or a smaller --set backbone=nano"
        )
    return steps // settings.every * settings.every


def seconds_to(points: Sequence[Point], nats: float) -> float | None:
    """CPU seconds until ``nats`` are reached, on a line through the points; None if they are not."""
    for before, after in zip([None, *points], points):
        if after.nats <= nats:
            if before is None or before.nats <= nats:
                return after.cpu_seconds
            part = (before.nats - nats) / (before.nats - after.nats)
            return before.cpu_seconds + part * (after.cpu_seconds - before.cpu_seconds)
    return None


def summary(racers: Sequence[Contestant]) -> str:
    """The table: the last point of each, and the CPU seconds to the last value of the plain implementation."""
    (target,) = (racer.points[-1].nats for racer in racers if racer.name == DENSE)
    lines = [["", "step", "CPU s", "CPU ms per step", "nats per token", "measure", f"CPU s to {target:.3f} nats"]]
    for racer in racers:
        last, reached = racer.points[-1], seconds_to(racer.points, target)
        each = 1000 * last.cpu_seconds / last.step
        value = f"{last.nats:.3f} ± {last.stderr:.3f}"
        until = "–" if reached is None else f"{reached:.1f}"
        lines.append([racer.name, str(last.step), f"{last.cpu_seconds:.1f}", f"{each:.0f}", value, last.kind, until])
    return table(lines)


def write(racers: Sequence[Contestant], settings: Settings, out: Path) -> None:
    """The points as JSON and as a figure."""
    curves = [
        {
            "name": racer.name,
            "recipe": racer.recipe.name,
            "parameters": sum(value.numel() for value in racer.state.model.parameters()),
            "points": [asdict(point) for point in racer.points],
        }
        for racer in racers
    ]
    content = {"settings": asdict(settings), "threads": torch.get_num_threads(), "curves": curves}
    write_atomically(out / "time_to_quality.json", json.dumps(content, indent=1))
    draw(racers, out / "time_to_quality.png")


def draw(racers: Sequence[Contestant], target: Path) -> None:
    """Nats against CPU seconds, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.6), layout="constrained")
    for racer in racers:
        seconds, nats = ([getattr(point, name) for point in racer.points] for name in ("cpu_seconds", "nats"))
        errors = [1.96 * point.stderr for point in racer.points]
        style = "--" if racer.name == DENSE else "-"
        axes.errorbar(seconds, nats, errors, ls=style, marker="o", ms=3, lw=1.5, elinewidth=0.7, label=racer.name)
    axes.set(xscale="log", xlabel="CPU seconds of training", ylabel="validation nats per token")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(target, dpi=130)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the race and print its table."""
    parser = argparse.ArgumentParser(
        description="Validation nats against CPU seconds for Duo, its plain form, MDLM, AR."
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0, help="wall time of all contestants together")
    parser.add_argument("--steps", type=int, help="this many steps instead of what fits into the minutes")
    parser.add_argument("--family", default="laptop", help="recipes duo-FAMILY, mdlm-FAMILY and ar-FAMILY")
    parser.add_argument("--every", type=int, default=100, help="measure after so many steps")
    parser.add_argument("--block", type=int, default=10, help="steps of a turn")
    parser.add_argument("--limit", type=int, default=256, help="sequences that are measured")
    parser.add_argument("--draws", type=int, default=2, help="draws of time and noise for each of them")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="change fields of every recipe")
    chosen = parser.parse_args(arguments)
    settings = Settings(chosen.family, chosen.every, chosen.block, chosen.limit, chosen.draws, tuple(chosen.set))
    steps = steps_within(chosen.minutes, settings) if chosen.steps is None else chosen.steps
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(f"{steps} steps of each of {', '.join(NAMES)}", flush=True)

    def report(racers: Sequence[Contestant]) -> None:
        write(racers, settings, chosen.out)
        print(", ".join(f"{each.name} {each.points[-1].nats:.3f}" for each in racers), flush=True)

    print(summary(race(steps, settings, report)))


if __name__ == "__main__":
    main()

"""Measure samples: how likely they are to an external judge, how varied, what they took; and draw it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from duality.cli.common import Device, Flag, pick

if TYPE_CHECKING:
    from duality.evaluation.cases import Case
    from duality.evaluation.sweep import Samples
    from duality.runs.model import Model

Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]


def quality(
    runs: Folders,
    /,
    steps: str = "8,16,32,64",
    sampler: str = "own",
    tail: str = "ancestral",
    rounds: str = "last",
    judge: str = "smollm2",
    num: int = 64,
    length: int | None = None,
    eta: float | None = None,
    grid: str | None = None,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: int = 0,
    out: Path = Path("runs/quality"),
    batch_size: int = 16,
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the samples of runs by an external judge; nothing that is there is sampled or judged again.

    Args:
        runs: run folders.
        steps: network calls for each sample, several with commas; "own" is the model's own number, such as one per
            token for an autoregressive model.
        sampler: the model's own or others, with commas: own, ancestral, analytic, psi-constant, psi-cap, psi-rescale,
            psi-loop, psi-mix.
        tail: the last step draws (ancestral) or takes the most likely tokens (greedy); both with a comma.
        rounds: of distilled runs the last round, all, or some, with commas; 0 is what the distillation began from.
        judge: smollm2 (fetched), a .gguf file, a Hugging Face folder or name (gpt2-large is the paper's), or none.
        num: samples of each kind.
        length: tokens of a sample; the length the run was trained on if not given.
        eta: the strength of a psi sampler.
        grid: linear, cosine or loop; what suits the sampler if not given.
        top_p: draw from the fewest tokens that hold this share of the belief.
        temperature: below 1 sharpens the belief, above 1 flattens it.
        seed: the same seed gives the same samples.
        out: a folder for samples, scores, the table (quality.json, quality.md) and the figures.
        batch_size: samples at a time; the result does not depend on it.
        device: where to compute.
        json: print the rows as JSON instead of the table.
    """
    from json import dumps

    from duality.cli.console import counting_display, say
    from duality.evaluation.cases import Case
    from duality.evaluation.judge import load_judge
    from duality.evaluation.sweep import measure, plain

    if not runs:
        raise ValueError("nothing to measure: name run folders, such as runs/demo")
    where = pick(device)
    bench = Bench(where, batch_size)
    alike = Case(
        label="",
        run=Path(),
        steps=0,
        num=num,
        length=length or 0,
        seed=seed,
        eta=eta,
        grid=grid,
        top_p=top_p,
        temperature=temperature,
    )
    asked = (split(steps), split(sampler), split(tail))
    cases = [case for run in runs for case in cases_of(run, alike, rounds, *asked)]
    bench.check(cases)
    reader = None if judge == "none" else load_judge(judge, where, say)
    total = sum(case.steps * -(-case.num // batch_size) for case in cases)
    with counting_display("sampling", total) as advance:
        rows = measure(
            cases,
            judge=reader,
            out=out,
            sample=bench.sample,
            weights=bench.weights,
            report=say,
            advance=advance,
            reference=bench.real(cases[0]),
        )
    draw(rows, out / "quality.png", out / "rounds.png")
    print(dumps([plain(row) for row in rows]) if json else (out / "quality.md").read_text(encoding="utf-8"))
    say(f"samples, scores, tables and figures are in {out}")
    return 0


def plot(
    tables: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TABLE ...")],
    /,
    out: Path = Path("quality.png"),
    rounds: Path | None = None,
) -> int:
    """Draw what `duality quality` measured, from one or several of its folders or quality.json, and print the table.

    Args:
        tables: folders of `duality quality`, or quality.json files.
        out: the figure against steps.
        rounds: a figure against rounds of distillation as well.
    """
    from duality.evaluation.sweep import read_rows
    from duality.evaluation.tables import markdown

    if not tables:
        raise ValueError("nothing to draw: name folders that `duality quality --out` made")
    rows = read_rows(tables)
    draw(rows, out, rounds)
    print(markdown(rows))
    return 0


def draw(rows: Any, steps: Path, rounds: Path | None) -> None:
    """The figures there is something for."""
    from duality.evaluation.figures import plot_quality, plot_rounds
    from duality.evaluation.tables import has_rounds

    plot_quality(rows, steps)
    if rounds is not None and has_rounds(rows):
        plot_rounds(rows, rounds)


def split(text: str) -> list[str]:
    """Words between commas."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError(f"{text!r} names nothing: write one or several, with commas between")
    return words


def whole(word: str, what: str) -> int:
    """A word as a whole number."""
    if not word.isdecimal():
        raise ValueError(f"{what} {word!r}: write whole numbers, with commas between")
    return int(word)


def cases_of(
    run: Path, alike: Case, rounds: str, steps: list[str], samplers: list[str], tails: list[str]
) -> list[Case]:
    """Every combination that was asked for of one run; ``alike`` says what they have in common."""
    from dataclasses import replace

    from duality.runs.folder import read_recipe, rounds_saved

    recipe = read_recipe(run)
    there = rounds_saved(run, recipe)
    numbers: list[int | None] = [None]
    if rounds != "last" and there:
        numbers = [*there] if rounds == "all" else [whole(word, "--rounds") for word in split(rounds)]
    length = alike.length or recipe.data.length
    # how many steps are its own does not depend on the vocabulary
    own = recipe.method.sampler(2).default_steps(length)
    return [
        replace(
            alike,
            label=run.name if number is None else f"{run.name}, round {number}",
            run=run,
            round=number,
            steps=own if count == "own" else whole(count, "--steps"),
            length=length,
            sampler=sampler,
            eta=alike.eta if sampler.startswith("psi-") else None,
            tail=tail,
        )
        for number in numbers
        for sampler in samplers
        for tail in tails
        for count in steps
    ]


class Bench:
    """Runs that have been loaded, one at a time, and how they are sampled."""

    def __init__(self, device: str, batch_size: int):
        self.device, self.batch_size = device, batch_size
        self._held: tuple[tuple[Path, int | None], Model, str] | None = None

    def model(self, case: Case) -> tuple[Model, str]:
        """The model of a case, and which weights it has."""
        from duality.cli.console import say
        from duality.runs.model import load
        from duality.runs.sampling import weights_id

        name = (case.run, case.round)
        if self._held is None or self._held[0] != name:
            loaded = load(case.run, say, self.device, round_number=case.round)
            self._held = (name, loaded, weights_id(loaded))
        return self._held[1:]

    def weights(self, case: Case) -> str:
        return self.model(case)[1]

    def check(self, cases: list[Case]) -> None:
        """Refuse before anything long begins what a sampler, a tail or a round would refuse later."""
        from duality.runs.model import named_grid

        for case in cases:
            self.model(case)[0].named_sampler(case.sampler, case.eta)
            named_grid(case.grid, case.sampler)
            if case.tail not in ("ancestral", "greedy"):
                raise ValueError(f"--tail {case.tail!r}: choose ancestral, greedy, or both with a comma")

    def sample(self, case: Case, advance: Callable[[int], None]) -> Samples:
        from duality.runs.model import named_grid
        from duality.runs.sampling import sample_case
        from duality.runs.shaping import bend

        model, _ = self.model(case)
        sampler, grid = model.named_sampler(case.sampler, case.eta), named_grid(case.grid, case.sampler)

        def wrap(denoiser: Any) -> Any:
            return bend(denoiser, case.top_p, case.temperature)

        return sample_case(model, case, wrap, sampler, grid, self.device, self.batch_size, advance)

    def real(self, case: Case) -> Samples:
        """Real text of the run's validation set, cut as the samples are."""
        import torch

        from duality.cli.console import say
        from duality.data.packing import Sequences
        from duality.evaluation.sweep import Samples
        from duality.runs.corpora import prepared

        corpus = prepared(self.model(case)[0].recipe, say)
        held_out = Sequences(corpus.validation, case.length, "wrap")
        count = min(case.num, len(held_out))
        tokens, mask = held_out.rows(torch.arange(count).numpy() * len(held_out) // count)
        tokens = tokens[mask.all(-1)]
        return Samples(tokens, [corpus.tokenizer.decode(row) for row in tokens.tolist()], 0.0, 0.0, "real text")

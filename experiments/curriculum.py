"""What does the curriculum do: is its gain that of the window of noise levels, or that of the soft input?

Every combination of

    variant     plain            the bound in all steps
                window           the first half of the steps on the window of noise levels 0.05 ... 0.95, argmax inputs
                tau=0.001 ...    the same window with inputs softmax(w / tau): the paper's curriculum
    times       log-linear (the paper's) or polynomial, at which the bound is sampled
    seed        first weights, order of the data, noise

is trained on the same text with the same network, and measured on the same held-out text with the same draws. A
difference between two variants is taken seed by seed; its interval is Student's over seeds.

    python -m experiments.curriculum --out runs/curriculum                     K = 2048, 5 seeds
    python -m experiments.curriculum --out runs/curriculum-30k --tokenizer bert-base-uncased --seeds 3 --steps 600

A run that is finished is not trained again, and a run that was stopped continues. OUT/results.json, OUT/table.md and
OUT/curriculum.png are written from the finished runs after each of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from duality.evaluation.metrics import t_quantile
from duality.files.atomic import write_atomically
from duality.files.progress import Reporter
from duality.papers.duo.reproduce.jobs import Advance, Job, execute

VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": ("method.curriculum=0",),
    "window": ("method.curriculum=0.5", "method.tau=0"),
    "tau=0.001": ("method.curriculum=0.5", "method.tau=0.001"),
    "tau=0.01": ("method.curriculum=0.5", "method.tau=0.01"),
    "tau=0.03": ("method.curriculum=0.5", "method.tau=0.03"),
    "tau=0.1": ("method.curriculum=0.5", "method.tau=0.1"),
}
TIMES = {"log-linear": "LogLinear", "polynomial": "Polynomial"}


@dataclass(frozen=True, order=True)
class Trial:
    """One training run of the study."""

    variant: str
    times: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.variant.replace('=', '')}-{self.times}-{self.seed}"


@dataclass(frozen=True)
class Result:
    """What a finished run gave: held-out nats per token at some steps, and at the end with more draws."""

    trial: Trial
    nats: float
    stderr: float
    curve: tuple[tuple[int, float], ...]
    losses: tuple[tuple[int, float], ...]


def settings(trial: Trial, options: argparse.Namespace) -> list[str]:
    """The assignments of a trial's recipe: the paper's curriculum on the laptop's data."""
    steps = options.steps
    return [
        "method.alpha_max=0.95",
        "method.gaussian_schedule=LinearVariance",
        f"method.training_schedule={TIMES[trial.times]}",
        *VARIANTS[trial.variant],
        f"backbone={options.backbone}",
        f"data.tokenizer={options.tokenizer}",
        f"training.steps={steps}",
        f"training.seed={trial.seed}",
        f"training.learning_rate={options.learning_rate}",
        f"training.eval_every={max(1, steps // 6)}",
        f"training.save_every={max(1, steps // 2)}",
        "training.log_every=10",
        "training.keep=1",
    ]


@dataclass(frozen=True)
class Run:
    """A trial as a job: train it, or continue it, or leave it as it is."""

    trial: Trial
    options: argparse.Namespace

    def __call__(self, report: Reporter, advance: Advance) -> None:
        """Train and measure the trial, once."""
        if read_result(self.options.out, self.trial) is None:
            run(self.trial, self.options, advance)


def read_result(out: Path, trial: Trial) -> Result | None:
    """The result of a trial that is finished; None if it is not."""
    kept = out / trial.name / "result.json"
    return result_of(kept.read_text(encoding="utf-8")) if kept.is_file() else None


def run(trial: Trial, options: argparse.Namespace, advance: Advance) -> None:
    """Train a trial, or continue it, and measure it on the held-out text."""
    import duality
    from duality.runs.corpus import sequences_of_run
    from duality.training.metrics import read_metrics

    folder = options.out / trial.name
    exists = (folder / "recipe.json").is_file()
    chosen = () if exists else settings(trial, options)
    model = duality.train(
        "duo-laptop",
        data=options.data,
        out=folder,
        set=chosen,
        resume=exists,
        device="cpu",
        watch=lambda record: advance(1.0),
    )
    found = model.likelihood(sequences_of_run(model, folder), num_draws=2, limit=options.limit)
    rows = read_metrics(folder)
    curve = tuple((row["step"], row["validation_nats"]) for row in rows if "validation_nats" in row)
    losses = tuple((row["step"], row["loss"]) for row in rows if "loss" in row)
    result = Result(trial, found.nats_per_token, found.stderr, curve, losses)
    write_atomically(folder / "result.json", json.dumps(asdict(result)))


def result_of(text: str) -> Result:
    """The result that was kept as JSON."""
    found = json.loads(text)
    curve, losses = (tuple((int(step), float(value)) for step, value in found[name]) for name in ("curve", "losses"))
    return Result(Trial(**found["trial"]), found["nats"], found["stderr"], curve, losses)


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval; infinite for one value.

    >>> mean_and_interval([1.0, 3.0])
    (2.0, 12.706)
    """
    count, mean = len(values), sum(values) / len(values)
    if count < 2:
        return mean, float("inf")
    spread = (sum((value - mean) ** 2 for value in values) / (count - 1) / count) ** 0.5
    return mean, round(t_quantile(count - 1) * spread, 6)


def differences(results: Sequence[Result], variant: str, other: str, times: str) -> list[float]:
    """Nats of a variant minus those of another, seed by seed."""
    nats = {result.trial: result.nats for result in results}
    pairs = [(Trial(variant, times, seed), Trial(other, times, seed)) for seed in sorted({t.seed for t in nats})]
    return [nats[first] - nats[second] for first, second in pairs if first in nats and second in nats]


def table(results: Sequence[Result], variants: Sequence[str]) -> str:
    """The study in Markdown: nats of every variant, and its difference to ``plain`` and to ``window``."""
    lines = [
        "| times | variant | seeds | nats per token | minus plain | minus window |",
        "|---|---|---|---|---|---|",
    ]
    for times, variant in product(TIMES, variants):
        found = [result.nats for result in results if (result.trial.times, result.trial.variant) == (times, variant)]
        if not found:
            continue
        cells = [times, variant, str(len(found)), interval(found)]
        for other in ("plain", "window"):
            gaps = differences(results, variant, other, times)
            cells.append("–" if variant == other or not gaps else interval(gaps, signed=True))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def interval(values: Sequence[float], signed: bool = False) -> str:
    """A mean with its 95 % interval, as text."""
    mean, half = mean_and_interval(values)
    return f"{mean:{'+' if signed else ''}.4f} ± {half:.4f}"


def draw(results: Sequence[Result], variants: Sequence[str], target: Path) -> None:
    """Three panels: training loss (Figures 7 and 8 of the paper), held-out nats against steps, and at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(2, 3, figsize=(15, 8.4), layout="constrained")
    for axes, times in zip(rows, TIMES, strict=True):
        for number, variant in enumerate(variants):
            found = [each for each in results if (each.trial.times, each.trial.variant) == (times, variant)]
            if not found:
                continue
            colour = f"C{number}"
            first = found[0].losses
            axes[0].plot(*zip(*first, strict=True), lw=0.8, color=colour, label=variant)
            steps = [step for step, _ in found[0].curve]
            curves = [[value for _, value in each.curve] for each in found if len(each.curve) == len(steps)]
            axes[1].plot(steps, [sum(column) / len(column) for column in zip(*curves, strict=True)], color=colour)
            gaps = differences(results, variant, "plain", times)
            if variant != "plain" and gaps:
                mean, half = mean_and_interval(gaps)
                axes[2].errorbar([number], [mean], yerr=[min(half, 10)], fmt="o", color=colour, capsize=3)
                axes[2].plot([number + 0.15] * len(gaps), gaps, ".", color=colour, alpha=0.5)
        axes[0].set(title=f"training loss, {times} times (one seed)", xlabel="step", ylabel="nats per token")
        axes[1].set(title="held-out bound (mean over seeds)", xlabel="step")
        axes[2].set(title="held-out bound at the end, minus plain", xticks=range(len(variants)))
        axes[2].set_xticklabels(variants)
        axes[2].axhline(0, color="grey", lw=0.8)
        if axes[0].get_legend_handles_labels()[0]:
            axes[0].legend(fontsize=8)
    figure.savefig(target, dpi=90)
    pyplot.close(figure)


def write(results: Sequence[Result], options: argparse.Namespace) -> None:
    """Write results.json, table.md and the figure."""
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(
        json.dumps([asdict(result) for result in sorted(results, key=lambda each: each.trial)]), encoding="utf-8"
    )
    (options.out / "table.md").write_text(table(results, options.variants), encoding="utf-8")
    draw(results, options.variants, options.out / "curriculum.png")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the study."""
    parser = argparse.ArgumentParser(description="Is the gain of the curriculum that of the window or of the softmax?")
    parser.add_argument("--out", type=Path, default=Path("runs/curriculum"))
    parser.add_argument("--data", default=None, help="another corpus than that of duo-laptop")
    parser.add_argument("--tokenizer", default="bpe", help="as in --set data.tokenizer=...")
    parser.add_argument("--backbone", default="nano")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--learning-rate", type=float, default=6e-3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=512, help="held-out sequences to measure")
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS))
    parser.add_argument("--times", type=lambda text: text.split(","), default=list(TIMES))
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--threads", type=int, default=1, help="of each run")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> list[Result]:
    """Run the study."""
    options = arguments(given)
    # seeds come first, so that a study that is stopped has all variants
    trials = [Trial(v, t, s) for s, t, v in product(range(1, options.seeds + 1), options.times, options.variants)]
    jobs = [Job(trial.name, (), options.steps, Run(trial, options)) for trial in trials]

    def report(text: str) -> None:
        """Say it, and write what is finished."""
        print(text, flush=True)
        results = [found for trial in trials if (found := read_result(options.out, trial)) is not None]
        if results:
            write(results, options)

    execute(jobs, workers=options.workers, threads=options.threads, report=report)
    results = [found for trial in trials if (found := read_result(options.out, trial)) is not None]
    print(table(results, options.variants))
    return results


if __name__ == "__main__":
    main()

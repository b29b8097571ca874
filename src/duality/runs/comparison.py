"""Comparison: several recipes trained, measured and, with a judge, read by it; one table.

    OUT/<recipe>/     a run folder each, resumed if it is there
    OUT/table.json    the rows            OUT/table.md    the same, to paste

A comparison is fair when only the method differs. ``notes`` says where else the recipes do: data, network, training.
All are measured on the same validation text, with the same draws, each by its own measure; the column says which kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from duality.data.files import write_atomically
from duality.data.loader import epoch_order
from duality.data.packing import Sequences
from duality.evaluation.judge import Judge
from duality.evaluation.text_metrics import Quality, quality
from duality.methods.bert_mouth import Gibbs
from duality.protocols import Kind, Reporter, Sampler
from duality.recipes.catalogue import differences
from duality.recipes.recipe import Recipe
from duality.runs import corpora, session
from duality.runs import model as run_model
from duality.runs.metrics import read_metrics
from duality.samplers.autoregressive import Autoregressive
from duality.training.loop import StepRecord


@dataclass(frozen=True)
class Row:
    """One model of the table."""

    recipe: str
    source: str
    parameters: int
    tokens_seen: int
    seconds: float
    kind: Kind
    perplexity: float
    perplexity_stderr: float
    bits_per_byte: float
    quality: Quality | None
    sampling_steps: int | None


@dataclass(frozen=True)
class Plan:
    """What is done to every recipe."""

    out: Path
    num_draws: int = 4
    limit: int | None = None
    judge: Judge | None = None
    num_samples: int = 64
    sampling_steps: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        wanted = {
            "samples": self.num_samples,
            "draws": self.num_draws,
            "limit": self.limit,
            "sample steps": self.sampling_steps,
        }
        for name, value in wanted.items():
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value}; it must be at least 1")


def compare(
    recipes: list[Recipe],
    plan: Plan,
    report: Reporter,
    watching: Callable[[Recipe], Any],
) -> tuple[list[Row], list[str]]:
    """Train (or resume), measure and judge each recipe; rows and remarks, written after each: nothing is lost.

    ``watching(recipe)`` gives a context manager whose value is told every step.
    """
    if len({recipe.name for recipe in recipes}) < len(recipes):
        raise ValueError("a recipe stands twice in the comparison: name each once")
    rows: list[Row] = []
    real = real_text(recipes[0], plan, report)
    for recipe in recipes:
        # Nothing but training between the first and the last step, so that the times compare.
        chosen = replace(recipe, training=replace(recipe.training, eval_every=0))
        with watching(chosen) as watch:
            finished = train(chosen, plan, report, watch)
        if not finished:
            report(f"stopped in {recipe.name}; the same command continues")
            break
        rows.append(measured(chosen, plan, report))
        write_atomically(plan.out / "table.json", json.dumps([asdict(row) for row in rows], indent=1))
        write_atomically(plan.out / "table.md", markdown(rows, remarks(recipes, rows, real)))
    return rows, remarks(recipes, rows, real)


def train(recipe: Recipe, plan: Plan, report: Reporter, watch: Callable[[StepRecord], None]) -> bool:
    """Train to the end; False if a signal stopped it."""
    outcome = session.train(recipe, plan.out / recipe.name, resume=True, device=plan.device, report=report, watch=watch)
    return outcome.signal == 0


def measured(recipe: Recipe, plan: Plan, report: Reporter) -> Row:
    """The row of a run that has been trained."""
    folder = plan.out / recipe.name
    model = run_model.load(folder, report, plan.device)
    corpus = corpora.prepared(recipe, report)
    held_out = Sequences(corpus.validation, recipe.data.length, recipe.data.packing)
    report(f"measuring {recipe.name}")
    result = model.evaluate(held_out, num_draws=plan.num_draws, limit=plan.limit, device=plan.device)
    steps = None if plan.judge is None else steps_of(model.sampler, plan.sampling_steps, recipe.data.length)
    return Row(
        recipe=recipe.name,
        source=recipe.source,
        parameters=sum(value.numel() for value in model.denoiser.parameters()),
        tokens_seen=tokens_seen(Sequences(corpus.train, recipe.data.length, recipe.data.packing), recipe),
        seconds=training_seconds(folder),
        kind=result.kind,
        perplexity=result.perplexity,
        perplexity_stderr=result.perplexity_stderr,
        bits_per_byte=result.bits_per_byte,
        quality=judged(model, plan, steps, folder, report),
        sampling_steps=steps,
    )


def real_text(recipe: Recipe, plan: Plan, report: Reporter) -> Quality | None:
    """What the judge thinks of real text, cut as samples are: what Gen PPL and entropy should come near."""
    if plan.judge is None:
        return None
    corpus = corpora.prepared(recipe, report)
    held_out = Sequences(corpus.validation, recipe.data.length, recipe.data.packing)
    count = min(plan.num_samples, len(held_out))
    tokens, mask = held_out.rows(torch.arange(count).numpy() * len(held_out) // count)
    tokens = tokens[mask.all(-1)]
    return quality(plan.judge, [corpus.tokenizer.decode(row) for row in tokens.tolist()], tokens)


def steps_of(sampler: Sampler, asked: int | None, length: int) -> int:
    """The steps asked for, but where the model leaves no choice: token by token takes as many as there are."""
    if asked is None or isinstance(sampler, (Autoregressive, Gibbs)):
        return sampler.default_steps(length)
    return asked


def judged(model: run_model.Model, plan: Plan, steps: int | None, folder: Path, report: Reporter) -> Quality | None:
    """What the judge thinks of the model's samples, which are kept."""
    if plan.judge is None or steps is None:
        return None
    report(f"sampling {model.recipe.name}, {plan.num_samples} sequences in {steps} steps")
    tokens = model.generate(
        num=plan.num_samples, length=model.recipe.data.length, steps=steps, batch_size=16, device=plan.device
    ).cpu()
    rows = [run_model.sample_row(model, row.tolist(), i, steps, "ancestral", 0) for i, row in enumerate(tokens)]
    (folder / "samples").mkdir(exist_ok=True)
    write_atomically(folder / "samples" / "compared.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with torch.no_grad():
        return quality(plan.judge, [row["text"] for row in rows], tokens)


def tokens_seen(sequences: Sequences, recipe: Recipe) -> int:
    """Real tokens in all batches: whole epochs, and the beginning of the last one."""
    training = recipe.training
    epochs, rest = divmod(training.steps * training.batch_size, len(sequences))
    begun = epoch_order(training.seed, epochs, len(sequences))[:rest]
    return epochs * sequences.num_tokens + sum(
        int(sequences.rows(begun[start : start + 4096])[1].sum()) for start in range(0, rest, 4096)
    )


def training_seconds(folder: Path) -> float:
    """Wall time of training, over all its sittings: the last clock of each."""
    clocks = {row.get("since", 0): float(row["seconds"]) for row in read_metrics(folder) if "seconds" in row}
    return sum(clocks.values(), 0.0)


def notes(recipes: list[Recipe]) -> list[str]:
    """Where recipes differ from the first in anything but name, texts and method."""
    first = recipes[0]
    found = []
    for recipe in recipes[1:]:
        same = replace(recipe, name=first.name, summary=first.summary, source=first.source, method=first.method)
        found += [f"{recipe.name}: {line}" for line in differences(first, same)]
    return found


HEADERS = ("recipe", "parameters", "tokens seen", "training time", "PPL", "bits per byte", "measure")
JUDGED = ("Gen PPL", "entropy", "samples", "steps")


def cells(row: Row) -> list[str]:
    """A row as people read it."""
    symbol = {"bound": "≤ ", "exact": "= ", "pseudo-likelihood": "pseudo "}[row.kind]
    line = [
        row.recipe,
        f"{row.parameters / 1e6:.2f} M",
        f"{row.tokens_seen / 1e6:.2f} M",
        f"{row.seconds / 60:.1f} min",
        f"{symbol}{row.perplexity:.1f} ± {row.perplexity_stderr:.1f}",
        f"{row.bits_per_byte:.3f}",
        row.kind,
    ]
    if row.quality is not None:
        read = row.quality
        line += [f"{read.gen_ppl:.0f} ± {read.gen_ppl_stderr:.0f}", f"{read.entropy:.2f}"]
        line += [str(read.num_samples), str(row.sampling_steps)]
    return line


def headers(rows: list[Row]) -> tuple[str, ...]:
    """The columns that the rows have."""
    return (*HEADERS, *JUDGED) if any(row.quality is not None for row in rows) else HEADERS


def remarks(recipes: list[Recipe], rows: list[Row], real: Quality | None) -> list[str]:
    """What has to be said with the table: who judged, what real text is to that judge, and what else differs."""
    lines = [f"Differs: {line}." for line in notes(recipes)]
    if real is not None:
        lines.insert(
            0,
            f"Gen PPL under {real.judge}, on {samples_read(rows)}. Real text of the validation set, cut alike "
            f"({real.num_samples} pieces): {real.gen_ppl:.0f} ± {real.gen_ppl_stderr:.0f}, entropy {real.entropy:.2f}.",
        )
    return lines


def samples_read(rows: list[Row]) -> str:
    """How many samples were read."""
    counts = sorted({row.quality.num_samples for row in rows if row.quality is not None})
    return f"{', '.join(map(str, counts))} samples of each model"


def markdown(rows: list[Row], lines: list[str]) -> str:
    """The table in Markdown, and what has to be said with it."""
    names = headers(rows)
    lines_of_cells = [names, tuple("---" for _ in names), *(cells(row) for row in rows)]
    return "\n\n".join(["\n".join("| " + " | ".join(line) + " |" for line in lines_of_cells), *lines]) + "\n"

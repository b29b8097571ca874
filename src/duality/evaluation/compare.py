"""Comparison: several recipes trained and measured; with a judge, also sampled and judged; one table.

    OUT/<recipe>/             a run folder for each recipe, resumed if it exists
    OUT/samples/, scores.json what the sweep keeps (``evaluation.sweep``), with a judge
    OUT/table.json            the rows, objects with the fields of ``_ComparedRecipe``; ``samples`` is a row of the
                              sweep (``evaluation.samples.Row``, as in quality.json), or null without a judge
    OUT/table.md              the same as a table

A comparison is fair if only the method differs. ``_remarks`` lists where else the recipes differ: data,
network, training. All recipes are measured on the same validation text, with the same draws, each by its own measure;
the column "measure" gives its kind. What must hold: nothing is trained, sampled or judged twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from duality.data.loader import epoch_order
from duality.data.packing import Sequences
from duality.evaluation.judge import Judge
from duality.evaluation.samples import Case, Row
from duality.evaluation.sweep import RunSampler, Sweep, check_cases, held_out_text
from duality.evaluation.tables import SHORT, short_cells, table
from duality.evaluation.tables import remarks as sample_remarks
from duality.files.atomic import json_text, output_folder, write_atomically
from duality.files.progress import Reporter, working
from duality.protocols import Kind
from duality.ranks import job
from duality.recipes.catalogue import differences
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.recipe import Recipe
from duality.runs.resume import TrainingPlan
from duality.runs.session import Watch
from duality.training import Precision
from duality.training.metrics import read_metrics
from duality.training.precision import precision_on


@dataclass(frozen=True)
class _ComparedRecipe:
    """One row of the table: the training, the likelihood of held-out text and, with a judge, the row of its samples."""

    recipe: str
    source: str
    parameters: int
    tokens_seen: int
    seconds: float
    kind: Kind
    perplexity: float
    perplexity_stderr: float
    bits_per_byte: float
    samples: Row | None


@dataclass(frozen=True)
class ComparisonRequest:
    """What a user asks of a comparison, alike for every recipe.

    ``sampling_steps`` counts where the sampler leaves a choice. ``precision`` is that of the measurement; a training
    has its recipe's.
    """

    out: Path
    num_draws: int = 4
    limit: int | None = None
    judge: Judge | None = None
    num_samples: int = 64
    sampling_steps: int | None = None
    device: torch.device | str = "cpu"
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        counts = {"samples": self.num_samples, "draws": self.num_draws, "limit": self.limit}
        for name, value in {**counts, "sample steps": self.sampling_steps}.items():
            if value is not None and not 1 <= value < 1 << 63:
                raise ValueError(f"{name}: {value}; it must be at least 1, and below 2**63")

    def case(self, recipe: Recipe) -> Case:
        """The samples of a recipe's run: its own sampler, as many steps as requested."""
        length = recipe.data.length
        # the number of steps does not depend on the vocabulary
        steps = recipe.method.sampler(2).steps(length, self.sampling_steps)
        numbers = precision_on(self.precision, torch.device(self.device))
        run, num = self.out / recipe.name, self.num_samples
        return Case(label=recipe.name, run=run, steps=steps, num=num, length=length, precision=numbers)


def compare(
    recipes: Sequence[Recipe],
    request: ComparisonRequest,
    report: Reporter,
    watching: Callable[[Recipe], AbstractContextManager[Watch]],
) -> tuple[list[_ComparedRecipe], list[str], int]:
    """Train (or resume), measure and judge each recipe; rows and remarks, in files after every recipe.

    The last value is the signal that stopped a training, or 0.

    ``watching(recipe)`` is a context whose value is called with the record of every training step.
    """
    if len({recipe.name for recipe in recipes}) < len(recipes):
        raise ValueError("a recipe stands twice in the comparison: name each once")
    sampler = RunSampler(request.device, report, precision=request.precision)
    sweep: Sweep | None = None
    real, rows, number = list[Row](), list[_ComparedRecipe](), 0
    if request.judge is not None:
        check_cases([request.case(recipe) for recipe in recipes])
        text = held_out_text(recipes[0], request.num_samples, recipes[0].data.length, report)
        sweep = Sweep(request.out, sampler, report, request.judge, text)
        real = job().once(sweep.real_rows)

    def write_table() -> None:
        found = [{**asdict(row), "samples": row.samples and row.samples.to_json()} for row in rows]
        write_atomically(request.out / "table.json", json_text(found, indent=1))
        lines = [table(table_lines(rows)).rstrip("\n"), *_remarks(recipes, rows, real)]
        write_atomically(request.out / "table.md", "\n\n".join(lines) + "\n")

    job().once(lambda: output_folder(request.out))
    for recipe in recipes:
        # Between the first and the last step there is training alone, so that the times can be compared.
        chosen = replace(recipe, training=replace(recipe.training, eval_every=0))
        training = TrainingPlan(chosen, request.out / recipe.name, resume=True, may_be_longer=False)
        with watching(chosen) as watch:
            outcome = training.run(device=request.device, report=report, watch=watch)
        if number := outcome.signal:
            report(f"stopped in {recipe.name}; the same command continues")
            break
        rows.append(_measure_run(chosen, request, sampler, sweep, report))
        job().once(write_table)
    return rows, _remarks(recipes, rows, real), number


def _measure_run(
    recipe: Recipe, request: ComparisonRequest, sampler: RunSampler, sweep: Sweep | None, report: Reporter
) -> _ComparedRecipe:
    """The row of a run that has been trained."""
    case = request.case(recipe)
    model, corpus = sampler.model(case), job().in_turn(lambda: prepare_corpus(recipe, report))
    held_out = make_sequences(recipe.data, corpus.validation, corpus.tokenizer)
    train = make_sequences(recipe.data, corpus.train, corpus.tokenizer)
    report(f"measuring {recipe.name}")
    num = min(request.limit or len(held_out), len(held_out))
    with working(report, "measuring", num, "sequences") as advance:
        result = model.likelihood(held_out, num_draws=request.num_draws, limit=request.limit, advance=advance)
    return _ComparedRecipe(
        recipe=recipe.name,
        source=recipe.source,
        parameters=sum(value.numel() for value in model.denoiser.parameters()),
        tokens_seen=_tokens_seen(train, recipe),
        seconds=_training_seconds(case.run),
        **{name: getattr(result, name) for name in ("kind", "perplexity", "perplexity_stderr", "bits_per_byte")},
        samples=None if sweep is None else sweep.row(case),
    )


def _tokens_seen(sequences: Sequences, recipe: Recipe) -> int:
    """The number of real tokens in all batches: whole epochs, and the beginning of the last one."""
    training = recipe.training
    epochs, rest = divmod(training.steps * training.batch_size, len(sequences))
    begun = epoch_order(training.seed, epochs, len(sequences))[:rest]
    return epochs * len(sequences.store) + sum(
        int(sequences.real(begun[start : start + 4096]).sum()) for start in range(0, rest, 4096)
    )


def _training_seconds(folder: Path) -> float:
    """Wall time of training, summed over its sessions; metrics.jsonl counts the seconds of each from 0."""
    last = {row.get("since", 0): float(row["seconds"]) for row in read_metrics(folder) if "seconds" in row}
    return sum(last.values(), 0.0)


def table_lines(rows: Sequence[_ComparedRecipe]) -> list[list[str]]:
    """The table as text, its head first; with the columns of samples if any row has them."""
    head = ["recipe", "parameters", "tokens seen", "training time", "PPL", "bits per byte", "measure"]
    if any(row.samples is not None for row in rows):
        head += [*SHORT.values(), "samples", "steps"]
    lines = [head]
    for row in rows:
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
        if row.samples is not None:
            line += [*short_cells(row.samples), str(row.samples.num), str(row.samples.steps)]
        lines.append(line)
    return lines


def _remarks(recipes: Sequence[Recipe], rows: Sequence[_ComparedRecipe], real: Sequence[Row]) -> list[str]:
    """Sentences that belong to the table: the remarks of the sweep, and in what else than the method recipes differ.

    Name, texts and how they are sampled elsewhere do not count.
    """
    sampled = [row.samples for row in rows if row.samples is not None]
    lines, first = sample_remarks([*sampled, *real]) if sampled else [], recipes[0]
    shared = {name: getattr(first, name) for name in ("name", "summary", "source", "method", "generation")}
    for recipe in recipes[1:]:
        lines += [f"Differs: {recipe.name}: {line}." for line in differences(first, replace(recipe, **shared))]
    return lines

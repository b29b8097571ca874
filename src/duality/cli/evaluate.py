"""The commands `eval` and `compare`: the perplexity of a run on held-out or other text; of several recipes, alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from duality.cli.console import print_table, say, show_training
from duality.cli.options import AnyModel, Assignments, Column, Device, Flag, KeptStep, Round, Weights

if TYPE_CHECKING:
    from duality.models.likelihood import Likelihood
    from duality.models.model import Model

Texts = Annotated[tuple[str, ...], UseAppendAction, arg(metavar="TEXT")]
_DERIVED = ("perplexity", "perplexity_stderr", "bits_per_byte", "bits_per_character")


def evaluate(
    run: AnyModel,
    /,
    data: Texts = (),
    suite: Literal["zero-shot", "lm1b", "owt", "text8"] | None = None,
    column: Column = None,
    split: Literal["validation", "train"] = "validation",
    corpus: str | None = None,
    draws: int = 4,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    weights: Weights = "ema",
    round_number: Round = None,
    kept_step: KeptStep = None,
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the perplexity of a run, or of a model alone.

    Args:
        data: other text to evaluate on, encoded with the run's tokenizer and cut into documents as the run's own: a
            file, a folder, a named source or dataset. With --suite, where sets are: ptb=FOLDER; can be repeated.
        suite: the test sets of a table of the paper, with the paper's rows beside; a run keeps them: evaluations.json.
        column: where the text of --data is: the key of a .jsonl file, the column of a .csv or .tsv file; that of the
            run's own corpus if not given.
        split: which part of the run's own corpus, if --data is not given.
        corpus: where the text that the model was trained on is now, if it was moved or the model is from elsewhere.
        draws: draws of time and noise for each sequence; more make the error smaller, and take longer.
        limit: evaluate on so many sequences only, evenly spread over the text.
        batch_size: sequences at a time; the result does not depend on it.
        seed: seed of times and noise.
        json: print one JSON object instead of text.
    """
    from duality.files.atomic import json_text
    from duality.files.progress import working
    from duality.models.model import load
    from duality.runs.corpus import sequences_of_run

    if suite is not None and (column is not None or split != "validation" or corpus is not None):
        raise ValueError("--column, --split and --corpus do not belong to --suite, whose sets are what they are")
    if suite is None and len(data) > 1:
        raise ValueError(f"--data is given {len(data)} times: without --suite one text is evaluated; give one")
    model = load(run, say, device, weights, round_number, kept_step)
    if suite is not None:
        return _evaluate_on_suite(model, run, suite, data, (draws, limit, batch_size, seed), json)
    other = data[0] if data else None
    folder = run if model.origin is None else model.origin.folder
    sequences = sequences_of_run(model, folder, data=other, column=column, split=split, corpus=corpus, report=say)
    with working(say, "evaluating", min(limit or len(sequences), len(sequences)), "sequences") as advance:
        result = model.likelihood(
            sequences, num_draws=draws, limit=limit, batch_size=batch_size, seed=seed, advance=advance
        )
    facts = {"run": str(run), "step": model.step, "data": other or split}
    heading = f"{run}, step {model.step}, on {other or f'{split} of {corpus or model.recipe.data.corpus}'}"
    print(json_text(facts | _numbers(result)) if json else "\n".join([heading, *result.lines()]))
    return 0


def _evaluate_on_suite(
    model: Model, run: Path, name: str, data: tuple[str, ...], how: tuple[int, int | None, int, int], json: bool
) -> int:
    """Print the table of a suite."""
    from duality.evaluation.suites import SUITES, evaluate_suite, suite_remarks, suite_table
    from duality.evaluation.tables import table
    from duality.files.atomic import json_text
    from duality.models.folder import exists
    from duality.models.likelihood import KEPT
    from duality.papers.duo.index import published_rows

    for each in data:
        if not all(each.partition("=")[1:]):
            raise ValueError(f"--data {each}: with --suite it says where a set is, such as --data ptb=FOLDER")
    places = dict(each.split("=", 1) for each in data)
    suite, (num_draws, limit, batch_size, seed) = SUITES[name], how
    keep = run / KEPT if exists(run) else None  # what is not a run is left as it is
    outcomes = evaluate_suite(
        model,
        suite,
        places,
        num_draws=num_draws,
        limit=limit,
        batch_size=batch_size,
        seed=seed,
        keep=keep,
        report=say,
    )
    if json:
        found = {each.dataset: None if each.result is None else _numbers(each.result) for each in outcomes}
        missing = {each.dataset: each.missing for each in outcomes if each.result is None}
        print(json_text({"run": str(run), "step": model.step, "suite": name, "sets": found, "missing": missing}))
        return 0
    print(f"{suite.title}\n{run}, step {model.step}, {num_draws} draws of time and noise for each sequence\n")
    head, ours = suite_table(suite, outcomes, str(run))
    published = [] if suite.table is None else published_rows(suite.table, head[1:])
    print(table([head, ours, *published]))
    print("\n".join(["", *suite_remarks(model, suite, outcomes)]))
    return 0


def _numbers(result: Likelihood) -> dict[str, float | str]:
    """All numbers of a likelihood by name."""
    return vars(result) | {name: getattr(result, name) for name in _DERIVED}


def compare(
    recipes: Annotated[tuple[str, ...], Positional, arg(metavar="RECIPE ...")],
    /,
    out: Path = Path("runs/compare"),
    data: str | None = None,
    column: Column = None,
    steps: int | None = None,
    seed: int | None = None,
    assignments: Assignments = (),
    draws: int = 4,
    limit: int | None = None,
    judge: str | None = None,
    samples: int = 64,
    sample_steps: int | None = None,
    device: Device = "auto",
) -> int:
    """Train several recipes, measure them in the same manner and print one table; an earlier comparison is continued.

    Args:
        recipes: names that `duality recipes` lists.
        out: a folder for the runs and the table (table.json, table.md).
        data: a text file, a .jsonl, .csv or .tsv file, a folder of them, or a named source, for all of them.
        column: where the text is: the key of a .jsonl file, the column of a .csv or .tsv file; text if not given.
        steps: number of training steps of each.
        seed: seed of weights, data order and noise of each.
        assignments: change a field of every recipe, such as --set backbone=nano; can be repeated.
        draws: draws of time and noise for each sequence that is measured.
        limit: measure on this many sequences only.
        judge: a language model that reads samples: smollm2 (fetched), a .gguf file, a Hugging Face folder or name, or
            the folder of an autoregressive run. Adds columns.
        samples: how many samples the judge reads.
        sample_steps: network calls for each sample, where the model leaves the choice.
    """
    from duality.evaluation.compare import ComparisonRequest, table_lines
    from duality.evaluation.compare import compare as compare_recipes
    from duality.evaluation.judge import find_judge
    from duality.files.atomic import no_empty_folder
    from duality.recipes.catalogue import modify
    from duality.recipes.catalogue import recipe as find
    from duality.training.devices import device_named

    if not recipes:
        raise ValueError(
            "nothing to compare: name recipes, such as mdlm-laptop duo-laptop; `duality recipes` lists them"
        )
    shorthand = {"training.steps": steps, "training.seed": seed}
    changes = [f"{field}={value}" for field, value in shorthand.items() if value is not None]
    chosen = [find(name, (*changes, *assignments)) for name in recipes]
    chosen = [modify(each, corpus=data or each.data.corpus, column=column) for each in chosen]
    where = device_named(device)
    reader = None if judge is None else find_judge(judge, where, say)
    request = ComparisonRequest(out, draws, limit, reader, samples, sample_steps, where)
    with no_empty_folder(out):
        rows, remarks = compare_recipes(chosen, request, say, lambda each: show_training(each.training.steps))
    head, *lines = table_lines(rows)
    print_table(head, lines)
    print("\n".join(remarks))
    return 0 if len(rows) == len(chosen) else 130

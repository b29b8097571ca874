"""The command `eval`: measure the perplexity of a run on held-out or other text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import tyro

from duality.cli.common import Column, Device, Flag, Folder, KeptStep, Round

if TYPE_CHECKING:
    from pathlib import Path

    from duality.models.likelihood import Likelihood
    from duality.models.model import Model

SuiteName = Literal["zero-shot", "lm1b", "owt", "text8"]
Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")]


class Measured(NamedTuple):
    """How a likelihood is measured."""

    draws: int
    limit: int | None
    batch_size: int
    seed: int


def evaluate(
    run: Folder,
    /,
    data: Texts = (),
    suite: SuiteName | None = None,
    column: Column = None,
    split: Literal["validation", "train"] = "validation",
    corpus: str | None = None,
    draws: int = 4,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    weights: Literal["ema", "model"] = "ema",
    round_number: Round = None,
    kept_step: KeptStep = None,
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the perplexity of a run, or of a model alone.

    Args:
        run: the run folder, a folder of `duality publish`, or a model of the Hugging Face hub (hf:OWNER/NAME@REVISION).
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
        weights: averaged (ema) or raw (model).
        round_number: after this round of a distillation instead of the last; 0 is what it began from.
        kept_step: the weights at this training step instead of the newest; the run must have kept that checkpoint.
        device: where to compute.
        json: print one JSON object instead of text.
    """
    from duality.cli.console import counting_display, say
    from duality.files.atomic import json_text
    from duality.models.model import load
    from duality.runs.corpora import sequences_of_run

    if suite is not None:
        check_suite(column, split, corpus)
        model = load(run, say, device, weights, round_number, kept_step)
        return evaluate_on_suite(model, run, suite, data, Measured(draws, limit, batch_size, seed), json)
    other = only_one(data)
    model = load(run, say, device, weights, round_number, kept_step)
    folder = run if model.origin is None else model.origin.folder
    sequences = sequences_of_run(model, folder, data=other, column=column, split=split, corpus=corpus, report=say)
    with counting_display("evaluating", min(limit or len(sequences), len(sequences)), "sequences") as advance:
        result = model.likelihood(
            sequences, num_draws=draws, limit=limit, batch_size=batch_size, seed=seed, advance=advance
        )
    facts = {"run": str(run), "step": model.step, "data": other or split}
    heading = f"{run}, step {model.step}, on {other or f'{split} of {corpus or model.recipe.data.corpus}'}"
    print(json_text(facts | numbers(result)) if json else "\n".join([heading, *result.lines()]))
    return 0


def only_one(data: tuple[str, ...]) -> str | None:
    """The text to evaluate on; several are for suites."""
    if len(data) > 1:
        raise ValueError(f"--data is given {len(data)} times: without --suite one text is evaluated; give one")
    return data[0] if data else None


def check_suite(column: str | None, split: str, corpus: str | None) -> None:
    """Refuse what a suite does not read."""
    if column is not None or split != "validation" or corpus is not None:
        raise ValueError("--column, --split and --corpus do not belong to --suite, whose sets are what they are")


def evaluate_on_suite(model: Model, run: Path, name: str, data: tuple[str, ...], measured: Measured, json: bool) -> int:
    """Print the table of a suite."""
    from duality.cli.console import counting_display, say
    from duality.evaluation.suites import SUITES, Settings, evaluate_suite, remarks, table_rows
    from duality.evaluation.tables import table
    from duality.files.atomic import json_text
    from duality.models.folder import exists
    from duality.models.likelihood import KEPT
    from duality.papers.duo.index import published_rows

    places: dict[str, str] = {}
    for each in data:
        dataset, equals, place = each.partition("=")
        if not (equals and place):
            raise ValueError(f"--data {each}: with --suite it says where a set is, such as --data ptb=FOLDER")
        places[dataset] = place
    suite, settings = SUITES[name], Settings(*measured)
    outcomes = evaluate_suite(
        model,
        suite,
        places,
        settings,
        lambda label, count: counting_display(label, count, "sequences"),
        keep=run / KEPT if exists(run) else None,  # what is not a run is left as it is
        report=say,
    )
    if json:
        found = {each.dataset: None if each.result is None else numbers(each.result) for each in outcomes}
        missing = {each.dataset: each.missing for each in outcomes if each.result is None}
        print(json_text({"run": str(run), "step": model.step, "suite": name, "sets": found, "missing": missing}))
        return 0
    print(f"{suite.title}\n{run}, step {model.step}, {settings.num_draws} draws of time and noise for each sequence\n")
    print(table(table_rows(suite, outcomes, str(run), published_rows)))
    print("\n".join(["", *remarks(model, suite, outcomes)]))
    return 0


def numbers(result: Likelihood) -> dict[str, float | str]:
    """All numbers of a likelihood by name."""
    from dataclasses import asdict

    derived = ("perplexity", "perplexity_stderr", "bits_per_byte", "bits_per_character")
    return asdict(result) | {name: getattr(result, name) for name in derived}

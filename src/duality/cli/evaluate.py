"""The commands `eval`, `compare`, `quality` and `plot`: how well models predict text, how good their samples are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from duality.cli import options
from duality.cli.console import print_table, say
from duality.cli.options import AnyModel, Assignments, Column, Device, Folders, KeptStep, Precision, Round, Weights
from duality.evaluation.requests import SAMPLER_NAMES, SweepRequest, list_values
from duality.files.atomic import json_text
from duality.files.progress import working
from duality.runs.requests import TrainRequest
from duality.samplers import GRIDS

if TYPE_CHECKING:
    from duality.models.likelihood import Likelihood
    from duality.models.model import Model

_SAMPLERS = f"the model's own or others, with commas: {', '.join(SAMPLER_NAMES)}."
_GRIDS = f"{', '.join(GRIDS)}; the one that suits the sampler if not given."
_SweepFlags = options.make_flags(
    SweepRequest,
    **dict.fromkeys(("steps", "tail", "temperature", "rounds"), str),
    sampler=Annotated[str, arg(help=_SAMPLERS)],
    grid=Annotated[str | None, arg(help=_GRIDS)],
    checkpoint=KeptStep,
)
_How = dict[str, Any]  # draws, limit, batch size, seed and latents of a likelihood
_LATENTS = {"discrete": "", "gaussian": ", with Gaussian latents"}
_DERIVED = ("perplexity", "perplexity_stderr", "bits_per_byte", "bits_per_character")


def evaluate(
    run: AnyModel,
    data: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="TEXT")] = (),
    suite: Literal["zero-shot", "lm1b", "owt", "text8"] | None = None,
    column: Column = None,
    split: Literal["validation", "train"] = "validation",
    corpus: str | None = None,
    draws: int = 4,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    latents: Literal["discrete", "gaussian"] = "discrete",
    weights: Weights = "ema",
    round_number: Round = None,
    kept_step: KeptStep = None,
    device: Device = "auto",
    precision: Precision = "auto",
    json: bool = False,
) -> None:
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
        latents: the noisy tokens are drawn from the discrete process, or, for uniform noise (Duo, UDLM), as the argmax
            of Gaussian latents at the same levels: equal in law, so the two numbers agree within their errors.
        json: print one JSON object instead of text.
    """
    from duality.models.model import load
    from duality.runs.corpus import sequences_of_run

    if suite is not None and (column is not None or split != "validation" or corpus is not None):
        raise ValueError("--column, --split and --corpus do not belong to --suite, whose sets are what they are")
    if suite is None and len(data) > 1:
        raise ValueError(f"--data is given {len(data)} times: without --suite one text is evaluated; give one")
    model = load(run, say, device, weights, round_number, kept_step, precision=precision)
    how: _How = {"num_draws": draws, "limit": limit, "batch_size": batch_size, "seed": seed, "latents": latents}
    model.agree([suite, split, how])
    if suite is not None:
        _evaluate_on_suite(model, run, suite, data, how, json)
        return
    other = data[0] if data else None
    folder = run if model.origin is None else model.origin.folder
    sequences = sequences_of_run(model, folder, data=other, column=column, split=split, corpus=corpus, report=say)
    with working(say, "evaluating", min(limit or len(sequences), len(sequences)), "sequences") as advance:
        result = model.likelihood(sequences, advance=advance, **how)
    facts = _about(run, model, latents) | {"data": other or split}
    heading = (
        f"{run}, step {model.step}{_in_words(model)}, on {other or f'{split} of {corpus or model.recipe.data.corpus}'}"
    )
    print(json_text(facts | _numbers(result)) if json else "\n".join([heading + _LATENTS[latents], *result.lines()]))


def _evaluate_on_suite(model: Model, run: Path, name: str, data: tuple[str, ...], how: _How, json: bool) -> None:
    """Print the table of a suite."""
    from duality.evaluation.suites import SUITES
    from duality.evaluation.tables import table
    from duality.models.folder import exists
    from duality.models.likelihood import KEPT
    from duality.papers.duo import page

    for each in data:
        if not all(each.partition("=")[1:]):
            raise ValueError(f"--data {each}: with --suite it says where a set is, such as --data ptb=FOLDER")
    suite, places = SUITES[name], dict(each.split("=", 1) for each in data)
    keep = run / KEPT if exists(run) else None  # what is not a run is left as it is
    outcomes = suite.evaluate(model, places, keep=keep, report=say, **how)
    if json:
        found = {each.dataset: None if each.result is None else _numbers(each.result) for each in outcomes}
        missing = {each.dataset: each.missing for each in outcomes if each.result is None}
        print(json_text(_about(run, model, how["latents"]) | {"suite": name, "sets": found, "missing": missing}))
        return
    draws = f"{how['num_draws']} draws of time and noise for each sequence{_LATENTS[how['latents']]}"
    print(f"{suite.title}\n{run}, step {model.step}{_in_words(model)}, {draws}\n")
    head, ours = suite.lines(outcomes, str(run))
    published = [] if suite.table is None else page.table(suite.table).rows_under(head[1:])
    print(table([head, ours, *published]))
    print("\n".join(["", *suite.remarks(model, outcomes)]))


def _about(run: Path, model: Model, latents: str) -> dict[str, object]:
    """What a likelihood is of, but for the text."""
    return {"run": str(run), "step": model.step, "latents": latents, "precision": model.precision}


def _in_words(model: Model) -> str:
    """The precision of a model, if it is not the usual one."""
    return "" if model.precision == "float32" else f", in {model.precision}"


def _numbers(result: Likelihood) -> dict[str, float | str]:
    """All numbers of a likelihood by name."""
    return vars(result) | {name: getattr(result, name) for name in _DERIVED}


def compare(
    recipes: Annotated[tuple[str, ...], Positional, arg(metavar="RECIPE ...")],
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
    precision: Precision = "auto",
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
    from duality.evaluation import compare as comparison
    from duality.evaluation.judge import find_judge
    from duality.files.atomic import no_empty_folder
    from duality.recipes import catalogue
    from duality.runs.session import show_training
    from duality.training.settings import device_named

    if not recipes:
        raise ValueError(
            "nothing to compare: name recipes, such as mdlm-laptop duo-laptop; `duality recipes` lists them"
        )
    changes = TrainRequest(steps=steps, seed=seed, set=assignments).changes()
    chosen = [catalogue.recipe(name, changes) for name in recipes]
    chosen = [catalogue.modify(each, corpus=data or each.data.corpus, column=column) for each in chosen]
    where = device_named(device)
    reader = None if judge is None else find_judge(judge, where, say)
    request = comparison.ComparisonRequest(out, draws, limit, reader, samples, sample_steps, where, precision)
    with no_empty_folder(out):
        rows, remarks, number = comparison.compare(
            chosen, request, say, lambda each: show_training(say, each.training.steps)
        )
    head, *lines = comparison.table_lines(rows)
    print_table(head, lines)
    print("\n".join(remarks))
    return 128 + number if number else 0


@dataclass(frozen=True)
class _Readers:
    """Who reads the samples."""

    judge: str | None = None
    """smollm2 (fetched), a .gguf file, a Hugging Face folder or name (gpt2-large is the paper's), the folder of an
    autoregressive run, or none; if not given, smollm2 without --score and none with it."""
    score: str = "none"
    """molecules (validity, uniqueness, novelty and diversity of SMILES; needs RDKit), an entry point of the group
    duality.scorers, or a function of yours as module:function; several with commas."""

    def resolve(self) -> tuple[str | None, tuple[str, ...]]:
        """The judge and the scorers."""
        scorers = () if self.score == "none" else tuple(list_values("--score", "names", self.score, str))
        judge = self.judge or ("none" if scorers else "smollm2")
        return None if judge == "none" else judge, scorers


_REQUEST, _READ_BY = _SweepFlags(), _Readers()


def quality(
    runs: Folders,
    request: Annotated[SweepRequest, arg(name="", constructor=_SweepFlags)] = _REQUEST,
    readers: Annotated[_Readers, arg(name="")] = _READ_BY,
    out: Path = Path("runs/quality"),
    batch_size: int = 16,
    corpus: str | None = None,
    device: Device = "auto",
    precision: Precision = "auto",
    json: bool = False,
) -> None:
    """Measure the samples of runs with a judge or with scorers; samples and scores that are kept in OUT are used again.

    Args:
        runs: run folders, folders of `duality publish`, or models of the Hugging Face hub (hf:OWNER/NAME@REVISION).
        request: how the samples are made, in every combination of what is given with commas.
        readers: who reads the samples.
        out: a folder for samples, scores, the tables (quality.json, quality.md, frontiers.md) and the figures.
        batch_size: samples at a time; the result does not depend on it.
        corpus: where the corpus of the first run is now, if it was moved or the model is from elsewhere.
        json: print the rows as JSON instead of the tables.
    """
    from duality.evaluation.frontiers import has_frontiers
    from duality.evaluation.sweep import measure_runs
    from duality.evaluation.tables import all_tables

    judge, scorers = readers.resolve()
    measure = partial(measure_runs, runs, request, judge=judge, scorers=scorers, report=say)
    rows = measure(out=out, device=device, precision=precision, batch_size=batch_size, corpus=corpus)
    if json:
        print(json_text([row.to_json() for row in rows]))
    else:
        print(all_tables(rows, differing=True))
        if has_frontiers(rows):
            print((out / "frontiers.md").read_text(encoding="utf-8"))
    say(f"samples, scores, tables and figures are in {out}")


def plot(
    tables: Annotated[tuple[Path, ...], Positional, arg(metavar="TABLE ...")],
    out: Path = Path("quality.png"),
    rounds: Path | None = None,
    frontiers: Path = Path("frontiers.png"),
    quality: str | None = None,
    diversity: str | None = None,
) -> None:
    """Draw what `duality quality` measured, from one or several of its folders or quality.json, and print the tables.

    Args:
        tables: folders of `duality quality`, or quality.json files.
        out: the figure against steps.
        rounds: a figure against rounds of distillation as well.
        frontiers: the figure of quality against diversity, if there is more than one temperature.
        quality: gen_ppl, or a column of a scorer such as validity; if not given, the first column of a scorer, or
            gen_ppl.
        diversity: entropy, distinct_1, distinct_2, distinct_3, or a column of a scorer such as novelty; if not given,
            novelty if it was measured, or entropy.
    """
    from duality.evaluation.figures import draw, plot_frontiers
    from duality.evaluation.frontiers import frontiers as frontiers_of
    from duality.evaluation.frontiers import has_frontiers
    from duality.evaluation.samples import read_rows
    from duality.evaluation.tables import several_temperatures, short_table

    if not tables:
        raise ValueError("nothing to draw: name folders that `duality quality --out` made")
    places = read_rows(tables)
    rows = list(places)
    if (quality or diversity) and not several_temperatures(rows):
        raise ValueError("frontiers need more than one temperature: measure with --temperature 0.6,0.8,1.0")
    found = frontiers_of(places, quality, diversity) if quality or diversity or has_frontiers(rows) else None
    draw(rows, out, rounds)
    print(short_table(rows))
    if found is not None:
        plot_frontiers(found, frontiers)
        print(found.markdown())

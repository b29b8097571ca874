"""The command line: a command is a typed function.

Torch is imported inside the commands, so that help is immediate. A user's error is one line on stderr and exit code 2;
``--debug`` adds the traceback. Results go to stdout, progress and remarks to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tyro

Device = Literal["auto", "cpu", "cuda"]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Assignments = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="set", metavar="FIELD=VALUE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


def train(
    recipe: Name,
    /,
    out: Path | None = None,
    data: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    assignments: Assignments = (),
    resume: Flag = False,
    device: Device = "auto",
    dry_run: Flag = False,
) -> int:
    """Train a recipe into a run folder.

    Args:
        recipe: a name that `duality recipes` lists.
        out: the run folder; runs/RECIPE if not given.
        data: a text file, a folder of text, or a source that `duality data list` names.
        steps: number of training steps; short for --set training.steps=N.
        seed: seed of weights, data order and noise; short for --set training.seed=N.
        assignments: change a field of the recipe, such as --set training.learning_rate=1e-3 or --set backbone=tiny;
            can be repeated.
        resume: continue the run in --out where its last checkpoint is, with the settings it was started with; start it
            if there is none.
        device: where to compute; auto takes a GPU if there is one.
        dry_run: print the recipe as it would run, with its parameters and memory, and stop.
    """
    from duality import run
    from duality.console import say, training_display
    from duality.describe import describe
    from duality.metrics import read_metrics
    from duality.recipes import modified
    from duality.recipes import recipe as find

    folder = out or Path("runs") / recipe
    shorthand = {"training.steps": steps, "training.seed": seed}
    changes = [f"{field}={value}" for field, value in shorthand.items() if value is not None]
    base = run.read_recipe(folder) if resume and run.exists(folder) else find(recipe)
    if base.name != recipe:
        raise ValueError(f"{folder} holds a run of {base.name}, not of {recipe}: resume it by its name")
    chosen = modified(base, (*changes, *assignments))
    chosen = run.with_corpus(chosen, data or chosen.data.corpus)
    if dry_run:
        describe(chosen)
        return 0
    with training_display(chosen.training.steps) as watch:
        outcome = run.train(chosen, folder, resume=resume, device=pick(device), report=say, watch=watch)
    if outcome.signal:
        say(f"stopped by a signal at step {outcome.step}; saved. Continue with the same command and --resume")
        return 128 + outcome.signal
    last = [row for row in read_metrics(folder) if "validation_nats" in row][-1]
    nats = f"{last['validation_nats']:.4f} ± {last['validation_stderr']:.4f} nats per token"
    print(f"{folder}: step {outcome.step}, validation {nats} ({last.get('validation_kind', 'bound')})")
    return 0


def evaluate(
    run: Folder,
    /,
    data: str | None = None,
    split: Literal["validation", "train"] = "validation",
    draws: int = 4,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    weights: Literal["ema", "model"] = "ema",
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the perplexity of a run.

    Args:
        run: the run folder.
        data: other text to evaluate on, encoded with the run's tokenizer: a file, a folder, a named source.
        split: which part of the run's own corpus, if --data is not given.
        draws: draws of time and noise for each sequence; more make the error smaller, and take longer.
        limit: evaluate on so many sequences only, evenly spread over the text.
        batch_size: sequences at a time; the result does not depend on it.
        seed: seed of times and noise.
        weights: averaged (ema) or raw (model) weights.
        device: where to compute.
        json: print one JSON object instead of text.
    """
    from dataclasses import asdict
    from json import dumps

    from duality.console import counting_display, say
    from duality.data import Sequences, encode_corpus
    from duality.provenance import check_corpus
    from duality.run import load, prepared

    where = pick(device)
    model = load(run, say, where, weights)
    own = model.recipe.data
    if data is not None:
        names = model.label_names or None
        store = encode_corpus(data, model.tokenizer, label_names=names, progress=say)
    else:
        corpus = prepared(model.recipe, say)
        check_corpus(run, corpus)
        store = corpus.validation if split == "validation" else corpus.train
    sequences = Sequences(store, own.length, own.packing)
    total = min(limit or len(sequences), len(sequences))
    with counting_display("evaluating", total) as advance:
        result = model.evaluate(
            sequences, num_draws=draws, limit=limit, batch_size=batch_size, seed=seed, device=where, advance=advance
        )
    if json:
        extra = {
            name: getattr(result, name)
            for name in ("perplexity", "perplexity_stderr", "bits_per_byte", "bits_per_character")
        }
        print(dumps({"run": str(run), "step": model.step, "data": data or split, **asdict(result), **extra}))
    else:
        print(f"{run}, step {model.step}, on {data or split + ' of ' + own.corpus}")
        print("\n".join(result.lines()))
    return 0


def sample(
    run: Folder,
    /,
    num: int = 4,
    steps: int | None = None,
    sampler: Literal["own", "ancestral", "analytic"] = "own",
    tail: Literal["greedy", "ancestral"] = "ancestral",
    length: int | None = None,
    prompt: str = "",
    suffix: str = "",
    top_p: float = 1.0,
    temperature: float = 1.0,
    label: str | None = None,
    guidance: float | None = None,
    seed: int = 0,
    batch_size: int = 16,
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Write text with a run.

    Args:
        run: the run folder.
        num: how many samples.
        steps: network calls for each sample; 32 if not given, one per token for an autoregressive model, two for Gibbs.
        sampler: the model's own, or another one.
        tail: the last step draws the tokens (ancestral) or takes the most likely ones (greedy).
        length: tokens of a sample; the length it was trained on if not given.
        prompt: text that every sample begins with.
        suffix: text that every sample ends with: the model fills in what is between.
        top_p: draw from the fewest tokens that hold this share of the belief; 1 is all of it.
        temperature: below 1 sharpens the belief, above 1 flattens it.
        label: write in this class; the model must have been trained with labels.
        guidance: how far to lean towards the class: 1 is the conditional model, more goes beyond it.
        seed: the same seed gives the same samples.
        batch_size: samples at a time; the result does not depend on it.
        device: where to compute.
        json: print a JSON object per sample, with its tokens.
    """
    from json import dumps

    from duality.console import counting_display, say
    from duality.run import load, sample_row
    from duality.shaping import bend, clamp, guide

    where = pick(device)
    model = load(run, say, where)
    size = model.recipe.data.length if length is None else length
    if size < 1:
        raise ValueError(f"--length is {size}: a sample needs at least 1 token")
    known = clamp(model, size, prompt, suffix, where)
    lean = guide(model, label, guidance, where)
    chosen = model.named_sampler(sampler)
    count = chosen.default_steps(size) if steps is None else steps
    batches = (num + batch_size - 1) // batch_size if batch_size > 0 else 0
    with counting_display("sampling", count * batches) as advance:
        tokens = model.generate(
            lambda denoiser: known(bend(lean(denoiser), top_p, temperature)),
            chosen,
            num=num,
            length=size,
            steps=count,
            seed=seed,
            tail=tail,
            batch_size=batch_size,
            device=where,
            watch=lambda frame: advance(1),
        )
    for index, row in enumerate(tokens.tolist()):
        made = sample_row(model, row, index, count, tail, seed)
        if json:
            print(dumps(made))
        else:
            print(f"--- sample {index + 1} of {num}: {count} steps, {tail} tail, seed {seed}")
            print(made["text"])
    return 0


def compare(
    recipes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE ...")],
    /,
    out: Path = Path("runs/compare"),
    data: str | None = None,
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
    """Train several recipes, measure them alike and print one table; continues what is there.

    Args:
        recipes: names that `duality recipes` lists.
        out: a folder for the runs and the table (table.json, table.md).
        data: a text file, a folder of text, or a named source, for all of them.
        steps: number of training steps of each.
        seed: seed of weights, data order and noise of each.
        assignments: change a field of every recipe, such as --set backbone=nano; can be repeated.
        draws: draws of time and noise for each sequence that is measured.
        limit: measure on so many sequences only.
        judge: an external language model that reads samples: smollm2 (fetched), a .gguf file, a Hugging Face folder or
            name. Adds columns.
        samples: how many samples the judge reads.
        sample_steps: network calls for each sample, where the model leaves the choice.
        device: where to compute.
    """
    from rich.console import Console
    from rich.table import Table

    from duality import run
    from duality.compare import Plan, cells, headers
    from duality.compare import compare as compare_recipes
    from duality.console import say, training_display
    from duality.evaluate import load_judge
    from duality.recipes import modified
    from duality.recipes import recipe as find

    if not recipes:
        raise ValueError(
            "nothing to compare: name recipes, such as mdlm-laptop duo-laptop; `duality recipes` lists them"
        )
    shorthand = {"training.steps": steps, "training.seed": seed}
    changes = [f"{field}={value}" for field, value in shorthand.items() if value is not None]
    chosen = [modified(find(name), (*changes, *assignments)) for name in recipes]
    chosen = [run.with_corpus(each, data or each.data.corpus) for each in chosen]
    reader = None if judge is None else load_judge(judge, pick(device), say)
    plan = Plan(out, draws, limit, reader, samples, sample_steps, pick(device))
    rows, remarks = compare_recipes(chosen, plan, say, lambda each: training_display(each.training.steps))
    table = Table(*headers(rows), box=None)
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for line in remarks:
        print(line)
    return 0 if len(rows) == len(chosen) else 130


def recipes() -> int:
    """List the recipes."""
    from rich.console import Console
    from rich.table import Table

    from duality.describe import parameters
    from duality.recipes import RECIPES

    table = Table("recipe", "parameters", "steps x batch x length", "summary", "source", box=None)
    for name, make in RECIPES.items():
        chosen = make()
        training = chosen.training
        size = f"{training.steps:,} x {training.batch_size} x {chosen.data.length}"
        table.add_row(name, f"{parameters(chosen)[0] / 1e6:.1f} M", size, chosen.summary, chosen.source)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def data(
    action: Annotated[Literal["list", "get"], tyro.conf.Positional], name: Annotated[str, tyro.conf.Positional] = "", /
) -> int:
    """List the named corpora, or fetch one into the cache and verify it.

    Args:
        action: list them, or get one.
        name: which one to get.
    """
    from duality.console import say
    from duality.data import DEFAULT_SOURCE, SOURCES, fetch

    if action == "get":
        for path in fetch(name or DEFAULT_SOURCE, progress=say):
            print(path)
        return 0
    for known, source in SOURCES.items():
        default = " (default)" if known == DEFAULT_SOURCE else ""
        print(f"{known}{default}: {source.title}. {source.license}.")
    return 0


def pick(device: Device) -> str:
    """A device that exists."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "eval": evaluate,
    "sample": sample,
    "compare": compare,
    "recipes": recipes,
    "data": data,
}


def spread(arguments: list[str]) -> list[str]:
    """``--set a=1 b=2`` as ``--set a=1 --set b=2``; one with nothing after it is left for the parser to refuse."""
    result: list[str] = []
    setting = False
    for argument, following in zip(arguments, [*arguments[1:], "-"]):
        if argument == "--set" and not following.startswith("-"):
            setting = True
            continue
        setting = setting and not argument.startswith("-")
        result += ["--set", argument] if setting else [argument]
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a user's error, or 128 + the signal that stopped a training."""
    arguments = spread(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    try:
        code: int = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="duality",
            description="Discrete diffusion language models: train, evaluate, sample. "
            "With --debug, an error shows where it came from.",
            args=[argument for argument in arguments if argument != "--debug"],
        )
        return code
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        print(f"duality: error: {explain(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("duality: interrupted", file=sys.stderr)
        return 130


def explain(error: Exception) -> str:
    """One line: what was got, what is allowed, what to do."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}; check the path and its permissions"
    return " ".join(str(error).split())


def script() -> None:
    """The ``duality`` command."""
    sys.exit(main())


if __name__ == "__main__":
    script()

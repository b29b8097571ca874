"""The commands on whole runs: list them, put checkpoints together, take models of others, and give ours to others."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from duality.cli.console import print_table, say
from duality.cli.options import AnyModel, Assignments, Device, Folder, KeptStep, Round, Step, Weights
from duality.files.atomic import json_text, readable_size
from duality.registry import visible

if TYPE_CHECKING:
    from duality.runs.doctor import Timing


def runs(directory: Annotated[Path, Positional, arg(metavar="DIR")] = Path("runs"), json: bool = False) -> None:
    """List the runs below a directory: recipe, step, last validation likelihood, size, age and state.

    Args:
        directory: a folder that holds run folders, at any depth.
        json: print a JSON list instead of the table.
    """
    from duality.runs.listing import overviews

    found = overviews(directory)
    if json:
        print(json_text([asdict(each) for each in found], indent=1))
        return
    rows = []
    for run in found:
        step = "–" if run.step is None else f"{run.step:,}"
        steps = step if run.steps is None else f"{step} of {run.steps:,}"
        nats = "–" if run.validation_nats is None else f"{run.validation_nats:.4f}"
        state = f"{run.state} ({run.holder or run.problem})" if run.holder or run.problem else run.state
        size = readable_size(run.bytes)
        rows.append((run.run, run.recipe or "–", steps, nats, size, _age_in_words(run.age), state))
    if rows:
        print_table(("run", "recipe", "step", "validation nats", "size", "age", "state"), rows)
    else:
        print(f"no run below {directory}")


def _age_in_words(seconds: float) -> str:
    """A time with its unit.

    >>> _age_in_words(3), _age_in_words(200), _age_in_words(10_000), _age_in_words(500_000)
    ('3 s', '3 min', '2.8 h', '5.8 days')
    """
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} days"


def consolidate(run: Folder, kept_step: KeptStep = None) -> None:
    """Put the parts of a checkpoint together that were saved with training.checkpoint=sharded."""
    from duality.runs import session

    print(f"{session.consolidate(run, kept_step, say)} has whole files now")


def import_model(
    source: Annotated[str, Positional, arg(metavar="SOURCE")],
    out: Path,
    method: Literal["duo", "udlm", "mdlm", "sedd", "d3pm", "ar"] | None = None,
    tokenizer: str | None = None,
    heads: int | None = None,
    length: int | None = None,
    kept_step: Step = None,
    assignments: Assignments = (),
    noise: Literal["absorbing", "uniform"] | None = None,
) -> None:
    """Make a run of a model that others have trained and released.

    Args:
        source: a checkpoint (.ckpt), a folder with config.json and weights, or hf:OWNER/NAME[@REVISION].
        out: the folder of the new run.
        method: what the model is, if the file does not say it.
        tokenizer: its tokenizer, if it is not that of GPT-2 or BERT: the folder of a run, a tokenizer.json,
            hf:OWNER/NAME, or a name such as bytes.
        heads: the heads of its attention, if the file does not say it.
        length: the tokens of a sequence, if the file does not say it.
        kept_step: after how many steps of training the weights are, if the file does not say it.
        assignments: change a field of the recipe that the weights do not depend on, such as --set generation.steps=8;
            can be repeated.
        noise: of sedd and d3pm, if the file does not say it: absorbing if not given.
    """
    from duality.hub.exchange import ImportRequest, import_released

    request = ImportRequest(method, tokenizer, heads, length, kept_step, assignments, noise)
    made = import_released(source, out, request, say)
    print(f"{made} is a run: duality sample {made}")


def export_model(
    run: Folder, out: Path, layout: Literal["duo-hf", "duo-ckpt"] = "duo-hf", kept_step: KeptStep = None
) -> None:
    """Write the weights of a run in the layout of the released models.

    Args:
        out: the new folder (duo-hf), or the new file (duo-ckpt), whose name ends with .ckpt.
        layout: a folder with config.json and model.safetensors, which holds the averaged weights; or a checkpoint of
            Lightning, which holds the raw weights too.
    """
    from duality.hub.exchange import export_run

    print(f"{export_run(run, out, layout, kept_step, say)} is written in the layout {layout}")


def publish(
    run: AnyModel,
    name: Annotated[str | None, Positional, arg(metavar="OWNER/NAME")] = None,
    folder: Path | None = None,
    license: str = "unknown",
    dataset: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="OWNER/NAME")] = (),
    private: bool = False,
    revision: str | None = None,
    weights: Weights = "ema",
    round_number: Round = None,
    kept_step: KeptStep = None,
    dry_run: bool = False,
) -> None:
    """Write the model of a run alone, with its tokenizer and a model card: into a folder, or onto the hub.

    Args:
        name: the model on the Hugging Face hub, which is made if there is none; HF_TOKEN says who you are.
        folder: a new folder instead of the hub.
        license: the licence of the weights, as the hub names it, such as apache-2.0.
        dataset: a dataset of the hub that the model was trained on; can be repeated.
        private: only you, or your organisation, can see it.
        revision: the branch of the hub; main if not given.
        dry_run: print the model card and stop.
    """
    from duality.hub.publish import CardFields, card_of, check_new, push_to_hub, repository_named, save_pretrained
    from duality.models.model import load

    if (name is None) == (folder is None):
        raise ValueError("say where: OWNER/NAME on the Hugging Face hub, or --folder FOLDER; one of the two")
    if folder is not None and (private or revision is not None):
        raise ValueError("--private and --revision belong to the hub: give OWNER/NAME, or leave them out with --folder")
    fields = CardFields(license, dataset)
    if folder is not None:
        check_new(folder)
    elif name is not None:
        repository_named(name)
    model = load(run, say, "cpu", weights, round_number, kept_step)
    if dry_run:
        print(visible(card_of(model, fields, name or str(folder)), kept="\n"))
    elif folder is not None:
        print(save_pretrained(model, folder, fields))
    elif name is not None:
        print(push_to_hub(model, name, fields, private, revision))


def doctor(device: Device = "auto", out: Path | None = None, objectives: tuple[str, ...] = ()) -> int:
    """Check what this machine can do: versions, kernels against their reference, a step of every objective.

    It takes about a minute. The exit code is 1 if a check fails.

    Args:
        out: a file for all of it as JSON, to attach to an issue.
        objectives: time these alone: "duo, curriculum", "duo, bound", mdlm, ar, sedd-absorb, sedd-uniform, dcd, sdtt.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # of torch's profiler, read when torch is loaded
    from duality.files.atomic import check_file, write_atomically
    from duality.runs.doctor import examine
    from duality.training.settings import device_named

    if out is not None:
        check_file(out)
    found = examine(device_named(device), say, objectives)
    print_table(("", ""), found.facts.items())
    checks = [
        (
            each.name,
            "passed" if each.passed else "FAILED",
            each.problem or f"{each.error:.1e} (at most {each.allowed:.0e})",
        )
        for each in found.checks
    ]
    print_table(("check", "", "error against float64 on a CPU"), checks)
    print_table(
        ("training step", "tokens/s", "ms", "MFU", "host waits", "longest operators"), map(_describe, found.timings)
    )
    print("nothing failed" if found.passed else "something failed: attach the file of --out to an issue")
    if out is not None:
        write_atomically(out, json_text(found.as_json(), indent=1) + "\n")
    return 0 if found.passed else 1


def _describe(timing: Timing) -> tuple[str, ...]:
    """The row of an objective."""
    if timing.problem:
        return (timing.name, "FAILED", "", "", "", timing.problem)
    total = timing.step_seconds
    longest = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in list(timing.operators.items())[:3])
    mfu = "–" if timing.mfu is None else f"{timing.mfu:.0%}"
    waits = "–" if timing.waits is None else f"{sum(timing.waits.values())}"
    return (timing.name, f"{timing.tokens_per_second:,.0f}", f"{1e3 * total:,.0f}", mfu, waits, longest)

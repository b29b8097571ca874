"""The command `eval`: measure the perplexity of a run on held-out or other text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from duality.cli.common import Column, Device, Flag, Folder, KeptStep, Round

if TYPE_CHECKING:
    from duality.evaluation.likelihood import Likelihood


def evaluate(
    run: Folder,
    /,
    data: str | None = None,
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
    """Measure the perplexity of a run.

    Args:
        run: the run folder.
        data: other text to evaluate on, encoded with the run's tokenizer and cut into documents as the run's own: a
            file, a folder, a named source.
        column: where the text of --data is: the key of a .jsonl file, the column of a .csv or .tsv file; that of the
            run's own corpus if not given.
        split: which part of the run's own corpus, if --data is not given.
        corpus: where the run's own corpus is now, if it was moved; its text must be the one that it was trained on.
        draws: draws of time and noise for each sequence; more make the error smaller, and take longer.
        limit: evaluate on so many sequences only, evenly spread over the text.
        batch_size: sequences at a time; the result does not depend on it.
        seed: seed of times and noise.
        weights: averaged (ema) or raw (model) weights.
        round_number: after this round of a distillation instead of the last; 0 is what it began from.
        kept_step: the weights at this training step instead of the newest; the run must have kept that checkpoint.
        device: where to compute.
        json: print one JSON object instead of text.
    """
    from duality.cli.console import counting_display, say
    from duality.data.files import json_text
    from duality.runs.corpora import sequences_of_run
    from duality.runs.model import load

    model = load(run, say, device, weights, round_number, kept_step)
    sequences = sequences_of_run(model, run, data=data, column=column, split=split, corpus=corpus, report=say)
    with counting_display("evaluating", min(limit or len(sequences), len(sequences)), "sequences") as advance:
        result = model.likelihood(
            sequences, num_draws=draws, limit=limit, batch_size=batch_size, seed=seed, advance=advance
        )
    if json:
        print(json_text({"run": str(run), "step": model.step, "data": data or split, **numbers(result)}))
    else:
        print(f"{run}, step {model.step}, on {data or split + ' of ' + (corpus or model.recipe.data.corpus)}")
        print("\n".join(result.lines()))
    return 0


def numbers(result: Likelihood) -> dict[str, float | str]:
    """All numbers of a likelihood by name."""
    from dataclasses import asdict

    derived = ("perplexity", "perplexity_stderr", "bits_per_byte", "bits_per_character")
    return asdict(result) | {name: getattr(result, name) for name in derived}

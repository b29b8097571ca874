"""Measure the perplexity of a run."""

from __future__ import annotations

from typing import Literal

from duality.cli.common import Device, Flag, Folder, Round, pick


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
    round_number: Round = None,
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
        round_number: after this round of a distillation instead of the last; 0 is what it began from.
        device: where to compute.
        json: print one JSON object instead of text.
    """
    from dataclasses import asdict
    from json import dumps

    from duality.cli.console import counting_display, say
    from duality.data.corpus import encode_corpus
    from duality.data.packing import Sequences
    from duality.runs.corpora import prepared
    from duality.runs.model import load
    from duality.runs.provenance import check_corpus

    where = pick(device)
    model = load(run, say, where, weights, round_number)
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

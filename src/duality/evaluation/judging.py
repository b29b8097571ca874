"""What reads the samples of a sweep: judges, of which our own autoregressive runs are some, and what scorers may ask.

A run as a judge gives the exact -log p of a text in the run's own tokens. If the run was trained on whole documents
(``data.packing=document``) a text is followed by the end-of-text, whose probability is part of it; if its sequences
begin and end anywhere (``wrap``), it is not. A text longer than the run's sequences is read in windows, each of which
begins with the state that begins a sequence.

What must hold: a judge's name contains its weights, so that scores of other weights are never used for them; a run that
is not autoregressive, whose likelihood is only bounded, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from duality.denoisers.readouts import CausalDenoiser
from duality.evaluation.judge import Judge, load_judge
from duality.evaluation.scorers import Scorer, ScorerContext, scorer_named
from duality.evaluation.sweep.sampling import weights_id
from duality.files.progress import Reporter, silent
from duality.fused.lazy import belief_of
from duality.hub.fetch import PREFIX
from duality.hub.package import is_ours
from duality.models.folder import exists, read_recipe
from duality.models.model import Model, load
from duality.models.provenance import read_identity
from duality.runs import corpora
from duality.tokenizers.tokenizer import text_before_end


def judge_named(spec: str, device: torch.device | str = "cpu", report: Reporter = silent) -> Judge:
    """The judge that ``spec`` names: an autoregressive run or model of ours, or what ``load_judge`` takes.

    A model of ours on the hub is ``hf:owner/name``; other names of the hub are for `transformers`.
    """
    folder = Path(spec).expanduser()
    ours = exists(folder) or spec.startswith(PREFIX) or is_ours(folder)
    return run_judge(folder, device, report) if ours else load_judge(spec, device, report)


def run_judge(folder: Path, device: torch.device | str = "cpu", report: Reporter = silent) -> Judge:
    """An autoregressive run, or model alone, as a judge."""
    model = load(folder, report, device)
    if not isinstance(model.denoiser, CausalDenoiser):
        raise ValueError(
            f"{folder} is a run of {type(model.recipe.method).__name__} and no judge, because its likelihood is not "
            "exact token by token: name an autoregressive run (duality train ar-laptop)"
        )
    report(f"the judge is {folder}")
    return judge_of(model, folder.name)


def judge_of(model: Model, name: str) -> Judge:
    """The judge that an autoregressive model is."""
    tokenizer = model.tokenizer
    separator = tokenizer.separator
    ending = [separator] if model.recipe.data.packing == "document" and separator is not None else []

    def logits(ids: Tensor, _valid: Tensor) -> Tensor:
        # The denoiser puts the beginning before what it is given, which is all but the first id: that is the beginning.
        # Padding is on the right, where a causal network does not see it. The last position predicts nothing.
        alpha = torch.ones(len(ids), dtype=torch.float64, device=ids.device)
        found = belief_of(model.denoiser, ids[:, 1:], alpha).log_probs()
        return torch.cat([found, found[:, -1:]], 1)

    return Judge(
        name=f"{name} ({weights_id(model)})",
        encode=lambda text: [*tokenizer.encode(text).tolist(), *ending],
        logits=logits,
        context=model.length + 1,
        bos=tokenizer.vocab_size,  # the state that begins a sequence
        device=model.device,
    )


def scorers_named(
    specs: Sequence[Scorer | str], run: Path, report: Reporter = silent, moved_to: str | Path | None = None
) -> list[Scorer]:
    """The scorers that are named; those that need training texts are given those of ``run``."""
    if not specs:
        return []
    context = context_of(run, report, moved_to)
    return [scorer_named(each, context) if isinstance(each, str) else each for each in specs]


def context_of(run: Path, report: Reporter = silent, moved_to: str | Path | None = None) -> ScorerContext:
    """What scorers may ask of a run: its training texts, one for each document."""
    identity = read_identity(run)
    training_id = "-".join([identity["tokenizer"], *identity["train"]])
    return ScorerContext(lambda: training_texts(run, report, moved_to), training_id)


def training_texts(run: Path, report: Reporter = silent, moved_to: str | Path | None = None) -> list[str]:
    """The documents that a run was trained on, as text; ``moved_to`` is where its corpus is now, if it was moved."""
    report(f"reading the training texts of {run}")
    corpus = corpora.corpus_of_run(run, read_recipe(run), report, moved_to)
    store, ends = corpus.train, corpus.train.document_ends.tolist()
    return [text_before_end(corpus.tokenizer, store[start:stop]) for start, stop in zip([0, *ends], ends)]

"""Suites of test sets, as the paper has them in its tables: one command for a row.

    zero-shot   the seven sets of Table 2, wrapped into sequences of the model's length, without end-of-text
    lm1b, owt   the test set of Table 1, packed as the run's own corpus
    text8       its last 5 million characters, in bits per character

A suite takes a model, whatever it was loaded from, and says where its sets are by ``places`` ("ptb" -> a folder or
file); those without a place are looked for as data/named.py says. The paper's own windows of 1024 tokens begin and end
with an extra end-of-text, which costs next to nothing and counts: its perplexities are lower than ours would be for the
same model, by 0.2 % of their logarithm.

What must hold: a set that is not there is reported as missing with how to get it, never left out; a set whose place was
given and that cannot be read is an error; a result that is kept is that of the same weights, text and settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from duality.data.corpus import encode_corpus
from duality.data.documents import find_evaluated_part
from duality.data.named import datasets
from duality.files.kept_scores import Scores
from duality.files.progress import Reporter, silent, working
from duality.models.likelihood import Latents, Likelihood, LikelihoodOptions, choose_latents, hash_weights
from duality.models.model import Model
from duality.ranks import job
from duality.recipes.corpus import make_sequences
from duality.registry import suggestion

_VERSION = 1  # of what a number means


@dataclass(frozen=True)
class _Outcome:
    """A test set and its likelihood, or why there is none."""

    heading: str
    dataset: str
    result: Likelihood | None
    missing: str = ""


@dataclass(frozen=True)
class _Suite:
    """Test sets by the headings of the paper's table, whose number and column they have there."""

    name: str
    title: str
    sets: Mapping[str, str]
    """the dataset under each heading"""
    own_packing: bool
    """as the run's own corpus; otherwise wrapped, without end-of-text"""
    table: int | None = None

    def evaluate(
        self,
        model: Model,
        places: Mapping[str, str],
        *,
        num_draws: int = 4,
        limit: int | None = None,
        batch_size: int = 32,
        seed: int = 0,
        latents: Latents = "discrete",
        keep: Path | None = None,
        report: Reporter = silent,
    ) -> list[_Outcome]:
        """The likelihood of every set; ``keep`` is a file of results that are not computed twice."""
        choose_latents(model.measure, latents)  # refuses other noise before a set is read
        for name in places:
            if name not in self.sets.values():
                near = suggestion(name, self.sets.values())
                raise ValueError(f"--data {name}=...: the suite {self.name} has no set {name!r}: {near}")
        data = model.recipe.data
        if not self.own_packing:
            data = replace(data, packing="wrap", padding="ignore", eos=False, labels=False)
        kept, weights = None if keep is None else Scores.read(keep, report), hash_weights(model.denoiser)
        known = kept.entries.get(weights) if kept else None
        outcomes = []
        for heading, name in self.sets.items():
            spec = f"{name}={places[name]}" if name in places else name
            try:
                encode = partial(encode_corpus, eos=data.eos, part=find_evaluated_part(spec), progress=report)
                store = job().in_turn(partial(encode, spec, model.tokenizer))
            except ValueError as error:
                if name in places:
                    raise
                outcomes.append(_Outcome(heading, name, None, f"{error}; or {datasets()[name].how_to_get()}"))
                continue
            rows = make_sequences(data, store, model.tokenizer, model.length)
            facts = {  # what a result depends on, the weights excepted: the text, its tokens and how it is measured
                "version": _VERSION,
                "shards": [shard.sha256 for shard in store.shards],
                "tokenizer": store.tokenizer,
                "rows": [rows.length, rows.packing, rows.padding],
                "settings": [
                    *(num_draws, limit, seed, *(["gaussian"] if latents == "gaussian" else [])),
                    *([] if model.precision == "float32" else [model.precision]),
                ],
            }
            key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
            values = known.get(key) if isinstance(known, dict) else None
            found = job().from_first(Likelihood.parse(values) if isinstance(values, dict) else None)
            if found is None:
                with working(report, heading, min(limit or len(rows), len(rows)), "sequences") as advance:
                    how: LikelihoodOptions = {"num_draws": num_draws, "limit": limit, "seed": seed, "latents": latents}
                    found = model.likelihood(rows, **how | {"batch_size": batch_size, "advance": advance})
                if kept:
                    job().once(partial(kept.replace, weights, key, {"set": name, **asdict(found)}))
            outcomes.append(_Outcome(heading, name, found))
        return outcomes

    def lines(self, outcomes: Sequence[_Outcome], name: str) -> list[list[str]]:
        """The table: its headings, and ours, each number with its standard error."""

        def number(result: Likelihood | None) -> str:
            if result is None:
                return "missing"
            sign = {"bound": "≤ ", "exact": "", "pseudo-likelihood": "pseudo "}[result.kind]
            if self.name != "text8":
                return f"{sign}{result.perplexity:.2f} ± {result.perplexity_stderr:.2f}"
            error = result.bits_per_character / result.nats_per_token * result.stderr
            return f"{sign}{result.bits_per_character:.4f} ± {error:.4f} bits"

        return [["", *(each.heading for each in outcomes)], [name, *(number(each.result) for each in outcomes)]]

    def remarks(self, model: Model, outcomes: Sequence[_Outcome]) -> list[str]:
        """What a reader of the table must know: what is missing, and what the numbers are of."""
        remarks = [f"{each.heading} is missing: {each.missing}" for each in outcomes if each.result is None]
        if self.table is not None and any(each.result for each in outcomes):
            remarks.append(
                f"perplexities are for each token of the run's tokenizer (K = {model.tokenizer.vocab_size:,}) in "
                f"sequences of {model.length}; the paper's are for "
                f"{'GPT-2, 1024' if self.name != 'lm1b' else 'BERT, 128'}: only the same tokens compare"
            )
        return remarks


_ZERO_SHOT = {
    "PTB": "ptb", "Wikitext": "wikitext-103", "LM1B": "lm1b", "Lambada": "lambada", "AG News": "ag-news",
    "Pubmed": "pubmed", "Arxiv": "arxiv",
}  # fmt: skip
SUITES = {
    suite.name: suite
    for suite in (
        _Suite(
            "zero-shot", "Table 2: zero-shot perplexities of models trained on OpenWebText", _ZERO_SHOT, False, table=2
        ),
        _Suite("lm1b", "Table 1: perplexity on the test set of LM1B", {"LM1B": "lm1b"}, own_packing=True, table=1),
        _Suite("owt", "Table 1: perplexity on OpenWebText", {"OWT": "openwebtext"}, own_packing=True, table=1),
        _Suite("text8", "text8: bits per character", {"text8": "text8"}, own_packing=True),
    )
}

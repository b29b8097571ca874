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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from duality.data.corpus import encode_corpus
from duality.data.named import datasets
from duality.data.packing import Sequences
from duality.data.places import evaluated_part
from duality.data.store import TokenStore
from duality.files.kept_scores import Scores
from duality.files.progress import Advance, Reporter, silent
from duality.models.likelihood import Likelihood, likelihood_of, weights_digest
from duality.models.model import Model
from duality.ranks import job
from duality.recipes.corpus import make_sequences
from duality.recipes.recipe import Data
from duality.registry import suggestion

VERSION = 1  # of what a number means


@dataclass(frozen=True)
class Suite:
    """Test sets by the headings of the paper's table, whose number and column they have there."""

    name: str
    title: str
    sets: Mapping[str, str]
    """the dataset under each heading"""
    own_packing: bool
    """as the run's own corpus; otherwise wrapped, without end-of-text"""
    table: int | None = None


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "zero-shot",
            "Table 2: zero-shot perplexities of models trained on OpenWebText",
            {
                "PTB": "ptb",
                "Wikitext": "wikitext-103",
                "LM1B": "lm1b",
                "Lambada": "lambada",
                "AG News": "ag-news",
                "Pubmed": "pubmed",
                "Arxiv": "arxiv",
            },
            own_packing=False,
            table=2,
        ),
        Suite("lm1b", "Table 1: perplexity on the test set of LM1B", {"LM1B": "lm1b"}, own_packing=True, table=1),
        Suite("owt", "Table 1: perplexity on OpenWebText", {"OWT": "openwebtext"}, own_packing=True, table=1),
        Suite("text8", "text8: bits per character", {"text8": "text8"}, own_packing=True),
    )
}


@dataclass(frozen=True)
class Outcome:
    """A test set and its likelihood, or why there is none."""

    heading: str
    dataset: str
    result: Likelihood | None
    missing: str = ""


@dataclass(frozen=True)
class Settings:
    """How the likelihood is measured."""

    num_draws: int = 4
    limit: int | None = None
    batch_size: int = 32
    seed: int = 0


Published = Callable[[int, list[str]], list[list[str]]]  # the number of a table, its headings: rows
Display = Callable[[str, int], AbstractContextManager[Advance]]


def evaluate_suite(
    model: Model,
    suite: Suite,
    places: Mapping[str, str],
    settings: Settings,
    display: Display,
    *,
    keep: Path | None = None,
    report: Reporter = silent,
) -> list[Outcome]:
    """The likelihood of every set; ``keep`` is a file of results that are not computed twice."""
    check_places(suite, places)
    kept = None if keep is None else Scores.read(keep, report)
    evaluation = Evaluation(model, suite, settings, display, kept, weights_digest(model.denoiser), report)
    return [evaluation.outcome(heading, name, places.get(name)) for heading, name in suite.sets.items()]


def check_places(suite: Suite, places: Mapping[str, str]) -> None:
    """Refuse places of sets that are not in the suite."""
    for name in places:
        if name not in suite.sets.values():
            raise ValueError(
                f"--data {name}=...: the suite {suite.name} has no set {name!r}: "
                f"{suggestion(name, suite.sets.values())}"
            )


@dataclass(frozen=True)
class Evaluation:
    """A model that is measured on the sets of a suite, and what was measured before."""

    model: Model
    suite: Suite
    settings: Settings
    display: Display
    kept: Scores | None
    weights: str
    report: Reporter

    def outcome(self, heading: str, name: str, place: str | None) -> Outcome:
        """One set of the suite."""
        data, spec = own_data(self.model, self.suite), name if place is None else f"{name}={place}"
        try:
            store = job().in_turn(lambda: encoded(self.model, data, spec, self.report))
        except ValueError as error:
            if place is not None:
                raise
            return Outcome(heading, name, None, f"{error}; or {datasets()[name].how_to_get()}")
        rows = make_sequences(data, store, self.model.tokenizer, self.model.length)
        key = key_of(store, rows, self.settings)
        found = job().from_first(kept_likelihood(self.kept, self.weights, key))
        if found is None:
            found = self.measured(heading, rows)
            if (kept := self.kept) is not None:
                values = {"set": name, **asdict(found)}
                job().once(lambda: kept.replace(self.weights, key, values))
        return Outcome(heading, name, found)

    def measured(self, heading: str, rows: Sequences) -> Likelihood:
        """The likelihood of a set."""
        settings, count = self.settings, min(self.settings.limit or len(rows), len(rows))
        with self.display(heading, count) as advance:
            return self.model.likelihood(
                rows,
                num_draws=settings.num_draws,
                limit=settings.limit,
                batch_size=settings.batch_size,
                seed=settings.seed,
                advance=advance,
            )


def kept_likelihood(kept: Scores | None, weights: str, key: str) -> Likelihood | None:
    """The result that is kept; None if there is none, or none that can be read."""
    entries = {} if kept is None else kept.entries.get(weights, {})
    values = entries.get(key) if isinstance(entries, dict) else None
    return None if not isinstance(values, dict) else likelihood_of(values)


def own_data(model: Model, suite: Suite) -> Data:
    """How the sets of a suite are packed."""
    own = model.recipe.data
    return own if suite.own_packing else replace(own, packing="wrap", padding="ignore", eos=False, labels=False)


def encoded(model: Model, data: Data, spec: str, report: Reporter) -> TokenStore:
    """The tokens of a set, in the model's own tokenizer."""
    return encode_corpus(spec, model.tokenizer, eos=data.eos, part=evaluated_part(spec), progress=report)


def key_of(store: TokenStore, rows: Sequences, settings: Settings) -> str:
    """What a result depends on, the weights excepted: the text, its tokens and how it is measured, not the batch."""
    facts = {
        "version": VERSION,
        "shards": [shard.sha256 for shard in store.index.shards],
        "tokenizer": store.index.tokenizer,
        "rows": [rows.length, rows.packing, rows.padding],
        "settings": [settings.num_draws, settings.limit, settings.seed],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# --- the table


def table_rows(
    suite: Suite, outcomes: list[Outcome], name: str, published: Published = lambda table, headings: []
) -> list[list[str]]:
    """The table of a suite: its headings, ours, and the ``published`` rows of a table under these headings."""
    headings = [each.heading for each in outcomes]
    ours = ["missing" if each.result is None else shown(suite, each.result) for each in outcomes]
    others = [] if suite.table is None else published(suite.table, headings)
    return [["", *headings], [name, *ours], *others]


def shown(suite: Suite, result: Likelihood) -> str:
    """A number with its standard error."""
    sign = {"bound": "≤ ", "exact": "", "pseudo-likelihood": "pseudo "}[result.kind]
    if suite.name == "text8":
        scale = result.bits_per_character / result.nats_per_token
        return f"{sign}{result.bits_per_character:.4f} ± {scale * result.stderr:.4f} bits"
    return f"{sign}{result.perplexity:.2f} ± {result.perplexity_stderr:.2f}"


def remarks(model: Model, suite: Suite, outcomes: list[Outcome]) -> list[str]:
    """What a reader of the table must know: what is missing, and what the numbers are of."""
    lines = [f"{each.heading} is missing: {each.missing}" for each in outcomes if each.result is None]
    if suite.table is not None and any(each.result for each in outcomes):
        lines.append(
            f"perplexities are for each token of the run's tokenizer (K = {model.tokenizer.vocab_size:,}) in sequences "
            f"of {model.length}; the paper's are for {'GPT-2, 1024' if suite.name != 'lm1b' else 'BERT, 128'}: only "
            "the same tokens compare"
        )
    return lines

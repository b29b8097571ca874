"""Data: the speed of preparing a token store, and the time of loading a batch compared with a training step.

The text is generated at run time: syllables of this file's words, with frequencies that fall as 1 / rank, in documents
of a thousand words. Nothing is downloaded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.models import Scale
from benchmarks.rows import Report, Row, Size, single, time_row
from benchmarks.throughput import LAPTOP, laptop_run
from benchmarks.timing import Runner, take_turns
from duality.data.corpus import encode_corpus, prepare
from duality.tokenizers.specs import BPE

WORDS_A_DOCUMENT = 1000
VOCABULARY = 5000


def made_up_text(num_words: int) -> str:
    """Documents, one per paragraph, of words with frequencies that fall as 1 / rank."""
    rng = np.random.default_rng(0)
    seeds = sorted(set(Path(__file__).read_text(encoding="utf-8").split()))
    words = ["".join(rng.choice(seeds, rng.integers(1, 3))) for _ in range(VOCABULARY)]
    weights = 1 / np.arange(1, VOCABULARY + 1)
    chosen = rng.choice(words, num_words, p=weights / weights.sum())
    return "\n\n".join(" ".join(part) for part in np.array_split(chosen, max(1, num_words // WORDS_A_DOCUMENT)))


def section(scale: Scale, report: Report) -> Iterator[Row]:
    """Preparing a corpus, encoding another one with its tokenizer, loading a batch."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        texts = [folder / name for name in ("one.txt", "other.txt")]
        for path in texts:
            path.write_text(made_up_text(scale.corpus_words), encoding="utf-8")
        report("preparing a corpus")
        start = time.perf_counter()
        corpus = prepare(texts[0], BPE(vocab_size=2048), cache=folder)
        taken = time.perf_counter() - start
        characters = corpus.train.num_characters + corpus.validation.num_characters
        what = "read, split, train BPE, encode"
        yield Row("data", what, "", Size(corpus.tokenizer.vocab_size), single(characters / taken), "characters/s")
        report("encoding")
        start = time.perf_counter()
        store = encode_corpus(texts[1], corpus.tokenizer, cache=folder)
        taken, size = time.perf_counter() - start, Size(corpus.tokenizer.vocab_size)
        yield Row("data", "encode", "", size, single(store.num_characters / taken), "characters/s")
        yield Row("data", "encode", "", size, single(len(store) / taken), "tokens/s")
        report("loading a batch")
        run = laptop_run(folder / "laptop", scale)
        step = Runner("step", lambda: run.step(run.phases[-1]))

        def load_batch() -> None:
            run.loader.batch(run.state.step)

        load = Runner("load a batch", load_batch)
        timings = take_turns((step, load), 2 * scale.repeats)
        yield time_row("data", timings, load.name, step.name, f"training step, {LAPTOP}", run.size)

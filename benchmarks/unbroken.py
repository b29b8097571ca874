"""Text without spaces: how long a corpus of it takes from text to tokens.

    python -m benchmarks.unbroken                     20 MB of Chinese characters
    python -m benchmarks.unbroken --kind dna          20 MB of A, C, G and T

The text is one line, made at run time from a fixed seed: the 3 500 characters from U+4E00 on with frequencies that fall
as 1 / (rank + 10), or four letters. Nothing is downloaded, and nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from duality.data.corpus import encode_corpus, prepare
from duality.tokenizers.specs import BPE

ALPHABETS = {"chinese": [chr(0x4E00 + number) for number in range(3500)], "dna": list("ACGT")}


def unbroken(kind: str, num_bytes: int, seed: int = 0) -> str:
    """A text of about ``num_bytes`` without spaces."""
    letters = ALPHABETS[kind]
    weights = [1 / (rank + 10) if kind == "chinese" else 1.0 for rank in range(len(letters))]
    count = num_bytes // len(letters[0].encode("utf-8"))
    return "".join(random.Random(seed).choices(letters, cum_weights=list(accumulate(weights)), k=count))


def main() -> None:
    """Measure once and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(ALPHABETS), default="chinese")
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--vocab-size", type=int, default=2048)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / "text.txt"
        path.write_text(unbroken(given.kind, int(given.megabytes * 1e6)), encoding="utf-8")
        start, used = time.perf_counter(), time.process_time()
        made = prepare(path, BPE(given.vocab_size), cache=folder, progress=print)
        whole, used = time.perf_counter() - start, time.process_time() - used
        start = time.perf_counter()
        store = encode_corpus(path, made.tokenizer, cache=folder)
        alone = time.perf_counter() - start
    print(
        f"{store.num_bytes / 1e6:.1f} MB of {given.kind} without spaces, {made.tokenizer.vocab_size} tokens, "
        f"{os.cpu_count()} cores: {whole:.1f} s to train BPE and encode ({used:.1f} s of CPU time), "
        f"of which encoding takes about {alone:.1f} s"
    )


if __name__ == "__main__":
    main()

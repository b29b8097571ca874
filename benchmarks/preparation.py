"""How fast a corpus is prepared, beside the tokenizer library alone: `python -m benchmarks.preparation [--threads 2]`.

    prepared   read, surveyed, encoded, written and verified, as `duality data prepare` does it
    library    `tokenizers` encodes all documents in one call, in as many threads

Bytes of text per second, taken in turn; the ratio's median over the rounds and its range. The text is the sample of
OpenWebText of ../shared/data if it is there, or the documentation of this project, several times.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT.parent / "shared" / "data" / "openwebtext" / "owt_1000docs.jsonl.xz"


def written_corpus(path: Path, copies: int) -> list[str]:
    """Write documents as a .jsonl file, and return them."""
    if SAMPLE.is_file():
        with lzma.open(SAMPLE, "rt", encoding="utf-8") as stream:
            texts = [json.loads(line)["text"] for line in stream]
    else:
        texts = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))] * 10
    texts = [f"{number} {text}" for number in range(copies) for text in texts]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return texts


def timed(work: Callable[[], object]) -> float:
    """The seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print the ratio: without tiktoken, and with it where it is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=4)
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)
    from duality.data.corpus import encode_corpus
    from duality.tokenizers.specs import Pretrained

    tokenizers = {"tokenizers": Pretrained("gpt2").train(()), "tiktoken": Pretrained("gpt2").train(())}
    tokenizers["tokenizers"].__dict__["fast"] = None  # a cached property
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.jsonl"
        texts = written_corpus(path, arguments.copies)
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        for name, tokenizer in tokenizers.items():
            ratios: list[float] = []
            for number in range(arguments.rounds):
                prepare = partial(encode_corpus, path, tokenizer, cache=Path(folder) / f"{name}-{number}")
                own, raw = timed(prepare), timed(partial(tokenizer.library.encode_batch_fast, texts))
                ratios.append(raw / own)
                print(f"{name}: {megabytes / own:.2f} MB/s prepared, {megabytes / raw:.2f} by the library", flush=True)
            median, least, most = statistics.median(ratios), min(ratios), max(ratios)
            print(f"{name}: {median:.2f} of the library ({least:.2f} to {most:.2f}), {arguments.threads} thread(s)")


if __name__ == "__main__":
    main()

"""The action `prepare` of the command `data`: a corpus as tokens, before it is needed; and what is in such a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duality.data.store import TokenStore
    from duality.recipes.recipe import Data, Recipe

EXAMPLES = 2  # sequences that are shown


def chosen_data(
    name: str,
    column: str | None,
    recipe: str | None,
    assignments: Sequence[str],
    tokenizer: str | None = None,
    length: int | None = None,
    pack: bool | None = None,
    eos: bool | None = None,
) -> Recipe:
    """The recipe, the default one if none is named, with the data that the flags choose."""
    from duality.models.folder import with_column, with_corpus
    from duality.recipes.catalogue import recipe as find

    flags = {
        "data.tokenizer": tokenizer,
        "data.length": length,
        "data.packing": None if pack is None else ("wrap" if pack else "document"),
        "data.eos": None if eos is None else str(eos).lower(),
    }
    changes = [f"{field}={value}" for field, value in flags.items() if value is not None]
    if eos is False and pack is False:
        changes.append("data.padding=ignore")
    base = find(recipe or "duo-laptop", (*changes, *assignments))
    return with_column(with_corpus(base, name or base.data.corpus), column)


def prepare(recipe: Recipe, workers: int | None) -> int:
    """Prepare the corpus of a recipe and say what there is; a preparation that was interrupted is continued."""
    from duality.cli.console import say
    from duality.runs.corpora import prepared

    if workers is not None:
        if workers < 1:
            raise ValueError(f"--workers {workers}: at least 1 thread encodes")
        os.environ["RAYON_NUM_THREADS"] = str(workers)
    corpus = prepared(recipe, say)
    rows = [("corpus", recipe.data.corpus), ("kept in", str(corpus.train.folder.parent))]
    for title, store in (("train", corpus.train), ("validation", corpus.validation)):
        rows += [(title, ""), *described_store(store, recipe.data)]
    print("\n".join(f"{title:<12}{line}".rstrip() for title, line in rows))
    return 0


def is_store(path: str) -> bool:
    """Whether a folder has prepared tokens: a store, or those of training and validation."""
    folder = Path(path).expanduser()
    return folder.is_dir() and any((folder / part / "index.json").is_file() for part in ("", "train", "all"))


def show_store(path: str, recipe: Recipe | None) -> int:
    """Print what is in a folder of prepared tokens."""
    from duality.data.store import TokenStore
    from duality.files.manifest import verify
    from duality.recipes.recipe import Data

    folder, data = Path(path).expanduser(), Data() if recipe is None else recipe.data
    if (folder / "manifest.json").is_file():
        verify(folder)
    rows = [("store", str(folder))]
    for part in ("", "train", "validation", "all"):
        if (folder / part / "index.json").is_file():
            store = TokenStore.open(folder / part)
            store.verify()
            rows += [(part, ""), *described_store(store, data)] if part else list(described_store(store, data))
    print("\n".join(f"{title:<12}{line}".rstrip() for title, line in rows))
    return 0


def described_store(store: TokenStore, data: Data) -> Iterator[tuple[str, str]]:
    """Counts, checksum, padding and first sequences of a store, cut as ``data`` says."""
    from duality.cli.show import one_line, shortened
    from duality.data.packing import Sequences
    from duality.tokenizers.tokenizer import load_tokenizer

    index, folder = store.index, store.folder
    home = next((place for place in (folder, folder.parent) if (place / "tokenizer.json").is_file()), None)
    tokenizer = None if home is None else load_tokenizer(home)
    if tokenizer is not None and tokenizer.fingerprint != index.tokenizer:
        raise ValueError(
            f"{folder} has tokens of the tokenizer {index.tokenizer[:12]}, and the one beside it is "
            f"{tokenizer.fingerprint[:12]}: put back the tokenizer.json that belongs to it, or prepare it again"
        )
    yield "  documents", f"{index.num_documents:,}"
    yield "  text", f"{index.num_characters:,} characters, {index.num_bytes:,} bytes"
    yield "  tokens", f"{index.num_tokens:,} of {index.vocab_size:,} kinds, in {len(index.shards)} file(s)"
    packing = data.packing if len(store) else "wrap"
    rows = Sequences(store, data.length, packing, "ignore")
    padding = 1 - len(store) / (len(rows) * data.length) if len(rows) else 0.0
    yield "  sequences", f"{len(rows):,} of {data.length} tokens ({packing}), {padding:.2%} of them padding"
    yield "  sha256", ", ".join(shard.sha256[:16] for shard in index.shards[:4]) + " ..." * (len(index.shards) > 4)
    for number in range(min(EXAMPLES, len(rows)) if tokenizer is not None else 0):
        ids, valid = rows.rows([number])
        text = "" if tokenizer is None else tokenizer.decode(ids[0][valid[0]].numpy())
        yield f"  {number}", shortened(one_line(text))

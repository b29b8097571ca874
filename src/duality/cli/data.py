"""The command `data`: list the named corpora, fetch or prepare one, show what a corpus is, or clean the cache."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from duality.cli.console import say
from duality.cli.options import Assignments, Column

if TYPE_CHECKING:
    from duality.data.store import TokenStore
    from duality.recipes.recipe import Data, Recipe

_Row = tuple[str, str | Iterable[str]]  # a title with a line, or with several


def data(
    action: Annotated[Literal["list", "get", "prepare", "show", "clean"], Positional],
    name: Annotated[str, Positional] = "",
    column: Column = None,
    recipe: Annotated[str | None, arg(metavar="RECIPE")] = None,
    assignments: Assignments = (),
    tokenizer: str | None = None,
    length: int | None = None,
    pack: bool = False,
    no_pack: bool = False,
    eos: bool = False,
    no_eos: bool = False,
    workers: int | None = None,
    yes: bool = False,
) -> None:
    """List the named corpora; fetch one; prepare any as tokens; show what is read of it; show and clean the cache.

    Args:
        action: list the named corpora and datasets, get one, prepare any corpus as tokens, show any corpus or the
            tokens in a folder, or show what the cache holds and free it (clean).
        name: which one to get, the default of the recipes if not given; to prepare or show, a file, a folder, a named
            corpus, a dataset (lm1b, or lm1b=FOLDER) or hf:owner/name; to clean, a kind of data, all if not given.
        column: prepare, show: where the text is, the key of a .jsonl file, the column of a table; text if not given.
        recipe: prepare: whose tokens, those of duo-laptop if not given. show: count the tokens and epochs of this
            recipe too, for which the corpus is prepared and kept.
        assignments: prepare, show: change a field of the recipe, such as --set data.validation=0.01; can be repeated.
        tokenizer: prepare: the tokenizer (data.tokenizer), such as gpt2, bytes or a tokenizer.json.
        length: prepare: the tokens of a sequence (data.length).
        pack: prepare: several documents in a sequence (data.packing=wrap).
        no_pack: prepare: one document in a sequence (data.packing=document).
        eos: prepare: an end-of-text follows every document (data.eos=true).
        no_eos: prepare: none does (data.eos=false).
        workers: prepare: threads that encode; all cores if not given. The result does not depend on it.
        yes: clean: remove what is shown.
    """
    for word, both in (("pack", pack and no_pack), ("eos", eos and no_eos)):
        if both:
            raise ValueError(f"--{word} and --no-{word} are given: leave one of them out")
    own = {"tokenizer": tokenizer, "length": length, "packing": "wrap" if pack else "document" if no_pack else None}
    own |= {"eos": "true" if eos else "false" if no_eos else None, "padding": "ignore" if no_eos and no_pack else None}
    changes = tuple(f"data.{field}={value}" for field, value in own.items() if value is not None)
    if yes and action != "clean":
        raise ValueError(f"--yes belongs to `duality data clean`, not to `data {action}`: leave it out")
    if (changes or workers is not None) and action != "prepare":
        raise ValueError(
            f"--tokenizer, --length, --pack, --eos and --workers belong to `duality data prepare`, not to {action}"
        )
    if (column or recipe or assignments) and action not in ("prepare", "show"):
        raise ValueError(
            f"--column, --recipe and --set belong to `duality data show` and `data prepare`; leave them out of {action}"
        )
    if action == "prepare":
        lines = _prepare(_resolve_recipe(name, column, recipe or "duo-laptop", changes + assignments), workers)
    elif action == "show":
        lines = _show(name, column, recipe, assignments)
    else:
        lines = _list_corpora() if action == "list" else _fetch(name) if action == "get" else _clean_cache(name, yes)
    for line in lines:
        print(line.rstrip())


def _resolve_recipe(name: str, column: str | None, recipe: str, changes: tuple[str, ...]) -> Recipe:
    """The recipe on the corpus and with the changes that the flags choose."""
    from duality.recipes import catalogue

    base = catalogue.recipe(recipe, changes)
    return catalogue.modify(base, corpus=name or base.data.corpus, column=column)


def _list_corpora() -> Iterator[str]:
    """The named corpora, and the datasets of the literature."""
    from duality.data import DEFAULT_SOURCE
    from duality.data.named import datasets, sources
    from duality.data.tales.corpus import NAME as TALES
    from duality.data.tales.corpus import Tales

    for known, source in sources().items():
        default = " (default)" if known == DEFAULT_SOURCE else ""
        yield f"{known}{default}: {source.title}. {source.license}."
    for known, dataset in {**datasets(), TALES: Tales().dataset}.items():
        if known not in sources():
            yield f"{known}: {dataset.title}. {dataset.license}. {dataset.citation}."


def _fetch(name: str) -> Iterator[str]:
    """Fetch a named corpus and say what it is."""
    from duality.data import DEFAULT_SOURCE
    from duality.data.documents import locate, read_documents
    from duality.data.named import datasets, fetch, sources
    from duality.data.readers import read_records
    from duality.data.tales.corpus import NAME as TALES

    chosen = name or DEFAULT_SOURCE
    if chosen not in sources() and (chosen in datasets() or chosen.partition(":")[0] == TALES):
        (place,) = locate(chosen)
        dataset = place.dataset
        assert dataset is not None, "it is no source and has no path"
        yield f"{chosen}: {dataset.title}"
        paths = [str(file.path) for file in place.files(progress=say)]
        yield from _align(("licence", dataset.license), ("citation", dataset.citation), ("files", paths))
        return
    files = fetch(chosen, progress=say)
    source, size = sources()[chosen], sum(path.stat().st_size for path in files)
    yield f"{chosen}: {source.title}"
    unit = "one per line" if source.documents == "lines" else "one per file"
    yield from _align(
        ("licence", source.license),
        ("size", f"{size / 1e6:.1f} MB in {len(files)} file{'s' * (len(files) > 1)}"),
        ("documents", f"{sum(1 for _ in read_documents(files, source.documents)):,}, {unit}"),
        ("files", map(str, files)),
        ("examples", (_excerpt(text) for _, text, _ in islice(read_records(files[0]), 3))),
    )


def _show(name: str, column: str | None, recipe: str | None, assignments: tuple[str, ...]) -> Iterator[str]:
    """What is read of a corpus, with a recipe its tokens and epochs; or what is in a folder of prepared tokens."""
    from duality.data.store import TokenStore
    from duality.data.survey import inspect
    from duality.files.cache import verify
    from duality.recipes.corpus import describe_corpus, describe_skipped, prepare_corpus
    from duality.recipes.recipe import Data

    folder = Path(name).expanduser()
    parts = [part for part in ("", "train", "validation", "all") if (folder / part / "index.json").is_file()]
    if column is None and parts and parts != ["validation"]:
        data = Data() if recipe is None else _resolve_recipe("", None, recipe, assignments).data
        if (folder / "manifest.json").is_file():
            verify(folder)  # checksums are compared
        rows: list[_Row] = [("store", str(folder))]
        for part in parts:
            store = TokenStore.open(folder / part)
            store.verify()
            rows += [*([(part, "")] if part else []), *_describe_store(store, data)]
        return _align(*rows, width=12)
    if not name.strip():
        raise ValueError("nothing to show: give a file, a folder or a named corpus, as duality data show PATH")
    if assignments and recipe is None:
        raise ValueError("--set changes a field of a recipe: name one with --recipe, such as duo-laptop")
    chosen = None if recipe is None else _resolve_recipe(name, column, recipe, assignments)
    data = chosen.data if chosen is not None else Data() if column is None else Data(column=column)
    found = inspect(name, data.documents, data.column, progress=say)
    size, skipped = found.size, [describe_skipped(found.skipped)] if found.skipped else []
    recipe_row = [] if chosen is None else [("recipe", describe_corpus(chosen, prepare_corpus(chosen, say)))]
    return _align(
        ("corpus", name),
        ("files", [f"{len(found.files):,} read", *skipped]),
        ("documents", f"{size.num_documents:,}"),
        ("text", f"{size.num_characters:,} characters, {size.num_bytes:,} bytes"),
        ("tokens", f"{size.num_bytes + size.num_documents:,} if every byte is one (data.tokenizer=bytes)"),
        ("examples", map(_excerpt, found.examples)),
        *recipe_row,
    )


def _prepare(recipe: Recipe, workers: int | None) -> Iterator[str]:
    """Prepare the corpus of a recipe and say what there is; a preparation that was interrupted is continued."""
    from duality.recipes.corpus import prepare_corpus

    if workers is not None:
        if workers < 1:
            raise ValueError(f"--workers {workers}: at least 1 thread encodes")
        os.environ["RAYON_NUM_THREADS"] = str(workers)
    corpus = prepare_corpus(recipe, say)
    rows: list[_Row] = [("corpus", recipe.data.corpus), ("kept in", str(corpus.train.folder.parent))]
    for title, store in (("train", corpus.train), ("validation", corpus.validation)):
        rows += [(title, ""), *_describe_store(store, recipe.data)]
    return _align(*rows, width=12)


def _describe_store(store: TokenStore, data: Data) -> Iterator[_Row]:
    """Counts, checksum, padding and first sequences of a store, cut as ``data`` says."""
    from duality.data.packing import Sequences
    from duality.tokenizers.library import load_tokenizer

    folder = store.folder
    home = next((place for place in (folder, folder.parent) if (place / "tokenizer.json").is_file()), None)
    tokenizer = None if home is None else load_tokenizer(home)
    if tokenizer is not None and tokenizer.fingerprint != store.tokenizer:
        raise ValueError(
            f"{folder} has tokens of the tokenizer {store.tokenizer[:12]}, and the one beside it is "
            f"{tokenizer.fingerprint[:12]}: put back the tokenizer.json that belongs to it, or prepare it again"
        )
    yield "  documents", f"{store.num_documents:,}"
    yield "  text", f"{store.num_characters:,} characters, {store.num_bytes:,} bytes"
    yield "  tokens", f"{store.num_tokens:,} of {store.vocab_size:,} kinds, in {len(store.shards)} file(s)"
    packing = data.packing if len(store) else "wrap"
    rows = Sequences(store, data.length, packing, "ignore")
    padding = 1 - len(store) / (len(rows) * data.length) if len(rows) else 0.0
    yield "  sequences", f"{len(rows):,} of {data.length} tokens ({packing}), {padding:.2%} of them padding"
    yield "  sha256", ", ".join(shard.sha256[:16] for shard in store.shards[:4]) + " ..." * (len(store.shards) > 4)
    if tokenizer is not None:
        for number in range(min(2, len(rows))):
            ids, valid = rows.rows([number])
            yield f"  {number}", _excerpt(tokenizer.decode(ids[0][valid[0]].numpy()))


def _clean_cache(kind: str, yes: bool) -> Iterator[str]:
    """What the cache holds, of one kind or of all; it is removed if the user has said so."""
    from duality.files.atomic import readable_size, remove
    from duality.files.cache import cache_folder, holdings

    root = cache_folder()
    found = holdings(root, kind)
    yield str(root)
    for holding in found:
        count = f"{len(holding.entries)} entr{'y' if len(holding.entries) == 1 else 'ies'}"
        writing = f"; {holding.in_progress} more being written" if holding.in_progress else ""
        yield f"{holding.kind:<11}{count:>12}  {readable_size(holding.num_bytes):>10}  {holding.title}{writing}"
    total = readable_size(sum(holding.num_bytes for holding in found))
    if yes:
        for path in (path for holding in found for path in holding.entries):
            remove(path)
        yield f"{total} removed; what is needed is fetched or made again"
    else:
        again = f"duality data clean {kind}".rstrip()
        yield f"{total} can be freed: it would be fetched or made again when it is needed"
        yield f"remove it: {again} --yes" + ("" if kind else "; one kind: duality data clean KIND --yes")


def _align(*rows: _Row, width: int = 11) -> Iterator[str]:
    """Lines with their titles before them; of several lines with one title, the first one has it."""
    for title, lines in rows:
        for number, line in enumerate([lines] if isinstance(lines, str) else lines):
            yield f"{'' if number else title:<{width}}{line}"


def _excerpt(text: str, width: int = 80) -> str:
    """The beginning of a text on one line, without characters that would control the terminal.

    >>> _excerpt("one\\n two\\x1b[31m"), _excerpt("It was a dark and stormy night", 12)
    ('one two [31m', 'It was a da…')
    """
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"

"""The command `data`: list the named corpora, fetch or prepare one, show what a corpus is, or clean the cache."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from duality.cli.common import Assignments, Column, Flag
from duality.cli.show import shortened, show


def data(
    action: Annotated[Literal["list", "get", "prepare", "show", "clean"], tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional] = "",
    /,
    column: Column = None,
    recipe: Annotated[str | None, tyro.conf.arg(metavar="RECIPE")] = None,
    assignments: Assignments = (),
    tokenizer: str | None = None,
    length: int | None = None,
    pack: Flag = False,
    no_pack: Flag = False,
    eos: Flag = False,
    no_eos: Flag = False,
    workers: int | None = None,
    yes: Flag = False,
) -> int:
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
    if action == "clean":
        from duality.cli.clean import clean

        return clean(name, yes)
    if yes:
        raise ValueError(f"--yes belongs to `duality data clean`, not to `data {action}`: leave it out")
    from duality.cli.console import say
    from duality.data.datasets import DATASETS
    from duality.data.documents import overview
    from duality.data.sources import DEFAULT_SOURCE, SOURCES

    own = (tokenizer, length, one_of(pack, no_pack, "pack"), one_of(eos, no_eos, "eos"), workers)
    if action == "prepare":
        from duality.cli.prepare import chosen_data, prepare

        return prepare(chosen_data(name, column, recipe, assignments, *own[:4]), workers)
    if any(each is not None for each in own):
        raise ValueError(
            f"--tokenizer, --length, --pack, --eos and --workers belong to `duality data prepare`, not to {action}"
        )
    if action == "show":
        from duality.cli.prepare import chosen_data, is_store, show_store

        if is_store(name) and column is None:
            return show_store(
                name, None if recipe is None else chosen_data("", None, recipe, assignments, None, None, None, None)
            )
        return show(name, column, recipe, assignments)
    if column is not None or recipe is not None or assignments:
        raise ValueError(
            f"--column, --recipe and --set belong to `data prepare` and `data show`; leave them out of {action}"
        )
    if action == "get":
        chosen = name or DEFAULT_SOURCE
        found = overview(chosen, progress=say)
        unit = "one per line" if SOURCES[chosen].documents == "lines" else "one per file"
        print(f"{chosen}: {SOURCES[chosen].title}")
        print(f"licence    {SOURCES[chosen].license}")
        print(f"size       {found.num_bytes / 1e6:.1f} MB in {len(found.files)} file{'s' * (len(found.files) > 1)}")
        print(f"documents  {found.num_documents:,}, {unit}")
        for title, lines in (("files", map(str, found.files)), ("examples", map(shortened, found.examples))):
            print("\n".join(f"{title if not number else '':<11}{line}" for number, line in enumerate(lines)))
        return 0
    for known, source in SOURCES.items():
        default = " (default)" if known == DEFAULT_SOURCE else ""
        print(f"{known}{default}: {source.title}. {source.license}.")
    for known, dataset in DATASETS.items():
        if known not in SOURCES:
            print(f"{known}: {dataset.title}. {dataset.license}. {dataset.citation}.")
    return 0


def one_of(yes: bool, no: bool, name: str) -> bool | None:
    """What a pair of flags says; None if neither is given."""
    if yes and no:
        raise ValueError(f"--{name} and --no-{name} are given: leave one of them out")
    return True if yes else False if no else None

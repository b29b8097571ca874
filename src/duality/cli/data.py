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
    own = (tokenizer, length, one_of(pack, no_pack, "pack"), one_of(eos, no_eos, "eos"), workers)
    check_flags(action, yes, any(each is not None for each in own), bool(column or recipe or assignments))
    if action == "clean":
        from duality.cli.clean import clean

        return clean(name, yes)
    if action == "prepare":
        from duality.cli.prepare import chosen_data, prepare

        return prepare(chosen_data(name, column, recipe, assignments, *own[:4]), workers)
    if action == "show":
        return shown(name, column, recipe, assignments)
    return fetched(name) if action == "get" else listed()


def check_flags(action: str, yes: bool, preparing: bool, reading: bool) -> None:
    """Refuse flags of another action."""
    if yes and action != "clean":
        raise ValueError(f"--yes belongs to `duality data clean`, not to `data {action}`: leave it out")
    if preparing and action != "prepare":
        raise ValueError(
            f"--tokenizer, --length, --pack, --eos and --workers belong to `duality data prepare`, not to {action}"
        )
    if reading and action not in ("prepare", "show"):
        raise ValueError(
            f"--column, --recipe and --set belong to `duality data show` and `data prepare`; leave them out of {action}"
        )


def shown(name: str, column: str | None, recipe: str | None, assignments: tuple[str, ...]) -> int:
    """What is read of a corpus, or what is in a folder of tokens."""
    from duality.cli.prepare import chosen_data, is_store, show_store

    if column is None and is_store(name):
        chosen = None if recipe is None else chosen_data("", None, recipe, assignments)
        return show_store(name, chosen)
    return show(name, column, recipe, assignments)


def fetched(name: str) -> int:
    """Fetch a named corpus and say what it is."""
    from duality.cli.console import say
    from duality.data.datasets import DATASETS, placed
    from duality.data.documents import overview
    from duality.data.places import text_files
    from duality.data.sources import DEFAULT_SOURCE, SOURCES

    chosen = name or DEFAULT_SOURCE
    if chosen in DATASETS and chosen not in SOURCES:
        dataset, files = DATASETS[chosen], text_files(placed(chosen), progress=say)
        print(f"{chosen}: {dataset.title}\nlicence    {dataset.license}\ncitation   {dataset.citation}")
        print("\n".join(f"{'' if number else 'files':<11}{file.path}" for number, file in enumerate(files)))
        return 0
    found = overview(chosen, progress=say)
    unit = "one per line" if SOURCES[chosen].documents == "lines" else "one per file"
    print(f"{chosen}: {SOURCES[chosen].title}")
    print(f"licence    {SOURCES[chosen].license}")
    print(f"size       {found.num_bytes / 1e6:.1f} MB in {len(found.files)} file{'s' * (len(found.files) > 1)}")
    print(f"documents  {found.num_documents:,}, {unit}")
    for title, lines in (("files", map(str, found.files)), ("examples", map(shortened, found.examples))):
        print("\n".join(f"{title if not number else '':<11}{line}" for number, line in enumerate(lines)))
    return 0


def listed() -> int:
    """The named corpora, and the datasets of the literature."""
    from duality.data.datasets import DATASETS
    from duality.data.sources import DEFAULT_SOURCE, SOURCES

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

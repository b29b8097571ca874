"""The command `data`: list the named corpora, fetch one, show what a corpus is, or clean the cache."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from duality.cli.common import Assignments, Column, Flag
from duality.cli.show import shortened, show


def data(
    action: Annotated[Literal["list", "get", "show", "clean"], tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional] = "",
    /,
    column: Column = None,
    recipe: Annotated[str | None, tyro.conf.arg(metavar="RECIPE")] = None,
    assignments: Assignments = (),
    yes: Flag = False,
) -> int:
    """List the named corpora; fetch one and verify it; show what is read of a corpus; show and clean the cache.

    Args:
        action: list the named corpora, get one, show any corpus, or show what the cache holds and free it (clean).
        name: which one to get, the default of the recipes if not given; to show, a file, a folder or a named corpus; to
            clean, a kind of data, all if not given.
        column: show: where the text is, the key of a .jsonl file, the column of a .csv or .tsv file; text if not given.
        recipe: show: count the tokens and epochs of this recipe too, for which the corpus is prepared and kept.
        assignments: show: change a field of the recipe, such as --set data.tokenizer=bytes; can be repeated.
        yes: clean: remove what is shown.
    """
    if action == "clean":
        from duality.cli.clean import clean

        return clean(name, yes)
    if yes:
        raise ValueError(f"--yes belongs to `duality data clean`, not to `data {action}`: leave it out")
    from duality.cli.console import say
    from duality.data.documents import overview
    from duality.data.sources import DEFAULT_SOURCE, SOURCES

    if action == "show":
        return show(name, column, recipe, assignments)
    if column is not None or recipe is not None or assignments:
        raise ValueError(f"--column, --recipe and --set belong to `duality data show`; leave them out of {action}")
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
    return 0

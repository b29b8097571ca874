"""The command `data`: list the named corpora, fetch one, or show what a corpus is."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from duality.cli.common import Assignments, Column
from duality.cli.show import shortened, show


def data(
    action: Annotated[Literal["list", "get", "show"], tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional] = "",
    /,
    column: Column = None,
    recipe: Annotated[str | None, tyro.conf.arg(metavar="RECIPE")] = None,
    assignments: Assignments = (),
) -> int:
    """List the named corpora; fetch one into the cache and verify it; or show what is read of a corpus.

    Args:
        action: list the named corpora, get one, or show any corpus.
        name: which one to get, the default of the recipes if not given; to show, a file, a folder or a named corpus.
        column: show: where the text is, the key of a .jsonl file, the column of a .csv or .tsv file; text if not given.
        recipe: show: count the tokens and epochs of this recipe too, for which the corpus is prepared and kept.
        assignments: show: change a field of the recipe, such as --set data.tokenizer=bytes; can be repeated.
    """
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

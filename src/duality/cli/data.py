"""The command `data`: list the named corpora, fetch one and show what it is, or clean the cache."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from duality.cli.common import Flag


def data(
    action: Annotated[Literal["list", "get", "clean"], tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional] = "",
    /,
    yes: Flag = False,
) -> int:
    """List the named corpora, fetch one into the cache, verify it and show what it is, or show and clean the cache.

    Args:
        action: list them, get one, or show what the cache holds and how to free it (clean).
        name: which one to get, the default of the recipes if not given; or which kind to clean, all if not given.
        yes: with clean, remove what is shown.
    """
    if action == "clean":
        from duality.cli.clean import clean

        return clean(name, yes)
    if yes:
        raise ValueError(f"--yes belongs to `duality data clean`, not to `data {action}`: leave it out")
    from duality.cli.console import say
    from duality.data.documents import overview
    from duality.data.sources import DEFAULT_SOURCE, SOURCES

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


def shortened(line: str, width: int = 80) -> str:
    """The beginning of a line.

    >>> shortened("It was a dark and stormy night", 12)
    'It was a da…'
    """
    return line if len(line) <= width else f"{line[: width - 1]}…"

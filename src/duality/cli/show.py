"""The action `show` of the command `data`: what is read of a corpus, before anything is trained on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duality.data.survey import Inspection
    from duality.recipes.recipe import Recipe


def show(corpus: str, column: str | None, recipe: str | None, assignments: Sequence[str]) -> int:
    """Print the files, documents, size and first texts of a corpus; with a recipe, its tokens and epochs."""
    from duality.cli.console import say
    from duality.data.survey import inspect
    from duality.models.folder import with_column, with_corpus
    from duality.recipes.catalogue import recipe as find
    from duality.recipes.recipe import Data
    from duality.runs.corpora import facts, prepared

    if not corpus.strip():
        raise ValueError("nothing to show: give a file, a folder or a named corpus, as duality data show PATH")
    if assignments and recipe is None:
        raise ValueError("--set changes a field of a recipe: name one with --recipe, such as duo-laptop")
    chosen: Recipe | None = None
    data = Data() if column is None else Data(column=column)
    if recipe is not None:
        chosen = with_column(with_corpus(find(recipe, tuple(assignments)), corpus), column)
        data = chosen.data
    found = inspect(corpus, data.documents, data.column, progress=say)
    rows = list(described(corpus, found))
    if chosen is not None:
        rows += titled("recipe", facts(chosen, prepared(chosen, say)))
    print("\n".join(f"{title:<11}{line}" for title, line in rows))
    return 0


def described(corpus: str, found: Inspection) -> Iterator[tuple[str, str]]:
    """The lines of the output, each with its title."""
    from duality.runs.corpora import skipped_line

    size = found.size
    yield "corpus", corpus
    yield "files", f"{len(found.files):,} read"
    if found.skipped:
        yield "", skipped_line(found.skipped)
    yield "documents", f"{size.num_documents:,}"
    yield "text", f"{size.num_characters:,} characters, {size.num_bytes:,} bytes"
    yield "tokens", f"{size.num_bytes + size.num_documents:,} if every byte is one (data.tokenizer=bytes)"
    yield from titled("examples", (shortened(one_line(text)) for text in found.examples))


def titled(title: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """The lines, the first one with the title."""
    return [("" if number else title, line) for number, line in enumerate(lines)]


def one_line(text: str) -> str:
    """A text on one line, without characters that would control the terminal.

    >>> one_line("one\\n two\\x1b[31m")
    'one two [31m'
    """
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def shortened(line: str, width: int = 80) -> str:
    """The beginning of a line.

    >>> shortened("It was a dark and stormy night", 12)
    'It was a da…'
    """
    return line if len(line) <= width else f"{line[: width - 1]}…"

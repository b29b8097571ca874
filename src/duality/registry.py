"""Registries: one per kind of choice, next to what it lists.

A registry maps a name to the place where the named thing is defined, ``"module:attribute"``. The thing is imported when
it is first asked for, so the names are known without importing torch. The command line takes its choices from
the registries, the JSON of a recipe its types, and the common tests their parameters: what is registered is tested, and
what is not registered does not exist for a user.

    SAMPLERS = Registry("sampler", {"ancestral": "duality.samplers.ancestral:Ancestral"})
    list(SAMPLERS)                  the names; nothing is imported
    SAMPLERS["ancestral"]           the class
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
Entry = Callable[..., Any]
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\n": "⏎", "\x7f": "␡"}


def suggestion(name: str, choices: Iterable[str]) -> str:
    """'did you mean a or b?', or the list of what there is."""
    names = sorted(choices)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(names)}"


def one_line(error: Exception) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split())


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def visible(text: str, kept: str = "") -> str:
    """The text without anything that moves a cursor: a new line is "⏎", other control characters are pictures.

    Characters that are ``kept`` stay as they are.

    >>> visible("two\\n\\tlines \\x1b[31m", kept="\\n\\t")
    'two\\n\\tlines ␛[31m'
    """

    def picture(character: str) -> str:
        if character.isspace() and ord(character) > 0x9F:
            return " "
        return _PICTURES.get(character, "\ufffd")

    return "".join(each if each.isprintable() or each in kept else picture(each) for each in text)


class Registry(Mapping[str, Entry]):
    """Names and what they stand for: classes, or functions that build an object."""

    def __init__(self, kind: str, places: Mapping[str, str | Entry]):
        self.kind = kind
        self._places: dict[str, str | Entry] = dict(places)

    def __getitem__(self, name: str) -> Entry:
        if name not in self._places:
            raise ValueError(f"no {self.kind} {name!r}: {suggestion(name, self._places)}")
        place = self._places[name]
        if not isinstance(place, str):
            return place
        module, _, attribute = place.partition(":")
        entry: Entry = getattr(import_module(module), attribute)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def plugins(self) -> dict[str, EntryPoint]:
        """What other packages offer, as entry points of the group ``duality.KINDs``, such as duality.scorers."""
        from importlib.metadata import entry_points  # half of the time that `duality --help` takes

        return {entry.name: entry for entry in entry_points(group=f"duality.{self.kind}s")}

    def find(self, name: str, what: str) -> object:
        """What a user names: an entry of this registry or of a plug-in, or ``module:attribute``, which is a ``what``.

        The module may be one of the current folder.
        """
        plugins = self.plugins()
        module, _, attribute = name.partition(":")
        if name in self or name in plugins:
            return self[name] if name in self else plugins[name].load()
        if not (module and attribute):
            raise ValueError(
                f"no {self.kind} {name!r}: {suggestion(name, [*self, *plugins])} (a {what} of yours is written "
                f"module:{what})"
            )
        before = list(sys.path)
        sys.path.insert(0, str(Path.cwd()))
        invalidate_caches()
        try:
            return getattr(import_module(module), attribute)
        except Exception as error:  # of the module itself, too
            raise ValueError(
                f"no {self.kind} {name!r} ({error}): name a {what} of a module that can be imported from {Path.cwd()}, "
                f"such as my_module:{what} for the {what} of that name in my_module.py, or choose from "
                f"{', '.join([*self, *plugins])}"
            ) from error
        finally:
            sys.path[:] = before

    def call(self, name: str, entry: Callable[..., T], *arguments: object) -> T:
        """Call something of a user's; an error that is no ``ValueError`` or ``OSError`` names it."""
        try:
            return entry(*arguments)
        except (ValueError, OSError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {one_line(error)}"
            raise ValueError(f"the {self.kind} {name!r} has failed ({why}): --debug shows where") from error

    def types(self) -> tuple[type, ...]:
        """The registered classes."""
        return tuple(entry for entry in self.values() if isinstance(entry, type))

    def classes(self) -> dict[str, str | Entry]:
        """The registered classes by their own names: places of classes, and what was registered at run time.

        A place names a class if its attribute begins with a capital. Something that was registered at run time and is
        no class is called once: the class is that of what it makes.
        """
        found: dict[str, str | Entry] = {}
        for place in self._places.values():
            if isinstance(place, str):
                attribute = place.rpartition(":")[2]
                if attribute[0].isupper():
                    found[attribute] = place
            else:
                kind = place if isinstance(place, type) else type(place())
                found[kind.__name__] = kind
        return found

    def register(self, name: str, entry: Entry) -> None:
        """Add a choice at run time, for a notebook or a plug-in; a name is never replaced."""
        if name in self._places:
            raise ValueError(f"there is a {self.kind} {name!r} already: choose another name")
        self._places[name] = entry

    @contextmanager
    def extended(self, name: str, entry: Entry) -> Iterator[None]:
        """Add a choice for the duration of a ``with`` block."""
        self.register(name, entry)
        try:
            yield
        finally:
            del self._places[name]

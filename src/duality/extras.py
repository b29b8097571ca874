"""Extras: packages that only some features need, and the command that installs them here.

    import_extra("judge", "a judge", "transformers", "gguf")     the first module, or a line that says what to install

    with no_notices(): ...                                       what packages say of themselves is not shown

The command depends on where this library came from, which pip writes down when it installs (PEP 610): a clone, a file,
a repository, or the package index. In an environment without pip it is that of uv.

What must hold: the command works as it is printed, on this machine, in this environment.
"""

from __future__ import annotations

import json
import logging
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import TypedDict
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "diffusion-duality"
_CLONE = Path(__file__).resolve().parents[2]


class _Origin(TypedDict, total=False):
    """What PEP 610 writes of an origin."""

    url: str
    dir_info: dict[str, bool]
    vcs_info: dict[str, str]


def import_extra(extra: str, user: str, *modules: str, instead: str = "") -> ModuleType:
    """The first of the modules, if all can be imported; the error names what ``user`` lacks and what to do.

    ``instead`` is another remedy, such as ", or convert it to .jsonl".
    """
    found = []
    for name in modules:
        try:
            found.append(import_module(name))
        except ImportError as error:
            library = name.partition(".")[0]
            raise ValueError(
                f"{user} needs {library}, which cannot be imported ({error}): {install_command(extra)}{instead}"
            ) from None
    return found[0]


@contextmanager
def no_notices(bars: bool = False) -> Iterator[None]:
    """In the block, packages show no warnings, no lines of their logs and, unless ``bars``, no bars: users cannot act.

    An error of the block is raised as always.
    """
    from tqdm import std

    disabled, begin = logging.root.manager.disable, std.tqdm.__init__
    logging.disable(logging.CRITICAL)
    if not bars:
        std.tqdm.__init__ = partialmethod(begin, disable=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        std.tqdm.__init__ = begin
        logging.disable(disabled)


def install_command(extra: str = "") -> str:
    """What installs this library with an extra, from where it was installed before."""
    # Not find_spec: setuptools takes it for the beginning of pip, and a later torch.compile in this process fails.
    pip = "pip install" if any(distributions(name="pip")) else "uv pip install"
    features = f"[{extra}]" if extra else ""
    origin = _origin()
    if origin is None:
        return f"{pip} {shlex.quote(NAME + features)}"
    url = origin["url"]
    if "dir_info" in origin:
        editable = " -e" if origin["dir_info"].get("editable") else ""
        return f"{pip}{editable} {shlex.quote(url2pathname(urlsplit(url).path) + features)}"
    version = origin.get("vcs_info")
    address = url if version is None else f"{version['vcs']}+{url}@{version['commit_id']}"
    return f"{pip} {shlex.quote(f'{NAME}{features} @ {address}')}"


def install_elsewhere() -> str:
    """What installs this library on another machine, in Markdown: for what is published."""
    origin = _origin()
    if origin is None or "vcs_info" in origin:
        return f"`{install_command().removeprefix('uv ')}`"
    return "`pip install .` in a clone of its repository"


def _origin() -> _Origin | None:
    """What pip knows of the origin of this library; None for the package index."""
    try:
        text = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # not installed at all: imported from a folder
        is_clone = (_CLONE / "pyproject.toml").is_file()
        return {"url": _CLONE.as_uri(), "dir_info": {"editable": True}} if is_clone else None
    found: _Origin | None = None if text is None else json.loads(text)
    return found

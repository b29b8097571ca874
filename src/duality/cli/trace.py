"""The command `trace`: what `duality sample --trace` wrote, as a file to look at and to give to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

Traces = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
_MOST_PANES = 4


def trace(
    files: Traces,
    /,
    html: Path | None = None,
    svg: Path | None = None,
    sample: int = 0,
    columns: int = 72,
) -> int:
    """Make a page that plays a generation, or an animated picture of it; of several traces, a race.

    Args:
        files: what `duality sample --trace` wrote, or the studio saved; two to four files are a race.
        html: a new HTML file that plays and scrubs; it needs no other file and no network.
        svg: a new animated SVG file, for a README or a slide.
        sample: which sample of the traces, from 0.
        columns: characters in a line of the picture.
    """
    from duality.cli.console import say
    from duality.files.atomic import readable_size, regular_file, write_atomically
    from duality.models.picture import picture
    from duality.models.share import html as page
    from duality.models.trace import read_trace

    if html is None and svg is None:
        raise ValueError("nothing to make: give --html FILE, --svg FILE, or both")
    if not 1 <= len(files) <= _MOST_PANES:
        raise ValueError(f"{len(files)} traces: give one, or two to {_MOST_PANES} for a race")
    if columns < 8:
        raise ValueError(f"--columns is {columns}: a line has at least 8 characters")
    if html is not None and html == svg:
        raise ValueError(f"--html and --svg are the same file, {html}: give two names")
    for out in filter(None, (html, svg)):
        if regular_file(out).exists():
            raise ValueError(f"{out} exists: give the name of a new file, or remove it")
    recordings = [read_trace(file) for file in files]
    contents: dict[Path, str] = {}
    if html is not None:
        contents[html] = page(recordings, sample)
    if svg is not None:
        contents[svg] = picture(recordings, sample, columns)
    for path, content in contents.items():
        write_atomically(path, content)
        say(f"{path}: {readable_size(len(content.encode('utf-8')))}")
    return 0

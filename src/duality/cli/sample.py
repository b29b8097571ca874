"""The commands `sample`, `trace` and `studio`: write text with a run, watch it being written, keep every step."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction, arg

from duality.cli.console import say, stderr
from duality.cli.options import AnyModel, Device, KeptStep, Precision, Round, make_flags
from duality.extras import import_extra
from duality.files.atomic import json_text, readable_size, regular_file, write_atomically
from duality.models.requests import SampleRequest
from duality.ranks import job
from duality.registry import visible

if TYPE_CHECKING:
    from duality.models.model import Model
    from duality.models.sampling import Sample, SampleWatch, Watch
    from duality.samplers.generate import Frame

_HELP = "tokens that stay at their places, such as 3:17 5:2: the model writes the others; can be repeated."
_KEPT = Annotated[tuple[str, ...], UseAppendAction, arg(metavar="PLACE:TOKEN", help=_HELP)]
_SampleFlags = make_flags(SampleRequest, keep=_KEPT)
_FOUR = _SampleFlags(num=4, keep=())  # type: ignore[arg-type]  # tokens are read as texts
_MOST_PANES = 4


def sample(
    run: AnyModel,
    request: Annotated[SampleRequest, arg(name="", constructor=_SampleFlags)] = _FOUR,
    round_number: Round = None,
    kept_step: KeptStep = None,
    device: Device = "auto",
    precision: Precision = "auto",
    json: bool = False,
    full: bool = False,
    watch: bool = False,
    trace: Path | None = None,
) -> None:
    """Write text with a run, or with a model alone.

    Args:
        request: how the samples are drawn.
        json: print a JSON object per sample, with its tokens.
        full: show what follows the first end-of-text too; without it, a text ends there.
        watch: show the tokens changing, step by step.
        trace: a file for every step of every sample, as JSON.
    """
    from duality.cli.watch import Watcher
    from duality.models.model import load
    from duality.models.sampling import show_sampling
    from duality.tokenizers.pieces import Pieces

    if (trace or watch) and not job().alone:
        raise ValueError(
            f"--{'trace' if trace else 'watch'} in {job().size} processes: each sees the steps of its own samples "
            "only; leave it out, or start the command without torchrun"
        )
    if trace is not None:
        regular_file(trace)  # before anything is sampled that could not be kept
    model = load(run, say, device, round=round_number, step=kept_step, precision=precision)
    model.agree(vars(request))
    about = {"run": str(run), **vars(request)}
    with (
        _printing(model.step, request.num, json, full, later=watch) as each,
        Watcher(stderr, Pieces(model.tokenizer, model.mask_id)) if watch else show_sampling(say, request) as view,
        _tracing(view.show if isinstance(view, Watcher) else view, trace, model, about) as see,
    ):
        model.write(replace(request, keep=_parse_kept_tokens(request.keep)), see, each)


@contextmanager
def _tracing(show: Watch, path: Path | None, model: Model, about: dict[str, object]) -> Iterator[Watch]:
    """``show``, and with a path also a file with every step, which is written at the end of the block."""
    from duality.models.trace import Trace
    from duality.tokenizers.pieces import Pieces

    known = {"recipe": model.recipe.name, "trained_steps": model.step, **about}
    trace = Trace(Pieces(model.tokenizer, model.mask_id), known)

    def see(frame: Frame) -> None:
        show(frame)
        trace.add(frame)
        known["steps"] = frame.steps

    try:
        yield show if path is None else see
    finally:
        if path is not None and trace.complete:  # all samples, unless something stopped it
            trace.write(path, only_complete=True)


def _parse_kept_tokens(entries: Collection[object]) -> dict[int, int]:
    """Places and tokens, as ``--keep`` has them.

    >>> _parse_kept_tokens(("0:65", "3:32"))
    {0: 65, 3: 32}
    """
    kept: dict[int, int] = {}
    for entry in entries:
        place, _, token = str(entry).partition(":")
        if not (place.isdecimal() and token.isdecimal()):
            raise ValueError(f"--keep {entry!r} is no place and token: write two whole numbers, such as 3:17")
        kept[int(place)] = int(token)
    if len(kept) < len(entries):
        raise ValueError(f"--keep {' '.join(map(str, entries))}: a place is named twice; give each place one token")
    return kept


@contextmanager
def _printing(step: int, num: int, json: bool, full: bool, later: bool) -> Iterator[SampleWatch]:
    """Prints samples as soon as they are written; what was printed when the block is interrupted is all that was made.

    ``later`` prints them at the end of the block, if a terminal shows something else until then.
    """
    terminal, lines = sys.stdout.isatty(), list[str]()

    def show(made: Sample) -> None:
        titled = f"--- sample {made.index + 1} of {num}: {made.settings}\n{made.full_text if full else made.text}"
        line = json_text(made.row(step, full)) if json else visible(titled, kept="\n\t") if terminal else titled
        lines.append(line)
        if not (later and terminal):
            print(line, flush=True)

    try:
        yield show
    except KeyboardInterrupt:
        say(f"interrupted: {len(lines)} of {num} samples are complete")
        raise
    finally:
        for line in lines if later and terminal else ():
            print(line)


def trace(
    files: Annotated[tuple[Path, ...], Positional, arg(metavar="FILE")],
    html: Path | None = None,
    svg: Path | None = None,
    sample: int = 0,
    columns: int = 72,
) -> None:
    """Make a page that plays a generation, or an animated picture of it; of several traces, a race.

    Args:
        files: what `duality sample --trace` wrote, or the studio saved; two to four files are a race.
        html: a new HTML file that plays and scrubs; it needs no other file and no network.
        svg: a new animated SVG file, for a README or a slide.
        sample: which sample of the traces, from 0.
        columns: characters in a line of the picture.
    """
    from duality.models.trace import page, picture, read_trace

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
    contents = {} if html is None else {html: page(recordings, sample)}
    contents |= {} if svg is None else {svg: picture(recordings, sample, columns)}
    for path, content in contents.items():
        write_atomically(path, content)
        say(f"{path}: {readable_size(len(content.encode('utf-8')))}")


def studio(
    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN")] = (),
    host: str = "127.0.0.1",
    port: int = 8321,
    token: str | None = None,
    judge: str | None = None,
    device: Device = "auto",
    precision: Precision = "auto",
    open: bool = False,
) -> None:
    """Open a page on which models write step by step, race, fill in, and are watched while they train.

    Args:
        runs: run folders, folders that hold some, folders of `duality publish`, or models of the Hugging Face hub
            (hf:OWNER/NAME[@REVISION]); the folder runs if not given.
        host: the address to listen at; one that other machines can reach needs a token.
        port: the port to listen at; 0 takes a free one.
        token: what a browser or a client must send; it is a part of the address that is printed.
        judge: an autoregressive run, or the name of a language model, that scores texts in races.
        open: open the page in the browser of this machine.
    """
    import_extra("studio", "the studio", "pydantic", "starlette", "uvicorn", "httptools")
    from duality.evaluation.judge import find_judge
    from duality.studio import app, library, server

    shelf = library.Library(runs or (Path("runs"),), device=device, precision=precision)
    address = server.Address(host, port, token)
    with address.listen() as listener:
        made = app.Studio(shelf, judge=None if judge is None else find_judge(judge, device, say))
        url, found = address.url(listener.getsockname()[1]), len(shelf.find_runs())
        say(f"the studio is at {url} ({found} run{'s' * (found != 1)}, and those to come); Ctrl-C ends it")
        if open:
            import webbrowser

            webbrowser.open(url)
        made.serve(listener, address)

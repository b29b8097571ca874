"""The commands `sample` and `trace`: write text with a run, watch it being written, keep every step and show it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from duality.cli.console import sampling_display, say, stderr
from duality.cli.options import Device, Flag, Folder, GridName, KeptStep, Round, SamplerName, TailName
from duality.ranks import job

if TYPE_CHECKING:
    from duality.models.model import Model
    from duality.models.sampling import Each, Sample, Watch
    from duality.samplers.generate import Frame


@dataclass(frozen=True)
class Sampling:
    """How samples are drawn: the arguments of ``Model.sample`` of the same names."""

    steps: int | None = None
    """network calls for each sample; if not given, the recipe's, or 32, one per token (autoregressive), two (Gibbs)."""
    sampler: SamplerName | None = None
    """the model's own, or another one of its noise; a psi sampler returns some tokens to noise and can correct them."""
    eta: float | None = None
    """how much a psi sampler returns to noise: 0 is ancestral; if not given, 0.01 (psi-constant, psi-loop) or 0.05."""
    grid: GridName | None = None
    """where the steps are: linear (equal times), cosine (small steps in much noise), loop (for psi-loop only)."""
    tail: TailName | None = None
    """the last step draws (ancestral) or takes the most likely tokens (greedy, or posterior: given the noisy token); if
    not given, the recipe's."""
    length: int | None = None
    """tokens of a sample; the length it was trained on if not given."""
    prompt: str = ""
    """text that every sample begins with."""
    suffix: str = ""
    """text that every sample ends with: the model fills in what is between."""
    keep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PLACE:TOKEN")] = ()
    """tokens that stay at their places, such as 3:17: the model writes the others."""
    top_p: float = 1.0
    """draw from the fewest tokens that hold this share of the belief; 1 is all of it."""
    temperature: float | None = None
    """below 1 sharpens the belief, above 1 flattens it; if not given, the recipe's."""
    label: str | None = None
    """write in this class; the model must have been trained with labels."""
    guidance: float | None = None
    """how much the class counts: 1 is the conditional model, more goes beyond it."""
    seed: int = 0
    """the same seed gives the same samples."""
    batch_size: int = 16
    """samples at a time; the result does not depend on it."""


_DEFAULT = Sampling()
Traces = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
_MOST_PANES = 4


def sample(
    run: Folder,
    /,
    num: int = 4,
    how: Annotated[Sampling, tyro.conf.arg(name="")] = _DEFAULT,
    round_number: Round = None,
    kept_step: KeptStep = None,
    device: Device = "auto",
    json: Flag = False,
    full: Flag = False,
    watch: Flag = False,
    trace: Path | None = None,
) -> int:
    """Write text with a run, or with a model alone.

    Args:
        run: the run folder, a folder of `duality publish`, or a model of the Hugging Face hub (hf:OWNER/NAME@REVISION).
        num: how many samples.
        how: how the samples are drawn.
        round_number: after this round of a distillation instead of the last; 0 is what it began from.
        kept_step: the weights at this training step instead of the newest; the run must have kept that checkpoint.
        device: where to compute.
        json: print a JSON object per sample, with its tokens.
        full: show what follows the first end-of-text too; without it, a text ends there.
        watch: show the tokens changing, step by step.
        trace: a file for every step of every sample, as JSON.
    """
    from duality.files.atomic import regular_file
    from duality.models.model import load

    if (trace or watch) and not job().alone:
        raise ValueError(
            f"--{'trace' if trace else 'watch'} in {job().size} processes: each sees the steps of its own samples "
            "only; leave it out, or start the command without torchrun"
        )
    if trace is not None:
        regular_file(trace)  # before anything is sampled that could not be kept
    model = load(run, say, device, round=round_number, step=kept_step)
    batches = -(-num // max(how.batch_size, 1))
    about = {"run": str(run), **asdict(how)}
    with (
        _printing(model.step, num, json, full, later=watch) as show_sample,
        _display(model, watch, batches) as show,
        _tracing(model, trace, about, show) as see,
    ):
        chosen = {**asdict(how), "keep": _parse_kept_tokens(how.keep)}
        model.sample(num, watch=see, each=show_sample, **chosen)
    return 0


def _parse_kept_tokens(entries: tuple[str, ...]) -> dict[int, int]:
    """Places and tokens, as ``--keep`` has them.

    >>> _parse_kept_tokens(("0:65", "3:32"))
    {0: 65, 3: 32}
    """
    pairs = [entry.partition(":")[::2] for entry in entries]
    for entry, pair in zip(entries, pairs):
        if not all(part.isdecimal() for part in pair):
            raise ValueError(f"--keep {entry!r} is no place and token: write two whole numbers, such as 3:17")
    return {int(place): int(token) for place, token in pairs}


@contextmanager
def _printing(step: int, num: int, json: bool, full: bool, later: bool) -> Iterator[Each]:
    """Prints samples as soon as they are written; what was printed when the block is interrupted is all that was made.

    ``later`` prints them at the end of the block, if a terminal shows something else until then.
    """
    from json import dumps

    from duality.models.trace import harmless

    terminal, waiting = sys.stdout.isatty(), list[str]()
    count = 0

    def show(made: Sample) -> None:
        nonlocal count
        count += 1
        text = made.full_text if full else made.text
        title = f"--- sample {made.index + 1} of {num}: {made.settings}\n"
        line = dumps(made.row(step, full)) if json else title + (harmless(text) if terminal else text)
        if later and terminal:
            waiting.append(line)
        else:
            print(line, flush=True)

    try:
        yield show
    except KeyboardInterrupt:
        say(f"interrupted: {count} of {num} samples are complete")
        raise
    finally:
        for line in waiting:
            print(line)


@contextmanager
def _display(model: Model, text: bool, batches: int) -> Iterator[Watch]:
    """What is shown of a step: the ``text`` itself, or else a bar."""
    from duality.cli.watch import Watcher
    from duality.tokenizers.pieces import Pieces

    if text:
        with Watcher(stderr, Pieces(model.tokenizer, model.mask_id)) as watcher:
            yield watcher.show
    else:
        with sampling_display(batches) as show:
            yield show


@contextmanager
def _tracing(model: Model, path: Path | None, about: dict[str, object], show: Watch) -> Iterator[Watch]:
    """``show``, and with a path also a file with every step, which is written at the end of the block."""
    from duality.models.trace import Trace
    from duality.tokenizers.pieces import Pieces

    if path is None:
        yield show
        return
    known = {"recipe": model.recipe.name, "trained_steps": model.step, **about}
    trace = Trace(Pieces(model.tokenizer, model.mask_id), known)

    def see(frame: Frame) -> None:
        show(frame)
        trace.add(frame)
        known["steps"] = frame.steps

    try:
        yield see
    finally:
        if trace.complete:  # all samples, unless something stopped it
            trace.write(path, only_complete=True)


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
    from duality.files.atomic import readable_size, regular_file, write_atomically
    from duality.models.picture import picture
    from duality.models.player import html as page
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

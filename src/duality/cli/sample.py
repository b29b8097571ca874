"""The command `sample`: write text with a run, watch it being written, keep every step in a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from duality.cli.common import Device, Flag, Folder, GridName, Round, SamplerName, TailName

if TYPE_CHECKING:
    from duality.runs.model import Model
    from duality.runs.writing import Watch
    from duality.samplers.generate import Frame


def sample(
    run: Folder,
    /,
    num: int = 4,
    steps: int | None = None,
    sampler: SamplerName = "own",
    eta: float | None = None,
    grid: GridName | None = None,
    tail: TailName = "ancestral",
    length: int | None = None,
    prompt: str = "",
    suffix: str = "",
    top_p: float = 1.0,
    temperature: float = 1.0,
    label: str | None = None,
    guidance: float | None = None,
    seed: int = 0,
    batch_size: int = 16,
    round_number: Round = None,
    device: Device = "auto",
    json: Flag = False,
    watch: Flag = False,
    trace: Path | None = None,
) -> int:
    """Write text with a run.

    Args:
        run: the run folder.
        num: how many samples.
        steps: network calls for each sample; 32 if not given, one per token for an autoregressive model, two for Gibbs.
        sampler: the model's own, or another one of its noise; a psi sampler returns some tokens to noise at each step,
            and so can correct them.
        eta: how much a psi sampler returns to noise: 0 is ancestral; 0.05 if not given, 0.01 for psi-constant and
            psi-loop.
        grid: where the steps are: at equal times (linear), closer together in much noise (cosine), or with many steps
            at one level (loop, which is for psi-loop).
        tail: the last step draws the tokens (ancestral) or takes the most likely ones (greedy).
        length: tokens of a sample; the length it was trained on if not given.
        prompt: text that every sample begins with.
        suffix: text that every sample ends with: the model fills in what is between.
        top_p: draw from the fewest tokens that hold this share of the belief; 1 is all of it.
        temperature: below 1 sharpens the belief, above 1 flattens it.
        label: write in this class; the model must have been trained with labels.
        guidance: how much the class counts: 1 is the conditional model, more goes beyond it.
        seed: the same seed gives the same samples.
        batch_size: samples at a time; the result does not depend on it.
        round_number: after this round of a distillation instead of the last; 0 is what it began from.
        device: where to compute.
        json: print a JSON object per sample, with its tokens.
        watch: show the tokens changing, step by step.
        trace: a file for every step of every sample, as JSON.
    """
    from json import dumps

    from duality.cli.console import say
    from duality.runs.model import load

    model = load(run, say, device, round=round_number)
    about = {"run": str(run), "sampler": sampler, "tail": tail, "seed": seed, "prompt": prompt, "suffix": suffix}
    with display(model, watch, -(-num // max(batch_size, 1))) as show, tracing(model, trace, about, show) as see:
        samples = model.sample(
            num,
            steps=steps,
            prompt=prompt,
            suffix=suffix,
            length=length,
            tail=tail,
            sampler=sampler,
            eta=eta,
            grid=grid,
            top_p=top_p,
            temperature=temperature,
            label=label,
            guidance=guidance,
            seed=seed,
            batch_size=batch_size,
            watch=see,
        )
    for made in samples:
        title = f"--- sample {made.index + 1} of {num}: {made.steps} steps, {tail} tail, seed {seed}\n"
        print(dumps(made.row(model.step)) if json else title + made.text)
    return 0


@contextmanager
def display(model: Model, text: bool, batches: int) -> Iterator[Watch]:
    """What is shown of a step: the ``text`` itself, or else a bar."""
    from duality.cli.console import sampling_display, stderr
    from duality.cli.watch import Watcher
    from duality.runs.pieces import Pieces

    if text:
        with Watcher(stderr, Pieces(model.tokenizer, model.mask_id)) as watcher:
            yield watcher.show
    else:
        with sampling_display(batches) as show:
            yield show


@contextmanager
def tracing(model: Model, path: Path | None, about: dict[str, object], show: Watch) -> Iterator[Watch]:
    """``show``, and with a path also a file with every step, which is written at the end."""
    from duality.cli.trace import Trace
    from duality.runs.pieces import Pieces

    if path is None:
        yield show
        return
    if not path.parent.is_dir():
        raise ValueError(f"--trace {path}: there is no folder {path.parent} to write it in")
    known = {"recipe": model.recipe.name, "trained_steps": model.step, **about}
    trace = Trace(Pieces(model.tokenizer, model.mask_id), known)

    def see(frame: Frame) -> None:
        show(frame)
        trace.add(frame)
        known["steps"] = frame.steps

    yield see
    trace.write(path)

"""Write text with a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from duality.cli.common import Device, Flag, Folder, GridName, Round, SamplerName, pick

if TYPE_CHECKING:
    from duality.cli.trace import Pieces
    from duality.samplers.generate import Frame


def sample(
    run: Folder,
    /,
    num: int = 4,
    steps: int | None = None,
    sampler: SamplerName = "own",
    eta: float | None = None,
    grid: GridName | None = None,
    tail: Literal["greedy", "ancestral"] = "ancestral",
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
        sampler: the model's own, or another one of its noise; a psi sampler gives some tokens back to noise on the way,
            and so can correct them.
        eta: how much a psi sampler gives back: 0 is ancestral; 0.05 if not given, 0.01 for psi-constant and psi-loop.
        grid: where the steps are: at equal times, closer together in much noise (cosine), or with a stay at one level
            (loop, which is for psi-loop).
        tail: the last step draws the tokens (ancestral) or takes the most likely ones (greedy).
        length: tokens of a sample; the length it was trained on if not given.
        prompt: text that every sample begins with.
        suffix: text that every sample ends with: the model fills in what is between.
        top_p: draw from the fewest tokens that hold this share of the belief; 1 is all of it.
        temperature: below 1 sharpens the belief, above 1 flattens it.
        label: write in this class; the model must have been trained with labels.
        guidance: how far to lean towards the class: 1 is the conditional model, more goes beyond it.
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
    from duality.cli.trace import Pieces, Trace
    from duality.runs.model import load, named_grid, sample_row
    from duality.runs.shaping import bend, clamp, guide, mask_of

    where = pick(device)
    model = load(run, say, where, round_number=round_number)
    size = model.recipe.data.length if length is None else length
    if size < 1:
        raise ValueError(f"--length is {size}: a sample needs at least 1 token")
    known = clamp(model, size, prompt, suffix, where)
    lean = guide(model, label, guidance, where)
    chosen, times = model.named_sampler(sampler, eta), named_grid(grid, sampler)
    count = chosen.default_steps(size) if steps is None else steps
    if trace is not None and not trace.parent.is_dir():
        raise ValueError(f"--trace {trace}: there is no folder {trace.parent} to write it in")
    about = {"run": str(run), "recipe": model.recipe.name, "trained_steps": model.step, "sampler": sampler}
    about |= {"steps": count, "tail": tail, "seed": seed, "prompt": prompt, "suffix": suffix}
    batches = (num + batch_size - 1) // batch_size if batch_size > 0 else 0
    pieces = Pieces(model.tokenizer, mask_of(model))
    recorded = Trace(pieces, about)
    with display(pieces if watch else None, count * batches) as show:

        def see(frame: Frame) -> None:
            show(frame)
            if trace is not None:
                recorded.add(frame)

        tokens = model.generate(
            lambda denoiser: known(bend(lean(denoiser), top_p, temperature)),
            chosen,
            num=num,
            length=size,
            steps=count,
            seed=seed,
            tail=tail,
            grid=times,
            batch_size=batch_size,
            device=where,
            watch=see,
        )
    if trace is not None:
        recorded.write(trace)
    for index, row in enumerate(tokens.tolist()):
        made = sample_row(model, row, index, count, tail, seed)
        if json:
            print(dumps(made))
        else:
            print(f"--- sample {index + 1} of {num}: {count} steps, {tail} tail, seed {seed}")
            print(made["text"])
    return 0


@contextmanager
def display(pieces: Pieces | None, total: int) -> Iterator[Callable[[Frame], None]]:
    """What a step is shown as: the text, if there are ``pieces`` to read it with, or else a bar of ``total``."""
    from duality.cli.console import counting_display, stderr
    from duality.cli.watch import Watcher

    if pieces is not None:
        with Watcher(stderr, pieces) as watcher:
            yield watcher.show
        return
    with counting_display("sampling", total) as advance:
        yield lambda frame: advance(min(1, frame.step))

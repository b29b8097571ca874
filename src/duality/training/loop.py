"""One training loop: ``fit`` takes steps until the last phase ends, or until it is stopped.

A step is a pure function of the state and the step's number: which sequences, which times and which noise depend on
(seed, step, index in the global batch) only. Hence a resumed run repeats the uninterrupted one bit for bit, and
dividing the batch into micro-batches, or over processes (``ranks``), changes rounding, not noise.

Loss = sum of nats over the valid tokens of the global batch / their number.

Signals that end training between two steps, so that the last step can be saved.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from duality.data.loader import Batches, Loader, Prefetch
from duality.denoisers.wrapping import num_labels_of
from duality.noise import Noise, stratified_times
from duality.protocols import AnyDenoiser, Phase
from duality.ranks import job
from duality.training.parallel import gather
from duality.training.settings import Training, resolve_precision
from duality.training.state import TrainState


class TrainingDiverged(ValueError):
    """The loss or its gradient is not finite."""

    def __init__(self, step: int, loss: float, gradient_norm: float, rate: float):
        super().__init__(
            f"at step {step} the loss is {loss} and the norm of its gradient {gradient_norm}: training stopped, "
            "checkpoints before it are intact; continue from the last with "
            f"--resume --set training.learning_rate={rate / 3:.1g} (now {rate:.1g}), a smaller training.clip "
            "or a longer training.warmup, and check the data"
        )


@dataclass(frozen=True)
class StepRecord:
    """The numbers of one training step."""

    step: int
    phase: str
    loss: float
    rate: float
    gradient_norm: float
    num_tokens: int


def phase_at(phases: tuple[Phase, ...], step: int) -> Phase:
    """The phase that step ``step`` belongs to."""
    return next(phase for phase in phases if step < phase.until)


def gradients(state: TrainState, loader: Loader | Prefetch, phase: Phase, training: Training) -> tuple[Tensor, int]:
    """Accumulate the gradient of one global batch; returns the loss and the number of tokens.

    ``loader`` gives the rows of this rank. The ranks' gradients are averaged, so each is of the sum over its own rows,
    divided by its share of all tokens.
    """
    device, place = next(state.model.parameters()).device, job()
    dtype = resolve_precision(training.precision, device)
    own = place.share(training.batch_size)
    times = stratified_times(training.seed, state.step, training.batch_size, device)[own]
    batch = loader.batch(state.step)
    counted = torch.tensor(batch.ids.numel() if batch.valid is None else int(batch.valid.sum()))
    place.sum_(counted)
    num_tokens = int(counted)
    batch = batch.to(device)
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = own.stop - own.start
    size = training.micro_batch or count
    for start in range(0, count, size):
        rows = slice(start, min(start + size, count))
        index = torch.arange(own.start + rows.start, own.start + rows.stop, device=device)
        noise = Noise.of(training.seed, state.step, index)
        valid = None if batch.valid is None else batch.valid[rows]
        labels = None if batch.labels is None else _drop_labels(state.model, batch.labels[rows], training, noise)
        with state.layout.accumulating(state.loss, last=rows.stop == count):
            with torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext():
                loss, nats = state.loss(phase.objective, batch.ids[rows], times[rows], noise, valid, labels)
            torch.autograd.backward(loss / (num_tokens / place.size))
        total += nats.sum()
    place.sum_(total)
    return total / num_tokens, num_tokens


def _drop_labels(denoiser: AnyDenoiser, labels: Tensor, training: Training, noise: Noise) -> Tensor:
    """The labels, with "no label" for some of the samples, so that the model also learns the text without labels."""
    dropped = noise.uniform("label", 1)[:, 0] < training.label_dropout
    return torch.where(dropped, num_labels_of(denoiser), labels)


def _take_step(
    state: TrainState, loader: Loader | Prefetch, phases: tuple[Phase, ...], training: Training
) -> StepRecord:
    """One optimizer step; raises ``TrainingDiverged`` before a non-finite gradient can reach the weights."""
    phase, rate = phase_at(phases, state.step), training.rate(state.step)
    begins = state.step == 0 or phase_at(phases, state.step - 1) is not phase
    if phase.teacher is not None and begins:
        state.teach(phase.teacher)
    loss, num_tokens = gradients(state, loader, phase, training)
    norm = gather(nn.utils.get_total_norm([value.grad for value in state.model.parameters() if value.grad is not None]))
    # One transfer per step: the two numbers decide whether the weights may be changed.
    values = torch.stack([loss, norm.to(loss.dtype)]).tolist()
    if not all(map(math.isfinite, values)):
        raise TrainingDiverged(state.step + 1, values[0], values[1], rate)
    # Torch's factor is min(1, this): a factor of 1 would be a pass over all gradients without any effect.
    if training.clip and training.clip / (values[1] + 1e-6) < 1.001:
        nn.utils.clip_grads_with_norm_(state.model.parameters(), training.clip, norm)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.optimizer.step()
    state.optimizer.zero_grad()  # whose memory a validation or the copy of a checkpoint can have
    state.step += 1
    state.average(training.ema)
    return StepRecord(state.step, phase.name, values[0], rate, values[1], num_tokens)


def fit(
    state: TrainState,
    loader: Batches,
    phases: tuple[Phase, ...],
    training: Training,
    after_step: Callable[[StepRecord], bool],
) -> None:
    """Step until the last phase ends, or until ``after_step`` returns False."""
    until, device = phases[-1].until, next(state.model.parameters()).device
    own = partial(loader.batch, rows=job().share(training.batch_size))
    with Prefetch(own, until, pin=device.type == "cuda") as batches:
        while state.step < until and after_step(_take_step(state, batches, phases, training)):
            pass


# --- signals


SignalHandler = Callable[[int, FrameType | None], Any] | int | None


@dataclass
class _Interruption:
    """The signal that came, SIGINT (Ctrl-C) or SIGTERM; 0 if none did. The loop reads it between steps."""

    signal: int = 0


@contextmanager
def interruptible() -> Iterator[_Interruption]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one acts as usual."""
    request, previous = _Interruption(), dict[int, SignalHandler]()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def ask(number: int, _frame: FrameType | None) -> None:
        request.signal = number
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, ask)
    try:
        yield request
    finally:
        restore()

"""A request to write as a stream of steps; a text under a model, token by token, and under the judge.

    start   the run, the number of steps, the command that makes the same text
    step    a sample after a step: its tokens, which of them changed, how probable the model found each
    end     a sample: its text
    done    seconds, network calls

Tokens are numbers; every event has the texts of those that no event before it had ("pieces"). What must hold: the
samples are those of ``Model.sample`` with the same settings; the command line that is shown makes them again; the nats
are those of ``Model.surprisal`` with the same draws and seed; a number that is not known, such as the standard error of
one draw, is None.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from duality.denoisers.wrapping import count_calls, network_of
from duality.evaluation.metrics import entropies
from duality.protocols import AnyDenoiser, Denoiser
from duality.registry import one_line
from duality.samplers.generate import Frame
from duality.studio.beliefs import Observed, read
from duality.studio.schemas import LIMITS, Fill, Generate, Json, Likelihood, Refusal, Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from duality.evaluation.judge import Judge
    from duality.models.model import Model
    from duality.models.sampling import Sample
    from duality.studio.library import Loaded
    from duality.tokenizers.pieces import Pieces

Event = Json
Check = Callable[[], None]  # raises an error if the work is to end
Emit = Callable[..., None]  # takes events, in their order; those of one call go to the client together


class _Writer:
    """Turns the steps of a generation into events."""

    def __init__(self, pieces: Pieces, request: Sampling, start: Event, emit: Emit, digits: int = 4) -> None:
        self.pieces, self.emit, self.digits = pieces, emit, digits
        self.alternatives, self.stream = request.alternatives, request.stream
        self.observed: Observed | None = None
        self._start: Event | None = start
        self._before: dict[int, list[int]] = {}
        self._belief: dict[int, list[float]] = {}
        self._known: set[int] = set()

    def wrap(self, denoiser: AnyDenoiser) -> AnyDenoiser:
        """The denoiser, observed if it has a belief that is sent."""
        self.observed = Observed(denoiser) if self.stream and isinstance(denoiser, Denoiser) else None
        return self.observed or denoiser

    def texts(self, ids: Iterable[int]) -> dict[str, str]:
        """The texts of the tokens that were not sent before."""
        new = set(ids) - self._known
        self._known |= new
        return {str(index): self.pieces.of(index) for index in sorted(new)}

    def step(self, frame: Frame) -> None:
        """The samples after a step."""
        events = [] if self._start is None else [self._start]  # from here on nothing can be refused any more
        self._start = None
        if self.stream:
            events += self._events(frame)
        if events:
            self.emit(*events)

    def _events(self, frame: Frame) -> list[Event]:
        """An event for each sample after a step."""
        rows = frame.tokens.tolist()
        events: list[Event] = []
        for index, tokens in enumerate(rows, frame.first):
            before = self._before.get(index, [])
            changed = [place for place, token in enumerate(tokens) if place >= len(before) or before[place] != token]
            self._before[index] = tokens
            event: Event = {"type": "step", "sample": index, "step": frame.step, "steps": frame.steps}
            events.append({**event, "alpha": frame.alpha, "tokens": tokens, "changed": changed if frame.step else []})
        if frame.step and self.observed is not None and self.observed.last is not None:
            self._add_beliefs(frame, events)
        for event, tokens in zip(events, rows):
            best = [pair[0] for place in event.get("best", ()) for pair in place]
            event["pieces"] = self.texts([*tokens, *best])
        return events

    def _add_beliefs(self, frame: Frame, events: list[Event]) -> None:
        """Add what the model believed when it took the step; of a causal model, at the last place only."""
        assert self.observed is not None
        assert self.observed.last is not None
        place = self.observed.place
        tokens = frame.tokens if place is None else frame.tokens[:, place : place + 1]
        found = read(self.observed.last, tokens, self.alternatives)
        entropies = found.entropy.mean(-1).tolist()
        beliefs: list[list[float]] = found.token.double().round(decimals=self.digits).tolist()
        probabilities = found.best_probability.double().round(decimals=self.digits)
        for row, (event, belief) in enumerate(zip(events, beliefs)):
            if place is not None:
                index = frame.first + row
                belief = self._belief[index] = [*self._belief.get(index, [])[:place], *belief]
                event["place"] = place
            event |= {"belief": belief, "entropy": round(entropies[row], 4)}
            if self.alternatives:
                best = zip(found.best[row].tolist(), probabilities[row].tolist())
                event["best"] = [list(map(list, zip(ids, values))) for ids, values in best]

    def end(self, sample: Sample) -> None:
        """A sample that is complete."""
        row = sample.row(0, full=True)
        fields = ("index", "text", "full_text", "tokens", "steps", "seed", "tail", "temperature")
        event: Event = {"type": "end", **{name: row[name] for name in fields}}
        event["token_entropy"] = round(float(entropies(torch.tensor([sample.tokens]))), 4)
        event["pieces"] = self.texts(sample.tokens)
        self.emit(event)


def generate(loaded: Loaded, request: Generate | Fill, emit: Emit, check: Check, digits: int = 4) -> None:
    """Write what a request asks for, and tell it step by step; probabilities have so many ``digits``."""
    model, started = loaded.model, time.perf_counter()
    about: Event = {"run": request.run, "trained_steps": model.step, "mask": model.mask_id, "num": request.num}
    make: Callable[..., list[Sample]] = model.sample if isinstance(request, Generate) else model.fill
    try:
        start = {"type": "start", **about, "command": _command(loaded, request)}
        writer = _Writer(loaded.pieces, request, start, emit, digits)
        with count_calls(network_of(model.denoiser), check) as calls, torch.inference_mode():
            make(watch=writer.step, each=writer.end, wrap=writer.wrap, **request.arguments())
    except (ValueError, TypeError) as error:
        raise Refusal(400, one_line(error)) from None
    emit({"type": "done", "seconds": round(time.perf_counter() - started, 4), "calls": calls.sequences})


def _command(loaded: Loaded, request: Generate | Fill) -> str:
    """The command line that makes the same samples; of a run that is not finished, with the step of its weights."""
    from duality.models.sampling import row_with_blanks

    model, own = loaded.model, request.arguments()
    chosen = {name: own[name] for name in Sampling.model_fields if name != "num" and own.get(name) is not None}
    if isinstance(request, Generate):
        chosen |= {name: own[name] for name in ("length", "prompt", "suffix") if own[name]}
        keep = own["keep"]
    else:
        most = max(LIMITS.length, model.length)

        def check_length(length: int) -> None:
            if length > most:
                raise Refusal(400, f"the text with its blanks has {length:,} tokens: at most {most:,} are allowed")

        row = row_with_blanks(model.tokenizer, request.text, request.blank, request.tokens_per_blank, check_length)
        chosen["length"] = len(row)
        keep = {place: token for place, token in enumerate(row) if token is not None}
    if chosen.get("top_p") == 1.0:
        del chosen["top_p"]
    if loaded.newest is not None and model.step < model.recipe.training.steps:
        chosen["step"] = model.step
    words = ["duality", "sample", loaded.source, "--num", str(request.num)]
    for name, value in chosen.items():
        flag, text = f"--{name.replace('_', '-')}", str(value)
        words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    if keep:
        words += ["--keep", *(f"{place}:{token}" for place, token in keep.items())]
    return shlex.join(words)


# --- scoring


def measure_surprisal(model: Model, request: Likelihood, check: Check) -> Event:
    """The nats of each token of a text."""
    try:
        with count_calls(network_of(model.denoiser), check):
            found = model.surprisal(request.text, num_draws=request.draws, seed=request.seed, label=request.label)
    except (ValueError, TypeError) as error:
        raise Refusal(400, one_line(error)) from None
    total = sum(each.nats for each in found)
    return {
        "run": request.run,
        "kind": model.measure.kind,
        "tokens": [
            {"token": each.token, "text": each.text, "nats": _round(each.nats), "stderr": _round(each.stderr)}
            for each in found
        ],
        "nats": _round(total),
        "bits_per_character": _round(total / math.log(2) / len(request.text)),
    }


def judge_text(judge: Judge, text: str, check: Check) -> Event:
    """The perplexity of a text under the judge; None for a text of which no token is scored."""

    def logits(ids: Tensor, valid: Tensor) -> Tensor:
        check()
        return judge.logits(ids, valid)

    ((nats, count),) = replace(judge, logits=logits).nats([text])
    return {"judge": judge.name, "perplexity": _round(math.exp(min(nats / count, 700.0))) if count else None}


def _round(value: float) -> float | None:
    """Four digits; None for what is not finite."""
    return round(value, 4) if math.isfinite(value) else None

"""A request to write as a stream of steps.

    start   the run, the number of steps, the command that makes the same text
    step    a sample after a step: its tokens, which of them changed, how probable the model found each
    end     a sample: its text
    done    seconds, network calls

Tokens are numbers; every event has the texts of those that no event before it had ("pieces"). What must hold: the
samples are those of ``Model.sample`` with the same settings; the command line that is shown makes them again.
"""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from duality.denoisers.wrapping import network_of
from duality.evaluation.sweep.sampling import count_calls
from duality.protocols import AnyDenoiser
from duality.samplers.generate import Frame
from duality.studio.beliefs import Observed, observed, read
from duality.studio.fields import Typed, Values
from duality.studio.limits import Limits, Refusal, one_line
from duality.studio.patience import Patience

if TYPE_CHECKING:
    from duality.models.model import Model
    from duality.models.sampling import Sample
    from duality.studio.library import Loaded
    from duality.tokenizers.pieces import Pieces

Event = dict[str, object]


class Emit(Protocol):
    """Takes events, in their order; those of one call go to the client together."""

    def __call__(self, *events: Event) -> None: ...


# The fields of a request that are arguments of ``Model.sample`` and ``Model.fill``, and options of `duality sample`.
SHARED = ("steps", "sampler", "eta", "grid", "tail", "temperature", "top_p", "label", "guidance", "seed")
OWN = {"generate": ("prompt", "suffix", "keep", "length"), "fill": ("text", "blank", "tokens_per_blank")}

LIMITS = Limits()
_WHOLE = Typed(int)


class Writer:
    """Turns the steps of a generation into events."""

    def __init__(self, pieces: Pieces, values: Values, start: Event, emit: Emit, digits: int = 4) -> None:
        self.pieces, self.emit, self.digits = pieces, emit, digits
        self.alternatives, self.stream = _WHOLE.of(values, "alternatives"), bool(values["stream"])
        self.observed: Observed | None = None
        self._start: Event | None = start
        self._before: dict[int, list[int]] = {}
        self._belief: dict[int, list[float]] = {}
        self._known: set[int] = set()

    def wrap(self, denoiser: AnyDenoiser) -> AnyDenoiser:
        """The denoiser, observed."""
        found = observed(denoiser) if self.stream else denoiser
        self.observed = found if isinstance(found, Observed) else None
        return found

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
            event["pieces"] = self.texts([*tokens, *alternatives_of(event)])
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
        event["token_entropy"] = round(token_entropy(sample.tokens), 4)
        event["pieces"] = self.texts(sample.tokens)
        self.emit(event)


def alternatives_of(event: Mapping[str, object]) -> list[int]:
    """The tokens that an event names beside those of the sample."""
    best = event.get("best")
    return [pair[0] for place in best for pair in place] if isinstance(best, list) else []


def token_entropy(tokens: list[int]) -> float:
    """The entropy of a sample's tokens in nats, as the paper has it: low if it repeats itself."""
    counts = Counter(tokens)
    return -sum(count / len(tokens) * math.log(count / len(tokens)) for count in counts.values())


def generated(loaded: Loaded, kind: str, values: Values, emit: Emit, patience: Patience, digits: int = 4) -> None:
    """Write what a request asks for, and tell it step by step; probabilities have so many ``digits``."""
    model, num = loaded.model, _WHOLE.of(values, "num")
    check_length(model, kind, values)
    start: Event = {
        "type": "start",
        "run": values["run"],
        "trained_steps": model.step,
        "mask": model.mask_id,
        "num": num,
        "command": command(loaded, kind, values),
    }
    writer = Writer(loaded.pieces, values, start, emit, digits)
    make: Callable[..., list[Sample]] = model.sample if kind == "generate" else model.fill
    network, started = network_of(model.denoiser), time.perf_counter()
    try:
        with count_calls(network, patience.check) as calls, torch.inference_mode():
            make(num=num, watch=writer.step, each=writer.end, wrap=writer.wrap, **arguments_of(kind, values))
    except (ValueError, TypeError) as error:
        raise Refusal(400, one_line(error)) from None
    emit({"type": "done", "seconds": round(time.perf_counter() - started, 4), "calls": calls.sequences})


def check_length(model: Model, kind: str, values: Values) -> None:
    """Refuse a text with blanks that has too many tokens; the length of other samples is a field of the request."""
    most = max(LIMITS.length, model.length)
    if kind == "fill" and (count := known_tokens(model, values)[0]) > most:
        raise Refusal(400, f"the text with its blanks has {count:,} tokens: at most {most:,} are allowed")


def arguments_of(kind: str, values: Values) -> Values:
    """The arguments of ``Model.sample`` or ``Model.fill``."""
    return {name: values[name] for name in (*SHARED, *OWN[kind])}


def command(loaded: Loaded, kind: str, values: Values) -> str:
    """The command line that makes the same samples; of a run that is not finished, with the step of its weights."""
    model = loaded.model
    words = ["duality", "sample", loaded.place, "--num", str(values["num"])]
    chosen = {name: values[name] for name in SHARED if values[name] is not None}
    if kind == "generate":
        chosen |= {name: values[name] for name in ("length", "prompt", "suffix") if values[name]}
        keep = values["keep"]
    else:
        chosen["length"], keep = known_tokens(model, values)
    if chosen.get("top_p") == 1.0:
        del chosen["top_p"]
    if loaded.newest is not None and model.step < model.recipe.training.steps:
        chosen["step"] = model.step
    for name, value in chosen.items():
        flag, text = f"--{name.replace('_', '-')}", str(value)
        words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    if isinstance(keep, Mapping) and keep:
        words += ["--keep", *(f"{place}:{token}" for place, token in keep.items())]
    return shlex.join(words)


def known_tokens(model: Model, values: Values) -> tuple[int, dict[int, int]]:
    """How many tokens a text with blanks has, and which of them are known."""
    from duality.models.shaping import known_parts, parts_around_blanks

    text, blank, count = (values[name] for name in OWN["fill"])
    assert isinstance(text, str)
    assert isinstance(blank, str)
    assert count is None or isinstance(count, int)
    try:
        known = known_parts(parts_around_blanks(model.tokenizer, text, blank, count))
    except ValueError as error:
        raise Refusal(400, one_line(error)) from None
    places = known.fixed.nonzero()[:, 0].tolist()
    return len(known), {place: int(known.tokens[place]) for place in places}

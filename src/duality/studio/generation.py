"""A request to write as a stream of steps; a text under a model, token by token, and under the judge.

    start   the run, the number of steps, the command that makes the same text
    step    a sample after a step: its tokens, which of them changed, how probable the model found each
    end     a sample: its text
    done    seconds, network calls

Tokens are numbers; every event has the texts of those that no event before it had ("pieces"). A step says of the
tokens that came out of it how probable each was, how undecided the model was there, and what else it thought of.

What must hold: the samples are those of ``Model.sample`` with the same settings, and the same with and without
``Observed``; the command line that is shown makes them again; the nats are those of ``Model.surprisal`` with the same
draws and seed; a number that is not known, such as the standard error of one draw, is None.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from duality.denoisers.wrapping import count_calls, network_of
from duality.evaluation.metrics import entropies
from duality.fused.lazy import Belief, belief_of, materialised_log_probs
from duality.models.trace import changes
from duality.protocols import AnyDenoiser, Denoiser, Dropout, Labels, Latent, Prefix, Valid
from duality.registry import one_line
from duality.samplers.generate import Frame
from duality.studio.schemas import LIMITS, Fill, Generate, Json, Judgement, Likelihood, Refusal, Sampling

if TYPE_CHECKING:
    from duality.evaluation.judge import Judge
    from duality.models.sampling import Sample
    from duality.studio.library import Library, Loaded
    from duality.tokenizers.pieces import Pieces

_KEPT = 1 << 24  # numbers of a belief that are kept at most, 64 MB; larger ones are read again

Event = Json
Check = Callable[[], None]  # raises an error if the work is to end
Emit = Callable[..., None]  # takes events, in their order; those of one call go to the client together


class _Writer:
    """Turns the steps of a generation into events."""

    def __init__(self, pieces: Pieces, request: Sampling, start: Event, emit: Emit, digits: int = 4) -> None:
        self.pieces, self.emit, self.digits = pieces, emit, digits
        self.alternatives, self.stream = request.alternatives, request.stream
        self._observed: Observed | None = None
        self._start: Event | None = start
        self._before: dict[int, list[int]] = {}
        self._belief: dict[int, list[float]] = {}
        self._known: set[int] = set()

    def wrap(self, denoiser: AnyDenoiser) -> AnyDenoiser:
        """The denoiser, observed if it has a belief that is sent."""
        self._observed = Observed(denoiser) if self.stream and isinstance(denoiser, Denoiser) else None
        return self._observed or denoiser

    def _texts(self, ids: Iterable[int]) -> dict[str, str]:
        """The texts of the tokens that were not sent before."""
        new = set(ids) - self._known
        self._known |= new
        return {str(index): self.pieces.of(index) for index in sorted(new)}

    def step(self, frame: Frame) -> None:
        """Send an event for each sample after a step, with what the model believed when it took the step."""
        events = [] if self._start is None else [self._start]  # from here on nothing can be refused any more
        self._start = None
        found = self._observed.read(frame.tokens, self.alternatives) if self._observed and frame.step else None
        for row, tokens in enumerate(frame.tokens.tolist() if self.stream else ()):
            index = frame.first + row
            event: Event = {"type": "step", "sample": index, "step": frame.step, "steps": frame.steps}
            changed = list(changes(self._before.get(index), tokens))
            event |= {"alpha": frame.alpha, "tokens": tokens, "changed": changed}
            self._before[index] = tokens
            if found is not None:
                belief, probabilities = (
                    each[row].double().round(decimals=self.digits).tolist()
                    for each in (found.token, found.best_probability)
                )
                if found.place is not None:
                    event["place"] = found.place
                    belief = self._belief[index] = [*self._belief.get(index, [])[: found.place], *belief]
                event |= {"belief": belief, "entropy": round(found.entropy[row].mean().item(), 4)}
                if self.alternatives:
                    best = zip(found.best[row].tolist(), probabilities)
                    event["best"] = [list(map(list, zip(ids, values))) for ids, values in best]
            others = [pair[0] for place in event.get("best", ()) for pair in place]
            events.append({**event, "pieces": self._texts([*tokens, *others])})
        if events:
            self.emit(*events)

    def end(self, sample: Sample) -> None:
        """A sample that is complete."""
        event: Event = {"type": "end", **sample.row(0, full=True)}
        del event["trained_steps"]  # which the first event has
        event["token_entropy"] = round(float(entropies(torch.tensor([sample.tokens]))), 4)
        self.emit({**event, "pieces": self._texts(sample.tokens)})


def generate(library: Library, request: Generate | Fill, emit: Emit, check: Check, digits: int = 4) -> None:
    """Write what a request asks for, and tell it step by step; probabilities have so many ``digits``."""
    loaded, started = library.load(request.run), time.perf_counter()
    model = loaded.model
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
    if isinstance(request, Fill):
        most = max(LIMITS.length, model.length)

        def check_length(length: int) -> None:
            if length > most:
                raise Refusal(400, f"the text with its blanks has {length:,} tokens: at most {most:,} are allowed")

        row = row_with_blanks(model.tokenizer, request.text, request.blank, request.tokens_per_blank, check_length)
        own = {name: value for name, value in own.items() if name in Sampling.model_fields}
        own |= {"length": len(row), "keep": {place: token for place, token in enumerate(row) if token is not None}}
    if loaded.newest is not None and model.step < model.recipe.training.steps:
        own["step"] = model.step
    words, keep = ["duality", "sample", loaded.source, "--num", str(own.pop("num"))], own.pop("keep")
    for name, value in own.items():
        if value in (None, "") or (name == "top_p" and value == 1.0):
            continue
        flag, text = f"--{name.replace('_', '-')}", str(value)
        words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    if keep:
        words += ["--keep", *(f"{place}:{token}" for place, token in keep.items())]
    return shlex.join(words)


# --- what a model believes


@dataclass(frozen=True)
class _Reading:
    """Of each place (B, L): the probability of its token, the entropy in nats, the most likely tokens (B, L, k).

    ``place`` is the only one that a causal model has a belief about; None where it has one about all.
    """

    token: Tensor
    entropy: Tensor
    best: Tensor
    best_probability: Tensor
    place: int | None


@dataclass(frozen=True)
class _Noted(Belief):
    """A belief as a sampler reads it, and copies of the rows that were read: flat positions, log-probabilities."""

    notes: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def each(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, log_p in super().each(rows):
            if self.positions * self.num_outputs <= _KEPT:
                self.notes.append((part, log_p.clone()))  # the sampler may overwrite its own
            yield part, log_p


class Observed:
    """A denoiser that remembers its last belief, and where it was about: all places, or one of a causal model.

    The belief that it gives to the sampler keeps the rows that the sampler reads. Rows that the sampler did not read,
    such as places that stay masked, are read by ``read``; a place that is certain needs no reading.
    """

    def __init__(self, denoiser: AnyDenoiser) -> None:
        self.denoiser = denoiser
        self._last: _Noted | None = None
        self._place: int | None = None

    def belief(
        self, z: Latent, alpha: Tensor, valid: Valid = None, dropout: Dropout = None, labels: Labels = None
    ) -> Belief:
        self._last = _Noted(**vars(belief_of(self.denoiser, z, alpha, valid, dropout, labels)))
        self._place = z.position if isinstance(z, Prefix) else None
        return self._last

    log_probs = materialised_log_probs

    @torch.no_grad()
    def read(self, tokens: Tensor, alternatives: int) -> _Reading | None:
        """What the last belief says of the tokens (B, L) that came out of its step; None if it was not asked for.

        With it are the ``alternatives`` most likely tokens of each place.
        """
        if self._last is None:
            return None
        belief, notes, place = self._last, self._last.notes, self._place
        tokens = tokens if place is None else tokens[:, place : place + 1]
        flat, unread = tokens.flatten(), torch.ones(tokens.numel(), dtype=torch.bool)
        for rows, _ in notes:
            unread[rows.cpu()] = False
        token, entropy = torch.zeros(2, len(flat))
        best, best_probability = torch.zeros(len(flat), alternatives).long(), torch.zeros(len(flat), alternatives)
        if belief.certain is not None:
            state = belief.certain.flatten().cpu()
            sure = (unread & (state >= 0)).nonzero()[:, 0]
            token[sure] = (state == flat.cpu())[sure].float()
            if alternatives:
                best[sure, 0], best_probability[sure, 0] = state[sure], 1.0
            unread[sure] = False
        rest = unread.nonzero()[:, 0].to(flat.device)
        for rows, log_p in chain(notes, Belief.each(belief, rest) if len(rest) else ()):  # without notes
            places, wanted, own = rows.cpu(), min(alternatives, log_p.shape[-1]), flat[rows]
            # a probability of 0 has the logarithm -inf, and adds nothing
            entropy[places] = -(log_p.exp() * log_p.clamp_min(-100.0)).sum(-1).float().cpu()
            inside = own < log_p.shape[-1]  # the mask token is no output
            chosen = log_p.gather(-1, own.clamp_max(log_p.shape[-1] - 1)[:, None])[:, 0].exp() * inside
            token[places] = chosen.float().cpu()
            if wanted:
                top = log_p.topk(wanted, -1)
                best[places, :wanted] = top.indices.cpu()
                best_probability[places, :wanted] = top.values.exp().float().cpu()
        shape = tokens.shape
        best, best_probability = best.view(*shape, -1), best_probability.view(*shape, -1)
        return _Reading(token.view(shape), entropy.view(shape), best, best_probability, place)


# --- scoring


def measure_surprisal(library: Library, request: Likelihood, emit: Emit, check: Check) -> None:
    """Emit the nats of each token of a text."""
    model = library.load(request.run).model
    try:
        with count_calls(network_of(model.denoiser), check):
            found = model.surprisal(request.text, num_draws=request.draws, seed=request.seed, label=request.label)
    except (ValueError, TypeError) as error:
        raise Refusal(400, one_line(error)) from None
    total = sum(each.nats for each in found)
    tokens = [{**vars(each), "nats": _round(each.nats), "stderr": _round(each.stderr)} for each in found]
    about = {"run": request.run, "kind": model.measure.kind, "tokens": tokens, "nats": _round(total)}
    emit({**about, "bits_per_character": _round(total / math.log(2) / len(request.text))})


def judge_text(judge: Judge, request: Judgement, emit: Emit, check: Check) -> None:
    """Emit the perplexity of a text under the judge; None for a text of which no token is scored."""

    def logits(ids: Tensor, valid: Tensor) -> Tensor:
        check()
        return judge.logits(ids, valid)

    ((nats, count),) = replace(judge, logits=logits).nats([request.text])
    perplexity = _round(math.exp(min(nats / count, 700.0))) if count else None
    emit({"judge": judge.name, "perplexity": perplexity})


def _round(value: float) -> float | None:
    """Four digits; None for what is not finite."""
    return round(value, 4) if math.isfinite(value) else None

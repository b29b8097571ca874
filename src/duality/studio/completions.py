"""The interface of OpenAI's completions, so that existing clients work.

    POST /v1/completions    model, prompt, suffix, max_tokens, temperature, top_p, seed, n, stop, logprobs, echo, stream
    GET  /v1/models

A diffusion model writes all tokens together: a sample has the tokens of the prompt, ``max_tokens`` and those of the
suffix, and the text of a choice is what stands between them, up to the first end-of-text or stop string. A stream has
one piece for each choice of a diffusion model, when it is complete; an autoregressive model sends its text as it
writes. ``logprobs`` are the logarithms of what the model believed of each token at the last step that asked for it.

What must hold: the text is that of `duality sample` with the same prompt, suffix, length, temperature, top-p and seed;
the pieces of a stream, joined, are the text of the answer without one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duality.denoisers.wrapping import network_of
from duality.studio.completion_form import Completion
from duality.studio.fields import Typed, Values
from duality.studio.generation import Emit, Event, generated
from duality.studio.limits import Refusal, one_line
from duality.studio.patience import Patience
from duality.tokenizers.pieces import PART

if TYPE_CHECKING:
    from duality.studio.library import Loaded
    from duality.tokenizers.pieces import Pieces

_DIGITS = 12  # of a probability whose logarithm is given


@dataclass(frozen=True)
class Head:
    """What all parts of an answer have in common."""

    model: str
    number: int
    created: int = field(default_factory=lambda: int(time.time()))

    def around(self, choices: list[Event], **more: object) -> Event:
        """An answer, or a part of one."""
        own: Event = {"id": f"cmpl-{self.number}", "object": "text_completion", "created": self.created}
        return {**own, "model": self.model, "choices": choices, **more}


@dataclass(frozen=True)
class Cut:
    """The text of a choice, how many of its tokens it has, and whether something ended it."""

    text: str
    tokens: list[int]
    ended: bool


class Choices:
    """Turns the events of a generation into choices, or into pieces of them."""

    def __init__(self, loaded: Loaded, asked: Completion, emit: Emit, piecewise: bool) -> None:
        self.tokenizer, self.pieces, self.asked, self.emit = loaded.model.tokenizer, loaded.pieces, asked, emit
        self.piecewise, self.command, self.num_tokens = piecewise, "", 0
        self._before = self.tokenizer.decode(asked.prompt_ids)
        self._beliefs: dict[object, Event] = {}
        self._sent: dict[object, str] = {}

    def take(self, *events: Event) -> None:
        """Events of the generation."""
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event["type"] == "start":
            self.command = str(event["command"])
        elif event["type"] == "step" and "belief" in event:
            index = event["sample"]
            self._beliefs[index] = merged(self._beliefs.get(index), event)
            if self.piecewise:
                self._send_piece(index, self.cut(tokens_of(event)))
        elif event["type"] == "end":
            self._send_rest(event["index"], self.cut(tokens_of(event)))

    def cut(self, tokens: list[int]) -> Cut:
        """The text between prompt and suffix, up to the first end-of-text or stop string."""
        first, last = len(self.asked.prompt_ids), len(tokens) - self.asked.num_suffix
        body = tokens[first:last]
        separator = None if self.asked.num_suffix else self.tokenizer.separator
        ended = separator is not None and separator in body
        if separator is not None and ended:
            body = body[: body.index(separator)]
        text = self._text(body)
        places = [text.find(stop) for stop in self.asked.stops if stop in text]
        if places:
            text, ended = text[: min(places)], True
            while body and len(self._text(body[:-1])) >= len(text):
                body = body[:-1]
        return Cut(text, body, ended)

    def _text(self, body: list[int]) -> str:
        """How tokens read behind the prompt."""
        return self.tokenizer.decode([*self.asked.prompt_ids, *body]).removeprefix(self._before)

    def _send_piece(self, index: object, cut: Cut) -> None:
        """What can be said of a choice that is not complete: nothing that later tokens could still change."""
        text = cut.text
        if not cut.ended:
            text = text.rstrip(PART)
            text = text[: max(0, len(text) - max((len(stop) for stop in self.asked.stops), default=1) + 1)]
        known = self._sent.get(index, "")
        if len(text) > len(known) and text.startswith(known):
            self._sent[index] = text
            self._send(index, text[len(known) :] if known else self._opening + text)

    def _send_rest(self, index: object, cut: Cut) -> None:
        """What has not been sent of a choice that is complete."""
        known, belief = self._sent.get(index, ""), self._beliefs.get(index)
        self.num_tokens += len(cut.tokens)
        found = None
        if self.asked.num_logprobs is not None and belief is not None:
            found = logprobs(self.pieces, self.asked, cut.tokens, belief)
        text = cut.text[len(known) :] if known else self._opening + cut.text
        self._send(index, text, "stop" if cut.ended else "length", found)

    @property
    def _opening(self) -> str:
        return self.asked.prompt if self.asked.echo else ""

    def _send(self, index: object, text: str, reason: str | None = None, found: Event | None = None) -> None:
        choice: Event = {"index": index, "text": text, "finish_reason": reason, "logprobs": found}
        self.emit({"type": "choice", "choice": choice})


def completed(loaded: Loaded, values: Values, emit: Emit, patience: Patience) -> None:
    """Emit every choice as soon as it is complete, or piece by piece, and at last how many tokens there were."""
    tokenizer = loaded.model.tokenizer
    try:
        prompt, suffix = (tokenizer.encode(text).tolist() for text in Completion.texts(values))
    except ValueError as error:
        raise Refusal(400, one_line(error)) from None
    asked = Completion(values, prompt, len(suffix))
    piecewise = bool(values["stream"]) and network_of(loaded.model.denoiser).causal and asked.num_logprobs is None
    choices = Choices(loaded, asked, emit, piecewise)
    generated(loaded, "generate", asked.as_generation(piecewise), choices.take, patience, _DIGITS)
    usage = {"prompt_tokens": len(prompt), "completion_tokens": choices.num_tokens}
    usage["total_tokens"] = sum(usage.values())
    emit({"type": "usage", "usage": usage, "command": choices.command})


def answer(head: Head, events: list[Event]) -> Event:
    """The answer of a request without a stream."""
    *choices, last = events
    return head.around(
        [Typed(dict).of(each, "choice") for each in choices], usage=last["usage"], command=last["command"]
    )


def chunks(head: Head, values: Values, event: Event) -> Iterator[Event]:
    """The parts of a stream that an event becomes."""
    if event["type"] == "choice":
        yield head.around([Typed(dict).of(event, "choice")])
    elif values["stream_options"]:
        yield head.around([], usage=event["usage"], command=event["command"])


def tokens_of(event: Event) -> list[int]:
    """The tokens of an event."""
    return Typed(list).of(event, "tokens")


def merged(before: Event | None, event: Event) -> Event:
    """The beliefs of a step; of a causal model, which believes one place at a time, with those of the steps before."""
    if before is None or "place" not in event or "best" not in event:
        return event
    return {**event, "best": [*Typed(list).of(before, "best"), *Typed(list).of(event, "best")]}


def logprobs(pieces: Pieces, asked: Completion, body: list[int], belief: Event) -> Event:
    """What the model believed of the tokens, in the form of OpenAI."""
    first = len(asked.prompt_ids)
    places = slice(first, first + len(body))
    texts, offsets, offset = pieces.per_token(body), [], len(asked.prompt)
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    best = Typed(list).of(belief, "best")[places] if asked.num_logprobs else []
    top = [{pieces.of(token): logarithm(p) for token, p in each[: asked.num_logprobs] if p > 0} for each in best]
    return {
        "tokens": texts,
        "token_logprobs": [logarithm(p) for p in Typed(list).of(belief, "belief")[places]],
        "top_logprobs": top or None,
        "text_offset": offsets,
    }


def logarithm(probability: float) -> float:
    """The logarithm of a probability; of one that was rounded to 0, that of the last digit."""
    return round(math.log(max(probability, 10.0**-_DIGITS)), 4)

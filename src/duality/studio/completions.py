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
from itertools import accumulate
from typing import TYPE_CHECKING

from duality.denoisers.wrapping import network_of
from duality.registry import one_line
from duality.studio.generation import Check, Emit, Event, generate
from duality.studio.schemas import Completion, Refusal
from duality.tokenizers.pieces import PART

if TYPE_CHECKING:
    from duality.studio.library import Loaded

_DIGITS = 12  # of a probability whose logarithm is given


class Parts:
    """The parts of an answer, which have its number, its time and its model in common."""

    def __init__(self, request: Completion, number: int) -> None:
        about = {"id": f"cmpl-{number}", "object": "text_completion", "created": int(time.time())}
        self._head: Event = {**about, "model": request.model}
        self._with_usage = request.stream_options.get("include_usage")

    def make_answer(self, events: list[Event]) -> Event:
        """The answer of a request without a stream."""
        *choices, last = events
        choices = [each["choice"] for each in choices]
        return {**self._head, "choices": choices, "usage": last["usage"], "command": last["command"]}

    def split_event(self, event: Event) -> list[Event]:
        """The parts of a stream that an event becomes."""
        if event["type"] == "choice":
            return [{**self._head, "choices": [event["choice"]]}]
        return [self.make_answer([event])] if self._with_usage else []


class _Choices:
    """Turns the events of a generation into choices, or into pieces of them."""

    def __init__(self, loaded: Loaded, request: Completion, emit: Emit) -> None:
        self.tokenizer, self.pieces, self.request, self.emit = loaded.model.tokenizer, loaded.pieces, request, emit
        try:
            self.prompt, suffix = (
                self.tokenizer.encode(text).tolist() for text in (request.prompt_text, request.suffix)
            )
        except ValueError as error:
            raise Refusal(400, one_line(error)) from None
        self.num_suffix, self.command, self.num_tokens = len(suffix), "", 0
        causal = network_of(loaded.model.denoiser).causal
        self.piecewise = request.stream and causal and request.logprobs is None
        self._before = self.tokenizer.decode(self.prompt)
        self._opening = request.prompt_text if request.echo else ""
        self._beliefs: dict[int, Event] = {}
        self._sent: dict[int, str] = {}

    def take(self, *events: Event) -> None:
        """Events of the generation."""
        for event in events:
            if event["type"] == "start":
                self.command = event["command"]
            elif event["type"] == "step" and "belief" in event:
                index = event["sample"]
                before = self._beliefs.get(index)
                if before is not None and "place" in event and "best" in event:
                    # a causal model believes one place at a time
                    event = {**event, "best": [*before["best"], *event["best"]]}
                self._beliefs[index] = event
                if self.piecewise:
                    self._send(index, event["tokens"], complete=False)
            elif event["type"] == "end":
                self._send(event["index"], event["tokens"], complete=True)

    def _cut(self, tokens: list[int]) -> tuple[str, list[int], bool]:
        """Text and tokens between prompt and suffix, up to the first end-of-text or stop string; if one ended them."""
        body = tokens[len(self.prompt) : len(tokens) - self.num_suffix]
        separator = None if self.num_suffix else self.tokenizer.separator
        ended = separator is not None and separator in body
        if separator is not None and ended:
            body = body[: body.index(separator)]
        text = self._text(body)
        places = [text.find(stop) for stop in self.request.stops if stop in text]
        if places:
            text, ended = text[: min(places)], True
            while body and len(self._text(body[:-1])) >= len(text):
                body = body[:-1]
        return text, body, ended

    def _text(self, body: list[int]) -> str:
        """How tokens read behind the prompt."""
        return self.tokenizer.decode([*self.prompt, *body]).removeprefix(self._before)

    def _send(self, index: int, tokens: list[int], complete: bool) -> None:
        """What has not been sent of a choice; while it is written, nothing that later tokens could still change."""
        text, body, ended = self._cut(tokens)
        known = self._sent.get(index, "")
        if not complete:
            if not ended:
                text = text.rstrip(PART)
                text = text[: max(0, len(text) - max((len(stop) for stop in self.request.stops), default=1) + 1)]
            if len(text) <= len(known) or not text.startswith(known):
                return
            self._sent[index] = text
        choice: Event = {"index": index, "text": text[len(known) :] if known else self._opening + text}
        choice |= {"finish_reason": None, "logprobs": None}
        if complete:
            self.num_tokens += len(body)
            choice["finish_reason"] = "stop" if ended else "length"
            if self.request.logprobs is not None and index in self._beliefs:
                choice["logprobs"] = self._logprobs(body, self._beliefs[index])
        self.emit({"type": "choice", "choice": choice})

    def _logprobs(self, body: list[int], belief: Event) -> Event:
        """What the model believed of the tokens, in the form of OpenAI."""
        places, count = slice(len(self.prompt), len(self.prompt) + len(body)), self.request.logprobs
        texts = self.pieces.per_token(body)
        starts = accumulate(map(len, texts), initial=len(self.request.prompt_text))
        best = belief["best"][places] if count else []
        top = [{self.pieces.of(token): _logarithm(p) for token, p in each[:count] if p > 0} for each in best]
        return {
            "tokens": texts,
            "token_logprobs": [_logarithm(p) for p in belief["belief"][places]],
            "top_logprobs": top or None,
            "text_offset": list(starts)[:-1],
        }


def complete(loaded: Loaded, request: Completion, emit: Emit, check: Check) -> None:
    """Emit every choice as soon as it is complete, or piece by piece, and at last how many tokens there were."""
    choices = _Choices(loaded, request, emit)
    stream = choices.piecewise or request.logprobs is not None
    num_prompt = len(choices.prompt)
    generation = request.to_generation(num_prompt + choices.num_suffix, stream)
    generate(loaded, generation, choices.take, check, _DIGITS)
    usage = {"prompt_tokens": num_prompt, "completion_tokens": choices.num_tokens}
    usage["total_tokens"] = sum(usage.values())
    emit({"type": "usage", "usage": usage, "command": choices.command})


def _logarithm(probability: float) -> float:
    """The logarithm of a probability; of one that was rounded to 0, that of the last digit."""
    return round(math.log(max(probability, 10.0**-_DIGITS)), 4)

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
from duality.studio.schemas import LIMITS, Completion, Generate, Refusal
from duality.tokenizers.pieces import PART

if TYPE_CHECKING:
    from duality.studio.library import Library, Loaded

_COLDEST = 1e-6  # what a temperature of 0 is: every token is the most likely one
_DIGITS = 12  # of a probability whose logarithm is given


class _Choices:
    """Turns the events of a generation into choices, or into pieces of them."""

    def __init__(self, loaded: Loaded, request: Completion, emit: Emit) -> None:
        self.tokenizer, self.pieces, self.request, self.emit = loaded.model.tokenizer, loaded.pieces, request, emit
        self.opening = request.prompt if isinstance(request.prompt, str) else "".join(request.prompt)
        stops = [request.stop] if isinstance(request.stop, str) else request.stop
        self._stops, encode = [stop for stop in stops if stop], self.tokenizer.encode
        try:
            self.prompt, suffix = encode(self.opening).tolist(), encode(request.suffix).tolist()
        except ValueError as error:
            raise Refusal(400, one_line(error)) from None
        self.num_suffix, self.command, self.num_tokens = len(suffix), "", 0
        causal = network_of(loaded.model.denoiser).causal
        self.piecewise = request.stream and causal and request.logprobs is None
        self._before = self.tokenizer.decode(self.prompt)
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
        places = [text.find(stop) for stop in self._stops if stop in text]
        if places:
            text, ended = text[: min(places)], True
            while body and len(self._text(body[:-1])) >= len(text):
                body = body[:-1]
        return text, body, ended

    def _text(self, body: list[int]) -> str:
        """How tokens read behind the prompt."""
        return self.tokenizer.decode([*self.prompt, *body]).removeprefix(self._before)

    def _send(self, index: int, tokens: list[int], complete: bool) -> None:
        """Send what has not been sent of a choice; while it is written, nothing that later tokens could still change.

        With a complete choice is what the model believed of its tokens, if that was asked for.
        """
        text, body, ended = self._cut(tokens)
        known = self._sent.get(index, "")
        if not complete:
            if not ended:
                text = text.rstrip(PART)
                text = text[: max(0, len(text) - max(map(len, self._stops), default=1) + 1)]
            if len(text) <= len(known) or not text.startswith(known):
                return
            self._sent[index] = text
        opening = self.opening if self.request.echo and not known else ""
        choice: Event = {"index": index, "text": opening + text[len(known) :], "finish_reason": None, "logprobs": None}
        if complete:
            self.num_tokens += len(body)
            choice["finish_reason"] = "stop" if ended else "length"
            count, belief = self.request.logprobs, self._beliefs.get(index)
            if count is not None and belief is not None:
                places, texts = slice(len(self.prompt), len(self.prompt) + len(body)), self.pieces.per_token(body)
                starts = list(accumulate(map(len, texts), initial=len(self.opening)))[:-1]
                best = belief["best"][places] if count else []
                top = [{self.pieces.of(token): _logarithm(p) for token, p in each[:count] if p > 0} for each in best]
                own = [_logarithm(p) for p in belief["belief"][places]]
                about = {"tokens": texts, "token_logprobs": own, "top_logprobs": top or None, "text_offset": starts}
                choice["logprobs"] = about
        self.emit(choice)


def complete(library: Library, request: Completion, number: int, emit: Emit, check: Check) -> None:
    """Emit every choice as soon as it is complete, or piece by piece, and at last how many tokens there were.

    Each is a part of an answer; all of them have its ``number``, its time and its model.
    """
    about = {"id": f"cmpl-{number}", "object": "text_completion", "created": int(time.time()), "model": request.model}
    choices = _Choices(library.load(request.model), request, lambda choice: emit({**about, "choices": [choice]}))
    num_prompt = len(choices.prompt)
    length = num_prompt + choices.num_suffix + request.max_tokens
    if length > LIMITS.length:
        raise Refusal(400, f"prompt, max_tokens and suffix are {length} tokens: at most {LIMITS.length} are allowed")
    if request.best_of not in (None, request.n):
        raise Refusal(400, f"best_of is {request.best_of} and n is {request.n}: leave best_of out, all are returned")
    shared = request.model_dump(include={"steps", "sampler", "tail", "temperature", "top_p", "seed", "suffix"})
    if request.temperature == 0:
        shared["temperature"] = _COLDEST
    shared |= {"run": request.model, "prompt": choices.opening, "length": length, "num": request.n}
    shared |= {"stream": choices.piecewise or request.logprobs is not None, "alternatives": request.logprobs or 0}
    generate(library, Generate.model_construct(None, **shared), choices.take, check, _DIGITS)
    usage = {"prompt_tokens": num_prompt, "completion_tokens": choices.num_tokens}
    usage["total_tokens"] = sum(usage.values())
    emit({**about, "choices": [], "usage": usage, "command": choices.command})


def _logarithm(probability: float) -> float:
    """The logarithm of a probability; of one that was rounded to 0, that of the last digit."""
    return round(math.log(max(probability, 10.0**-_DIGITS)), 4)

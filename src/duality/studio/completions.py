"""The interface of OpenAI's completions, so that existing clients work.

    POST /v1/completions    model, prompt, suffix, max_tokens, temperature, top_p, seed, n, stop, logprobs, echo, stream
    GET  /v1/models

A diffusion model writes all tokens together: a sample has the tokens of the prompt, ``max_tokens`` and those of the
suffix, and the text of a choice is what stands between them, up to the first end-of-text or stop string. A stream has
one piece per choice, when it is complete; that of an autoregressive model too. ``logprobs`` are the logarithms of what
the model believed of each token at the last step that asked for it.

What must hold: the text is that of `duality sample` with the same prompt, suffix, length, temperature, top-p and seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duality.studio.fields import SAMPLING, Form, Number, Text, Texts, Typed, Values, Whole, Yes
from duality.studio.generation import Emit, Event, Patience, generated
from duality.studio.limits import Limits, Refusal

if TYPE_CHECKING:
    from duality.runs.model import Model

LIMITS = Limits()
_IGNORED = ("user", "best_of", "frequency_penalty", "presence_penalty", "logit_bias", "stream_options")

COMPLETION = Form(
    {
        "model": Text("which model: an id that GET /v1/models lists", required=True, most=300),
        "prompt": Texts("what the text begins with", [""], most=1),
        "suffix": Text("what follows the text", ""),
        "max_tokens": Whole("tokens to write", 16, least=1, most=LIMITS.length),
        "temperature": Number("below 1 sharpens the belief", above=0.0, most=100.0),
        "top_p": Number("the share of the belief that is drawn from", 1.0, above=0.0, most=1.0),
        "seed": Whole("the same seed gives the same text", 0, most=(1 << 63) - 1),
        "n": Whole("how many choices", 1, least=1, most=LIMITS.samples),
        "stop": Texts("the text ends before the first of these", [], most=4),
        "logprobs": Whole("how many of the most likely tokens of each place are returned", most=5),
        "echo": Yes("whether the prompt is returned too", False),
        "stream": Yes("whether choices are sent as they are complete", False),
        "steps": SAMPLING["steps"],
        "sampler": SAMPLING["sampler"],
        "tail": SAMPLING["tail"],
    },
    others=_IGNORED,
)


@dataclass(frozen=True)
class Completion:
    """A request, and the tokens of its prompt and suffix."""

    values: Values
    prompt: str
    num_prompt: int
    num_suffix: int

    @property
    def as_generation(self) -> Values:
        """The same as a request to generate."""
        own = self.values
        free = Typed(int).of(own, "max_tokens")
        length = self.num_prompt + free + self.num_suffix
        if length > LIMITS.length:
            raise Refusal(
                400, f"prompt, max_tokens and suffix are {length} tokens: at most {LIMITS.length} are allowed"
            )
        shared = {name: own[name] for name in ("steps", "sampler", "tail", "temperature", "top_p", "seed", "suffix")}
        absent = dict.fromkeys(("eta", "grid", "label", "guidance"))
        alternatives = 0 if own["logprobs"] is None else max(1, Typed(int).of(own, "logprobs"))
        return {
            **shared,
            **absent,
            "run": own["model"],
            "prompt": self.prompt,
            "keep": {},
            "length": length,
            "num": own["n"],
            "stream": own["logprobs"] is not None,
            "alternatives": alternatives,
        }


def completed(model: Model, values: Values, path: str, emit: Emit, patience: Patience) -> None:
    """Emit every choice as soon as it is complete."""
    prompts, suffix = values["prompt"], Typed(str).of(values, "suffix")
    assert isinstance(prompts, list)
    prompt = "".join(prompts)
    try:
        sizes = len(model.tokenizer.encode(prompt)), len(model.tokenizer.encode(suffix))
    except ValueError as error:
        raise Refusal(400, " ".join(str(error).split())) from None
    asked = Completion(values, prompt, *sizes)
    beliefs: dict[object, Event] = {}

    def choose(event: Event) -> None:
        if event["type"] == "step" and "belief" in event:
            beliefs[event["sample"]] = merged(beliefs.get(event["sample"]), event)
        if event["type"] == "end":
            emit(choice(model, asked, event, beliefs.get(event["index"])))

    generated(model, "generate", asked.as_generation, path, choose, patience)


def merged(before: Event | None, event: Event) -> Event:
    """The beliefs of a step; of a causal model, which believes one place at a time, with those of the steps before."""
    if before is None or "place" not in event:
        return event
    older, newer = before.get("best", []), event.get("best", [])
    assert isinstance(older, list)
    assert isinstance(newer, list)
    return {**event, "best": [*older, *newer]}


def choice(model: Model, asked: Completion, event: Mapping[str, object], belief: Event | None) -> Event:
    """One choice of the answer."""
    tokens, text = event["tokens"], event["text"]
    assert isinstance(tokens, list)
    assert isinstance(text, str)
    body = tokens[asked.num_prompt : len(tokens) - asked.num_suffix or None]
    ended = asked.num_suffix == 0 and model.tokenizer.separator in body
    own = text[len(asked.prompt) :] if text.startswith(asked.prompt) else model.tokenizer.decode(body)
    if asked.num_suffix:
        own = model.tokenizer.decode(body)
    stops = asked.values["stop"]
    assert isinstance(stops, list)
    places = [own.find(stop) for stop in stops if stop and stop in own]
    if places:
        own, ended = own[: min(places)], True
    return {
        "index": event["index"],
        "text": asked.prompt + own if asked.values["echo"] else own,
        "finish_reason": "stop" if ended else "length",
        "logprobs": None if belief is None else logprobs(model, asked, body, belief),
        "num_tokens": len(body),
        "num_prompt": asked.num_prompt,
    }


def logprobs(model: Model, asked: Completion, body: list[int], belief: Event) -> Event:
    """What the model believed of the tokens, in the form of OpenAI."""
    from duality.runs.pieces import Pieces

    pieces, own, best = Pieces(model.tokenizer, model.mask_id), belief["belief"], belief.get("best", [])
    assert isinstance(own, list)
    assert isinstance(best, list)
    first = asked.num_prompt
    texts, offsets, offset = [pieces.of(token) for token in body], [], len(asked.prompt)
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    wanted = asked.values["logprobs"]
    chosen = best[first : first + len(body)] if wanted else []
    return {
        "tokens": texts,
        "token_logprobs": [logarithm(value) for value in own[first : first + len(body)]],
        "top_logprobs": [{pieces.of(token): logarithm(p) for token, p in place[:wanted]} for place in chosen] or None,
        "text_offset": offsets,
    }


def logarithm(probability: float) -> float:
    """The logarithm of a probability; that of one that was rounded to 0 is that of half the last digit."""
    return round(math.log(max(probability, 5e-5)), 4)


def answer(values: Values, choices: list[Event], number: int) -> Event:
    """The answer of a request with all its choices."""
    written = sum(Typed(int).of(each, "num_tokens") for each in choices)
    prompt = Typed(int).of(choices[0], "num_prompt") if choices else 0
    shown = [{name: value for name, value in each.items() if not name.startswith("num_")} for each in choices]
    return {
        "id": f"cmpl-{number}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": values["model"],
        "choices": shown,
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }

"""The fields of a request for completions, and the same request as one to generate.

What must hold: a field of OpenAI's that has no meaning here is refused unless its value changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duality.studio.fields import Field, Form, Number, Text, Texts, Typed, Values, Whole, Yes, wrong
from duality.studio.forms import SAMPLING
from duality.studio.limits import Limits, Refusal

LIMITS = Limits()
_WHOLE, _TEXT = Typed(int), Typed(str)


@dataclass(frozen=True)
class Without(Field):
    """A field that has no meaning here: only the value that changes nothing is allowed."""

    neutral: object = field(default=0, kw_only=True)

    def checked(self, value: object, name: str) -> object:
        if isinstance(value, bool) or value != self.neutral:
            raise wrong(name, value, f"{self.neutral}, or left out, because {self.about}")
        return value

    def schema(self) -> dict[str, object]:
        return {"const": self.neutral}


@dataclass(frozen=True)
class StreamOptions(Field):
    """Whether the last part of a stream says how many tokens there were: {"include_usage": true}."""

    def checked(self, value: object, name: str) -> object:
        if not isinstance(value, dict) or not set(value) <= {"include_usage"}:
            raise wrong(name, value, 'an object such as {"include_usage": true}')
        return Yes("").checked(value.get("include_usage", False), "stream_options.include_usage")

    def schema(self) -> dict[str, object]:
        properties = {"include_usage": {"type": "boolean"}}
        return {"type": "object", "properties": properties, "additionalProperties": False}


COMPLETION = Form(
    {
        "model": Text("which model: an id that GET /v1/models lists", required=True, most=300),
        "prompt": Texts("what the text begins with: a string, or a list of one", [""], most=1),
        "suffix": Text("what follows the text", ""),
        "max_tokens": Whole("tokens to write", 16, least=1, most=LIMITS.length),
        "temperature": Number("below 1 sharpens the belief; the model's own if absent", most=100.0),
        "top_p": Number("the share of the belief that is drawn from", 1.0),
        "seed": Whole("the same seed gives the same text", 0, most=(1 << 63) - 1),
        "n": Whole("how many choices", 1, least=1, most=LIMITS.samples),
        "best_of": Whole("as n: all choices are returned", least=1, most=LIMITS.samples),
        "stop": Texts("the text ends before the first of these", [], most=4),
        "logprobs": Whole("how many of the most likely tokens of each place are returned", most=5),
        "echo": Yes("whether the prompt is returned too", False),
        "stream": Yes("whether the text is sent as it is written", False),
        "stream_options": StreamOptions("what the last part of a stream has", False),
        "frequency_penalty": Without("models here have no such penalty", 0),
        "presence_penalty": Without("models here have no such penalty", 0),
        "logit_bias": Without("models here have no such bias", neutral={}),
        "steps": SAMPLING["steps"],
        "sampler": SAMPLING["sampler"],
        "tail": SAMPLING["tail"],
    },
    others=("user",),
)


@dataclass(frozen=True)
class Completion:
    """A request, the tokens of its prompt, and how many its suffix has."""

    values: Values
    prompt_ids: list[int]
    num_suffix: int

    @staticmethod
    def texts(values: Values) -> tuple[str, str]:
        """The prompt and the suffix of a request."""
        return "".join(Typed(list).of(values, "prompt")), _TEXT.of(values, "suffix")

    @property
    def prompt(self) -> str:
        """What the text begins with."""
        return self.texts(self.values)[0]

    @property
    def stops(self) -> list[str]:
        """What the text ends before."""
        return [stop for stop in Typed(list).of(self.values, "stop") if stop]

    @property
    def echo(self) -> bool:
        """Whether the prompt is returned too."""
        return bool(self.values["echo"])

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are returned; None for no logarithms at all."""
        return _WHOLE.maybe(self.values, "logprobs")

    def as_generation(self, piecewise: bool) -> Values:
        """The same as a request to generate."""
        own, num = self.values, _WHOLE.of(self.values, "n")
        length = len(self.prompt_ids) + _WHOLE.of(own, "max_tokens") + self.num_suffix
        if length > LIMITS.length:
            raise Refusal(
                400, f"prompt, max_tokens and suffix are {length} tokens: at most {LIMITS.length} are allowed"
            )
        if own["best_of"] not in (None, num):
            raise Refusal(400, f"best_of is {own['best_of']} and n is {num}: leave best_of out, all are returned")
        shared = {name: own[name] for name in ("steps", "sampler", "tail", "temperature", "top_p", "seed", "suffix")}
        absent = dict.fromkeys(("eta", "grid", "label", "guidance"))
        return {
            **shared,
            **absent,
            "run": own["model"],
            "prompt": self.prompt,
            "keep": {},
            "length": length,
            "num": num,
            "stream": piecewise or self.num_logprobs is not None,
            "alternatives": self.num_logprobs or 0,
        }

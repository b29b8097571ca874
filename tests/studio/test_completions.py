"""The interface of OpenAI's completions, with OpenAI's own client."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from support.studio import Served

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client: Any) -> None:
    models = {model.id: model for model in client.models.list()}
    assert client.models.retrieve("duo") == models["duo"]
    with pytest.raises(openai.NotFoundError, match="no run 'nothing'"):
        client.models.retrieve("nothing")


def test_a_temperature_of_0_takes_the_most_likely_tokens(client: Any) -> None:
    """So every seed gives one text, where a model writes from left to right; and others write at all."""
    settings = {"prompt": "The ", "max_tokens": 12, "temperature": 0}
    texts = {client.completions.create(model="ar", **settings, seed=seed).choices[0].text for seed in (1, 2, 3)}
    assert len(texts) == 1
    found = client.completions.create(model="duo", **settings)
    assert found.choices[0].text
    assert "--temperature 1e-06" in found.command


def test_choices(client: Any) -> None:
    settings = {"prompt": "The ", "max_tokens": 7, "n": 3, "seed": 5, "temperature": 0.9, "top_p": 0.95}
    found = client.completions.create(model="duo", **settings)
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in found.choices} <= {"stop", "length"}
    assert found.usage.prompt_tokens == 4
    assert found.usage.total_tokens == 4 + found.usage.completion_tokens
    assert found.command.startswith("duality sample ")
    again = client.completions.create(model="duo", **{**settings, "n": 1})
    assert again.choices[0].text == found.choices[0].text
    echoed = client.completions.create(model="duo", **settings, extra_body={"echo": True})
    assert [choice.text for choice in echoed.choices] == ["The " + choice.text for choice in found.choices]


@pytest.mark.parametrize("model", ["duo", "ar"])
def test_a_stream_is_the_text(client: Any, model: str) -> None:
    settings: dict[str, Any] = {"model": model, "prompt": "The é ", "max_tokens": 24, "n": 2, "seed": 1}
    whole = client.completions.create(**settings)
    texts, reasons, count = {0: "", 1: ""}, {}, 0
    usage: Any = None
    for part in client.completions.create(**settings, stream=True, stream_options={"include_usage": True}):
        usage = part.usage or usage
        for choice in part.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
            count += 1
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert list(reasons.values()) == [choice.finish_reason for choice in whole.choices]
    assert usage.total_tokens == whole.usage.total_tokens
    assert count == 2 if model == "duo" else count > 8  # what writes from left to right is sent as it is written


@pytest.mark.parametrize("model", ["duo", "ar"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_text(client: Any, model: str, stream: bool) -> None:
    settings: dict[str, Any] = {"model": model, "prompt": "a", "max_tokens": 20, "seed": 2}
    whole = client.completions.create(**settings).choices[0].text
    stop = whole[5:8]
    found = client.completions.create(**settings, stop=[stop, "never there"], stream=stream)
    parts = list(found) if stream else [found]
    text = "".join(choice.text for part in parts for choice in part.choices)
    assert text == whole[: whole.index(stop)]
    assert parts[-1].choices[0].finish_reason == "stop"


def test_the_end_of_a_text_ends_it(server: Served) -> None:
    """A model that writes an end-of-text has the text before it; the tokens behind it are not counted."""
    for seed in range(200):
        body = {"model": "duo", "prompt": "a", "max_tokens": 30, "seed": seed, "n": 16, "steps": 1, "logprobs": 1}
        found = server.post("/v1/completions", body).json
        ended = [choice for choice in found["choices"] if choice["finish_reason"] == "stop"]
        if ended:
            assert all("<|endoftext|>" not in choice["text"] for choice in ended)
            assert all("".join(choice["logprobs"]["tokens"]) == choice["text"] for choice in ended)
            assert found["usage"]["completion_tokens"] < 16 * 30
            return
    raise AssertionError("no text ended")


@pytest.mark.parametrize("model", ["duo", "mdlm", "ar"])
def test_logprobs(client: Any, model: str) -> None:
    found = client.completions.create(model=model, prompt="The ", max_tokens=6, logprobs=3).choices[0]
    own = found.logprobs
    assert "".join(own.tokens) == found.text
    assert len(own.token_logprobs) == len(own.top_logprobs) == len(own.text_offset) == len(own.tokens)
    assert own.text_offset[0] == 4
    assert all(value <= 0 for value in own.token_logprobs)
    for top in own.top_logprobs:
        assert 1 <= len(top) <= 3
        assert sum(math.exp(value) for value in top.values()) < 1.01


def test_a_suffix_stands_behind(client: Any) -> None:
    found = client.completions.create(model="mdlm", prompt="(", suffix=")", max_tokens=4, seed=1)
    assert "--suffix ')'" in found.command
    assert found.usage.completion_tokens == 4
    with pytest.raises(openai.BadRequestError, match="left to right"):
        client.completions.create(model="ar", prompt="(", suffix=")", max_tokens=4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"model": "nope"}, "there is no run 'nope' here"),
        ({"temperature": -1}, "at least 0"),
        ({"max_tokens": 10**9}, "from 1 to 2048"),
        ({"max_tokens": 2048}, "at most 2048"),
        ({"n": 0}, "n is 0"),
        ({"best_of": 3}, "leave best_of out"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is 0.5: it must be 0"),
        ({"logit_bias": {"50": 1}}, "logit_bias"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"stop": ["a"] * 5}, "stop"),
    ],
)
def test_mistakes_are_named(client: Any, wrong: dict[str, Any], words: str) -> None:
    settings = {"model": "duo", "prompt": "a", "max_tokens": 4, **wrong}
    with pytest.raises(openai.APIStatusError) as error:
        client.completions.create(**settings)
    assert words in str(error.value)
    assert error.value.status_code == (404 if wrong.get("model") else 400)


def test_what_changes_nothing_is_taken(client: Any) -> None:
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}, "user": "somebody", "best_of": 1}
    assert client.completions.create(model="duo", prompt="a", max_tokens=2, **neutral).choices

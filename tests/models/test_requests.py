"""Requests: the keywords of a model's methods are the fields of the request that they become."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.runs import small_recipe

import duality
from duality.models.likelihood import LikelihoodOptions, likelihood
from duality.models.model import Model
from duality.models.requests import (
    ChoiceOptions,
    SampleChoices,
    SampleOptions,
    SampleRequest,
    ScoreOptions,
    ScoreRequest,
)
from duality.samplers.generate import GenerateOptions, generate


@pytest.mark.parametrize(
    ("request_type", "options", "positional"),
    [
        (SampleChoices, ChoiceOptions, {"num"}),
        (SampleRequest, SampleOptions, {"num"}),
        (ScoreRequest, ScoreOptions, set()),
    ],
)
def test_the_keywords_are_the_fields_of_the_request(request_type: type, options: type, positional: set[str]) -> None:
    found = {each.name: each.type for each in fields(request_type) if each.name not in positional}
    own = {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()}
    assert own == found


@pytest.mark.parametrize(
    ("function", "options", "own"),
    [(likelihood, LikelihoodOptions, set()), (generate, GenerateOptions, {"num", "length", "steps", "each"})],
)
def test_the_keywords_are_those_of_the_function(function: Callable[..., Any], options: type, own: set[str]) -> None:
    keywords = [each for each in signature(function).parameters.values() if each.kind == Parameter.KEYWORD_ONLY]
    found = {each.name: each.annotation for each in keywords if each.name not in own}
    assert {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()} == found


def test_requests_do_not_import_torch() -> None:
    code = "import sys, duality.models.requests; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Model:
    return duality.train(small_recipe(english, "training.steps=1"), out=tmp_path_factory.mktemp("requests") / "run")


IDS = torch.arange(4)


@pytest.mark.parametrize(
    ("method", "arguments", "options", "words"),
    [
        ("sample", (1.5,), {}, "num is 1.5: it must be a whole number"),
        ("sample", (True,), {}, "num is True"),
        ("sample", (1 << 63,), {}, r"of memory, and there are .*: take fewer samples .num."),
        ("sample", (), {"steps": 2.0}, "steps is 2.0"),
        ("sample", (), {"length": "8"}, "length is '8'"),
        ("sample", (), {"prompt": None}, "prompt is None: it must be a text"),
        ("sample", (), {"suffix": b"end"}, "suffix is b'end'"),
        ("sample", (), {"seed": 0.5}, "seed is 0.5"),
        ("sample", (), {"top_p": "0.9"}, "top_p is '0.9': it must be a number"),
        ("sample", (), {"temperature": None, "batch_size": None}, "batch_size is None"),
        ("sample", (), {"label": 3}, "label is 3"),
        ("sample", (), {"keep": [1, 2]}, "keep is .1, 2.: it must be a dictionary"),
        ("sample", (), {"keep": {0: "A"}}, "a token of keep is 'A'"),
        ("sample", (), {"keep": {0: 65}, "prompt": "B"}, "where prompt or suffix have 66"),
        ("fill", (None,), {}, "text is None"),
        ("fill", (b"a ___",), {}, "text is b'a ___'"),
        ("fill", ("a ___",), {"tokens_per_blank": 1.5}, "tokens_per_blank is 1.5: it must be a whole number, or None"),
        ("log_likelihood", (None,), {}, "texts is None"),
        ("log_likelihood", (b"text",), {}, "texts is b'text'"),
        ("log_likelihood", (["text", 3],), {}, "texts is 3"),
        ("log_likelihood", ("",), {}, "text 0 is empty"),
        ("log_likelihood", ("text",), {"context": None}, "context is None"),
        ("log_likelihood", ("text",), {"num_draws": 1.5}, "num_draws is 1.5"),
        ("surprisal", (b"text",), {}, "text is b'text'"),
        ("hidden", (None,), {}, "tokens is None"),
        ("hidden", ("text",), {}, "tokens is 'text'"),
        ("hidden", (IDS.double(),), {}, "tokens of shape"),
        ("hidden", (IDS[:0],), {}, r"tokens of shape \(1, 0\)"),
        ("hidden", (IDS - 1,), {}, "tokens are -1 to 2: the ids of this model are 0 to 256"),
        ("hidden", (IDS + 999,), {}, "tokens are 999 to 1002"),
        ("hidden", (IDS,), {"alpha": None}, "alpha is None: it must be a number"),
        ("hidden", (IDS,), {"alpha": float("nan")}, "alpha nan"),
    ],
)
def test_an_argument_of_another_kind_is_named(
    model: Model, method: str, arguments: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        getattr(model, method)(*arguments, **options)


def test_numbers_of_numpy_are_numbers(model: Model) -> None:
    one, two, three = map(cast(Callable[[int], int], np.int64), (1, 2, 3))
    (sample,) = model.sample(one, steps=two, seed=three, length=8, temperature=1 << 80)
    assert sample == model.sample(1, steps=2, seed=3, length=8, temperature=float(1 << 80))[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"run": None}, "run is None"),
        ({"run": b"runs/demo"}, "run is b'runs/demo'"),
        ({"run": ""}, "run is ''"),
        ({"run": "runs/demo", "step": 1.5}, "step is 1.5"),
        ({"run": "runs/demo", "round": "1"}, "round is '1'"),
    ],
)
def test_what_load_refuses_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        duality.load(**arguments)

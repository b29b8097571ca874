"""Requests: the keywords of a model's methods are the fields of the request that they become."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from duality.models.requests import (
    ChoiceOptions,
    SampleChoices,
    SampleOptions,
    SampleRequest,
    ScoreOptions,
    ScoreRequest,
)


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


def test_requests_do_not_import_torch() -> None:
    code = "import sys, duality.models.requests; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

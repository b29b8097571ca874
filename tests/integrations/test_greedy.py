"""What is_greedy means, against the beliefs themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import small_recipe

import duality
from duality.integrations.greedy import greedy
from duality.models.model import Model
from duality.models.scoring import Passage

CONTEXT = np.array(list(b"You may"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("models")

    def one(name: str) -> Model:
        model = duality.train(small_recipe(english, name=name), out=folder / name)
        return replace(model, denoiser=model.denoiser.double())

    return one


def changed(ids: list[int], place: int) -> list[int]:
    return [*ids[:place], (ids[place] + 1) % 256, *ids[place + 1 :]]


def test_an_autoregressive_model_is_greedy_where_every_token_is_the_most_likely(trained: Any) -> None:
    model = trained("ar-laptop")
    denoiser: Any = model.denoiser
    ids: list[int] = []
    for _ in range(5):  # greedy decoding
        row = torch.tensor([*CONTEXT, *ids, 0])[None]
        ids.append(int(denoiser.log_probs(row, torch.ones(1, dtype=torch.float64))[0, -1].argmax()))
    rows = [Passage(np.array(ids), CONTEXT)] + [Passage(np.array(changed(ids, place)), CONTEXT) for place in (0, 2, 4)]
    assert greedy(model, rows, 3) == [True, False, False, False]
    long = np.concatenate([np.array(ids), np.zeros(40, dtype=np.int64)])
    assert greedy(model, [Passage(long, CONTEXT)], 3) == [False]


def test_a_masked_model_is_greedy_where_one_call_writes_the_continuation(trained: Any) -> None:
    model = trained("mdlm-laptop")
    denoiser: Any = model.denoiser
    row = torch.tensor([*CONTEXT, *[model.mask_id] * 5])[None]
    ids = denoiser.log_probs(row, torch.zeros(1, dtype=torch.float64))[0, -5:].argmax(-1).tolist()
    rows = [Passage(np.array(ids), CONTEXT), Passage(np.array(changed(ids, 4)), CONTEXT)]
    assert greedy(model, rows, 3) == [True, False]


@pytest.mark.parametrize("name", ["sedd-absorb-laptop", "sedd-uniform-laptop", "duo-laptop", "bert-mouth-laptop"])
def test_every_kind_of_model_has_one_greedy_continuation(trained: Any, name: str) -> None:
    """Of all single tokens behind a context exactly one is greedy."""
    model = trained(name)
    rows = [Passage(np.array([token]), CONTEXT) for token in range(257)]
    assert sum(greedy(model, rows, 64)) == 1


def test_a_gaussian_model_is_never_greedy(trained: Any) -> None:
    assert greedy(trained("plaid-laptop"), [Passage(np.array([1]))], 1) == [False]

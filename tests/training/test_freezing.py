"""Frozen parts: named as the network names them, bit-identical after training, without moments, counted in the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import session
from support.checkpoints import load_newest
from support.runs import quiet, small_recipe
from torch import nn

from duality.models import model as run_model
from duality.models import plan as scaling
from duality.models.size import describe
from duality.protocols import Vocabulary
from duality.training.adapters import _frozen_names, _parts_in
from duality.training.loop import TrainState
from duality.training.settings import Training


def of_last(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    saved = load_newest(folder / "checkpoints", quiet)
    assert saved is not None
    return saved.groups


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_is_frozen_stays_bit_for_bit_and_has_no_moments(english: Path, tmp_path: Path, optimizer: str) -> None:
    """A block, the embedding and the head; with weight decay, which would change them without a gradient."""
    frozen = ("backbone.embedding", "backbone.blocks.0.", "backbone.head.")
    recipe = small_recipe(
        english,
        "training.steps=4",
        "generation.steps=2",
        "training.weight_decay=0.1",
        f"training.optimizer={optimizer}",
        "training.freeze=embedding,blocks.0-0,head",
    )
    first = {name: value.clone() for name, value in run_model.network(recipe, Vocabulary(257)).named_parameters()}
    messages: list[str] = []
    session.train(recipe, tmp_path / "run", report=messages.append)
    groups = of_last(tmp_path / "run")
    for name, value in first.items():
        same = name.startswith(frozen)
        # what is above a head of zeros has no gradient in the first step, but weights decay
        assert torch.equal(groups["model"][name], value) == same or not value.any(), name
        assert torch.equal(groups["ema"][name], value) == same or not value.any(), name
        assert any(key.startswith(f"{name}.") for key in groups["optimizer"]) != same, name
    trained = sum(value.numel() for name, value in first.items() if not name.startswith(frozen))
    assert any(f"{trained:,} of them are trained" in line for line in messages)
    assert f"{trained:,} of them are trained" in describe(recipe)
    assert scaling.Sizes.of(recipe, torch.device("cpu")).trained == trained


def test_the_plan_counts_gradients_and_moments_of_what_is_trained(english: Path) -> None:
    device = torch.device("cpu")

    def state(*assignments: str) -> float:
        recipe = small_recipe(english, *assignments)
        # of two micro-batches: the gradients of one may lie where activations were
        return scaling._estimate(recipe, scaling.Sizes.of(recipe, device), "single", 1, 1, 4, device).state

    recipe = small_recipe(english)
    weights = 4 * scaling.Sizes.of(recipe, device).parameters
    frozen = weights - 4 * scaling.Sizes.of(small_recipe(english, "training.freeze=blocks"), device).trained
    assert state() == 5 * weights
    assert state("training.freeze=blocks") == 5 * weights - 3 * frozen


@pytest.mark.parametrize(
    ("freeze", "words"),
    [
        ("heads", "'heads', which is no part of the network: choose from embedding, conv, time, blocks.0-1, norm"),
        ("blocks.1-2", "'blocks.2', which is no part"),
        ("blocks.1-0", "a range begins with its smaller number"),
        ("embedding,", "'', which is no part"),
        ("emb", "'emb', which is no part"),
        ("embedding,conv,time,blocks,norm,modulation,head", "leaves nothing to train"),
    ],
)
def test_a_part_that_is_none_is_refused_and_leaves_no_run(
    english: Path, tmp_path: Path, freeze: str, words: str
) -> None:
    recipe = small_recipe(english, f"training.freeze={freeze}")
    with pytest.raises(ValueError, match=words):
        session.train(recipe, tmp_path / "run", report=quiet)
    with pytest.raises(ValueError, match=words):
        describe(recipe)
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_parts_of_any_network_have_names() -> None:
    """A block without a number, a list of blocks, a weight of its own."""
    network = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "out": nn.Linear(2, 2)})
    names = [name for name, _ in network.named_parameters()]
    assert _parts_in(names) == ["layers.0-1", "out"]
    assert _frozen_names(names, "layers.1,out.bias") == {"layers.1.weight", "layers.1.bias", "out.bias"}
    assert _frozen_names(names, "none") == frozenset()


def test_muon_may_have_nothing_for_adamw() -> None:
    class Matrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.other = nn.Parameter(torch.eye(2)), nn.Parameter(torch.ones(2))

        def hidden_matrices(self) -> list[nn.Parameter]:
            return [self.own]

    for freeze in ("own", "other"):
        state = TrainState.fresh(Matrix(), Training(optimizer="muon", freeze=freeze))
        before = {name: value.detach().clone() for name, value in state.model.named_parameters()}
        sum((each.sum() for each in state.model.parameters()), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
        state.optimizer.step()
        assert {name for name, value in state.model.named_parameters() if torch.equal(before[name], value)} == {freeze}

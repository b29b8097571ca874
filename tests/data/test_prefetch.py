"""Prefetched batches: those of the loader, with its errors, one step ahead; no thread is left running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe

from duality.data.loader import Batch, Loader, Prefetch
from duality.data.packing import Sequences
from duality.data.store import TokenStore
from duality.training.loop import StepRecord


def helpers() -> list[threading.Thread]:
    """The threads that make batches."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    assert not helpers()
    yield
    assert not helpers()


@pytest.fixture
def loader(make_store: Callable[..., TokenStore]) -> Loader:
    return Loader(Sequences(make_store(["a text of some length " * 7]), 8), 3, 1)


@pytest.mark.parametrize("steps", [range(12), range(5, 9), (3, 9, 9, 2)], ids=["all", "resumed", "jumps"])
def test_batches_are_the_loaders(loader: Loader, steps: tuple[int, ...]) -> None:
    with Prefetch(loader.batch, 12) as ahead:
        for step in steps:
            ours, theirs = ahead.batch(step), loader.batch(step)
            assert torch.equal(ours.ids, theirs.ids)
            assert (ours.valid is None) == (theirs.valid is None)
            if ours.valid is not None and theirs.valid is not None:
                assert torch.equal(ours.valid, theirs.valid)


def test_the_next_batch_is_made_while_this_one_is_used_but_none_after_the_last(loader: Loader) -> None:
    steps_made: list[int] = []
    begun = {step: threading.Event() for step in range(3)}

    def make(step: int) -> Batch:
        steps_made.append(step)
        begun[step].set()
        return loader.batch(step)

    with Prefetch(make, 3) as ahead:
        for step in range(3):
            ahead.batch(step)
            assert begun[min(step + 1, 2)].wait(60)  # it has not been requested yet
    assert steps_made == [0, 1, 2]


def test_a_batch_of_a_skipped_step_is_not_kept(loader: Loader) -> None:
    steps_made: list[int] = []

    def make(step: int) -> Batch:
        steps_made.append(step)
        return loader.batch(step)

    with Prefetch(make, 6) as ahead:
        for step in (0, 4, 1):
            ahead.batch(step)
    assert steps_made[:5] == [0, 1, 4, 5, 1]


def test_batches_are_pinned_if_requested(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Batch] = []

    def remember(self: Batch) -> Batch:
        pinned.append(self)
        return self

    monkeypatch.setattr(Batch, "pin", remember)
    for pin in (False, True):
        with Prefetch(loader.batch, 2, pin) as ahead:
            ahead.batch(0)
            ahead.batch(1)
        assert len(pinned) == 2 * pin


def test_an_error_is_raised_when_its_step_is_requested(loader: Loader) -> None:
    def make(step: int) -> Batch:
        if step == 2:
            raise ValueError("the store is damaged")
        return loader.batch(step)

    with Prefetch(make, 9) as ahead:
        ahead.batch(0)
        ahead.batch(1)  # the failure of step 2 does not belong to this step
        with pytest.raises(ValueError, match="the store is damaged"):
            ahead.batch(2)
        assert torch.equal(ahead.batch(3).ids, loader.batch(3).ids)


def test_a_batch_moves_as_a_whole(loader: Loader) -> None:
    plain = loader.batch(0)
    full = Batch(plain.ids, torch.ones_like(plain.ids, dtype=torch.bool), torch.zeros(3))
    for batch in (plain, full):
        moved = batch.to(torch.device("meta"))
        parts = [moved.ids] if batch is plain else [moved.ids, moved.valid, moved.labels]
        assert all(part is not None and part.device.type == "meta" for part in parts)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_training_that_fails_leaves_no_thread(english: Path, tmp_path: Path, error: type[BaseException]) -> None:
    seen: list[int] = []

    def watch(record: StepRecord) -> None:
        seen.append(len(helpers()))
        if record.step == 3:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        session.train(small_recipe(english), tmp_path, report=quiet, watch=watch)
    assert seen == [1, 1, 1]


def test_training_prefetches_batches_until_its_last_phase_ends(
    english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []

    class Watched(Prefetch):
        def __init__(self, make: Callable[[int], Batch], until: int, pin: bool = False):
            ends.append(until)
            super().__init__(make, until, pin)

    monkeypatch.setattr("duality.training.loop.Prefetch", Watched)
    recipe = small_recipe(english, "training.steps=4")
    assert len(recipe.method.phases(27, 4)) > 1
    session.train(recipe, tmp_path, report=quiet)
    assert ends == [4]


def test_a_damaged_store_stops_training_with_its_own_message(
    english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Loader.batch

    def damaged(self: Loader, step: int, rows: slice = slice(None)) -> Batch:
        if step == 4:
            raise ValueError("the store is damaged; delete the folder and make it again")
        return batch(self, step, rows)

    monkeypatch.setattr(Loader, "batch", damaged)
    steps: list[int] = []
    with pytest.raises(ValueError, match="the store is damaged"):
        session.train(small_recipe(english), tmp_path, report=quiet, watch=lambda record: steps.append(record.step))
    assert steps == [1, 2, 3, 4]

"""The loader: epochs are permutations, batches a pure function of (seed, step), slices of one batch agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duality.data.loader import Loader, epoch_order
from duality.data.packing import Sequences
from duality.data.store import TokenStore

MakeStore = Callable[..., TokenStore]
SHARED_STORES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
COUNTS = st.integers(1, 23)


@pytest.fixture
def sequences(make_store: MakeStore) -> Callable[[int], Sequences]:
    """A given number of sequences of length 2, the last one padded unless there is only one."""

    @cache
    def make(count: int) -> Sequences:
        return Sequences(make_store(["x" * max(1, 2 * count - 2)]), 2)

    return make


@SHARED_STORES
@given(count=COUNTS, batch_size=st.integers(1, 60), seed=st.integers(0, 2**64 - 1))
def test_every_epoch_has_every_sequence_once(
    count: int, batch_size: int, seed: int, sequences: Callable[[int], Sequences]
) -> None:
    loader = Loader(sequences(count), batch_size, seed)
    assert len(loader.sequences) == count
    steps = -(-3 * count // batch_size)
    visited = np.concatenate([loader.indices(step) for step in range(steps)])
    for epoch in range(3):
        assert sorted(visited[epoch * count : (epoch + 1) * count]) == list(range(count))


@SHARED_STORES
@given(count=COUNTS, batch_size=st.integers(1, 30), step=st.integers(0, 10**12), data=st.data())
def test_a_batch_does_not_depend_on_how_it_is_sliced(
    count: int, batch_size: int, step: int, data: st.DataObject, sequences: Callable[[int], Sequences]
) -> None:
    loader = Loader(sequences(count), batch_size, 1)
    whole = loader.batch(step)
    size = data.draw(st.integers(1, batch_size))
    parts = [loader.batch(step, slice(start, start + size)) for start in range(0, batch_size, size)]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    assert len(whole.ids) == batch_size
    unpadded = torch.ones_like(whole.ids, dtype=torch.bool)
    valid = [unpadded[: len(part.ids)] if part.valid is None else part.valid for part in parts]
    assert torch.equal(torch.cat(valid), unpadded if whole.valid is None else whole.valid)


def test_batches_are_the_rows_of_the_sequences(make_store: MakeStore) -> None:
    sequences = Sequences(make_store(["abcdefghi"]), 2)
    loader = Loader(sequences, 3, 0)
    for step in range(5):
        assert torch.equal(loader.batch(step).ids, sequences.rows(loader.indices(step))[0])
    assert torch.equal(loader.batch(1, slice(2, 3)).ids, sequences.rows(loader.indices(1)[2:3])[0])


def test_valid_is_given_only_if_something_is_padded(sequences: Callable[[int], Sequences]) -> None:
    loader = Loader(sequences(5), 1, 0)
    by_index = {int(loader.indices(step)[0]): loader.batch(step).valid for step in range(5)}
    assert {index: valid.tolist() for index, valid in by_index.items() if valid is not None} == {4: [[True, False]]}
    assert len(by_index) == 5


def test_the_order_depends_on_seed_and_epoch_alone(sequences: Callable[[int], Sequences]) -> None:
    def visited(seed: int, steps: range) -> list[int]:
        return [int(index) for step in steps for index in Loader(sequences(23), 23, seed).indices(step)]

    assert visited(3, range(1)) == visited(3, range(1))
    assert visited(3, range(1)) != visited(4, range(1))
    assert visited(3, range(1)) != visited(3, range(1, 2))
    expected = np.random.Generator(np.random.Philox(key=np.array([3, 1], dtype=np.uint64))).permutation(23)
    assert visited(3, range(1, 2)) == expected.tolist()


def test_a_later_step_needs_no_earlier_one(sequences: Callable[[int], Sequences]) -> None:
    loader = Loader(sequences(23), 5, 7)
    in_order = [loader.indices(step).tolist() for step in range(30)]
    epoch_order.cache_clear()
    assert [loader.indices(step).tolist() for step in reversed(range(30))] == in_order[::-1]


def test_the_cached_order_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(0, 0, 5)[0] = 1


def test_a_text_shorter_than_one_sequence(make_store: MakeStore) -> None:
    with pytest.raises(
        ValueError, match=r"has 5 tokens, less than one sequence of length 8; .*data.length=2\) or give"
    ):
        Loader(Sequences(make_store(["abcd"]), 8), 2, 0)
    assert Loader(Sequences(make_store(["abcd"]), 5), 2, 0).batch(0).valid is None


def test_wrong_arguments(sequences: Callable[[int], Sequences]) -> None:
    with pytest.raises(ValueError, match="batch size must be at least 1; got 0"):
        Loader(sequences(3), 0, 0)
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match=f"seed must be from 0 .* got {seed}"):
            Loader(sequences(3), 1, seed)
    with pytest.raises(ValueError, match="steps count from 0; got -1"):
        Loader(sequences(3), 1, 0).indices(-1)

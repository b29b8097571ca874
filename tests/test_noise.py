"""Noise: uniform, independent between samples, steps, tags and counters, and a function of these alone."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from duality.noise import Noise, stratified_times


def noise(seed: int = 0, step: int = 0, count: int = 64) -> Noise:
    return Noise.of(seed, step, torch.arange(count))


def chi_square(cells: torch.Tensor, num_cells: int) -> float:
    """Standardised chi-square statistic of equal cells; about normal."""
    expected = cells.numel() / num_cells
    counts = torch.bincount(cells.flatten(), minlength=num_cells).double()
    return float(((counts - expected) ** 2 / expected).sum() - (num_cells - 1)) / math.sqrt(2 * (num_cells - 1))


def test_mixer_is_the_published_splitmix64() -> None:
    """First outputs of the reference implementation seeded with 1234567."""
    from duality.noise import _GOLDEN, _mix, _to_signed

    state = torch.tensor([_to_signed(1234567 + i * _GOLDEN) for i in (1, 2, 3)], dtype=torch.int64)
    got = [value % 2**64 for value in _mix(state).tolist()]
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_shapes_alone_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without numbers has no cache to fit into, and a long text would have thousands of blocks."""
    calls: list[torch.Tensor] = []

    def mix(words: torch.Tensor) -> torch.Tensor:
        calls.append(words)
        return words

    monkeypatch.setattr("duality.noise._BLOCK", 8)
    with FakeTensorMode(), monkeypatch.context() as patch:
        keys = noise(count=2)
        patch.setattr("duality.noise._mix", mix)
        assert keys.uniform("x", 1000).shape == (2, 1000)
    assert len(calls) < 5


def test_the_numbers_are_those_of_earlier_runs() -> None:
    """Resuming a checkpoint and repeating a result need exactly these bits."""
    few = Noise.of(3, 5, torch.tensor([0, 7, 1000]))
    assert few.fold(4).fold("b").keys.tolist() == [-7561817633327737204, -716358728789762804, -3326663857340666451]
    assert few.bits("a", 2).tolist() == [
        [7681951496141430046, 275681029519250772],
        [5831994053495348317, 9174568676575058367],
        [4296683310710805390, -3278853766098206371],
    ]
    assert few.uniform("a", 2)[:, 0].tolist() == [
        float.fromhex(digits) for digits in ("0x1.aa6f18bd75296p-2", "0x1.43bd9ec50b1f6p-2", "0x1.dd0715a67a22cp-3")
    ]
    assert few.integers("a", 50258, 4)[0].tolist() == [20929, 751, 9510, 46846]
    assert (few.keep("a", 0.9, 2, 9)[1] > 0).int().tolist() == [
        [1, 1, 0, 1, 1, 1, 1, 0, 1],
        [1, 1, 1, 0, 1, 1, 1, 1, 1],
    ]
    assert stratified_times(3, 7, 4)[0].item() == float.fromhex("0x1.74d0ec34d8f82p-2")


@pytest.mark.parametrize(
    ("law", "digest"),
    [
        ("bits", "9ecf943bf6ea5961"),
        ("uniform", "3d146a647fe396a0"),
        ("keep", "da49c6249d165927"),
        ("integers", "512c4142cb5fb804"),
    ],
)
def test_many_numbers_are_made_in_blocks_and_are_the_same(law: str, digest: str) -> None:
    """Five times 33 667 words, which is no multiple of any block, nor of the four dropout values in a word."""
    many, shape = noise(count=5), (131, 257)
    laws = {
        "bits": lambda: many.bits("big", *shape),
        "uniform": lambda: many.uniform("big", *shape),
        "keep": lambda: many.keep("big", 0.9, *shape),
        "integers": lambda: many.integers("big", 30522, *shape),
    }
    values = laws[law]()
    assert values.dtype == {"bits": torch.int64, "uniform": torch.float64, "keep": torch.float32}.get(law, torch.int64)
    assert hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_no_numbers_and_one_number(shape: tuple[int, ...]) -> None:
    for law in (noise().bits, noise().uniform, noise().normal):
        assert law("a", *shape).shape == (64, *shape)
    assert noise().keep("a", 0.5, *shape).shape == (64, *shape)


def test_uniform_is_uniform_in_every_direction() -> None:
    u = noise(count=256).uniform("a", 512)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert abs(chi_square((u * 256).long(), 256)) < 4.5
    # neighbours along counters and along samples are independent: 2-d cells have equal counts
    for left, right in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:])):
        assert abs(chi_square((left * 16).long() * 16 + (right * 16).long(), 256)) < 4.5


@pytest.mark.parametrize(
    "other", [noise(1).uniform("a", 999), noise(0, 1).uniform("a", 999), noise().uniform("b", 999)]
)
def test_seed_step_and_tag_give_independent_numbers(other: torch.Tensor) -> None:
    base = noise().uniform("a", 999)
    cells = (base * 16).long() * 16 + (other * 16).long()
    assert abs(chi_square(cells, 256)) < 4.5
    assert not (base == other).any()


def test_numbers_depend_on_the_sample_only() -> None:
    whole = noise(count=8).uniform("a", 5)
    parts = [Noise.of(0, 0, torch.arange(a, b)).uniform("a", 5) for a, b in ((0, 3), (3, 4), (4, 8))]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole[[5, 2]], noise(count=8).select(torch.tensor([5, 2])).uniform("a", 5))


def test_normal_and_integers_have_their_laws() -> None:
    normal = noise(count=256).normal("n", 1024).flatten()
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        error = math.sqrt(float((normal ** (2 * power)).mean()) / len(normal))
        assert abs(float((normal**power).mean()) - moment) < 4.5 * error
    integers = noise(count=256).integers("i", 27, 1024)
    assert abs(chi_square(integers, 27)) < 4.5


def test_keep_is_a_scaled_bernoulli() -> None:
    kept = noise(count=64).keep("drop", 0.9, 37, 41)
    assert kept.shape == (64, 37, 41)
    level = round(0.9 * 65536) / 65536
    assert torch.unique(kept).tolist() == pytest.approx([0.0, 1 / level])
    rate = float((kept > 0).double().mean())
    assert abs(rate - level) < 4.5 * math.sqrt(0.09 / kept.numel())


@pytest.mark.parametrize("probability", [1e-9, 1 - 1e-9])
def test_keep_at_the_extremes(probability: float) -> None:
    kept = noise(count=64).keep("drop", probability, 4096)
    assert float((kept > 0).double().mean()) == pytest.approx(round(probability), abs=1e-3)


def test_stratified_times_fill_every_stratum_in_random_order() -> None:
    times = stratified_times(3, 7, 64)
    assert torch.equal((times * 64).floor().sort().values, torch.arange(64, dtype=torch.float64))
    assert not torch.equal(times, stratified_times(3, 8, 64))
    # a quarter of the batch (one process of four) covers all of (0, 1), not only a quarter of it
    firsts = torch.cat([stratified_times(3, step, 64)[:16] for step in range(200)])
    assert abs(float(firsts.mean()) - 0.5) < 4.5 * math.sqrt(1 / 12 / len(firsts))


@pytest.mark.parametrize("word", [0, 1, 1234567, 2**63, 2**64 - 1])
def test_a_word_of_the_host_is_mixed_as_one_of_a_tensor(word: int) -> None:
    from duality.noise import _mix, _mix_on_host, _to_signed

    assert _mix_on_host(word) == _mix(torch.tensor(_to_signed(word))).item()

"""duality variance: paired draws as in training, objectives by name, tables with intervals; nothing is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from support.runs import quiet
from torch import Tensor, nn

from duality.cli.main import main
from duality.data.packing import Sequences
from duality.files.progress import Show
from duality.models.model import Model, load
from duality.noise import Noise
from duality.objectives.base import loss_of_nats
from duality.papers.duo.variance.gradients import ALL, LOSS, SIGNAL, STATISTICS
from duality.papers.duo.variance.objectives import objectives_of
from duality.papers.duo.variance.settings import VarianceSettings
from duality.papers.duo.variance.study import (
    _draws_of,
    _markdown,
    _plot_variance,
    _VarianceRow,
    compare_objectives,
    measure_variance,
)
from duality.protocols import AnyDenoiser, Loss, Valid
from duality.runs.corpus import sequences_of_run

FEW = VarianceSettings(num_draws=12, groups=6, batch=4)


def parts(run: Path) -> tuple[Model, Sequences]:
    model = load(run, quiet, weights="model")
    return model, sequences_of_run(model, run, split="train")


# Draws


@dataclass(frozen=True)
class KnownNoise:
    """A loss whose gradient is known: each token has the slope 3 + a standard normal for one bias of the head."""

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        assert isinstance(denoiser, nn.Module)
        bias = dict(denoiser.named_parameters())["backbone.head.bias"][0].double()
        return loss_of_nats((3 + noise.normal("known", x.shape[1])) * (bias + 1), valid)


def test_a_known_gradient_is_measured_through_the_whole_pipeline(trained: Path) -> None:
    """The gradient is 3 + the mean of 4 x 32 normals: variance 1 / 128, signal 9, all in one weight."""
    model, sequences = parts(trained)
    settings = VarianceSettings(num_draws=240, batch=4)
    found = compare_objectives(model, sequences, {"known": KnownNoise()}, settings)["known"]
    assert found.num_weights == sum(value.numel() for value in model.denoiser.parameters())
    for name, true in ((ALL, 1 / 128), (SIGNAL, 9.0)):
        estimate = found.by_name[name].estimate()
        assert estimate.low < true < estimate.high, name
        assert estimate.high / estimate.low < 1.6
    assert not found.heavy_tailed


def test_the_dense_form_has_the_same_variance(trained: Path) -> None:
    """Paired draws: the ratio of two computations of one loss is 1, whatever the draws are."""
    model, sequences = parts(trained)
    found = compare_objectives(model, sequences, objectives_of(model, ("plain", "udlm")), FEW)
    for name in (ALL, LOSS):
        plain, dense = found["plain"].by_name[name], found["udlm"].by_name[name]
        assert dense.value == pytest.approx(plain.value, rel=1e-3)
        torch.testing.assert_close(dense.without, plain.without, rtol=1e-3, atol=0)


def test_the_division_of_a_batch_has_no_effect(trained: Path) -> None:
    model, sequences = parts(trained)
    objective = objectives_of(model, ("tau=0.03",))["tau=0.03"]
    whole, divided = (
        _draws_of(model, sequences, objective, replace(FEW, batch=6, micro_batch=size)) for size in (0, 4)
    )
    for number in range(2):
        (one, loss), (other, same) = whole(number), divided(number)
        assert same == pytest.approx(loss, rel=1e-6)
        assert float((one - other).norm() / one.norm()) < 1e-5
    assert float((whole(0)[0] - whole(1)[0]).norm()) > 0.01


def test_a_seed_gives_the_same_numbers_and_the_run_stays_as_it_is(trained: Path) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    settings = replace(FEW, objectives=("plain/polynomial", "window"))
    first, again, other = (
        [row.to_json() for row in measure_variance([trained], each)]
        for each in (settings, settings, replace(settings, seed=1))
    )
    assert first == again
    assert first != other
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_checkpoints_that_were_kept_are_measured(trained: Path, tmp_path: Path) -> None:
    rows = measure_variance([trained], replace(FEW, objectives=("plain",), steps="all"), out=tmp_path)
    assert [row.step for row in rows] == [5, 10, 15, 20]
    assert len({row.statistics.by_name[ALL].value for row in rows}) == 4
    last = measure_variance([trained], replace(FEW, objectives=("plain",)))
    assert last[0].to_json() == rows[-1].to_json()
    averaged = measure_variance([trained], replace(FEW, objectives=("plain",), weights="ema", steps=(20,)))
    assert averaged[0].statistics.by_name[ALL].value != rows[-1].statistics.by_name[ALL].value
    with pytest.raises(ValueError, match=r"no checkpoint of step 7: there are 5, 10, 15, 20; .*training.keep=N"):
        measure_variance([trained], replace(FEW, steps=(7,)))
    damaged = Path(shutil.copytree(trained, tmp_path / "damaged"))
    (damaged / "checkpoints" / "step-00000010" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        measure_variance([damaged], replace(FEW, steps=(10,)))


def test_the_time_limit_lowers_the_number_of_draws(trained: Path) -> None:
    settings = replace(FEW, objectives=("plain",), num_draws=6000)
    said: list[str] = []
    rows = measure_variance([trained], replace(settings, limit_seconds=2.0), report=said.append)
    assert 12 <= rows[0].statistics.num_draws < 6000
    assert rows[0].statistics.num_draws % 6 == 0
    assert any("to stay within the time limit" in line for line in said)
    with pytest.raises(ValueError, match="raise it, or name fewer objectives"):
        measure_variance([trained], replace(settings, limit_seconds=1e-6))


def test_weights_that_diverged_are_refused(trained: Path) -> None:
    model, sequences = parts(trained)
    next(model.denoiser.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="draw 0 has the loss nan"):
        compare_objectives(model, sequences, objectives_of(model, ("plain",)), FEW)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_draws": 50}, "use 40"),
        ({"batch": 0}, "at least 1 sequence"),
        ({"limit_seconds": 0.0}, "must be positive"),
        ({"groups": 2}, "at least 6"),
    ],
)
def test_settings_without_meaning_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VarianceSettings(**change)  # type: ignore[arg-type]


# Tables and the command


@pytest.fixture(scope="module")
def rows(trained: Path, others: dict[str, Path]) -> list[_VarianceRow]:
    names = ("plain/log-linear", "plain/polynomial", "window", "tau=0.03")
    found = measure_variance([trained], replace(FEW, objectives=names))
    return [*found, *measure_variance([others["mdlm"], others["ar"]], FEW)]


def test_tables_have_every_number_with_its_interval(rows: list[_VarianceRow], tmp_path: Path) -> None:
    text = _markdown(rows)
    assert text.count("\n|") == 2 * (len(rows) + 2)
    for row in rows:
        assert f"| {row.run}, {row.objective} |" in text
        for estimate in row.estimates.values():
            assert f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]" in text
    assert "window, tau=0.03: only the levels alpha in [0.05, 0.99]" in text
    assert "plain/log-linear: at these times the variance is infinite" in text
    assert "12 draws of a minibatch of 4 sequences of 32 tokens" in text
    # the first objective of each run is what its others are compared with
    assert rows[4].objective == "plain/log-linear"
    for row in (rows[0], rows[4]):
        ratio = row.ratios[ALL]
        assert ratio is not None
        assert ratio.value == ratio.low == ratio.high == 1
    _plot_variance(rows, tmp_path / "bars.png")
    _plot_variance([replace(row, step=step) for row in rows for step in (1, 2, 3)], tmp_path / "lines.png")
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_heavy_tail_is_named(rows: list[_VarianceRow]) -> None:
    heavy = replace(rows[1], statistics=replace(rows[1].statistics, largest_share=0.4))
    light = replace(rows[2], statistics=replace(rows[2].statistics, largest_share=0.01))
    text = _markdown([heavy, light])
    assert "Warning: plain/polynomial: one draw makes 40% of the variance" in text
    assert text.count("Warning") == 1


def test_the_command(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--objectives",
        "plain, tau=0.03",
        "--draws",
        "12",
        "--groups",
        "6",
        "--batch",
        "4",
        "--out",
        str(tmp_path),
    ]
    assert main(["variance", str(trained), *flags]) == 0
    assert capsys.readouterr().out.startswith("Variance of the gradient")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["variance.json", "variance.md", "variance.png"]
    assert main(["variance", str(trained), *flags, "--json", "--step", "10,20", "--window", "0.1,0.9"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "variance.json").read_text()) == found
    assert [(row["step"], row["objective"]) for row in found] == [
        (step, name) for step in (10, 20) for name in ("plain", "tau=0.03")
    ]
    for row in found:
        assert row["draws"] == 12
        assert list(row["statistics"]) == list(STATISTICS)
        for numbers in row["statistics"].values():
            assert numbers["low"] <= numbers["value"] <= numbers["high"]
    assert found[1]["window"] == [0.1, 0.9]


def test_mistakes_on_the_command_line_are_one_line(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str], str]] = [
        ([], "name run folders"),
        ([str(trained), "--step", "newest"], "--step 'newest'"),
        ([str(trained), "--window", "0.5"], "--window '0.5'"),
        ([str(trained), "--draws", "7"], "draws is 7"),
    ]
    for arguments, message in cases:
        assert main(["variance", *arguments]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert message in output.err


def test_progress_is_counted(trained: Path) -> None:
    seen: list[tuple[float, float]] = []

    class Shown:
        def __call__(self, message: str) -> None: ...

        @contextmanager
        def showing(self) -> Iterator[Show]:
            yield lambda pace, note: seen.append((pace.total, pace.done)) if pace.label == "gradients" else None

    measure_variance([trained], replace(FEW, objectives=("plain", "window")), report=Shown())
    assert {total for total, _ in seen} == {24}
    assert [done for _, done in seen] == list(range(25))

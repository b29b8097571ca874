"""The benchmark measures what it claims: turns, ratios, memory, bars. No assertion is about real time."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from benchmarks import bench, growth, objectives
from benchmarks.models import FULL, QUICK
from benchmarks.rows import Row, Size, in_sections
from benchmarks.timing import Runner, Spread, peak_bytes, take_turns
from duality.networks.dit import DiTNetwork
from duality.training.precision import has_bfloat16

MEBI = 1 << 20


class Machine:
    """Simulated clocks: in each turn the machine is slower than in the one before, and half of the time is waiting."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.calls: list[str] = []

    def runner(self, name: str, cost: float, prepare: float = 0.0) -> Runner:
        def run() -> None:
            self.calls.append(name)
            slowness = self.calls.count(name) ** 2
            self.wall += cost * slowness
            self.cpu += cost * slowness / 2

        def before() -> None:
            self.wall += prepare

        return Runner(name, run, before)


def test_runners_take_turns_and_ratios_are_of_neighbours() -> None:
    machine = Machine()
    runners = [machine.runner("bare", 2.0), machine.runner("costly", 6.0, prepare=100.0)]
    timings = take_turns(runners, 4, wall=lambda: machine.wall, cpu=lambda: machine.cpu)
    assert machine.calls == ["bare", "costly"] * 5
    # the first turn, which costs 2 and 6, is not counted
    assert timings.times["bare"].wall == pytest.approx((8.0, 18.0, 32.0, 50.0))
    assert timings.times["bare"].cpu == pytest.approx((4.0, 9.0, 16.0, 25.0))
    wall, cpu = timings.ratios("costly", "bare")
    assert wall.values == pytest.approx((3.0,) * 4)
    assert cpu.values == pytest.approx((3.0,) * 4)
    assert timings.seconds("costly") == pytest.approx(75.0)


def test_without_a_warm_up_every_turn_counts() -> None:
    machine = Machine()
    timings = take_turns([machine.runner("long", 2.0)], 1, warm_up=False, wall=lambda: machine.wall)
    assert timings.times["long"].wall == (2.0,)
    with pytest.raises(ValueError, match="warm_up"):
        take_turns([machine.runner("long", 2.0)], 1, warm_up=False, memory=True)


def test_names_must_differ() -> None:
    machine = Machine()
    with pytest.raises(ValueError, match="two runners of one name: same, same"):
        take_turns([machine.runner("same", 1.0), machine.runner("same", 2.0)], 1)


def test_spread() -> None:
    spread = Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (spread.low, spread.median, spread.high) == (2.0, 3.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, (7.0,))


def test_peak_memory_is_the_most_that_is_live_at_once() -> None:
    before = torch.ones(8 * MEBI, dtype=torch.uint8)

    def one_after_another() -> None:
        for size in (1, 3, 2):
            torch.zeros(size * MEBI, dtype=torch.uint8)

    def together() -> None:
        kept = [torch.zeros(size * MEBI, dtype=torch.uint8) for size in (1, 3, 2)]
        assert len(kept) == 3

    assert len(before) == 8 * MEBI  # live all the time, and not counted
    assert peak_bytes(one_after_another) == pytest.approx(3 * MEBI, rel=0.01)
    assert peak_bytes(together) == pytest.approx(6 * MEBI, rel=0.01)


GROUPS = {", ".join(each.name for each in group.entries): group for group in objectives.GROUPS + objectives.OTHERS}


@pytest.mark.parametrize("name", GROUPS)
def test_the_bare_network_is_called_as_often_as_in_the_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ratio compares the same network calls with the method and without."""
    calls = [0, 0]
    hidden: Callable[..., Tensor] = DiTNetwork.hidden

    def counted(self: DiTNetwork, *args: Any, **options: Any) -> Tensor:
        calls[torch.is_grad_enabled()] += 1
        return hidden(self, *args, **options)

    monkeypatch.setattr(DiTNetwork, "hidden", counted)
    group, counts = GROUPS[name], []
    for runner in objectives.runners_of(group, QUICK, QUICK.size(61)):
        runner.prepare()
        calls[:] = [0, 0]
        runner.run()
        counts.append(tuple(calls))
    assert counts == [(group.teacher_calls, 1)] * len(counts)
    assert len(counts) > 1


def test_gradients_are_not_added_to_old_ones() -> None:
    """Adding to old gradients would take more time and less memory."""
    bare, *others = objectives.runners_of(objectives.GROUPS[0], QUICK, QUICK.size(61))
    for runner in (bare, *others):
        runner.prepare()
        first = peak_bytes(runner.run)
        runner.prepare()
        assert peak_bytes(runner.run) == first


def test_growth_covers_vocabulary_length_and_batch() -> None:
    found = list(growth.sizes(FULL))
    assert [size.states for grows, size in found if grows == "states"] == [27, 1024, 8192, 30_522, 50_257, 256_000]
    assert [size.length for grows, size in found if grows == "length"] == [64, 128, 256, 512]
    assert [size.batch for grows, size in found if grows == "batch"] == [2, 4, 8, 16]
    assert {size.batch for grows, size in found if grows == "states" and size.states < 256_000} == {8}
    assert Size(256_000, 2, 128) in [size for _, size in found]


def made(value: float, bar: float | None, section: str = "objectives") -> Row:
    return Row(section, "Duo", "bare network", Size(27, 8, 128), Spread.of([value]), bar=bar)


def test_verdicts() -> None:
    assert [made(value, 1.2).verdict for value in (1.1, 1.2, 1.21)] == ["within", "within", "above"]
    assert made(9.0, None).verdict == ""


def test_the_table_keeps_sections_together_and_shows_verdicts() -> None:
    rows = [made(1.1, 1.2), made(2.0, 0.75, "memory"), made(1.3, 1.2)]
    assert [row.section for row in in_sections(rows)] == ["objectives", "objectives", "memory"]
    console = Console(width=170, file=io.StringIO())
    with console.capture() as capture:
        console.print(bench.table_of(rows))
    text = capture.get()
    assert [word for word in text.split() if word in ("within", "above")] == ["within", "above", "above"]
    assert text.count("objectives") == 1


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A quick run of all sections, in this process."""
    folder = tmp_path_factory.mktemp("bench")
    target, figure = folder / "new" / "bench.json", folder / "new" / "bench.png"
    bench.main(["--quick", "--repeats", "2", "--json", str(target), "--figure", str(figure)])
    return json.loads(target.read_text(encoding="utf-8")), figure


def bars(rows: list[dict[str, Any]], section: str) -> dict[str, float | None]:
    return {row["name"]: row["bar"] for row in rows if row["section"] == section}


def test_json_has_machine_scale_and_rows(result: tuple[dict[str, Any], Path]) -> None:
    content, _ = result
    assert content["machine"].keys() == {"cpu", "instructions", "cores", "threads", "torch", "python"}
    assert content["scale"]["batch"] == QUICK.batch
    sections = {row["section"] for row in content["rows"]}
    assert sections - {"precision"} == {
        *("objectives", "memory", "samplers", "sampler memory", "fused / plain, time", "fused / plain, memory"),
        *("growth with K", "growth with L", "growth with batch", "noise and T", "T", "data", "training", "generation"),
    }
    assert ("precision" in sections) == has_bfloat16(torch.device("cpu"))
    for row in content["rows"]:
        value = row["value"]
        assert 0 <= value["low"] <= value["median"] <= value["high"]
        assert value["values"]
        assert row["size"]["states"] > 0
        assert row["verdict"] == ("" if row["bar"] is None else "within" if value["median"] <= row["bar"] else "above")


def test_ratios_have_quartiles_and_cpu_times(result: tuple[dict[str, Any], Path]) -> None:
    rows = [row for row in result[0]["rows"] if row["section"] in ("objectives", "samplers", "growth with K")]
    assert rows
    for row in rows:
        assert row["unit"] == "x"
        assert len(row["value"]["values"]) == len(row["cpu"]["values"]) >= 2
        assert row["details"].keys() == {"seconds", "against_seconds"}


def test_rows_have_their_bars(result: tuple[dict[str, Any], Path]) -> None:
    rows = result[0]["rows"]
    steps = bars(rows, "objectives")
    held = {"Duo, curriculum", "Duo, bound", "MDLM", "SEDD absorbing", "SEDD uniform", "AR", "DCD"}
    assert {name for name, bar in steps.items() if bar == 1.2} == held
    assert {name for name, bar in steps.items() if bar is None} == {
        *("SDTT", "UDLM", "D3PM uniform", "D3PM absorbing", "DiffusionBERT", "BERT-Mouth", "Plaid")
    }
    assert {name: bar for name, bar in bars(rows, "memory").items() if bar is not None} == {
        "Duo, curriculum": 0.75,
        "Duo, bound": 0.75,
    }
    samplers = bars(rows, "samplers")
    assert len(samplers) == 6
    assert all(bar == (1.25 if name.startswith("analytic") else 1.15) for name, bar in samplers.items())
    assert set(bars(rows, "noise and T").values()) == {1.5}  # for each name the last row, at the largest vocabulary
    assert bars(rows, "T") == {"T ready for a new K": 0.5, "largest error of T": 1e-12}


def test_t_is_exact(result: tuple[dict[str, Any], Path]) -> None:
    errors = [row for row in result[0]["rows"] if row["name"] == "largest error of T"]
    assert [row["size"]["states"] for row in errors] == [27, 30_522, 256_000]
    assert all(row["verdict"] == "within" for row in errors)


def test_every_plain_step_has_its_counterpart(result: tuple[dict[str, Any], Path]) -> None:
    names = {
        *("Duo, curriculum", "Duo, bound", "DCD", "MDLM", "SEDD absorbing", "SEDD uniform", "AR"),
        *("ancestral step", "psi step"),
    }
    for kind in ("time", "memory"):
        assert bars(result[0]["rows"], f"fused / plain, {kind}").keys() == names


def test_the_figure_is_drawn(result: tuple[dict[str, Any], Path]) -> None:
    assert result[1].read_bytes().startswith(b"\x89PNG")


def test_one_section_alone_without_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, figure = tmp_path / "bench.json", tmp_path / "bench.png"
    arguments = ["--quick", "--repeats", "1", "--only", "training"]
    bench.main([*arguments, "--json", str(target), "--figure", str(figure)])
    rows = json.loads(target.read_text(encoding="utf-8"))["rows"]
    assert {row["section"] for row in rows} == {"training"}
    assert not figure.exists()
    captured = capsys.readouterr()
    assert "no figure" in captured.err
    assert "duo-laptop, curriculum" in captured.out


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--repeats", "0"]])
def test_mistakes_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        bench.main(["--quick", *arguments])
    assert failure.value.code == 2


def test_the_parts_of_the_benchmark_stay_readable() -> None:
    for path in Path(bench.__file__).parent.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path

"""Trackers: they see all of metrics.jsonl, once; a training is the same with them, and goes on when they fail."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support import session
from support.checkpoints import load_newest
from support.runs import quiet, small_recipe
from support.trackers import FILE, Failing, Recorder, recorded

from duality.recipes.recipe import Recipe
from duality.runs.trackers.tracker import KEPT, Tracker, Trackers, trackers_named
from duality.training.loop import StepRecord
from duality.training.metrics import read_metrics

SETTINGS = (
    "training.steps=6",
    "training.save_every=3",
    "training.eval_every=4",
    "data.length=16",
    "generation.steps=2",
)


@pytest.fixture
def recipe(english: Path) -> Recipe:
    return small_recipe(english, *SETTINGS)


@pytest.fixture(scope="module")
def plain(english: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training without trackers."""
    folder = tmp_path_factory.mktemp("trackers") / "plain"
    session.train(small_recipe(english, *SETTINGS), folder, report=quiet)
    return folder


class Killed(Exception):
    """A process that ends without saving."""


def kill_at(step: int) -> Any:
    def watch(record: StepRecord) -> None:
        if record.step == step:
            raise Killed

    return watch


def train(recipe: Recipe, folder: Path, *trackers: str | Tracker, **more: Any) -> list[str]:
    """Train with these trackers; what was reported."""
    said: list[str] = []
    try:
        session.train(recipe, folder, report=said.append, log=trackers, **more)
    except Killed:
        said.append("killed")
    return said


def weights(folder: Path) -> dict[str, torch.Tensor]:
    saved = load_newest(folder / "checkpoints", quiet)
    assert saved is not None
    return {f"{group}.{name}": value for group, values in saved.groups.items() for name, value in values.items()}


def assert_same_training(left: Path, right: Path) -> None:
    ours, theirs = weights(left), weights(right)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    losses = [[(row["step"], row.get("loss")) for row in read_metrics(each)] for each in (left, right)]
    assert losses[0] == losses[1]


def test_a_tracker_gets_everything_and_changes_nothing(recipe: Recipe, plain: Path, tmp_path: Path) -> None:
    train(recipe, tmp_path / "tracked", Recorder())
    found = recorded(tmp_path / "tracked")
    assert found[0] == ["start", "duo-laptop", 0]
    assert [entry[1] for entry in found if entry[0] == "metrics"] == read_metrics(tmp_path / "tracked")
    written = [json.loads(line)["text"] for line in (tmp_path / "tracked/samples/step-00000006.jsonl").open()]
    assert [entry[1:] for entry in found if entry[0] == "samples"][-1] == [6, written]
    assert found[-2] == ["figure", 6, "loss", (tmp_path / "tracked" / "loss.png").stat().st_size]
    assert found[-1] == ["close"]
    assert_same_training(tmp_path / "tracked", plain)


def test_a_tracker_that_fails_is_left_out_and_training_goes_on(recipe: Recipe, plain: Path, tmp_path: Path) -> None:
    said = train(recipe, tmp_path / "run", Failing(), Recorder())
    (warning,) = (line for line in said if line.startswith("warning"))
    assert "the tracker Failing has failed (OSError: [Errno 28] No space left on device); training goes on" in warning
    assert_same_training(tmp_path / "run", plain)
    kinds = Counter(entry[0] for entry in recorded(tmp_path / "run"))
    assert kinds["close"] == 2  # the one that failed is closed too
    assert kinds["metrics"] == 2 + len(read_metrics(tmp_path / "run"))


def test_one_that_is_new_gets_the_rows_of_before_and_every_one_the_changes(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path / "run", watch=kill_at(5))
    other = small_recipe(Path(recipe.data.corpus), *SETTINGS, "training.clip=0.5")
    train(other, tmp_path / "run", Recorder(), resume=True)
    (changed,) = (row for row in read_metrics(tmp_path / "run") if "changed" in row)
    rows = [entry[1] for entry in recorded(tmp_path / "run") if entry[0] == "metrics"]
    assert [row for row in rows if row != changed] == [row for row in read_metrics(tmp_path / "run") if row != changed]
    assert changed in rows
    train(other, tmp_path / "run", Recorder(), resume=True)  # a complete run: nothing is given again
    assert [entry[0] for entry in recorded(tmp_path / "run")[-3:]] == ["start", "figure", "close"]


def test_trackers_by_name(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a module, a class in the present folder; what is none is refused before anything is written."""
    train(recipe, tmp_path / "run", "support.trackers:Recorder")
    assert (tmp_path / "run" / FILE).exists()
    (tmp_path / "my_own.py").write_text("from support.trackers import Recorder\nclass Mine(Recorder): pass\n")
    monkeypatch.chdir(tmp_path)
    assert list(trackers_named(["my_own:Mine"]).by_name) == ["my_own:Mine"]
    for spec, words in {
        "tensorbord": "did you mean tensorboard",
        "nothing_here:Mine": "No module named 'nothing_here'",
        "json:dumps": "is a function, no tracker",
        "wandb:sometimes": "choose from offline, online, disabled",
    }.items():
        with pytest.raises(ValueError, match=words):
            trackers_named([spec])
    with pytest.raises(ValueError, match="Recorder stands twice"):
        trackers_named([Recorder(), Recorder()])


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ValueError, match=rf"pip install .*\[{name}\]'"):
        trackers_named([name])


def test_a_damaged_file_of_the_trackers_does_not_stop_a_training(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path / "run", watch=kill_at(5))
    (tmp_path / "run" / KEPT).write_text("[1")
    said = train(recipe, tmp_path / "run", Recorder(), resume=True)
    assert any(line.startswith("warning") and "goes on without trackers" in line for line in said)
    assert read_metrics(tmp_path / "run")[-1]["step"] == 6


# --- TensorBoard


@pytest.mark.slow
def test_tensorboard_shows_every_step_once(recipe: Recipe, plain: Path, tmp_path: Path) -> None:
    """Killed after step 4, resumed from step 3: what was logged after it is hidden, and logged again."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing import plugin_event_accumulator
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    assert train(recipe, run, "tensorboard", watch=kill_at(5))[-1] == "killed"
    assert len(read_metrics(run)) == 5  # four steps and a validation; the checkpoint is of step 3
    train(recipe, run, "tensorboard", resume=True)
    assert_same_training(run, plain)
    shown = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0, "images": 0})
    shown.Reload()
    rows = read_metrics(run)
    for tag, name in {
        "training/loss": "loss",
        "training/gradient_norm": "gradient_norm",
        "validation/nats": "validation_nats",
        "training/learning_rate": "learning_rate",
        "training/tokens_per_second": "tokens_per_second",
    }.items():
        expected = [(row["step"], row[name]) for row in rows if name in row]
        found = [(event.step, event.value) for event in shown.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-6)
    texts = shown.Tags()["tensors"]
    assert {"recipe/text_summary", "samples/0/text_summary", "training/phase/text_summary"} <= set(texts)
    phases = [
        (event.step, event.tensor_proto.string_val[0].decode())
        for event in shown.Tensors("training/phase/text_summary")
    ]
    assert {name for _, name in phases} == {"curriculum", "bound"}
    served = plugin_event_accumulator.EventAccumulator(
        str(run / "tensorboard")
    )  # what the server reads: all as tensors
    served.Reload()
    assert [event.step for event in served.Tensors("samples/1/text_summary")] == [4, 6]
    assert [event.encoded_image_string for event in shown.Images("figures/loss")] == [(run / "loss.png").read_bytes()]
    assert "_hparams_/experiment" in shown.summary_metadata


# --- Weights & Biases


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The library, without settings of this machine."""
    found = pytest.importorskip("wandb", reason="wandb is not installed")
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_NAME", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    yield found
    found.teardown()


def records(file: Path) -> Iterator[bytes]:
    """The records of a file of W&B: after its seven bytes, blocks of 32 kB as LevelDB writes its log."""
    data, place, begun = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # no room for the beginning of a record: the rest of a block is empty
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        begun += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield begun
            begun = b""


def history(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows that the offline runs of a folder have logged, read from their files."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for data in records(file):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }


@pytest.mark.slow
@pytest.mark.usefixtures("wandb")
def test_wandb_writes_one_run_offline_with_every_step_once(recipe: Recipe, tmp_path: Path) -> None:
    """Killed after step 4, resumed from step 3: the id is the same, and no step is logged twice."""
    run = tmp_path / "run"
    assert train(recipe, run, "wandb", watch=kill_at(5))[-1] == "killed"
    said = train(recipe, run, "wandb", resume=True)
    assert not [line for line in said if line.startswith("warning")]
    number = json.loads((run / KEPT).read_text())["wandb"]["id"]
    files = [path.name for path in run.glob("wandb/offline-run-*/*.wandb")]
    assert files == [f"run-{number}.wandb"] * 2
    rows, logged = read_metrics(run), list(history(run))
    for tag, name in {"training/loss": "loss", "validation/nats": "validation_nats", "phase": "phase"}.items():
        assert [(row["step"], row[tag]) for row in logged if tag in row] == [
            (row["step"], row[name]) for row in rows if name in row
        ]
    assert [row["step"] for row in logged if "samples/_type" in row] == [4, 6]
    numbers = [row["_step"] for row in logged]
    assert numbers == sorted(set(numbers))  # over both files
    assert any(any(key.startswith("figures") for key in row) for row in logged)


def test_no_tracker_is_the_default() -> None:
    assert trackers_named([]).by_name == {} == Trackers({}).by_name

"""The command line of few-step generation: distill, evaluate rounds, watch, measure; and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support import session
from support.checkpoints import load_newest
from support.runs import quiet, small_recipe

from duality.cli.main import main
from duality.models import model as run_model
from duality.models.folder import read_recipe
from duality.models.trace import read_trace
from duality.samplers import GRIDS, SAMPLERS
from duality.samplers.choice import grid_named
from duality.samplers.psi import Psi
from duality.training import checkpoint


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    """Trained runs of several kinds, each of a few steps."""
    folder = tmp_path_factory.mktemp("bases")
    for name in ("duo-laptop", "mdlm-laptop", "ar-laptop", "sedd-absorb-laptop"):
        session.train(small_recipe(english, "training.steps=3", name=name), folder / name, report=quiet)
    return folder


@pytest.fixture(scope="session")
def distilled(bases: Path) -> Path:
    out = bases / "duo-dcd"
    assert main(["distill", str(bases / "duo-laptop"), "--rounds", "2", "--round-steps", "3", "--out", str(out)]) == 0
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("duality: error:")]
    assert len(lines) == 1
    assert "Traceback" not in captured.err
    return lines[0]


# --- distill


def test_distill_chooses_the_kind_that_suits_the_model_and_names_the_base(
    bases: Path, distilled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = read_recipe(distilled)
    assert recipe.name == "duo-laptop-dcd"
    assert recipe.source == "duo-laptop at step 3"
    assert recipe.distillation is not None
    assert (recipe.distillation.rounds, recipe.distillation.round_steps, recipe.training.steps) == (2, 3, 6)
    options = ["--rounds", "1", "--round-steps", "2", "--divergence", "tvd", "--growth", "linear", "--teacher", "ema"]
    options += ["--delta", "0.25", "--set", "training.learning_rate=0.01", "distillation.teacher_steps=3"]
    assert main(["distill", str(bases / "mdlm-laptop"), *options]) == 0
    made = read_recipe(bases / "mdlm-laptop-sdtt")
    assert type(made.distillation).__name__ == "SDTT"
    assert made.training.learning_rate == 0.01
    assert "step 2, validation" in capsys.readouterr().out
    shown = json.loads((bases / "mdlm-laptop-sdtt" / "recipe.json").read_text())["distillation"]
    assert shown == {
        "type": "SDTT",
        "rounds": 1,
        "round_steps": 2,
        "delta": 0.25,
        "growth": "linear",
        "teacher": "ema",
        "divergence": "tvd",
        "teacher_steps": 3,
    }


def test_a_distillation_for_a_number_of_steps(bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds and delta of the dry run: by the rule, unless one of them is given; the paper's at 32 steps."""

    def planned(base: str, *options: str) -> dict[str, object]:
        arguments = ["distill", str(bases / base), "--out", str(tmp_path / "few"), "--dry-run", *options]
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        found: dict[str, object] = json.JSONDecoder().raw_decode(printed[printed.index("{") :])[0]["distillation"]
        return found

    def rounds(base: str, *options: str) -> tuple[object, object]:
        found = planned(base, *options)
        return found["rounds"], found["delta"]

    assert rounds("duo-laptop") == rounds("duo-laptop", "--for-steps", "32") == (5, 1 / 512)
    assert rounds("mdlm-laptop") == rounds("mdlm-laptop", "--for-steps", "32") == (5, 1 / 1024)
    assert rounds("duo-laptop", "--for-steps", "8") == (5, 1 / 128)
    assert rounds("duo-laptop", "--for-steps", "8", "--rounds", "3") == (3, 1 / 32)
    assert rounds("duo-laptop", "--for-steps", "8", "--delta", "0.03125") == (3, 1 / 32)
    assert rounds("duo-laptop", "--for-steps", "8", "--growth", "linear", "--rounds", "4") == (4, 1 / 32)
    assert rounds("mdlm-laptop", "--for-steps", "4") == (5, 1 / 128)
    assert planned("duo-laptop", "--compare", "posterior")["compare"] == "posterior"
    assert planned("duo-laptop")["round_steps"] == 150  # the base has 3 steps
    base = ("distill", str(bases / "duo-laptop"), "--out", str(tmp_path / "few"), "--for-steps")
    assert "for_steps is 0" in refused(capsys, *base, "0")
    assert "leave one of the three out" in refused(capsys, *base, "8", "--rounds", "3", "--delta", "0.1")
    assert "delta is 0.0" in refused(capsys, *base, "8", "--delta", "0")
    line = refused(capsys, "distill", str(bases / "mdlm-laptop"), "--compare", "output", "--dry-run")
    assert "SDTT has no such field" in line
    assert "leave it out" in line


def test_a_distillation_is_resumed_by_either_command(bases: Path, distilled: Path, tmp_path: Path) -> None:
    """From an older checkpoint: both end with the weights of the uninterrupted run."""
    base, command = str(bases / "duo-laptop"), ["--rounds", "2", "--round-steps", "3"]
    expected = load_newest(distilled / "checkpoints", quiet)
    assert expected is not None
    for number, arguments in enumerate((["distill", base, *command], ["train", "duo-laptop-dcd"])):
        copy = tmp_path / str(number)
        shutil.copytree(distilled, copy)
        for step in checkpoint.steps_saved(copy / "checkpoints")[1:]:
            shutil.rmtree(copy / "checkpoints" / f"step-{step:08d}")
        (left,) = checkpoint.steps_saved(copy / "checkpoints")
        assert left < 6
        assert main([*arguments, "--out", str(copy), "--resume"]) == 0
        found = load_newest(copy / "checkpoints", quiet)
        assert found is not None
        assert found.step == 6
        for group, tensors in expected.groups.items():
            assert all(bool((found.groups[group][name] == value).all()) for name, value in tensors.items()), group


def test_what_distilling_refuses(
    bases: Path, distilled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "few"), "--round-steps", "2"]
    assert "AR cannot be distilled" in refused(capsys, "distill", str(bases / "ar-laptop"), *out)
    assert "does not draw from a belief" in refused(capsys, "distill", str(bases / "sedd-absorb-laptop"), *out)
    assert "use --method sdtt" in refused(capsys, "distill", str(bases / "mdlm-laptop"), "--method", "dcd", *out)
    assert "use --method dcd" in refused(capsys, "distill", str(bases / "duo-laptop"), "--method", "sdtt", *out)
    assert "rounds is 0" in refused(capsys, "distill", str(bases / "duo-laptop"), "--rounds", "0", *out)
    for field in ("growth", "teacher", "divergence", "compare"):
        with pytest.raises(SystemExit) as parser:  # the parser knows the choices
            main(["distill", str(bases / "duo-laptop"), f"--{field}", "loud", *out])
        assert parser.value.code == 2
        assert "invalid choice" in capsys.readouterr().err
        line = refused(capsys, "distill", str(bases / "duo-laptop"), "--set", f"distillation.{field}=loud", *out)
        assert f"distillation.{field} is 'loud': it must be one of" in line
    assert "is not a run" in refused(capsys, "distill", str(tmp_path / "nothing"), *out)
    assert "set the rounds instead" in refused(
        capsys, "distill", str(bases / "duo-laptop"), "--set", "training.steps=9", *out
    )
    assert not (tmp_path / "few" / "recipe.json").exists()
    before = (distilled / "recipe.json").read_bytes()
    again = ["distill", str(bases / "duo-laptop"), "--out", str(distilled), "--rounds", "2", "--round-steps", "3"]
    assert "already holds a run" in refused(capsys, *again)
    assert "another recipe (distillation.delta" in refused(capsys, *again, "--delta", "0.1", "--resume")
    assert (distilled / "recipe.json").read_bytes() == before


def test_dry_run_of_a_distillation(bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distill", str(bases / "duo-laptop"), "--out", str(tmp_path / "few"), "--dry-run"]) == 0
    assert '"distillation"' in capsys.readouterr().out
    assert not (tmp_path / "few").exists()


# --- rounds


def test_rounds_can_be_evaluated_and_sampled(distilled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for number in ("0", "2"):
        assert main(["eval", str(distilled), "--round", number, "--limit", "4", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [row["step"] for row in found] == [0, 6]
    assert found[0]["nats_per_token"] != found[1]["nats_per_token"]
    assert main(["sample", str(distilled), "--round", "1", "--num", "1", "--steps", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trained_steps"] == 3
    assert "has no round 3" in refused(capsys, "sample", str(distilled), "--round", "3")


# --- samplers and grids


@pytest.mark.parametrize("name", ["own", *SAMPLERS])
@pytest.mark.parametrize("base", ["duo-laptop", "mdlm-laptop"])
def test_every_sampler_by_name(bases: Path, capsys: pytest.CaptureFixture[str], base: str, name: str) -> None:
    arguments = ["sample", str(bases / base), "--num", "2", "--steps", "5", "--length", "6", "--sampler", name]
    if name == "analytic":
        assert "needs the ratios of a score model" in refused(capsys, *arguments)
        return
    assert main([*arguments, "--top-p", "0.9", "--temperature", "0.8", "--prompt", "The", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(row["text"].startswith("The") and len(row["tokens"]) == 6 for row in rows)
    assert all(token < 257 for row in rows for token in row["tokens"])


def test_names_of_the_command_line_are_those_of_the_library() -> None:
    from typing import get_args

    from duality.models.requests import GridName, SamplerName

    assert get_args(SamplerName) == ("own", *SAMPLERS)
    assert get_args(GridName) == tuple(GRIDS)


def test_eta_and_grid_are_refused_where_they_have_no_meaning(bases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = str(bases / "duo-laptop")
    assert "has none" in refused(capsys, "sample", run_folder, "--eta", "0.1")
    assert "use the two together" in refused(capsys, "sample", run_folder, "--grid", "loop")
    assert "use the two together" in refused(capsys, "sample", run_folder, "--sampler", "psi-loop", "--grid", "linear")
    assert "steps is 0" in refused(capsys, "sample", run_folder, "--steps", "0")
    assert "steps is -4" in refused(capsys, "sample", run_folder, "--steps", "-4")
    long = "x" * 40
    assert "shorten them or raise the length" in refused(capsys, "sample", run_folder, "--prompt", long)
    model = run_model.load(bases / "duo-laptop", quiet)
    chosen = model.named_sampler("psi-cap", 0.3)
    assert isinstance(chosen, Psi)
    assert (chosen.rule, chosen.eta) == ("cap", 0.3)
    assert type(grid_named(None, "psi-loop")).__name__ == "LinearConstantLinear"


# --- watching


@pytest.mark.parametrize("base", ["duo-laptop", "mdlm-laptop", "ar-laptop"])
def test_watching_and_tracing(bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str) -> None:
    steps = [] if base == "ar-laptop" else ["--steps", "4"]
    arguments = ["sample", str(bases / base), "--num", "3", "--length", "8", "--batch-size", "2", "--json", *steps]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    assert main([*arguments, "--watch", "--trace", str(tmp_path / "trace.json")]) == 0
    captured = capsys.readouterr()
    assert captured.out == plain  # watching changes no sample and prints to another stream
    count = 8 if base == "ar-laptop" else 4
    assert f"step {count} of {count}" in captured.err
    recording = read_trace(tmp_path / "trace.json")
    rows = [json.loads(line) for line in plain.splitlines()]
    assert [list(sample.frames[-1].tokens) for sample in recording.samples] == [row["tokens"] for row in rows]
    assert all([moment.step for moment in sample.frames] == list(range(count + 1)) for sample in recording.samples)
    assert (recording.mask_id is None) == (base != "mdlm-laptop")
    assert recording.about["seed"] == 0
    assert "there is no folder" in refused(capsys, *arguments, "--trace", str(tmp_path / "no" / "trace.json"))


# --- quality


def test_quality_of_rounds_and_tails_is_measured_once(
    bases: Path, distilled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "quality"
    options = ["--steps", "2,4", "--tail", "ancestral,greedy", "--rounds", "all", "--judge", "none", "--num", "3"]
    arguments = ["quality", str(distilled), str(bases / "mdlm-laptop"), *options, "--out", str(out)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.count("sampling ") == 2 * 2 * 3 + 2 * 2
    assert captured.out.startswith("| round | steps | duo-dcd")
    assert "mdlm-laptop" in captured.out
    rows = json.loads((out / "quality.json").read_text())["rows"]
    assert len(rows) == 16
    assert {row["round"] for row in rows} == {0, 1, 2, None}
    assert all(row["nfe"] == row["steps"] for row in rows if "dcd" in row["label"])
    assert (out / "quality.png").stat().st_size > 5000
    assert (out / "rounds.png").stat().st_size > 5000
    # again: nothing is sampled, and the output is the same
    assert main([*arguments, "--json"]) == 0
    again = capsys.readouterr()
    assert "sampling " not in again.err
    assert json.loads(again.out)[:16] == rows
    # the figure can be drawn from the saved rows
    assert main(["plot", str(out), "--out", str(tmp_path / "again.png")]) == 0
    assert (tmp_path / "again.png").stat().st_size > 5000
    assert "| steps |" in capsys.readouterr().out


def test_quality_of_an_autoregressive_model_takes_its_own_steps(
    bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--judge", "none", "--num", "2", "--length", "8", "--out", str(tmp_path), "--json"]
    assert main(["quality", str(bases / "ar-laptop"), "--steps", "own", *options]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["steps"], row["nfe"]) == (8, 8.0)


def test_what_quality_refuses(bases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, out = str(bases / "duo-laptop"), ["--out", str(tmp_path / "q")]
    assert "no judge at" in refused(capsys, "quality", base, "--judge", "no/such/file.gguf", *out)
    assert "whole numbers" in refused(capsys, "quality", base, "--steps", "8,many", "--judge", "none", *out)
    assert "steps is 0" in refused(capsys, "quality", base, "--steps", "0", "--judge", "none", *out)
    assert "--tail 'lazy'" in refused(capsys, "quality", base, "--tail", "lazy", "--judge", "none", *out)
    assert "no sampler 'psi'" in refused(capsys, "quality", base, "--sampler", "psi", "--judge", "none", *out)
    assert "nothing to measure" in refused(capsys, "quality", "--judge", "none", *out)
    assert "is not a run" in refused(capsys, "quality", str(tmp_path), "--judge", "none", *out)
    assert not (tmp_path / "q").exists()
    assert "nothing to draw" in refused(capsys, "plot")
    (tmp_path / "quality.json").write_text("{}")
    assert "is not a quality.json" in refused(capsys, "plot", str(tmp_path))

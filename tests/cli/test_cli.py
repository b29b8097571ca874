"""The command line: real processes, real files, and one clear line with exit code 2 for a mistake."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from support.runs import small_recipe

from duality.cli import COMMANDS
from duality.cli.main import _spread, main
from duality.data.corpus import prepare
from duality.data.store import TokenStore
from duality.files.atomic import file_sha256
from duality.files.cache import seal
from duality.models import folder, requests
from duality.protocols import Tail
from duality.recipes.catalogue import recipe
from duality.samplers import GRIDS, SAMPLERS
from duality.tokenizers.specs import Bytes
from duality.tokenizers.tokenizer import CharTokenizer
from duality.training import DISTILLATIONS
from duality.training.metrics import read_metrics

SMALL = [
    "--set",
    "data.tokenizer=bytes",
    "data.length=32",
    "backbone=nano",
    "training.batch_size=4",
    "training.save_every=5",
    "training.log_every=1",
]


def duality(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command, in its own process."""
    command = Path(sys.executable).parent / "duality"
    return subprocess.run([str(command), *arguments], capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    assert main(["train", "duo-laptop", "--out", str(folder), "--data", str(english), "--steps", "6", *SMALL]) == 0
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, which a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr of a command that must exit with 2."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit:  # the parser's own errors
        code = int(exit.code or 0)
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    lines = [line for line in output.err.splitlines() if line.startswith("duality: error: ")]
    assert len(lines) == 1, output.err
    return lines[0]


@pytest.mark.parametrize("arguments", [["--help"], ["sample", "--help"], ["distill", "--help"]], ids=" ".join)
def test_help_needs_no_torch(arguments: list[str]) -> None:
    script = (
        "import sys; from duality.cli.main import main\n"
        f"try: main({arguments})\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    shown = {"--help": COMMANDS, "sample": [*SAMPLERS, *GRIDS], "distill": DISTILLATIONS}[arguments[0]]
    for name in shown:
        assert name in result.stdout.replace("│\n│ ", "")


def test_commands_are_thin() -> None:
    """The work is done in the library: a command has at most 30 lines after its docstring."""
    for name, command in COMMANDS.items():
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(command))).body
        assert isinstance(function, ast.FunctionDef)
        first, last = function.body[1].lineno, function.body[-1].end_lineno
        assert last is not None
        assert last - first < 30, name


def test_choices_without_a_registry_are_those_of_the_library() -> None:
    assert set(get_args(requests.Tail)) == set(get_args(Tail))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main([command, "--help"])
    assert exit.value.code == 0
    assert len(capsys.readouterr().out) > 150


def test_train_eval_sample(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "recipe.json",
        "env.json",
        "tokenizer.json",
        "corpus.json",
        "metrics.jsonl",
        "loss.png",
        "samples/step-00000006.jsonl",
    ):
        assert (trained / name).stat().st_size > 0
    assert main(["eval", str(trained), "--draws", "2"]) == 0
    text = capsys.readouterr().out
    assert "PPL <= " in text
    assert "bits per character" in text
    assert main(["eval", str(trained), "--json", "--draws", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert f"PPL <= {result['perplexity']:.2f} ± {result['perplexity_stderr']:.2f}" in text
    assert result["num_tokens"] > 100
    assert main(["sample", str(trained), "--num", "2", "--steps", "3", "--length", "20"]) == 0
    assert "sample 2 of 2: 3 steps, ancestral tail, temperature 0.8, seed 0" in capsys.readouterr().out


def samples(capsys: pytest.CaptureFixture[str], trained: Path, *flags: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["sample", str(trained), "--json", "--steps", "4", "--length", "24", *flags]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_samples_are_reproducible_and_depend_on_their_flags(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = samples(capsys, trained, "--num", "5", "--tail", "ancestral")
    assert first == samples(capsys, trained, "--num", "5", "--tail", "ancestral", "--batch-size", "2")
    assert first[:3] == samples(capsys, trained, "--num", "3", "--tail", "ancestral")
    assert first != samples(capsys, trained, "--num", "5", "--tail", "ancestral", "--seed", "1")
    assert all(len(row["tokens"]) == 24 for row in first)
    kept = samples(capsys, trained, "--prompt", "The ", "--suffix", " end", "--top-p", "0.9", "--temperature", "0.8")
    assert all(str(row["text"]).startswith("The ") and str(row["text"]).endswith(" end") for row in kept)


def test_evaluating_other_text(
    trained: Path, english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Ein anderer Text, auf den sich das Modell nicht versteht. " * 20)
    values = []
    for data in (other, english):
        assert main(["eval", str(trained), "--json", "--data", str(data), "--draws", "4"]) == 0
        values.append(json.loads(capsys.readouterr().out))
    assert values[0]["num_tokens"] == len(other.read_text()) + 1
    assert values[1]["num_tokens"] == english.stat().st_size + 1


def test_recipes_and_data_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert main(["data", "list"]) == 0
    output = capsys.readouterr().out
    for word in ("duo-laptop", "duo-small", "Table 1, row 11", "gutenberg-prose (default)"):
        assert word in output


def test_dry_run_prints_the_recipe_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "duo-small", "--dry-run", "--out", str(tmp_path / "x"), "--steps", "9"]) == 0
    output = capsys.readouterr().out
    assert '"steps": 9' in output
    assert "parameters" in output
    assert not (tmp_path / "x").exists()


def test_assignments_may_follow_one_set_or_many() -> None:
    expected = ["train", "r", "--set", "a=1", "--set", "b=2", "--resume"]
    assert _spread(["train", "r", "--set", "a=1", "b=2", "--resume"]) == expected
    assert _spread(["train", "r", "--set", "a=1", "--set", "b=2", "--resume"]) == expected
    for alone in (["train", "r", "--set"], ["train", "r", "--set", "--resume"]):
        assert _spread(alone) == alone


def test_bad_corpora(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, short, tiny, binary = (tmp_path / f"{name}.txt" for name in ("empty", "short", "tiny", "binary"))
    tiny.write_text("Too short.")
    empty.write_text("")
    short.write_text("Too short.\nBy far.")
    binary.write_bytes(b"text\x00\x01\x02" * 100)
    cases = {
        empty: "empty",
        short: "less than one sequence of length 32",
        tiny: "too short to hold out",
        binary: "binary.txt",
        tmp_path / "absent.txt": "absent.txt",
    }
    for data, message in cases.items():
        line = refused(capsys, "train", "duo-laptop", "--out", tmp_path / "out", "--data", data, *SMALL)
        assert message in line
        assert not (tmp_path / "out" / "recipe.json").exists()


def test_bad_requests(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    cases = {
        ("train", "duo-labtop"): "did you mean duo-laptop",
        ("train", "duo-laptop", "--set", "training.stepz=3"): "did you mean steps",
        ("train", "duo-laptop", "--steps", "0"): "training.steps is 0: it must be at least 1",
        ("train", "duo-laptop", "--out", trained): "already holds a run",
        ("train", "duo-laptop", "--out", trained / "recipe.json" / "below"): "Not a directory",
        ("train", "duo-laptop", "--out", "/proc/duality"): "/proc/duality; check the path and its permissions",
        ("train", "duo-laptop", "--out", trained, "--resume", "--seed", "5"): "training.seed: 1 -> 5",
        ("train", "duo-small", "--out", trained, "--resume"): "holds a run of duo-laptop, not of duo-small",
        ("eval", tmp_path): "is not a run",
        ("eval", tmp_path / "absent"): "is not a run",
        ("eval", trained, "--data", tmp_path / "absent.txt"): "absent.txt",
        ("eval", trained, "--draws", "0"): "at least 1",
        ("sample", trained, "--steps", "0"): "steps is 0",
        ("sample", trained, "--num", "0"): "num is 0",
        ("sample", trained, "--length", "0"): "length is 0",
        ("sample", trained, "--batch-size", "0"): "batch_size 0",
        ("sample", trained, "--top-p", "0"): "top-p is 0",
        ("sample", trained, "--temperature", "-1"): "temperature is -1",
        ("sample", trained, "--length", "3", "--prompt", "too long"): "8 tokens, the sample 3",
        ("sample", trained, "--device", "cuda"): "no GPU",
        ("data", "get", "gutenberg-prosa"): "gutenberg-prose",
    }
    for arguments, message in cases.items():
        assert message in refused(capsys, *arguments), arguments
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the error of the system is simulated; nothing is created."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "the run folder cannot be written" in refused(capsys, "train", "duo-laptop", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_parser_errors_exit_with_2() -> None:
    for arguments in (
        ["train", "duo-laptop", "--set"],
        ["sample", "x", "--stepz", "3"],
        ["sample", "x", "--tail", "best"],
        ["dance"],
        [],
    ):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 2


def test_a_damaged_checkpoint_is_reported_and_an_older_one_used(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "checkpoints" / "step-00000006" / "ema.safetensors").write_bytes(b"")
    assert main(["sample", str(copy), "--num", "1", "--steps", "1", "--json"]) == 0
    output = capsys.readouterr()
    assert "step-00000006 is damaged (ema.safetensors has 0 bytes" in " ".join(output.err.split())
    assert json.loads(output.out)["trained_steps"] == 5
    (copy / "checkpoints" / "step-00000005" / "ema.safetensors").unlink()
    assert "is intact" in refused(capsys, "sample", copy)


def overwritten_store(corpus: Path) -> TokenStore:
    """A prepared corpus of the cache, whose first token is changed to one that does not exist."""
    corpus.write_text("Some text to learn from, again and again. " * 50)
    store = prepare(str(corpus), Bytes()).train
    shard = store.folder / store.shards[0].name
    data = bytearray(shard.read_bytes())
    data[0:2] = (60_000).to_bytes(2, "little")
    shard.write_bytes(data)
    return store


def test_a_store_that_was_overwritten_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "text.txt"
    store = overwritten_store(corpus)
    flags = ["--out", str(tmp_path / "out"), "--data", str(corpus), "--steps", "2", *SMALL]
    assert main(["train", "duo-laptop", *flags]) == 0
    assert "its sha256 has changed; it is prepared again" in capsys.readouterr().err
    assert int(store[0:1][0]) == ord("S")


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even if its checksums are right."""
    corpus = tmp_path / "text.txt"
    store = overwritten_store(corpus)
    index = json.loads((store.folder / "index.json").read_text())
    index["shards"][0]["sha256"] = file_sha256(store.folder / store.shards[0].name)
    (store.folder / "index.json").write_text(json.dumps(index))
    seal(store.folder.parent, store.folder.parent.name)
    line = refused(capsys, "train", "duo-laptop", "--out", tmp_path / "out", "--data", corpus, "--steps", "200", *SMALL)
    assert "60000" in line
    assert "outside the vocabulary" in line


def test_a_checkpoint_of_another_vocabulary_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CharTokenizer("abc").save(copy)
    assert "trained with a vocabulary of 257 tokens" in refused(capsys, "sample", copy)


def test_a_corpus_that_changed_is_refused(tmp_path: Path, english: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, out = tmp_path / "text.txt", tmp_path / "run"
    corpus.write_text(english.read_text())
    assert main(["train", "duo-laptop", "--out", str(out), "--data", str(corpus), "--steps", "1", *SMALL]) == 0
    corpus.write_text(english.read_text().upper())
    assert "has changed since the run began" in refused(capsys, "eval", out)


def test_a_damaged_recipe_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "recipe.json").write_text('{"type": "Recipe", ')
    assert "recipe.json is damaged" in refused(capsys, "eval", copy)


def test_debug_shows_the_place_of_the_error(tmp_path: Path) -> None:
    result = duality("eval", str(tmp_path), "--debug")
    assert "Traceback" in result.stderr
    assert "Traceback" in duality("--debug", "eval", str(tmp_path)).stderr
    assert "Traceback" not in duality("eval", str(tmp_path)).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_continues(tmp_path: Path, english: Path, number: signal.Signals) -> None:
    """A real process, interrupted in the middle of training; the exit code is the shell's 128 + signal."""
    arguments = [
        "train",
        "duo-laptop",
        "--out",
        str(tmp_path / "run"),
        "--data",
        str(english),
        "--steps",
        "150",
        *SMALL,
        "training.save_every=1000",
        "training.eval_every=0",
    ]
    command = [str(Path(sys.executable).parent / "duality"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "--resume" in errors
    assert "Traceback" not in errors
    saved = int((tmp_path / "run" / "checkpoints" / "latest").read_text().strip().removeprefix("step-"))
    rows = [row["step"] for row in read_metrics(tmp_path / "run")]
    assert saved == rows[-1]
    result = duality("train", "duo-laptop", "--out", str(tmp_path / "run"), "--resume")
    assert result.returncode == 0, result.stderr
    assert f"resuming at step {saved} of 150" in " ".join(result.stderr.split())
    assert "step 150, validation " in result.stdout
    assert "(bound)" in result.stdout


def test_quiet_without_a_terminal(trained: Path) -> None:
    result = duality("sample", str(trained), "--num", "1", "--steps", "2", "--json")
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1


def test_the_recipe_as_it_ran_is_saved(trained: Path, english: Path) -> None:
    saved = folder.read_recipe(trained)
    assert saved.training.steps == 6
    assert saved.data.corpus == str(english)
    kept = recipe("duo-laptop").training
    flags = ("backbone=nano", "training.steps=6", "training.batch_size=4")
    defaults = (f"training.warmup={kept.warmup}", f"training.eval_every={kept.eval_every}")
    assert saved == small_recipe(english, *flags, *defaults)

"""The precision of a network: what "auto" means where, what it changes, and that a run keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest
import torch
from support import session
from support.runs import quiet, small_recipe
from torch import Tensor

import duality
from duality.cli.main import main
from duality.evaluation.judge import find_judge
from duality.models.requests import SampleRequest, ScoreRequest
from duality.models.scoring import Passage
from duality.runs.corpus import sequences_of_run
from duality.training import Precision, precision
from duality.training.precision import computing, dtype_on, float32_products, precision_on, slowness
from duality.training.settings import Training

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@contextmanager
def recorded(model: duality.Model) -> Iterator[list[torch.dtype]]:
    """The types of what the first layer of the model's network multiplies, call by call."""
    found: list[torch.dtype] = []
    layer = next(part for part in model.denoiser.modules() if isinstance(part, torch.nn.Linear))
    handle = layer.register_forward_hook(lambda _part, _given, made: found.append(made.dtype))
    try:
        yield found
    finally:
        handle.remove()


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bfloat16_on_a_gpu_that_has_it_and_float32_on_every_cpu(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: native)
    assert precision_on("auto", GPU) == ("bfloat16" if native else "float32")
    assert precision_on("auto", CPU) == "float32"
    for chosen in get_args(Precision)[1:]:
        assert precision_on(chosen, CPU) == precision_on(chosen, GPU) == chosen
    assert dtype_on("auto", GPU) == Training().dtype_on(GPU) == (torch.bfloat16 if native else torch.float32)
    assert dtype_on("tf32", GPU) == dtype_on("float32", GPU) == torch.float32
    assert (slowness("bfloat16", CPU) is None) == native
    assert slowness("auto", CPU) is slowness("auto", GPU) is slowness("float32", CPU) is None


def test_tensorfloat_is_allowed_inside_alone() -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    with float32_products("tf32", GPU):
        assert torch.get_float32_matmul_precision() == "high"
        with float32_products("float32", GPU):
            assert torch.get_float32_matmul_precision() == "highest"
        with pytest.raises(ValueError, match="inside"), float32_products("float32", GPU):
            raise ValueError("inside")
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"
    with computing("tf32", CPU):  # a CPU has none
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.is_autocast_enabled("cpu")


def test_an_unknown_precision_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"float16.*'auto', 'float32', 'tf32', 'bfloat16'"):
        duality.load(trained, precision="float16")  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="2"):
        main(["sample", str(trained), "--precision", "float16"])
    assert "bfloat16" in capsys.readouterr().err


def likelihood(model: duality.Model) -> Tensor:
    assert model.origin is not None
    found = model.likelihood(sequences_of_run(model, model.origin.folder), limit=4)
    return torch.tensor([found.nats_per_token, found.diffusion, found.prior, found.reconstruction])


USES: dict[str, Callable[[duality.Model], Tensor]] = {
    "likelihood": likelihood,
    "log_likelihood": lambda model: torch.tensor(
        [each.nats for each in model.log_likelihood(["A text.", "Another."], context="It is ")]
    ),
    "surprisal": lambda model: torch.tensor([each.nats for each in model.surprisal("A text.", num_draws=4)]),
    "score": lambda model: torch.tensor(
        [each.nats for each in model.score([Passage.of(model.tokenizer, "A text.", "")], ScoreRequest())]
    ),
    "hidden": lambda model: model.hidden(torch.arange(20)[None]),
    "sample": lambda model: torch.tensor([each.tokens for each in model.sample(2, length=12)]),
    "write": lambda model: torch.tensor([each.tokens for each in model.write(SampleRequest(2, length=12))]),
    "generate": lambda model: model.generate(num=2, length=12),
}
FILL = {"fill": lambda model: torch.tensor([each.tokens for each in model.fill("It ___ so", 2)])}


@pytest.mark.parametrize("method", ["duo", "mdlm", "sedd-uniform", "ar"])
def test_every_use_of_a_model_is_in_its_precision(method: str, trained: Path, others: dict[str, Path]) -> None:
    """Whatever is asked: the network in bfloat16, its numbers float32 or more, near those of float32."""
    run = trained if method == "duo" else others[method]
    plain, low = duality.load(run, device="cpu"), duality.load(run, device="cpu", precision="bfloat16")
    assert (plain.precision, low.precision) == ("float32", "bfloat16")
    for name, use in (USES if method == "ar" else USES | FILL).items():
        with recorded(plain) as first, recorded(low) as second:
            expected, found = use(plain), use(low)
        assert set(first) == {torch.float32}, name
        assert set(second) == {torch.bfloat16}, name
        assert found.dtype == expected.dtype, name
        if found.is_floating_point():
            assert not torch.equal(found, expected), name
            assert torch.allclose(found, expected, rtol=0.02, atol=0.05), name
    assert not torch.is_autocast_enabled("cpu")


def test_keys_and_values_are_kept_in_the_type_of_the_products(others: dict[str, Path]) -> None:
    model = duality.load(others["ar"], device="cpu", precision="bfloat16")
    network = model.denoiser.backbone
    for chosen, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        with computing(chosen, CPU):  # type: ignore[arg-type]
            cache = network.empty_cache(2, 5)  # type: ignore[operator, union-attr]
        assert {each.dtype for each in (*cache.keys, *cache.values)} == {dtype}


def test_a_judge_that_is_a_run_reads_in_float32(others: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are kept under its name, which says of no other precision."""
    monkeypatch.setattr("duality.models.model.precision_on", lambda chosen, _: chosen)
    judge = find_judge(str(others["ar"]), "cpu", quiet)
    texts = ["A text.", "Another text."]
    expected = judge.nats(texts)
    monkeypatch.undo()
    assert expected == find_judge(str(others["ar"]), "cpu", quiet).nats(texts)


def test_the_commands_say_and_keep_the_precision(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, low = str(trained), ["--device", "cpu", "--precision", "bfloat16"]
    assert main(["eval", run, "--limit", "4", "--json", *low]) == 0
    one = json.loads(capsys.readouterr().out)
    assert main(["eval", run, "--limit", "4", "--json", "--device", "cpu"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert (one["precision"], other["precision"]) == ("bfloat16", "float32")
    assert one["nats_per_token"] != other["nats_per_token"]
    assert one["nats_per_token"] == pytest.approx(other["nats_per_token"], rel=1e-2)
    assert main(["eval", run, "--limit", "4", *low]) == 0
    assert "in bfloat16" in capsys.readouterr().out
    assert main(["sample", run, "--num", "1", "--length", "8", *low]) == 0
    quality = ["quality", run, "--steps", "2", "--num", "2", "--length", "8", "--judge", "none"]
    quality += ["--out", str(tmp_path), "--json"]
    capsys.readouterr()
    for options, expected in ((low, "bfloat16"), ([], None), (low, "bfloat16")):
        assert main([*quality, *options]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)[0].get("precision") == expected
    assert "sampling " not in shown.err  # what was kept in bfloat16 is of another file than that in float32
    assert len([*(tmp_path / "samples").glob("*own*.jsonl")]) == 2


# --- the precision of a run


def precision_of(folder: Path, step: int) -> object:
    return json.loads((folder / "checkpoints" / f"step-{step:08d}" / "state.json").read_text()).get("precision")


def test_a_run_keeps_what_auto_meant_when_it_began(
    english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began on a machine where auto is bfloat16 goes on in it elsewhere, with a word if it is slow there."""
    short = ("training.steps=2", "training.save_every=2", "training.eval_every=0")
    said: list[str] = []
    with monkeypatch.context() as patch:
        for module in ("duality.runs.resume", "duality.runs.session"):
            patch.setattr(f"{module}.precision_on", lambda chosen, _: "bfloat16" if chosen == "auto" else chosen)
        session.train(small_recipe(english, *short, name="mdlm-laptop"), tmp_path, report=said.append)
    assert precision_of(tmp_path, 2) == "bfloat16"
    assert json.loads((tmp_path / "recipe.json").read_text())["training"]["precision"] == "auto"
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: False)
    longer = ("training.steps=4", *short[1:])
    session.train(
        small_recipe(english, *longer, name="mdlm-laptop"),
        tmp_path,
        resume=True,
        may_be_longer=True,
        report=said.append,
    )
    assert precision_of(tmp_path, 4) == "bfloat16"
    assert [line for line in said if "no units for bfloat16" in line and "float32" in line]
    # another one may be chosen
    said.clear()
    last = ("training.steps=6", "training.precision=float32", *short[1:])
    session.train(
        small_recipe(english, *last, name="mdlm-laptop"), tmp_path, resume=True, may_be_longer=True, report=said.append
    )
    assert precision_of(tmp_path, 6) == "float32"
    assert not [line for line in said if "bfloat16" in line and "units" in line]


def test_a_run_on_a_cpu_says_that_it_is_in_float32(trained: Path) -> None:
    steps = [int(path.name.removeprefix("step-")) for path in (trained / "checkpoints").glob("step-*")]
    assert [precision_of(trained, step) for step in steps] == ["float32"] * len(steps)

"""One run, whatever the processes: the same losses, the same sequences, checkpoints that any other job continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support import jobs
from torch._C._distributed_c10d import HashStore

from duality import ranks
from duality.cli.main import main
from duality.models.model import load
from duality.ranks import Job
from duality.recipes.catalogue import recipe_names
from duality.training import checkpoint

SMALL = (
    *jobs.SMALL,
    "backbone.dropout=0.1",
    "training.warmup=2",
    "training.decay=0",
    "training.save_every=3",
)
METHODS = {
    "duo": ("duo-laptop",),
    "mdlm": ("mdlm-laptop", "data.packing=document", "data.documents=lines"),  # with light padding
    "padded": ("duo-laptop", "data.packing=document", "data.padding=ignore", "data.documents=lines"),
    "muon": ("duo-laptop", "training.optimizer=muon"),
    "bfloat16": ("duo-laptop", "training.precision=bfloat16"),
}
LAYOUTS = {
    "ddp": ("parallel.strategy=ddp",),
    "ddp-accumulating": ("parallel.strategy=ddp", "training.micro_batch=2"),
    "fsdp": ("parallel.strategy=fsdp",),
    "fsdp-accumulating": ("parallel.strategy=fsdp", "training.micro_batch=2"),
    "fsdp-recomputing": ("parallel.strategy=fsdp", "training.recompute=true"),
}
STEPS = 6


def trained(method: str, out: Path, *more: str, steps: int = STEPS) -> list[str]:
    """The command that trains a small model."""
    name, *settings = METHODS[method]
    return ["train", name, "--out", str(out), "--steps", str(steps), "--resume", "--set", *SMALL, *settings, *more]


def distilled(base: Path, out: Path, *more: str) -> list[str]:
    """The command that distills one, in two rounds of three steps."""
    rounds = ["--rounds", "2", "--round-steps", "3"]
    settings = ["training.log_every=1", "training.eval_every=0", "training.save_every=2", *more]
    return ["distill", str(base), "--out", str(out), *rounds, "--set", *settings]


def in_one(folder: Path) -> None:
    """The runs of a single process."""
    for method in METHODS:
        assert main(trained(method, folder / method)) == 0
    for method in ("duo", "mdlm"):
        assert main(distilled(folder / method, folder / f"{method}-distilled")) == 0


def in_two(folder: Path, single: Path) -> list[str]:
    """The same runs in two processes, with every layout; the names of those that are trained."""
    names = {
        f"{method}-{layout}": trained(method, folder / f"{method}-{layout}", *settings)
        for method in METHODS
        for layout, settings in LAYOUTS.items()
        if method in ("duo", "mdlm") or "-" not in layout  # micro-batches and recomputation: two methods are enough
    }
    further = [
        distilled(single / method, folder / f"{method}-distilled-{layout}", *LAYOUTS[layout])
        for method in ("duo", "mdlm")
        for layout in ("ddp", "fsdp")
    ]
    job = jobs.run(2, [*names.values(), *further])
    assert job.codes == (0, 0), job.err
    return list(names)


def assert_same(found: Path, expected: Path, steps: int = STEPS, rounding: float = 1.0) -> None:
    """The two runs have the same losses and gradients, up to rounding; a loss of distillation is a small difference."""
    ours, theirs = jobs.losses(found), jobs.losses(expected)
    assert [row[0] for row in ours] == [row[0] for row in theirs] == list(range(1, steps + 1))
    for (_, loss, norm), (_, other, other_norm) in zip(ours, theirs, strict=True):
        assert loss == pytest.approx(other, rel=rounding * 2e-6, abs=1e-7)
        assert norm == pytest.approx(other_norm, rel=rounding * 2e-4, abs=1e-5)


class _Met(Exception):
    """The processes would be connected here."""


@pytest.mark.parametrize(("gpus", "expected"), [(0, None), (4, torch.device("cuda", 2))])
def test_a_rank_says_which_gpu_is_its_own(
    gpus: int, expected: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL connects at once then, instead of guessing at the first message. Simulated: there is no GPU here."""
    given: dict[str, object] = {}

    def connect(backend: str, **about: object) -> None:
        given.update(about, backend=backend)
        raise _Met

    for name, value in {"RANK": 6, "WORLD_SIZE": 8, "LOCAL_RANK": 6, "MASTER_ADDR": "x", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: given.update(own=device))
    monkeypatch.setattr(ranks, "_meet", lambda place: HashStore())
    monkeypatch.setattr(torch.distributed, "init_process_group", connect)
    with pytest.raises(_Met), ranks.join_job():
        pass
    assert given["device_id"] == given.get("own") == expected
    assert given["backend"] == ("cpu:gloo,cuda:nccl" if gpus else "gloo")


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    """Both phases of Duo, MDLM, padding, Muon and bfloat16; DCD and SDTT across a change of the teacher; DDP and FSDP.

    One test, because starting the processes takes longer than training.
    """
    single, two = tmp_path / "one", tmp_path / "two"
    in_one(single)
    for name in in_two(two, single):
        method = name.partition("-")[0]
        # products in bfloat16 have 8 bits: a difference in the last bit of float32 may become one of theirs
        assert_same(two / name, single / method, rounding=50.0 if method == "bfloat16" else 1.0)
    for method in ("duo", "mdlm"):
        for layout in ("ddp", "fsdp"):
            assert_same(two / f"{method}-distilled-{layout}", single / f"{method}-distilled")
    assert_same_folder(two / "duo-fsdp", single / "duo")


def assert_same_folder(found: Path, single: Path) -> None:
    """A run of two processes has the files of one process, its weights, and the figures of the job in its log."""
    assert sorted(path.name for path in found.iterdir()) == sorted(path.name for path in single.iterdir())
    ours, theirs = (load(folder).denoiser.state_dict() for folder in (found, single))
    for name, value in ours.items():
        assert (value - theirs[name]).abs().max() < 2e-5, name
    rows = [json.loads(line) for line in (found / "metrics.jsonl").read_text().splitlines()]
    logged = [row for row in rows if "loss" in row]
    assert len({row["phase"] for row in logged}) == 2
    assert logged[-1]["ranks"] == 2
    assert logged[-1]["per_rank"] == pytest.approx(logged[-1]["tokens_per_second"] / 2, abs=1)


@pytest.mark.slow
def test_every_method_learns_the_same_in_two_processes(tmp_path: Path) -> None:
    """The first two steps of all models of the paper; no weight is without its gradient, which DDP would wait for."""
    names = [name for name in recipe_names() if name.endswith("-laptop") and name not in ("duo-laptop", "mdlm-laptop")]

    def command(name: str, out: Path, *more: str) -> list[str]:
        return ["train", name, "--out", str(out / name), "--steps", "2", "--set", *SMALL, *more]

    for name in names:
        assert main(command(name, tmp_path / "one")) == 0
    commands = [
        command(name, tmp_path / strategy, f"parallel.strategy={strategy}")
        for strategy in ("ddp", "fsdp")
        for name in names
    ]
    job = jobs.run(2, commands)
    assert job.codes == (0, 0), job.err
    for strategy in ("ddp", "fsdp"):
        for name in names:
            assert_same(tmp_path / strategy / name, tmp_path / "one" / name, steps=2)


@pytest.mark.slow
def test_a_run_goes_from_two_processes_to_one_to_four(tmp_path: Path) -> None:
    """FSDP, DDP, one process, and groups of two ranks that share the weights: the losses are those of one process."""
    expected, run = tmp_path / "expected", tmp_path / "run"
    planned = "training.phase_steps=12"  # so that a stop on the way changes neither rate nor phases
    assert main(trained("duo", expected, planned, steps=12)) == 0
    first = trained("duo", run, planned, "parallel.strategy=fsdp", steps=3)
    second = trained("duo", run, planned, "parallel.strategy=ddp", steps=6)
    job = jobs.run(2, [first, second])
    assert job.codes == (0, 0), job.err
    assert main(trained("duo", run, planned, "parallel.strategy=auto", steps=9)) == 0
    job = jobs.run(4, [trained("duo", run, planned, "parallel.strategy=fsdp", "parallel.shard=2", steps=12)])
    assert job.codes == (0, 0, 0, 0), job.err
    assert [row[0] for row in jobs.losses(run)] == list(range(1, 13))
    assert_same(run, expected, steps=12)


@pytest.mark.slow
def test_parts_of_two_ranks_are_read_by_four_and_by_one(tmp_path: Path) -> None:
    """``training.checkpoint=sharded``: no file has all weights, and any number of processes reads them."""
    expected, run = tmp_path / "expected", tmp_path / "run"
    planned = "training.phase_steps=9"
    assert main(trained("duo", expected, planned, steps=9)) == 0
    parts = (planned, "parallel.strategy=fsdp", "training.checkpoint=sharded")
    job = jobs.run(2, [trained("duo", run, *parts, "training.save_every=1", steps=3)], in_thread(2))
    assert job.codes == (0, 0), job.err
    (saved,) = (run / "checkpoints").glob("step-*3")
    assert (saved.parent / "step-00000002").exists()
    assert len(list(saved.glob("shard-*.safetensors"))) == 6
    assert not (saved / "model.safetensors").exists()
    early = load(run)
    job = jobs.run(4, [trained("duo", run, *parts, steps=6)])
    assert job.codes == (0, 0, 0, 0), job.err
    assert main(trained("duo", run, planned, "parallel.strategy=auto", "training.checkpoint=whole", steps=9)) == 0
    assert_same(run, expected, steps=9)
    again = load(run, step=6)
    assert early.step == 3
    assert again.step == 6
    assert main(["consolidate", str(run), "--step", "6"]) == 0
    assert not any((saved.parent / "step-00000006").glob("shard-*"))
    whole = load(run, step=6).denoiser.state_dict()
    assert all(torch.equal(value, whole[name]) for name, value in again.denoiser.state_dict().items())
    assert main(["consolidate", str(run)]) == 2  # there is nothing to put together
    assert any((saved.parent / "step-00000009").glob("model.safetensors"))


def in_thread(size: int) -> dict[int, dict[str, str]]:
    """Variables with which the ranks write every checkpoint in a thread, while the next steps are computed."""
    return {rank: {jobs.SMALLEST_FOR_THREAD: "0"} for rank in range(size)}


@pytest.mark.slow
def test_a_rank_that_cannot_write_its_part_ends_all_and_nothing_is_lost(tmp_path: Path) -> None:
    parts = ("training.phase_steps=4", "training.checkpoint=sharded")
    assert main(trained("duo", tmp_path, *parts, steps=1)) == 0
    own = in_thread(2)
    own[1][jobs.LARGEST_FILE] = "20000"
    settings = (*parts, "parallel.strategy=fsdp", "training.save_every=1")
    job = jobs.run(2, [trained("duo", tmp_path, *settings, steps=4)], own)
    assert all(code != 0 for code in job.codes), job
    assert len(job.errors) == 1, job.err
    assert "rank 1: File too large" in job.errors[0]
    assert checkpoint.steps_saved(tmp_path / "checkpoints") == [1]
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert main(trained("duo", tmp_path, *parts, "parallel.strategy=auto", steps=4)) == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_shares_of_the_ranks_are_the_batch(size: int) -> None:
    rows = list(range(8))
    shares = [rows[Job(rank=rank, size=size).share(8)] for rank in range(size)]
    assert [row for share in shares for row in share] == rows

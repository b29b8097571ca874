"""The memory of a training, measured, beside what `duality plan` says: `python -m benchmarks.memory`.

Every configuration is trained for some steps in processes of its own. *Tensors* is the most that all tensors of a
process have at a time in the last of them: what a GPU's allocator would count. *Process* is the most that the process
ever had (VmHWM) beyond what it had before it made the network: libraries that are loaded late, and what the allocator
keeps, are in it. Linux only. The bytes over the network are those that the loopback device counts meanwhile, so nothing
else should use it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from duality import ranks
from duality.data.loader import Loader
from duality.recipes.catalogue import recipe
from duality.runs import scaling
from duality.runs.corpora import prepared, sequences
from duality.runs.devices import device_named
from duality.runs.session import layout_for, phases_of, untrained
from duality.training.loop import take_step
from duality.training.parallel import local

MEDIUM = ("backbone.width=512", "backbone.depth=8", "backbone.heads=8", "backbone.conv=0")


@dataclass(frozen=True)
class Configuration:
    """A recipe with changes, in so many processes."""

    name: str
    recipe: str
    ranks: int
    settings: tuple[str, ...]


CONFIGURATIONS = (
    Configuration("duo-laptop", "duo-laptop", 1, ("training.batch_size=64", "data.length=128")),
    Configuration("30 M, Duo", "duo-laptop", 1, (*MEDIUM, "training.batch_size=16", "data.length=128")),
    Configuration(
        "30 M, MDLM, 4 x 4 rows", "mdlm-laptop", 1, (*MEDIUM, "training.batch_size=16", "training.micro_batch=4")
    ),
    Configuration("30 M, recomputed", "duo-laptop", 1, (*MEDIUM, "training.batch_size=32", "training.recompute=true")),
    Configuration("30 M, AR, 512 tokens", "ar-laptop", 1, (*MEDIUM, "training.batch_size=8", "data.length=512")),
    Configuration("30 M, ddp", "duo-laptop", 2, (*MEDIUM, "training.batch_size=16", "parallel.strategy=ddp")),
    Configuration("30 M, fsdp", "duo-laptop", 2, (*MEDIUM, "training.batch_size=16", "parallel.strategy=fsdp")),
    Configuration("30 M, fsdp", "duo-laptop", 4, (*MEDIUM, "training.batch_size=16", "parallel.strategy=fsdp")),
)


def status(name: str) -> int:
    """A number of bytes of this process, as the system counts it."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


def loopback() -> int:
    """The bytes that were sent over the loopback device."""
    line = next(line for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines() if "lo:" in line)
    return int(line.split(":")[1].split()[8])


def measure(configuration: Configuration, corpus: Path) -> None:
    """What a process of a job does: print its peak above its baseline, and the bytes of a step."""
    chosen = recipe(configuration.recipe, (f"data.corpus={corpus}", *configuration.settings))
    device = device_named("cpu")
    with ranks.joined() as place:
        data = place.in_turn(lambda: prepared(chosen))
        layout = layout_for(chosen, data, device)
        baseline = status("VmRSS")
        state = untrained(chosen, data, device, layout)
        rows = sequences(chosen.data, data.train, data.tokenizer)
        whole = Loader(rows, chosen.training.batch_size, chosen.training.seed)
        phases = phases_of(chosen, data, state.teacher)

        class Share:
            """The rows of this rank."""

            def batch(self, step: int) -> object:
                return whole.batch(step, place.share(chosen.training.batch_size))

        def step() -> None:
            take_step(state, Share(), phases, chosen.training)  # type: ignore[arg-type]

        step()
        place.any(0)
        before = loopback()
        for _ in range(2):
            step()
        place.any(0)
        sent, peak = (loopback() - before) / 2 / place.size, status("VmHWM") - baseline
        held = [tensor for group in state.groups().values() for tensor in group.values()]
        live = Live([local(tensor) for tensor in held])
        with live:
            step()
        assert torch.get_num_threads() == 1
        found = {"tensors": place.any(live.most), "process": place.any(peak), "sent": sent}
        print(json.dumps(found))


class Live(TorchDispatchMode):
    """Counts the bytes of all storages that exist: those that are held now, and those that operations make."""

    def __init__(self, held: Iterable[torch.Tensor]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known: dict[int, int] = {}
        for tensor in held:
            self.see(tensor)

    def see(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        self.known[key] = storage.nbytes()
        self.now += self.known[key]
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.forget, key)

    def forget(self, key: int) -> None:
        """A storage was freed."""
        self.now -= self.known.pop(key, 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run an operation and count what it makes."""
        made = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.see, made)
        return made


def measured(number: int, corpus: Path) -> dict[str, float]:
    """The figures of rank 0 of a configuration's job."""
    configuration = CONFIGURATIONS[number]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    size = configuration.ranks
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    if size > 1:
        shared |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.memory", str(number), str(corpus)],
            env=shared | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{configuration} ended with {[process.returncode for process in processes]}")
    found: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return found


def planned(configuration: Configuration) -> tuple[float, float]:
    """Memory and sent bytes of a device, as the plan says."""
    chosen, device = recipe(configuration.recipe, configuration.settings), torch.device("cpu")
    ranks, training = configuration.ranks, chosen.training
    strategy = {"auto": "single" if ranks == 1 else "ddp"}.get(chosen.parallel.strategy, chosen.parallel.strategy)
    rows = min(training.micro_batch or training.batch_size, training.batch_size // ranks)
    fit = scaling.estimate(
        chosen,
        scaling.sizes_of(chosen, device),
        strategy,  # type: ignore[arg-type]
        ranks,
        ranks if strategy == "fsdp" else 1,
        rows,
        device,
    )
    return fit.memory, fit.sent


def main() -> None:
    """Print a row for every configuration."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "text.txt"
        root = Path(__file__).resolve().parents[1]
        words = " ".join(path.read_text(encoding="utf-8") for path in sorted((root / "docs").glob("*.md")))
        corpus.write_text(words * 2, encoding="utf-8")
        print("| configuration | ranks | plan, MB | tensors, MB | ratio | process, MB | plan sends, MB | counted, MB |")
        print("|---|---|---|---|---|---|---|---|")
        for number, configuration in enumerate(CONFIGURATIONS):
            found, (memory, sent) = measured(number, corpus), planned(configuration)
            peak = found["tensors"]
            counted = f"{found['sent'] / 1e6:.1f}" if configuration.ranks > 1 else "–"
            print(
                f"| {configuration.name} | {configuration.ranks} | {memory / 1e6:.0f} | {peak / 1e6:.0f} | "
                f"{memory / peak:.2f} | {found['process'] / 1e6:.0f} | {sent / 1e6:.1f} | {counted} |",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(CONFIGURATIONS[int(sys.argv[1])], Path(sys.argv[2]))
    else:
        main()

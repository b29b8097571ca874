"""The memory of a training, measured, beside what `duality plan` says: `python -m benchmarks.memory`.

Every configuration is trained for some steps in processes of its own. *Tensors* is the most that all tensors of a
process have at a time in the last of them: what a GPU's allocator would count. *Process* is the most that the process
ever had (VmHWM) beyond what it had before it made the network: libraries that are loaded late, and what the allocator
keeps, are in it. Linux only. The bytes over the network are those that the loopback device counts meanwhile, so nothing
else should use it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from benchmarks.jobs import MEDIUM, output_of, started, written_text
from duality import ranks
from duality.models import plan as scaling
from duality.recipes.catalogue import recipe
from duality.recipes.corpus import prepare_corpus
from duality.training.parallel import local_part


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
    Configuration(
        "30 M, frozen", "duo-laptop", 1, (*MEDIUM, "training.batch_size=16", "training.freeze=embedding,head")
    ),
    Configuration("30 M, LoRA of rank 8", "duo-laptop", 1, (*MEDIUM, "training.batch_size=16", "training.lora=8")),
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
    with ranks.join_job() as place:
        place.in_turn(lambda: prepare_corpus(chosen))  # which takes memory of its own, before the baseline
        baseline = status("VmRSS")
        training = started(chosen, place)
        training.step()
        place.largest(0)
        before = loopback()
        for _ in range(2):
            training.step()
        place.largest(0)
        sent, peak = (loopback() - before) / 2 / place.size, status("VmHWM") - baseline
        held = [tensor for group in training.state.groups().values() for tensor in group.values()]
        live = Live([local_part(tensor) for tensor in held])
        with live:
            training.step()
        assert torch.get_num_threads() == 1
        print(json.dumps({"tensors": place.largest(live.most), "process": place.largest(peak), "sent": sent}))


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


def planned(configuration: Configuration) -> tuple[float, float]:
    """Memory and sent bytes of a device, as the plan says."""
    chosen, device = recipe(configuration.recipe, configuration.settings), torch.device("cpu")
    count, training = configuration.ranks, chosen.training
    strategy: scaling.Strategy = "single" if count == 1 else "fsdp" if chosen.parallel.strategy == "fsdp" else "ddp"
    rows = min(training.micro_batch or training.batch_size, training.batch_size // count)
    shard = count if strategy == "fsdp" else 1
    fit = scaling._estimate(chosen, scaling.Sizes.of(chosen, device), strategy, count, shard, rows, device)
    return fit.memory, fit.sent


def main() -> None:
    """Print a row for every configuration."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = written_text(Path(folder))
        print("| configuration | ranks | plan, MB | tensors, MB | ratio | process, MB | plan sends, MB | counted, MB |")
        print("|---|---|---|---|---|---|---|---|")
        for number, configuration in enumerate(CONFIGURATIONS):
            printed = output_of("benchmarks.memory", [str(number), str(corpus)], configuration.ranks)
            found, (memory, sent) = json.loads(printed), planned(configuration)
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

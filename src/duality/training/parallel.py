"""One training in many processes: how the weights lie on them, and how gradients and checkpoints are put together.

    single   one process
    ddp      every rank has all weights; gradients are averaged (``DistributedDataParallel``)
    fsdp     every rank has a part of each weight, of its gradient, its moments and its average, and of a teacher; the
             weights of a block are put together when the block is computed (FSDP2, ``fully_shard``)

With ``shard=K`` groups of K ranks share the weights, and the groups average their gradients (a mesh of two dimensions).

What is wrapped is ``_Step``, the loss of some rows. Embeddings and head are whole while the objective reads them, so no
objective knows of ranks. What must hold: which sequences a step has, their times and their noise belong to the step,
not to the ranks; losses and weights are those of a single process, but for rounding.

Checkpoints in parts (``training.checkpoint=sharded``) are for weights that do not fit into the memory of one machine:
every rank writes its own part alone. torch writes and reads the parts (``distributed.checkpoint`` with files of
safetensors: no code is run by reading them):

    step-00001000/   shard-00001-model-00002-of-00004.safetensors ...    rank 0, second group

A part is some rows of a tensor, and its place is in the file. The groups of tensors (``TrainState.groups``) have files
of their own, in the order of ``parts`` in state.json, so that a model is loaded without the optimizer. What must hold:
parts of any number of ranks are read by any other number, also by one process that puts them together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from duality.denoisers.conditioning import with_labels
from duality.denoisers.wrapping import SeesAll
from duality.noise import Noise
from duality.protocols import AnyDenoiser, Labels, Network, Objective, Valid
from duality.ranks import Job, divisors, job
from duality.training.settings import Parallel

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

Tensors = dict[str, Tensor]
Groups = Mapping[str, Tensors]

_SHARE_FOR_DDP = 0.5  # of a device's memory that weights, gradients, moments and average may take


class _Step(nn.Module):
    """The loss of some rows of a batch, as a module: what is wrapped. ``teacher`` is there to be divided like it."""

    def __init__(self, model: nn.Module, teacher: nn.Module | None = None):
        super().__init__()
        self.model, self.teacher = model, teacher

    def forward(
        self,
        objective: Objective,
        x: Tensor,
        t: Tensor,
        noise: Noise,
        valid: Valid = None,
        labels: Labels = None,
        sees_all: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The sum to differentiate, and the nats of each token; the network may see more than is ``valid``."""
        denoiser: AnyDenoiser = self.model if labels is None else with_labels(self.model, labels)
        denoiser = SeesAll(denoiser) if sees_all else denoiser
        loss = objective(denoiser, x, t, noise, valid, dropout=True)
        return loss.total, loss.nats


@dataclass(frozen=True)
class Layout:
    """How the weights lie on the ranks."""

    strategy: Literal["single", "ddp", "fsdp"] = "single"
    mesh: DeviceMesh | None = None

    @property
    def divided(self) -> int:
        """Over how many ranks a weight is divided."""
        return 1 if self.mesh is None else self.mesh.size(self.mesh.ndim - 1)

    def wrap(self, model: nn.Module, teacher: nn.Module | None, factors: torch.dtype = torch.float32) -> nn.Module:
        """The step of a model whose weights are now divided over the ranks, or its gradients averaged over them.

        ``factors`` is the type of the factors of a product. The weights of a block are sent in it, and its gradients
        are added up in float32. What a block is given stays as it is: the sum that it adds to is float32.
        """
        step = _Step(model, teacher)
        if self.strategy == "fsdp":
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            lower = MixedPrecisionPolicy(factors, torch.float32, cast_forward_inputs=False)
            policy = MixedPrecisionPolicy() if factors == torch.float32 else lower
            for block in (*blocks_of(model), *(() if teacher is None else blocks_of(teacher))):
                fully_shard(block, mesh=self.mesh, mp_policy=policy)
            fully_shard(step, mesh=self.mesh, reshard_after_forward=False)
        if self.strategy == "ddp":
            return DistributedDataParallel(step, gradient_as_bucket_view=True, forward_sync_buffers=False)
        return step

    def accumulating(self, step: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Gradients are exchanged between ranks in the ``last`` micro-batch only; before it each rank sums its own."""
        if self.strategy == "fsdp":
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(step, FSDPModule), "fully_shard makes a module one"
            step.set_requires_gradient_sync(last)
        return step.no_sync() if isinstance(step, DistributedDataParallel) and not last else nullcontext()


SINGLE = Layout()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model's networks: what is put together at a time. A network without ``blocks`` is one block."""
    networks = (part for part in model.modules() if isinstance(part, Network))
    lists = (dict(network.named_children()).get("blocks") for network in networks)
    return [block for blocks in lists if isinstance(blocks, nn.ModuleList) for block in blocks]


def layout_of(parallel: Parallel, place: Job, device: torch.device, needed: int, available: int) -> Layout:
    """The layout that a recipe chooses; "auto" is ddp if the ``needed`` bytes of weights leave half of the memory."""
    if place.alone:
        if parallel.strategy == "fsdp":
            raise ValueError(
                "parallel.strategy is fsdp, and this is one process: there is nothing to divide the weights over; "
                "start several with torchrun --nproc-per-node N -m duality ..., or set parallel.strategy=auto"
            )
        return SINGLE
    divided = parallel.shard > 1 or needed > _SHARE_FOR_DDP * available
    if parallel.strategy == "ddp" or (parallel.strategy == "auto" and not divided):
        if parallel.shard:
            raise ValueError(
                f"parallel.shard is {parallel.shard} with parallel.strategy=ddp, which divides no weights: set "
                "parallel.strategy=fsdp, or parallel.shard=0"
            )
        return Layout("ddp")
    from torch.distributed.device_mesh import init_device_mesh

    size, shard = place.size, parallel.shard or place.size
    check_groups(shard, size)
    # the ranks as a row, or as groups of ranks that share the weights
    sizes, names = ((size,), ("shard",)) if shard == size else ((size // shard, shard), ("replicate", "shard"))
    return Layout("fsdp", init_device_mesh(device.type, sizes, mesh_dim_names=names))


def check_groups(shard: int, size: int) -> None:
    """Refuse groups of ``shard`` ranks into which ``size`` ranks cannot be divided; 0 is one group of all."""
    if shard and (size % shard or shard < 2):
        fitting = ", ".join(str(each) for each in divisors(size) if each > 1)
        raise ValueError(
            f"parallel.shard is {shard}, and there are {size} processes: groups of equal size have {fitting} ranks; 0 "
            "divides the weights over all"
        )


# --- parts of tensors


def _as_divided(tensor: Tensor) -> DTensor | None:
    """The tensor, if it is divided over the ranks."""
    if job().alone:
        return None
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank has, in the same memory; all of one that is not divided."""
    divided = _as_divided(tensor)
    return tensor if divided is None else divided.to_local()


def gather(tensor: Tensor) -> Tensor:
    """The tensor, put together on every rank if it is divided."""
    divided = _as_divided(tensor)
    return tensor if divided is None else divided.full_tensor()


def rows_here(tensor: Tensor) -> slice:
    """The rows of the whole tensor that this rank has: a tensor is divided along its rows, the last part is smaller."""
    divided = _as_divided(tensor)
    if divided is None:
        return slice(None)
    mesh, rows = divided.device_mesh, tensor.shape[0]
    count, place = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
    each = -(-rows // count)
    return slice(min(place * each, rows), min((place + 1) * each, rows))


@torch.no_grad()
def put(target: Tensor, value: Tensor) -> None:
    """Copy ``value``, a whole tensor or one that is divided like ``target``, into ``target``."""
    source = local_part(value)
    if source.shape != local_part(target).shape:
        source = value[rows_here(target)]
    local_part(target).copy_(source)


def divide_work(work: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The rows here of what ``work`` makes of whole matrices, of which every rank works on a share.

    ``tensors`` are matrices with the same number of elements, all of them whole on every rank or all divided over the
    ranks. ``work`` makes as many of the same shapes. All ranks must call it.
    """
    place, divided = job(), [each for tensor in tensors if (each := _as_divided(tensor)) is not None]
    if place.alone:
        return work(tensors)
    import torch.distributed as dist

    if divided:
        mesh = divided[0].device_mesh
        return _divide_parts(work, divided, mesh.get_group(mesh.ndim - 1))
    own = _share(len(tensors), place.rank, place.size)
    made = torch.stack([each.reshape(-1) for each in work([tensors[index] for index in own])])
    every = made.new_empty(place.size * len(own), made.shape[1])
    dist.all_gather_into_tensor(every, made)
    found = every.view(place.size, *made.shape)
    return [found[index % place.size, index // place.size].view(each.shape) for index, each in enumerate(tensors)]


def _share(count: int, rank: int, size: int) -> list[int]:
    """Which of ``count`` tensors a rank works on: as many as the others, so the last ones may be the same.

    >>> _share(5, 0, 2), _share(5, 1, 2)
    ([0, 2, 4], [1, 3, 4])
    """
    return [min(index, count - 1) for index in range(rank, -(-count // size) * size, size)]


def _divide_parts(
    work: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[DTensor], group: ProcessGroup
) -> list[Tensor]:
    """``divide_work`` of divided matrices: their parts go to the rank that works on them, and the results back."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    shares = [_share(len(tensors), each, size) for each in range(size)]
    rows = [-(-tensor.shape[0] // size) for tensor in tensors]  # of each part, but for the last
    length = max(each * tensor.shape[1] for each, tensor in zip(rows, tensors, strict=True))

    def exchange(parts: Sequence[Sequence[Tensor]]) -> Tensor:
        """Send each rank its parts; the parts from each rank."""
        given = parts[0][0].new_zeros(size, len(shares[0]), length)
        for to, own in enumerate(parts):
            for place, part in enumerate(own):
                given[to, place, : part.numel()] = part.reshape(-1)
        got = torch.empty_like(given)
        dist.all_to_all_single(got, given, group=group)
        return got

    got, whole = exchange([[tensors[index].to_local() for index in share] for share in shares]), list[Tensor]()
    for place, index in enumerate(shares[rank]):
        count, width = tensors[index].shape
        whole.append(got[:, place, : rows[index] * width].reshape(-1, width)[:count])
    made, own = work(whole), list(zip(range(len(whole)), shares[rank], strict=True))
    back = exchange(
        [[made[place][to * rows[index] : (to + 1) * rows[index]] for place, index in own] for to in range(size)]
    )
    found = []
    for index, tensor in enumerate(tensors):
        part = tensor.to_local()
        found.append(back[index % size, index // size, : part.numel()].view(part.shape))
    return found


def gather_on_first(tensor: Tensor) -> Tensor | None:
    """The whole tensor in the memory of rank 0's host; None on other ranks. All ranks must call it."""
    place, divided = job(), _as_divided(tensor)
    if place.alone:
        return tensor.detach()
    if divided is None:
        return tensor.detach().cpu() if place.first else None
    import torch.distributed as dist

    mesh = divided.device_mesh
    if mesh.ndim > 1 and mesh.get_local_rank(0) > 0:  # a group whose weights are copies of the first group's
        return None
    group = mesh.get_group(mesh.ndim - 1)
    count = dist.get_world_size(group)
    own, rows = divided.to_local().detach(), tensor.shape[0]
    padded = torch.zeros(-(-rows // count), *tensor.shape[1:], dtype=own.dtype, device=own.device)
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in range(count)] if place.first else None
    dist.gather(padded, parts, dst=0, group=group)
    return None if parts is None else torch.cat(parts)[:rows].cpu()


# --- checkpoints in parts


def num_bytes_of(groups: Groups) -> int:
    """The bytes of all tensors."""
    return sum(value.nbytes for tensors in groups.values() for value in tensors.values())


def _flatten(groups: Groups) -> Tensors:
    """The tensors of all groups in one dictionary."""
    return {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}


def write_parts(folder: Path, groups: Groups, connection: ProcessGroup | None) -> None:
    """Write the parts of this rank, and return when all ranks have written theirs; all ranks must call it."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    numbers = {f"{group}/{name}": number for number, group in enumerate(sorted(groups), 1) for name in groups[group]}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=numbers, save_distributed=True)
    tensors = {name: value.detach() for name, value in _flatten(groups).items()}
    try:
        with _without_warning():
            save(tensors, storage_writer=writer, process_group=connection, no_dist=connection is None)
    except CheckpointException as raised:
        rank, (error, _) = min(raised.failures.items(), key=lambda failure: failure[0])
        if isinstance(error, OSError):
            raise OSError(error.errno, f"rank {rank}: {error.strerror}", error.filename) from error
        raise RuntimeError(f"rank {rank} could not write its part of a checkpoint: {error}") from error


@torch.no_grad()
def read_parts(folder: Path, groups: Groups) -> None:
    """Fill the tensors, whole or divided over ranks, from the parts in a folder; all ranks must call it."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    with _without_warning():
        load(_flatten(groups), storage_reader=reader, no_dist=job().alone)


@contextmanager
def _without_warning() -> Iterator[None]:
    """Torch warns that a single process saves or loads alone; it was asked to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def outline_parts(folder: Path, group: str) -> Tensors:
    """A group's tensors without numbers: names, shapes and types; nothing but the beginnings of the files is read."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name.removeprefix(f"{group}/"): torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        for name, entry in found.items()
        if name.startswith(f"{group}/") and isinstance(entry, TensorStorageMetadata)
    }

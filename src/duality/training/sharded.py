"""Checkpoints in parts (``training.checkpoint=sharded``): every rank writes its own part alone.

For weights that do not fit into the memory of one machine. torch writes and reads the parts (``distributed.checkpoint``
with files of safetensors: no code is run by reading them):

    step-00001000/   shard-00001-model-00002-of-00004.safetensors ...    rank 0, second group

A part is some rows of a tensor, and its place is in the file. The groups of tensors (``TrainState.groups``) have files
of their own, in the order of ``parts`` in state.json, so that a model is loaded without the optimizer. What must hold:
parts of any number of ranks are read by any other number, also by one process that puts them together.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from duality.ranks import job

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Tensors = dict[str, Tensor]
Groups = Mapping[str, Tensors]


def num_bytes_of(groups: Groups) -> int:
    """The bytes of all tensors."""
    return sum(value.nbytes for tensors in groups.values() for value in tensors.values())


def _flatten(groups: Groups) -> Tensors:
    """The tensors of all groups in one dictionary."""
    return {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}


def file_pattern(parts: Sequence[str], group: str) -> str:
    """The names of the files of a group.

    >>> file_pattern(["ema", "model"], "model")
    'shard-*-model-00002-of-00002.safetensors'
    """
    return f"shard-*-model-{parts.index(group) + 1:05d}-of-{len(parts):05d}.safetensors"


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


def shapes_in_parts(folder: Path, group: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Names, shapes and types of a group's tensors; nothing but the beginnings of the files is read."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    start = f"{group}/"
    return {
        name.removeprefix(start): (tuple(entry.size), entry.properties.dtype)
        for name, entry in found.items()
        if name.startswith(start) and isinstance(entry, TensorStorageMetadata)
    }


def whole_group(folder: Path, group: str) -> Tensors:
    """A group of tensors, put together by one process."""
    shapes = shapes_in_parts(folder, group)
    made = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    read_parts(folder, {group: made})
    return made

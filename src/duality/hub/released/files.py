"""Files of released models, read as data: a Lightning checkpoint, or a folder with config.json and weights.

A checkpoint (.ckpt, .pt, .bin) is a zip archive of tensors and pickled objects. It is read with ``weights_only``: only
tensors and plain containers are made. The released checkpoints also hold their configuration (omegaconf) and their
tokenizer (transformers). Objects of these libraries become an ``_Opaque``, which keeps their state and does nothing;
none of the libraries is imported. Every other object is refused by its name.

What must hold: whatever the bytes of a file are, the result is tensors and plain data, or a ``ValueError`` of one line;
nothing of a file is run; tensors stay in the file until they are used (they are mapped into memory), and have no more
numbers than the file has room for.
"""

from __future__ import annotations

import pickletools
import sys
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.types import Storage

from duality.files.json_files import MIB, read_json
from duality.hub.package import CONFIG, WEIGHTS
from duality.registry import first_line

Layout = Literal["duo-hf", "duo-ckpt"]
BINARY = "pytorch_model.bin"
_INDEX = f"{WEIGHTS}.index.json"
CHECKPOINTS = (".ckpt", ".pt", ".pth", ".bin")
FETCH = "fetch the file again"
_ALONE = "save its state_dict alone as another .ckpt, and give that with --method and --length"

_MOST_SETTINGS = 100_000
_MOST_OBJECT_BYTES = 256 * MIB  # the objects of a checkpoint without its tensors; a tokenizer has a few million

# Libraries whose objects are in released checkpoints beside the weights; what is read of them is their state.
_LIBRARIES = (
    *("omegaconf.", "transformers.", "tokenizers.", "lightning.", "pytorch_lightning.", "lightning_fabric."),
    *("transformers_modules.", "sentencepiece.", "torchmetrics.", "typing.", "numpy."),
)
_TOKENIZERS = ("Tokenizer", "TokenizerFast")  # how the names of tokenizers end, in whatever module they are
_DEFAULTDICT = "collections.defaultdict"
_NAMES = {f"builtins.{name}" for name in ("dict", "list", "tuple", "int", "float", "str", "bool")}
_NAMES |= {"pathlib.Path", "pathlib.PosixPath", _DEFAULTDICT}


@dataclass(frozen=True)
class Released:
    """A released model: its tensors by the names of the file, in its order, and what it says about itself.

    ``config`` is the content of config.json, or the hyper-parameters of a checkpoint; ``where`` is for messages. The
    average of a checkpoint is tensors in the order of the parameters; ``made`` is how it was made.
    """

    layout: Layout
    where: str
    tensors: dict[str, Tensor]
    config: Mapping[str, object] = field(repr=False)
    step: int | None = None
    average: Sequence[Tensor] | None = None
    made: Mapping[str, object] | None = None


class _Opaque:
    """A pickled object of which only the state is kept."""

    state: object = None

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state


def read_released(path: Path) -> Released:
    """The model in a checkpoint, or in a folder with config.json and weights."""
    if path.is_dir():
        return _read_folder(path, [path / WEIGHTS, path / BINARY])
    if not path.is_file():
        raise ValueError(
            f"there is no file or folder {path}: give a .ckpt, a folder with {CONFIG} and {WEIGHTS}, or the name of a "
            "model on the Hugging Face hub, such as hf:s-sahoo/duo"
        )
    if path.suffix == ".safetensors":
        return _read_folder(path.parent, [path])
    if path.suffix not in CHECKPOINTS:
        raise ValueError(f"{path} is no released model: give one that ends with {', '.join(CHECKPOINTS)}, or a folder")
    return _read_checkpoint(path)


def _read_folder(folder: Path, files: Sequence[Path]) -> Released:
    """A folder of the Hugging Face hub: config.json, and weights without a name for the average, which they are."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} has no {CONFIG}: give a .ckpt, or the whole folder of a released model")
    config = read_json(folder / CONFIG, MIB, FETCH)
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG} holds no object: {FETCH}")
    found = next((file for file in (*files, folder / _INDEX) if file.is_file()), None)
    if found is None:
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {BINARY}: {FETCH}")
    if found.suffix == ".bin":
        tensors = _named_tensors(_load_objects(found), found, "it")
    else:
        tensors = _read_parts(folder) if found.suffix == ".json" else _load_safetensors(found)
    return Released("duo-hf", str(folder), tensors, config)


def _read_parts(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder whose weights are in several files, which an index names."""
    index = read_json(folder / _INDEX, MIB, FETCH)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise ValueError(f"{folder / _INDEX} holds no weight_map of names and files: {FETCH}")
    tensors: dict[str, Tensor] = {}
    for part in sorted(set(places.values())):
        if Path(part).name != part or not part.endswith(".safetensors") or not (folder / part).is_file():
            raise ValueError(f"{folder / _INDEX} names {part!r:.80}, which is no file of this folder: {FETCH}")
        tensors |= _load_safetensors(folder / part)
    if tensors.keys() != places.keys():
        odd = sorted(tensors.keys() ^ places.keys())
        raise ValueError(f"{folder / _INDEX} and its files differ ({len(odd)} names, such as {odd[0]!r:.80}): {FETCH}")
    return tensors


def _load_safetensors(found: Path) -> dict[str, Tensor]:
    """The tensors of a file."""
    try:
        return dict(load_file(found))
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ValueError(f"{found} is no valid safetensors file ({first_line(error)}): {FETCH}") from None


def _read_checkpoint(path: Path) -> Released:
    """A checkpoint of Lightning (``state_dict``), or of the code of the SEDD paper (``model``), with its average."""
    content = _load_objects(path)
    key = next((key for key in ("state_dict", "model") if key in content), None)
    if content and all(_is_tensor(value) for value in content.values()):  # a state_dict that was saved alone
        key, content = "state_dict", {"state_dict": content}
    if key is None:
        raise ValueError(
            f"{path} has no state_dict; it has {', '.join(map(str, list(content)[:8])) or 'nothing'}: give a "
            "checkpoint of a training with Lightning"
        )
    tensors = _named_tensors(content[key], path, key)
    hyper = _plain(content.get("hyper_parameters"), path, count())
    config = hyper.get("config", hyper) if isinstance(hyper, dict) else {}
    step = next((step for step in (content.get("global_step"), content.get("step")) if type(step) is int), None)
    found = Released("duo-ckpt", str(path), tensors, config if isinstance(config, dict) else {}, step)
    if (ema := content.get("ema")) is None:
        return found
    if not isinstance(ema, dict) or not isinstance(shadow := ema.get("shadow_params"), (list, tuple)):
        raise ValueError(f"ema of {path} has no list shadow_params: {FETCH}")
    if odd := next((type(value).__name__ for value in shadow if not _is_tensor(value)), ""):
        raise ValueError(f"ema of {path} holds a {odd} instead of a tensor: {FETCH}")
    decay, updates = ema.get("decay"), ema.get("num_updates")
    made: dict[str, object] = {"decay": float(decay) if isinstance(decay, (int, float)) else None}
    made["num_updates"] = updates if type(updates) is int else None
    return replace(found, average=_detach(path, shadow), made=made)


def _load_objects(path: Path) -> dict[object, object]:
    """The content of a checkpoint, without running anything of it; its tensors are mapped into memory."""
    sizes = _check_archive(path)
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception as error:  # an instruction that ``weights_only`` does not know, or a damaged archive
        named = ", ".join(sorted(_names_in(path))) or "none that could be read"
        raise ValueError(
            f"{path} cannot be read as weights alone ({first_line(error)}; objects in it: {named}): {FETCH}, or "
            f"{_ALONE}"
        ) from None
    known = {name for name in unknown if name in _NAMES or name.startswith(_LIBRARIES) or name.endswith(_TOKENIZERS)}
    if refused := sorted({*unknown} - known):
        raise ValueError(
            f"{path} holds pickled objects that are no weights ({', '.join(refused)}): loading them could run code, "
            f"and is refused; if you trust the file, {_ALONE}"
        )
    kinds: dict[str, Callable[..., object]] = {_DEFAULTDICT: lambda *_default: {}}  # its default is of no use here
    stands = [(kinds.get(name, _Opaque), name) for name in unknown]
    storages: list[Storage] = []

    def note(storage: Storage, _device: str) -> Storage:
        storages.append(storage)
        return storage

    try:
        with torch.serialization.safe_globals(stands), warnings.catch_warnings():  # type: ignore[arg-type]
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location=note, weights_only=True, mmap=True)
    except Exception as error:  # of a damaged archive, of many kinds
        raise ValueError(f"{path} is damaged ({first_line(error)}): {FETCH}") from None
    if [each.nbytes() for each in sorted(storages, key=lambda each: each.data_ptr()) if each.nbytes()] != sizes:
        raise ValueError(f"{path} is damaged (its records have other sizes than its tensors): {FETCH}")
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} instead of named weights: {FETCH}")
    return content


def _check_archive(path: Path) -> list[int]:
    """Refuse what is no whole zip archive of a checkpoint; the sizes of the records with numbers, in their order.

    Tensors are mapped into memory, so the file must hold their numbers as they are, in the byte order of this machine.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            objects = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            large = sum(entry.file_size for entry in objects)
            root = objects[0].filename.removesuffix("data.pkl") if objects else ""
            order = f"{root}byteorder"
            if len(objects) != 1 or large > _MOST_OBJECT_BYTES:
                problem = f"{len(objects)} records data.pkl, {large:,} bytes"
            elif any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                problem = "an entry is compressed"
            elif sum(entry.file_size for entry in entries) > path.stat().st_size:
                problem = "its entries overlap"
            elif (changed := archive.testzip()) is not None:
                problem = f"{changed} does not match its checksum"
            elif order in archive.namelist() and archive.read(order) not in (b"", sys.byteorder.encode()):
                problem = f"it is not {sys.byteorder}-endian: load it where it was written, and save it again here"
            else:
                records = [entry for entry in entries if entry.filename.startswith(f"{root}data/") and entry.file_size]
                return [entry.file_size for entry in sorted(records, key=lambda entry: entry.header_offset)]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path} is no whole checkpoint of torch ({first_line(error)}): {FETCH}") from None
    raise ValueError(f"{path} is damaged, or no checkpoint of torch ({problem}): {FETCH}")


def _names_in(path: Path) -> set[str]:
    """The names of the objects in a checkpoint, as far as they can be told without making any."""
    found: set[str] = set()
    texts: list[str] = []
    memo: list[list[str]] = []
    try:
        with zipfile.ZipFile(path) as archive:
            record = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            for operation, argument, _ in pickletools.genops(archive.read(record)):
                if isinstance(argument, str):
                    texts += argument.split(" ")
                elif operation.name == "MEMOIZE":
                    memo.append(texts[-1:])
                elif isinstance(argument, int) and operation.name in ("BINGET", "LONG_BINGET") and memo:
                    texts += memo[argument]
                if operation.name in ("GLOBAL", "INST", "STACK_GLOBAL"):
                    found.add(".".join(texts[-2:]))
    except Exception:  # what comes after a fault is not known
        return found
    return found


def _named_tensors(content: object, path: Path, what: object) -> dict[str, Tensor]:
    """Named tensors; what is not one is refused."""
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{what} of {path} holds no named tensors: {FETCH}")
    odd = [
        f"{name} ({type(value).__name__})"
        for name, value in content.items()
        if not isinstance(name, str) or not _is_tensor(value)
    ]
    if odd:
        raise ValueError(f"{what} of {path} holds what is no tensor ({', '.join(odd[:8])}): {FETCH}")
    return dict(zip(content, _detach(path, content.values())))


def _is_tensor(value: object) -> bool:
    """Whether this is a tensor of ordinary layout."""
    return isinstance(value, Tensor) and value.layout is torch.strided


def _detach(path: Path, tensors: Collection[Tensor]) -> list[Tensor]:
    """The tensors of a file; more numbers than the file has room for, which repeat what is in it, are refused."""
    claimed = sum(value.numel() * value.element_size() for value in tensors)
    if claimed > path.stat().st_size:
        raise ValueError(
            f"the tensors of {path} say that they have {claimed:,} bytes, and the file has {path.stat().st_size:,}: "
            f"{FETCH}"
        )
    return [value.detach() for value in tensors]


def _plain(value: object, path: Path, number: Iterator[int], depth: int = 0) -> object:
    """Configuration in the file ``path`` as plain data: the containers and nodes of omegaconf are what they contain.

    Few bytes can say that a list holds the same list many times, so every value takes a ``number``.
    """
    if next(number) > _MOST_SETTINGS:
        raise ValueError(f"the hyper_parameters of {path} have more than {_MOST_SETTINGS:,} values: {FETCH}")
    if depth > 32:
        return None
    if isinstance(value, _Opaque):
        state = value.state if isinstance(value.state, dict) else {}
        return _plain(state.get("_content", state.get("_val")), path, number, depth + 1)
    if isinstance(value, dict):
        return {key: _plain(item, path, number, depth + 1) for key, item in value.items() if isinstance(key, str)}
    if isinstance(value, (list, tuple)):
        return [_plain(item, path, number, depth + 1) for item in value]
    return value if isinstance(value, (str, int, float, bool)) else None

"""Datasets of the Hugging Face hub, as tables on this machine, by the library `datasets`.

The library keeps what it fetches as files of Arrow in its own cache (HF_HOME), maps them into memory, and works without
a network where HF_HUB_OFFLINE is set or the data are there. One that is streamed is not kept. Nothing of a dataset
is run: those that are programs are refused by the library, and have their tables on another branch of the hub.

What must hold: a dataset that cannot be had is one line that says why and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from duality.files.progress import Reporter, silent


class _Split(Protocol):
    """A split of a dataset: the files of one that is fetched, the rows of one that is streamed."""

    cache_files: Sequence[Mapping[str, str]]

    def skip(self, n: int) -> Iterable[Mapping[str, object]]: ...


def describe_hub(name: str, config: str | None) -> str:
    """A dataset of the hub, for messages."""
    return f"the dataset {name}" + (f" ({config})" if config else "")


def fetch_splits(
    name: str, config: str | None = None, revision: str | None = None, progress: Reporter = silent
) -> dict[str, list[Path]]:
    """The files of Arrow of each split of a dataset, fetched if they are not there."""
    progress(f"looking for {describe_hub(name, config)} on the Hugging Face hub")
    found = load_splits(name, config, revision, streaming=False)
    return {str(split): [Path(file["filename"]) for file in part.cache_files] for split, part in found.items()}


@cache
def load_splits(name: str, config: str | None, revision: str | None, streaming: bool) -> Mapping[str, _Split]:
    """The splits of a dataset as the library has them, once for each process; an error says what to do."""
    what = describe_hub(name, config)
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{what} is on the Hugging Face hub, and the library `datasets` is not installed: "
            "pip install 'diffusion-duality[data]'"
        ) from None
    try:
        found: Mapping[str, _Split] = datasets.load_dataset(name, config, revision=revision, streaming=streaming)
    except Exception as error:  # the library has as many kinds of errors as there are reasons
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"{what} cannot be had from the Hugging Face hub ({reason}): look at the name and the network, and at "
            "HF_HUB_OFFLINE if it is set; or download the dataset and give its folder"
        ) from None
    return found

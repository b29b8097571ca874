"""What a user names as a model: a run, a folder of ``Model.save_pretrained``, or a model of the Hugging Face hub.

    runs/demo               a folder; a folder that exists is never looked for on the hub
    owner/name              a model of the hub, if there is no folder of this name nor one called owner
    hf:owner/name@v2        a model of the hub, at a branch, a tag or a commit

``Origin`` is the record of where the weights of a model came from. It is kept on the model, and in base.json of a run
that begins from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from duality.hub.fetch import PREFIX, folder_of, hub_name
from duality.hub.package import check_config


@dataclass(frozen=True)
class Origin:
    """Where weights came from: a folder or ``hf:owner/name``, the commit there, and the sha256 of their file.

    ``weights`` are averaged ("ema") or raw ("model"). ``folder`` is where the files are on this machine.
    """

    place: str
    sha256: str
    weights: Literal["ema", "model"]
    folder: Path
    commit: str | None = None

    def record(self) -> dict[str, str | None]:
        """What is kept of it."""
        return {"place": self.place, "commit": self.commit, "sha256": self.sha256, "weights": self.weights}


@dataclass(frozen=True)
class ModelSource:
    """A folder of this machine with a model; ``place`` is what it is called, ``commit`` that of the hub."""

    folder: Path
    place: str
    commit: str | None = None

    @property
    def pinned(self) -> Path:
        """What names the same model again, also when the hub has a newer one."""
        return Path(f"{self.place}@{self.commit}") if self.commit else self.folder


def model_source(source: Path | str, revision: str | None = None) -> ModelSource:
    """The folder of a model, fetched from the hub if it is there; ``revision`` belongs to the hub."""
    path, named = Path(source).expanduser(), hub_name(source)
    explicit = str(source).startswith(PREFIX)
    if named is None or (path.exists() and not explicit):
        if revision is not None:
            raise ValueError(
                f"revision {revision!r} of {source}, which is a path: only models of the Hugging Face hub have "
                f"revisions; leave it out, or write {PREFIX}OWNER/NAME"
            )
        return ModelSource(path, str(path))
    name, own = named
    if not explicit and path.parent.is_dir():  # a mistyped path is told to nobody
        raise ValueError(
            f"{source} is not a run: there is no such folder in {path.parent}; a model of the Hugging Face hub is "
            f"{PREFIX}{source}"
        )
    if own is not None and revision is not None and own != revision:
        raise ValueError(f"{source} with the revision {revision!r}: give one of the two")
    try:
        folder = folder_of(name, revision or own, check_config)
    except ValueError as error:
        if explicit:
            raise
        raise ValueError(f"there is no folder {source}, and {error}") from None
    return ModelSource(folder, f"{PREFIX}{name}", folder.name)


def model_folder(source: Path | str) -> Path:
    """The folder of ``model_source``."""
    return model_source(source).folder

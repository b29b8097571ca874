"""Tales as a named corpus: stories for training and for validation, written into the cache where they are needed.

    tales                      20,000 stories of the level easy
    tales:hard                 another level
    tales:easy:100000:7        so many stories for training, of the seed 7

Stories are drawn one after the other, each from its own noise. Of all stories of the language a tenth is *held out*, by
the checksum of its text: it is never in the part for training, whatever size and seed, and only such stories are in
the part for validation, a tenth as many. Which stories these are does not depend on what they say, so on average a
model that has learned the language pays its entropy for them.

What must hold: the same name gives the same files; no story is in both parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from duality.data.named import Dataset, Part
from duality.data.tales.language import Language, language, levels
from duality.files.atomic import atomic_folder
from duality.files.cache import cache_errors, cache_folder, seal, verify
from duality.files.progress import Reporter, silent, working
from duality.noise import Noise, check_seed

NAME = "tales"
VERSION = 1  # of the language and of how stories are drawn: a part of the names of files
_BLOCK = 1000  # stories drawn at a time
_MOST = 10_000_000


def is_held_out(text: str) -> bool:
    """Whether a story is one of the tenth that no training sees."""
    return hashlib.sha256(text.encode("utf-8")).digest()[0] * 10 < 256


@dataclass(frozen=True)
class Tales:
    """Stories of a level: how many for training, and their seed.

    >>> Tales.of("tales:hard:500")
    Tales(level='hard', stories=500, seed=1)
    """

    level: str = "easy"
    stories: int = 20_000
    seed: int = 1

    @classmethod
    def of(cls, spec: str) -> Tales:
        """The stories that a name describes."""
        rule = f"write {NAME}:LEVEL:STORIES:SEED or the first words of it; levels are {', '.join(levels())}"
        level, *numbers = spec.split(":")[1:] or [cls.level]
        if len(numbers) > 2 or level not in levels() or not all(map(str.isdecimal, numbers)):
            raise ValueError(f"{spec!r} names no tales: {rule}")
        found = cls(level, *map(int, numbers))
        check_seed(found.seed, f"the seed of {spec}")
        if not 1 <= found.stories <= _MOST:
            raise ValueError(f"{spec!r}: the number of stories must be from 1 to {_MOST:,}; {rule}")
        return found

    @cached_property
    def language(self) -> Language:
        return language(self.level)

    @property
    def dataset(self) -> Dataset:
        """The stories as a dataset with its parts."""
        return Dataset(
            f"{NAME}:{self.level}:{self.stories}:{self.seed}",
            title="short stories of a generated language whose truth is known",
            license="generated; nobody claims rights in it",
            citation="the parser and all probabilities are in data/tales",
            get="nothing",
            parts={"train": Part(("train.txt",), "train"), "validation": Part(("validation.txt",), "validation")},
            evaluated="validation",
            held_out="validation",
            reader="lines",
        )

    def draw(self) -> Iterator[str]:
        """The texts of the stories of this seed, without end."""
        first = 0
        while True:
            noise = Noise.of(self.seed, 0, torch.arange(first, first + _BLOCK))
            yield from map(self.language.text, self.language.draw(noise))
            first += _BLOCK

    def fetch(self, cache: Path | None = None, progress: Reporter = silent) -> Path:
        """The folder of the cache with train.txt and validation.txt, written if it is not there."""
        root = cache_folder(cache)
        folder = root / "sources" / f"{NAME}-{self.level}-{self.stories}-{self.seed}-v{VERSION}"
        with cache_errors(root, f"writing {self.stories:,} stories", lambda: f"{self.stories / 4000:.1f} MB"):
            if not folder.exists():
                with atomic_folder(folder) as partial:
                    self._write(partial, progress)
                    seal(partial, folder.name)
            verify(folder)
        return folder

    def _write(self, folder: Path, progress: Reporter) -> None:
        """Draw stories until both files have all of theirs."""
        wanted = {False: self.stories, True: max(1, self.stories // 10)}
        paths = {False: folder / "train.txt", True: folder / "validation.txt"}
        with (
            paths[False].open("w", encoding="utf-8") as train,
            paths[True].open("w", encoding="utf-8") as validation,
            working(progress, "writing tales", sum(wanted.values()), "stories") as advance,
        ):
            files = {False: train, True: validation}
            for text in self.draw():
                held_out = is_held_out(text)
                if wanted[held_out]:
                    files[held_out].write(f"{text}\n")
                    wanted[held_out] -= 1
                    advance(1)
                elif not any(wanted.values()):
                    return

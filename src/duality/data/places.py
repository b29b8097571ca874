"""Places: from the string that names a corpus to its files.

    locate("lm1b=/data/lm1b")  ->  [Place(path, dataset)]    one for each corpus of a list or of a mixture
    place.files(part="test")   ->  its files, each with how it is read

A path that exists is a file or a folder. If there is none, the string is a mixture, a dataset of the hub, or a named
corpus (named.py).

What must hold: the files of a folder are sorted by their paths; a file that is no text by its ending is refused with
what to do; what identifies a corpus (``identity``) changes with every file of it, and is the same in every release,
because stores are found by it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from duality.data.named import (
    DATA_VARIABLE,
    HUB,
    Dataset,
    PartName,
    datasets,
    fetch,
    shares_of,
    sources,
)
from duality.data.readers import COMPRESSIONS, KINDS, TABLE_ENDINGS, ending_of, open_bytes
from duality.files import DocumentRule
from duality.files.archives import Source
from duality.files.progress import Reporter, silent
from duality.registry import suggestion

# What to do with files that would be learnt as they are, with all their brackets and names of fields, or not at all.
_NO_TEXT = {
    ending: remedy
    for endings, remedy in {
        ".json": "write one JSON object per line into a .jsonl file, with the text under the key 'text' or --column "
        "NAME",
        ".ndjson .jsonlines": "rename it to .jsonl",
        ".orc": "convert it, for example with pandas: read_orc(FILE).to_parquet('text.parquet')",
        ".zip .tar .tgz .txz .tbz2 .7z .rar": "unpack it and give the folder",
        ".lz4 .lzma .z .br": "unpack it, or compress it as .gz, .xz, .bz2 or .zst",
        ".pdf .doc .docx .odt .rtf .epub": "save its text as a .txt file",
        ".xls .xlsx .ods": "save the sheet as a .csv file",
        ".db .sqlite .sqlite3": "export the texts as a .csv or .jsonl file",
        ".npy .npz .pt .pkl .safetensors": "give ids from Python: duality.train(data=tensor)",
    }.items()
    for ending in endings.split()
}

CorpusSpec = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus: its name for messages, where it is, the label of its documents, and what a document is."""

    name: str
    path: Path
    label: str | None = None
    rule: DocumentRule = "auto"
    dataset: Dataset | None = None
    """the dataset whose file it is, which says how it is read"""


@dataclass(frozen=True)
class Place:
    """Where one corpus is: at a path, in the package of a source, or, a dataset with neither, on the hub."""

    path: Path | None = None
    dataset: Dataset | None = None
    source: Source | None = None

    @property
    def on_hub(self) -> bool:
        """Whether it is a dataset of the hub."""
        return self.path is None and self.source is None

    @property
    def has_parts(self) -> bool:
        """Whether it is a dataset that has its own parts here: a single file has none."""
        return self.dataset is not None and (self.path is None or self.path.is_dir())

    def files(
        self, part: PartName | None = None, cache: Path | None = None, progress: Reporter = silent
    ) -> list[CorpusFile]:
        """Its files; of a dataset with parts those of the ``part``, or those of all parts, each once."""
        dataset, source, path = self.dataset, self.source, self.path
        if source is not None:
            paths = fetch(source.name, cache=cache, progress=progress)
            if dataset is None:
                rule = source.documents
                return [CorpusFile(path.name, path, _find_author(source, path.name), rule) for path in paths]
            parts = dataset.parts.values() if part is None else [dataset.part(part)]
            patterns = [pattern for each in parts for pattern in each.files]
            paths = [path for path in paths if any(fnmatch(path.name, pattern) for pattern in patterns)]
        elif path is None:
            assert dataset is not None, "neither a path nor a source nor a dataset"
            there = dataset.fetch_splits(progress)
            splits = [dataset.part(name).split for name in (dataset.parts if part is None else [part])]
            if part is not None and splits[0] not in there:
                raise ValueError(f"{dataset.name} has no part {splits[0]!r} on the hub: it has {', '.join(there)}")
            paths = [path for split in dict.fromkeys(splits) for path in there.get(split, [])]
        elif not path.is_dir():
            paths = [path]
        elif dataset is not None:
            paths = _part_files(dataset, part, path)
        else:
            names, _ = _list_folder(path)
            if not names:
                endings = ", ".join(ending for kind in KINDS for ending in kind)
                allowed = f"{endings}, and these followed by {' or '.join(COMPRESSIONS)}"
                raise ValueError(f"the folder {path} has no text files; looked for are {allowed}")
            return [CorpusFile(name, path / name, name.partition("/")[0] if "/" in name else None) for name in names]
        for path in paths:
            if (ending := ending_of(path)) in _NO_TEXT:
                raise ValueError(f"{path} is no text file ({ending}): {_NO_TEXT[ending]}")
        return [CorpusFile(str(path), path, dataset=dataset) for path in paths]


def _part_files(dataset: Dataset, part: PartName | None, folder: Path) -> list[Path]:
    """The files of a dataset in a folder; of all parts, those of as many as there are, but of one at least."""
    names = [part] if part is not None else [name for name, each in dataset.parts.items() if each.find_in(folder)]
    found: dict[Path, None] = {}
    for name in names or list(dataset.parts)[:1]:
        files = dataset.part(name).find_in(folder)
        if files is None:
            there_are = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise ValueError(
                f"{folder} has no file of the part {name!r} of {dataset.name}: looked for "
                f"{' or '.join(dataset.parts[name].files)}, found {there_are}; {dataset.how_to_get()}"
            )
        found.update(dict.fromkeys(files[1]))
    return list(found)


def locate(spec: CorpusSpec) -> list[Place]:
    """The places of all corpora of a specification.

    A named dataset is at the path that is given, or in $DUALITY_DATA, or in a package, or on the hub.
    """
    if not isinstance(spec, (str, Path)):
        if not spec:
            raise ValueError("the list of corpora is empty; give at least one path or name")
        return [place for part in spec for place in locate(part)]
    name, path = str(spec), Path(spec).expanduser()
    if name.strip() and path.exists():
        return [Place(path)]
    if mixed := shares_of(name):
        return [place for share in mixed for place in locate(share.corpus)]
    if name.startswith(HUB):
        return [Place(dataset=Dataset.of_hub(name))]
    own, given, where = name.partition("=")
    if own in datasets() and (where or not given):
        dataset, root = datasets()[own], os.environ.get(DATA_VARIABLE)
        if where or root:
            path = Path(where).expanduser() if where else Path(root or "").expanduser() / own
            if path.exists():
                return [Place(path, dataset)]
        if where:
            raise ValueError(f"{own}={where}: there is no such file or folder; {dataset.how_to_get()}")
        return [Place(dataset=dataset, source=None if dataset.package is None else sources()[dataset.package])]
    if name in sources():
        return [Place(source=sources()[name])]
    raise ValueError(
        f"no file, folder or named corpus {name!r}; give a path that exists or a named corpus: "
        f"{suggestion(name, {**sources(), **datasets()})}"
    )


def is_there(spec: str) -> bool:
    """Whether a corpus is a name, or a path that exists."""
    with suppress(ValueError):
        return bool(locate(spec))
    return False


def identity(
    spec: CorpusSpec, *, labels: bool = False, part: PartName | None = None, stream: bool = False
) -> list[list[str | int | None]]:
    """What identifies the content of a corpus without reading it: a part of cache keys.

    With labels it includes those of the files: the label of a file depends on which folder above it is given. A
    dataset of the hub that is streamed has no files here: it is known by its name and revision.
    """
    found: list[list[str | int | None]] = []
    for place in locate(spec):
        if place.source is not None and place.dataset is None:
            own = [] if place.source.documents == "auto" else [place.source.documents]
            found += [[name, member.text_sha256, *own] for name, member in place.source.members.items()]
            continue
        if place.dataset is not None:
            found.append([str(place.dataset), "part", str(part)])
            if stream and place.on_hub:
                continue
        for file in place.files(part):
            status = file.path.stat()
            with open_bytes(file.path) as (_, mark):
                more = [*["table"] * (ending_of(file.path) in TABLE_ENDINGS), *["mark"] * (mark > 0)]
            label = [file.label] if labels else []
            found.append([str(file.path.resolve()), status.st_size, status.st_mtime_ns, *label, *more])
    return found


def has_only_lines(spec: CorpusSpec, rule: DocumentRule = "auto") -> bool:
    """Whether every document of a corpus is a line of a text file, by the rule or by that of its named corpora."""
    chosen = (
        place.dataset.reader if place.dataset is not None else place.source and place.source.documents
        for place in locate(spec)
    )
    return rule == "lines" or all(each == "lines" for each in chosen)


def _find_dataset(spec: CorpusSpec) -> tuple[Place, Dataset] | None:
    """The only place of a corpus, and its dataset, if that has its own parts there."""
    place, *others = locate(spec)
    return None if others or not place.has_parts or place.dataset is None else (place, place.dataset)


def _choose_part(dataset: Dataset, usual: PartName) -> PartName | None:
    """The usual part of a named dataset; of any other dataset of the hub, the first of validation and test it has."""
    if not dataset.name.startswith(HUB):
        return usual
    there = dataset.fetch_splits()
    return "validation" if "validation" in there else "test" if "test" in there else None


def find_evaluated_part(spec: CorpusSpec) -> PartName | None:
    """The part of a dataset that the literature reports; None for a corpus without parts."""
    found = _find_dataset(spec)
    return None if found is None else _choose_part(found[1], found[1].evaluated)


def find_held_out_part(spec: CorpusSpec, streamed: bool = False) -> PartName | None:
    """The part of its own that a dataset is validated on; None for a corpus that must be split.

    Of one that is streamed, it must be apart from the part for training, so that it can be had without that. Parts in
    two forms of a text, such as .tokens and .raw, are refused.
    """
    if (found := _find_dataset(spec)) is None:
        return None
    place, dataset = found
    names: tuple[PartName, ...] = ("train", dataset.held_out)
    parts = {name: dataset.parts[name] for name in names if name in dataset.parts}
    if len(parts) < 2:
        return None
    if streamed:
        if any(part.span is not None or part.documents != (None, None) for part in parts.values()):
            return None
        if not place.on_hub:
            return dataset.held_out
        there, apart = dataset.load_splits(streaming=True), ("validation", "test")
        return next((name for name, part in dataset.parts.items() if name in apart and part.split in there), None)
    if place.path is not None:
        forms = {name: files[0] for name, part in parts.items() if (files := part.find_in(place.path))}
        if len(set(forms.values())) > 1:
            both = ", ".join(f"{name}: {parts[name].files[form]}" for name, form in forms.items())
            raise ValueError(
                f"the parts of {dataset.name} in {place.path} are in two forms ({both}): remove the files of one form, "
                "so that training and validation have the same"
            )
    return _choose_part(dataset, dataset.held_out)


def list_skipped(spec: CorpusSpec) -> list[str]:
    """The files in the folders of a corpus that are not read."""
    folders = [place.path for place in locate(spec) if place.path and place.dataset is None and place.path.is_dir()]
    return [name for folder in folders for name in _list_folder(folder)[1]]


def _list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """The files below a folder that are read and those that are not, by their paths from there."""
    every = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    each = ([name for name in every if ending_of(Path(name)) in endings] for endings in KINDS)
    chosen = next((names for names in each if names), [])
    return chosen, sorted(set(every) - set(chosen))


def _find_author(source: Source, file: str) -> str | None:
    """The author of a file of a named corpus, if the name of the file has it."""
    return file.partition("-")[0] if source.kind == "gutenberg" and "-" in file else None

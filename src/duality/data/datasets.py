"""Datasets of the literature by name: how their files are read, which part of them is for what, and where they are.

    lm1b                     the dataset, wherever it is found
    lm1b=/data/lm1b          the dataset in a folder, or in a file, of yours
    hf:owner/name:column     any dataset of the Hugging Face hub; the column is "text" if it is not given

A named dataset is looked for in this order: the place that is given; the folder of its name in $DUALITY_DATA; the
Hugging Face hub, if the library `datasets` is installed (hub.py); a package of the Python package index that has it
(sources.py). What is not found says what to download, and where to put it.

Each dataset has its own parts (train, validation, test) as the literature uses them, its reader and its detokenizer:

    a folder, the hub      its parts are those of the dataset; nothing else is split off
    a single file          is a corpus like any other text file, read by the dataset's reader and detokenizer

Reader: "lines" has a document in each line; "text" one document, detokenized line by line, without its blank lines;
"records" the rows of a table (.jsonl, .csv, .parquet, .arrow ...), or whole text files.

What must hold: a part never has text of another one; a folder without the files of a part is an error that names them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DATA_VARIABLE = "DUALITY_DATA"
HUB = "hf:"

PartName = Literal["train", "validation", "test"]
Reader = Literal["lines", "text", "records"]


@dataclass(frozen=True)
class Part:
    """A part of a dataset: patterns of the names of its files, or its name on the hub, and which of what they have."""

    files: tuple[str, ...]
    split: str
    documents: tuple[int | None, int | None] = (None, None)
    """from which document to which one, as in a slice; negative numbers count from the end"""
    span: tuple[int, int | None] | None = None
    """from which byte to which one, of the only document of a file; the hub has it in parts"""


@dataclass(frozen=True)
class Dataset:
    """A dataset of the literature."""

    name: str
    title: str
    license: str
    citation: str
    get: str
    """where it can be downloaded"""
    parts: Mapping[PartName, Part]
    evaluated: PartName
    """the part that the paper, and most of the literature, reports"""
    held_out: PartName
    """the part that a training is validated on"""
    reader: Reader = "records"
    column: str = "text"
    detokenizer: str | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    package: str | None = None
    """the named source of the package index that has it"""


@dataclass(frozen=True)
class Placed:
    """A dataset and where it is: a folder or file, the hub (``None``), or its package."""

    dataset: Dataset
    place: Path | None
    packaged: bool = False

    @property
    def has_parts(self) -> bool:
        """Whether it has its own parts: a single file has none."""
        return self.place is None or self.place.is_dir() or self.packaged


def hub_dataset(spec: str) -> Dataset:
    """A dataset of the hub: hf:owner/name, with @config and :column if they are needed.

    >>> hub_dataset("hf:owner/name@small:body").column
    'body'
    """
    place, _, column = spec.removeprefix(HUB).partition(":")
    name, _, config = place.partition("@")
    if not name.strip():
        raise ValueError(f"{spec!r} names no dataset of the hub: write hf:owner/name, or hf:owner/name:column")
    return Dataset(
        name=spec,
        title=f"{name} of the Hugging Face hub",
        license="as the hub says",
        citation="as the hub says",
        get=name,
        parts={"train": Part((), "train"), "validation": Part((), "validation"), "test": Part((), "test")},
        evaluated="test",
        held_out="validation",
        column=column or "text",
        hub=name,
        config=config or None,
    )


_PARQUET = "refs/convert/parquet"  # the branch of the hub with the tables of datasets that are programs


def thirds(train: str, validation: str, test: str, *endings: str) -> dict[PartName, Part]:
    """Three parts whose files have these names, with these endings and any compression."""
    names: dict[PartName, str] = {"train": train, "validation": validation, "test": test}
    return {part: Part(tuple(f"{name}{ending}*" for ending in endings), part) for part, name in names.items()}


def wikitext(number: int) -> Dataset:
    """WikiText-2 or WikiText-103."""
    return Dataset(
        name=f"wikitext-{number}",
        title=f"WikiText-{number}: good and featured articles of the English Wikipedia",
        license="CC BY-SA 3.0",
        citation="Merity et al. 2016, Pointer Sentinel Mixture Models",
        get=f"wikitext-{number}-raw-v1 (wiki.train.raw, wiki.valid.raw, wiki.test.raw), or the .tokens files",
        parts=thirds("wiki.train", "wiki.valid", "wiki.test", ".raw", ".tokens"),
        evaluated="validation",
        held_out="validation",
        reader="text",
        detokenizer="wikitext",
        hub="Salesforce/wikitext",
        config=f"wikitext-{number}-raw-v1",
    )


def papers(name: str, title: str) -> Dataset:
    """A half of the scientific papers."""
    tables = thirds("train", "val*", "test", ".parquet", ".jsonl", ".txt")
    return Dataset(
        name=name,
        title=f"scientific papers of {title}, whole articles",
        license="of the papers' authors",
        citation="Cohan et al. 2018, A Discourse-Aware Attention Model for Abstractive Summarization of Long Documents",
        get=f"armanc/scientific_papers, configuration {name}, as .parquet or .jsonl files with a column 'article'",
        parts=tables,
        evaluated="validation",
        held_out="validation",
        column="article",
        detokenizer="scientific-papers",
        hub="armanc/scientific_papers",
        config=name,
        revision=_PARQUET,
    )


def spans(train: int, validation: int, pattern: str) -> dict[PartName, Part]:
    """Three parts of one text, by its bytes; the hub has them as three splits."""
    return {
        "train": Part((pattern,), "train", span=(0, train)),
        "validation": Part((pattern,), "validation", span=(train, train + validation)),
        "test": Part((pattern,), "test", span=(train + validation, None)),
    }


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="lm1b",
            title="One Billion Word Benchmark: sentences of news, shuffled",
            license="of the news' authors; for research",
            citation="Chelba et al. 2013, One Billion Word Benchmark for Measuring Progress in Statistical Language "
            "Modeling",
            get="1-billion-word-language-modeling-benchmark-r13output.tar.gz from statmt.org/lm-benchmark",
            parts={
                "train": Part(("**/news.en-*-of-*",), "train"),
                "test": Part(("**/news.en.heldout-*-of-*",), "test"),
            },
            evaluated="test",
            held_out="test",
            reader="lines",
            detokenizer="lm1b",
            hub="billion-word-benchmark/lm1b",
            revision=_PARQUET,
        ),
        Dataset(
            name="openwebtext",
            title="OpenWebText: 8 013 769 web pages that Reddit linked to",
            license="CC0 for the collection; the pages are their authors'",
            citation="Gokaslan and Cohen 2019, OpenWebText Corpus",
            get="Skylion007/openwebtext, as .parquet or .jsonl files with a column 'text'",
            parts={
                "train": Part(("**/*",), "train", documents=(None, -100_000)),
                "validation": Part(("**/*",), "train", documents=(-100_000, None)),
            },
            evaluated="validation",
            held_out="validation",
            hub="Skylion007/openwebtext",
            revision=_PARQUET,
        ),
        Dataset(
            name="text8",
            title="text8: 100 000 000 characters of the English Wikipedia in 27 symbols",
            license="CC BY-SA 3.0 and GFDL",
            citation="Mahoney 2011, Large text compression benchmark",
            get="text8.zip from mattmahoney.net/dc, unpacked: the file text8",
            parts=spans(90_000_000, 5_000_000, "text8*"),
            evaluated="test",
            held_out="validation",
            reader="records",
            hub="afmck/text8",
        ),
        Dataset(
            name="enwik8",
            title="enwik8: the first 100 000 000 bytes of the English Wikipedia of 2006, as XML",
            license="CC BY-SA 3.0 and GFDL",
            citation="Mahoney 2011, Large text compression benchmark",
            get="enwik8.zip from mattmahoney.net/dc, unpacked: the file enwik8",
            parts=spans(90_000_000, 5_000_000, "enwik8*"),
            evaluated="test",
            held_out="validation",
            package="enwik8",
        ),
        wikitext(2),
        wikitext(103),
        Dataset(
            name="ptb",
            title="Penn Treebank: the Wall Street Journal in Mikolov's form, in lower case with <unk> and N",
            license="of the Linguistic Data Consortium; evaluate only",
            citation="Marcus et al. 1993, Building a Large Annotated Corpus of English: The Penn Treebank",
            get="ptb.train.txt, ptb.valid.txt and ptb.test.txt of Mikolov's simple-examples",
            parts=thirds("ptb.train", "ptb.valid", "ptb.test", ".txt"),
            evaluated="validation",
            held_out="validation",
            reader="lines",
            column="sentence",
            detokenizer="ptb",
            hub="ptb-text-only/ptb_text_only",
            revision=_PARQUET,
        ),
        Dataset(
            name="lambada",
            title="LAMBADA: the ends of 5 153 passages of novels, in OpenAI's form",
            license="CC BY 4.0",
            citation="Paperno et al. 2016, The LAMBADA dataset",
            get="lambada_test.jsonl of GPT-2's data, a line with the key 'text' for each passage",
            parts={"test": Part(("lambada_test.jsonl*",), "test")},
            evaluated="test",
            held_out="test",
            detokenizer="lambada",
            hub="EleutherAI/lambada_openai",
            config="default",
        ),
        Dataset(
            name="ag-news",
            title="AG News: titles and first sentences of 127 600 articles",
            license="for research",
            citation="Zhang et al. 2015, Character-level Convolutional Networks for Text Classification",
            get="fancyzhx/ag_news, as .parquet or .jsonl files with a column 'text'",
            parts={
                "train": Part(("**/train*",), "train"),
                "test": Part(("**/test*",), "test"),
            },
            evaluated="test",
            held_out="test",
            hub="fancyzhx/ag_news",
        ),
        Dataset(
            name="moses",
            title="MOSES: 1 760 737 drug-like molecules of ZINC as SMILES",
            license="MIT",
            citation="Polykovskiy et al. 2020, Molecular Sets (MOSES): A Benchmarking Platform",
            get="train.csv and test.csv of MOSES, as train.txt and test.txt with a molecule in each line",
            parts={"train": Part(("train*",), "train"), "test": Part(("test*",), "test")},
            evaluated="test",
            held_out="test",
            reader="lines",
            package="moses",
        ),
        papers("pubmed", "PubMed"),
        papers("arxiv", "arXiv"),
    )
}


def placed(name: str, path: str | None = None) -> Placed:
    """A dataset at the place that is given, or in $DUALITY_DATA, or elsewhere: on the hub or in a package."""
    dataset = DATASETS[name]
    if path is not None:
        found = Path(path).expanduser()
        if not found.exists():
            raise ValueError(f"{name}={path}: there is no such file or folder; {how_to_get(dataset)}")
        return Placed(dataset, found)
    root = os.environ.get(DATA_VARIABLE)
    if root and (Path(root).expanduser() / name).exists():
        return Placed(dataset, Path(root).expanduser() / name)
    return Placed(dataset, None, packaged=dataset.package is not None)


def how_to_get(dataset: Dataset) -> str:
    """What to download, and what to do with it."""
    return (
        f"download {dataset.get}, and say where it is: --data {dataset.name}=FOLDER, or put it into "
        f"${DATA_VARIABLE}/{dataset.name}"
    )


def part_of(dataset: Dataset, name: PartName) -> Part:
    """A part of a dataset; one that it does not have is an error."""
    if name not in dataset.parts:
        raise ValueError(f"{dataset.name} has no part {name!r}: it has {', '.join(dataset.parts)}")
    return dataset.parts[name]


def local_files(folder: Path, dataset: Dataset, name: PartName) -> list[Path]:
    """The files of a part in a folder, sorted; of several forms of one text, such as .raw and .tokens, the first."""
    part = part_of(dataset, name)
    form = form_of(folder, part)
    if form is not None:
        return matching(folder, part.files[form])
    there = sorted(path.name for path in folder.iterdir())[:8]
    raise ValueError(
        f"{folder} has no file of the part {name!r} of {dataset.name}: looked for {' or '.join(part.files)}, found "
        f"{', '.join(there) or 'nothing'}; {how_to_get(dataset)}"
    )


def form_of(folder: Path, part: Part) -> int | None:
    """Which of the patterns of a part is the first that a file in the folder has."""
    return next((number for number, pattern in enumerate(part.files) if matching(folder, pattern)), None)


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder with such a name, sorted."""
    return sorted(path for path in folder.glob(pattern) if path.is_file() and not path.name.startswith("."))


def check_forms(folder: Path, dataset: Dataset, names: tuple[PartName, ...]) -> None:
    """Refuse to train on one form of a text and to validate on another, such as .tokens and .raw."""
    forms = {name: form_of(folder, part_of(dataset, name)) for name in names}
    if len({form for form in forms.values() if form is not None}) > 1:
        found = ", ".join(
            f"{name}: {dataset.parts[name].files[form]}" for name, form in forms.items() if form is not None
        )
        raise ValueError(
            f"the parts of {dataset.name} in {folder} are in two forms ({found}): remove the files of one form, so "
            "that training and validation have the same"
        )

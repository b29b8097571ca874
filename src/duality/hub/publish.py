"""Giving a model to others: the folder of ``Model.save_pretrained``, its model card, and uploading it to the hub.

The model card is README.md, with the fields that the Hugging Face hub reads at its beginning. Its text is in card.md, a
template; what stands in its places is computed here. ``ModelCard`` of `huggingface_hub` would need jinja2 and that
package for a folder which never leaves the machine.

What must hold: a folder is complete or absent, and nothing that is there is replaced; a model that is to be private is
never uploaded into a repository that is public; the files are the same on the disk and on the hub. In the card every
number stands beside what it was measured on; what is not known is said to be unknown; no path of the machine that the
model was trained on is in it.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template

from duality.data.named import datasets, shares_of
from duality.denoisers.readouts import CausalDenoiser
from duality.extras import install_elsewhere
from duality.files.atomic import file_sha256, new_folder
from duality.files.json_files import MIB, parse_json, read_bounded
from duality.files.kept_scores import Scores
from duality.files.progress import silent
from duality.hub import package
from duality.hub.fetch import PREFIX, asking_hub, hub_name
from duality.hub.package import CARD, CONFIG, INSIDE, WEIGHTS, PretrainedConfig
from duality.models.folder import CORPUS, exists, package_versions, read_identity
from duality.models.likelihood import KEPT, Likelihood, hash_weights
from duality.models.trained import TrainedModel
from duality.recipes.recipe import IMPORTED, Recipe
from duality.tokenizers.specs import TokenizerFile
from duality.tokenizers.tokenizer import FILE
from duality.tokenizers.transformers_files import ExtraState, transformers_files
from duality.training.checkpoint import write_tensors
from duality.training.metrics import read_metrics

_MOST_CHARACTERS = 600  # of a sample
_TABLE = "| text | nats per token | perplexity | kind | tokens |\n|---|---|---|---|---|"
_MEANING = {
    "bound": "A bound is an upper bound on the model's own value.",
    "exact": "An exact value is the model's own.",
    "pseudo-likelihood": "A pseudo-likelihood is no likelihood: it does not compare with the others.",
}


@dataclass(frozen=True)
class CardFields:
    """What only the publisher knows: the licence of the weights, and names of the hub's datasets."""

    license: str = "unknown"
    datasets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("license", self.license), *(("dataset", each) for each in self.datasets)):
            if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)?", value, re.ASCII):
                raise ValueError(
                    f"{name} {value!r:.60}: give an identifier of the hub, such as "
                    f"{'apache-2.0' if name == 'license' else 'owner/name'}"
                )


def save_pretrained(model: TrainedModel, folder: Path, fields: CardFields, name: str | None = None) -> Path:
    """Write a model alone into a new folder; ``name`` is what the model card calls it."""
    target = folder.expanduser().absolute()
    check_new(target)
    tokenizer, origin = model.tokenizer, model.origin
    others, asked = _for_transformers(model)
    texts = {**(others or {}), CARD: card_of(model, fields, name or target.name)}
    if origin is not None and (origin.folder / CORPUS).is_file():
        texts[CORPUS] = json.dumps(read_identity(origin.folder), indent=1)
    with new_folder(target) as place:
        tokenizer.save(place)
        os.replace(place / FILE, place / package.TOKENIZER)
        weights = {f"{INSIDE}{key}": value.detach() for key, value in model.denoiser.named_parameters()}
        write_tensors(place / WEIGHTS, weights, {"format": "pt"})
        config = PretrainedConfig(
            _public_recipe(model.recipe),
            model.step,
            "ema" if origin is None else origin.weights,
            model.label_names,
            tokenizer.vocab_size,
            tokenizer.fingerprint,
            package_versions(),
            file_sha256(place / WEIGHTS),
        )
        texts[CONFIG] = json.dumps(config.to_json() | asked, indent=1)
        for file, text in texts.items():  # config.json is the last: without it nothing can be loaded
            (place / file).write_text(text, encoding="utf-8")
        os.chmod(place / WEIGHTS, (place / CONFIG).stat().st_mode)  # the library writes them for their owner alone
    return target


def check_new(target: Path) -> None:
    """Refuse a place where something is."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: give a new folder")
    if inside := sorted(path.name for path in target.iterdir()) if target.is_dir() else []:
        raise ValueError(f"{target} holds other files ({', '.join(inside[:3])}): give a new or an empty folder")


def repository_named(name: str) -> str:
    """The name of a model on the hub; anything else is refused."""
    named = hub_name(name)
    if named is None or named[1] is not None:
        raise ValueError(f"{name!r} names no model of the Hugging Face hub: write OWNER/NAME")
    return named[0]


def push_to_hub(model: TrainedModel, name: str, fields: CardFields, private: bool, revision: str | None) -> str:
    """Upload a model to the hub, whose repository is made if there is none; the address of the commit."""
    import huggingface_hub as hub

    def refuse_upload(error: Exception) -> str | None:
        if isinstance(error, hub.errors.HfHubHTTPError) and error.response.status_code in (401, 403):
            return "does not take this from you: set HF_TOKEN to a token that may write there"
        if isinstance(error, hub.errors.OfflineModeIsEnabled):
            return "cannot be reached, because HF_HUB_OFFLINE is set: unset it, or write a folder (--folder)"
        return None

    repository = repository_named(name)
    with tempfile.TemporaryDirectory(prefix="duality-") as place:
        folder = save_pretrained(model, Path(place) / "model", fields, repository)
        with asking_hub(repository, revision, refuse_upload):
            api = hub.HfApi(library_name="duality")
            api.create_repo(repository, private=private, exist_ok=True)
            public = private and not api.model_info(repository).private
            if not public:
                if revision is not None:
                    api.create_branch(repository, branch=revision, exist_ok=True)
                message = f"{model.recipe.name}, step {model.step}"
                found = api.upload_folder(
                    repo_id=repository, folder_path=folder, revision=revision, commit_message=message
                )
                return str(found.commit_url)
    raise ValueError(
        f"the model {repository} is public on the Hugging Face hub, and a private one was asked for: nothing was "
        "uploaded; make it private on its page, or choose another name"
    )


def _for_transformers(model: TrainedModel) -> tuple[dict[str, str] | None, dict[str, object]]:
    """The tokenizer's files for `transformers`, None if it has no such form; what that asks of a config.json.

    The state behind the last token is the mask token or, of some autoregressive models, the one that begins a sequence.
    """
    tokenizer, denoiser = model.tokenizer, model.denoiser
    num_tokens, separator = tokenizer.vocab_size, tokenizer.separator
    extra: ExtraState = None if model.mask_id is None else "mask_token"
    ids = {} if extra is None else {"mask_token_id": num_tokens}
    causal = isinstance(denoiser, CausalDenoiser)
    if isinstance(denoiser, CausalDenoiser):
        extra, ids = "bos_token" if denoiser.begin == num_tokens else None, {"bos_token_id": denoiser.begin}
    ends = {} if separator is None else {"eos_token_id": separator, "pad_token_id": separator}
    return transformers_files(tokenizer, extra, model.length), {
        "architectures": ["DualityForCausalLM" if causal else "DualityForMaskedLM"],
        "dtype": "float32",
        "vocab_size": num_tokens + (causal or extra is not None),
        **ids,
        **ends,
    }


# --- the model card


def _public_recipe(recipe: Recipe) -> Recipe:
    """The recipe without paths of this machine."""
    data = replace(recipe.data, corpus=_public_corpus(recipe.data.corpus))
    if isinstance(data.tokenizer, TokenizerFile):
        data = replace(data, tokenizer=replace(data.tokenizer, path=Path(data.tokenizer.path).name))
    return replace(recipe, data=data)


def card_of(model: TrainedModel, fields: CardFields, name: str) -> str:
    """The text of README.md of a model that is published as ``name``. A text of JSON is a text of YAML."""
    recipe, origin = _public_recipe(model.recipe), model.origin
    tags = ["diffusion-duality", "discrete-diffusion", "diffusion-language-model", type(recipe.method).__name__.lower()]
    run = origin.folder if origin is not None and origin.weights == "ema" and exists(origin.folder) else None
    measured = [] if run is None else list(_likelihoods(model, run, recipe.data.corpus))
    remark = f"Averaged weights, mean ± standard error. {_MEANING.get(model.measure.kind, '')}"
    trained = f"{model.step:,} of {recipe.training.steps:,} steps of {recipe.training.batch_size} sequences"
    if recipe.source.startswith(IMPORTED):
        trained = "by others" + (f", {model.step:,} steps" if model.step else "")
    facts = {
        "method": type(recipe.method).__name__,
        "recipe": f"{recipe.name} ({recipe.source})",
        "parameters": f"{sum(value.numel() for value in model.denoiser.parameters()):,}",
        "trained": trained,
        "sequence": f"{model.length} tokens",
        "tokenizer": f"{type(recipe.data.tokenizer).__name__}, {model.tokenizer.vocab_size:,} tokens",
        "data": _cell(recipe.data.corpus),
    }
    if model.label_names:
        facts["classes"] = _cell(", ".join(model.label_names[:20]) + (", ..." if len(model.label_names) > 20 else ""))
    if origin is not None:
        facts["sha256 of the weights it was made from"] = origin.sha256
    text = resources.files("duality.hub").joinpath("card.md").read_text(encoding="utf-8")
    return Template(text).substitute(
        license=json.dumps(fields.license),
        tags=json.dumps(tags),
        datasets=f"datasets: {json.dumps(list(fields.datasets))}\n" if fields.datasets else "",
        title=name.rpartition("/")[2],
        summary=recipe.summary,
        install=install_elsewhere(),
        facts="\n".join(f"| {key} | {value} |" for key, value in facts.items()),
        likelihood="\n".join([_TABLE, *measured, "", remark]) if measured else "Not measured.",
        samples="\n\n".join(_samples(run, model.step)) or "None were kept. `duality sample` writes some.",
        source=f"hf:{name}" if "/" in name else name,
        label=f", label={model.label_names[0]!r}" if model.label_names else "",
        transformers=f"`AutoTokenizer.from_pretrained({name!r})` of `transformers` gives the same ids."
        if _for_transformers(model)[0] is not None
        else "This tokenizer has no form that `transformers` can read: `duality_tokenizer.json` is for this library.",
        method=recipe.method,
        backbone=recipe.backbone,
        data=recipe.data,
        training=recipe.training,
    )


def _public_corpus(corpus: str) -> str:
    """A corpus as others may see it: a name stays, of a path its last part is left.

    >>> _public_corpus("/home/me/book.txt"), _public_corpus("qm9"), _public_corpus("lm1b=/data/lm1b")
    ('book.txt', 'qm9', 'lm1b')
    >>> _public_corpus("[/data/a.txt:0.7,lm1b:0.3]"), _public_corpus("hf:owner/name:text")
    ('[a.txt:0.7,lm1b:0.3]', 'hf:owner/name:text')
    """
    if mixed := shares_of(corpus):
        return f"[{','.join(f'{_public_corpus(share)}:{weight:g}' for share, weight in mixed.items())}]"
    dataset, _, where = corpus.partition("=")
    if dataset in datasets() and where:
        return dataset
    return corpus if corpus.startswith(PREFIX) else Path(corpus).name or "unknown"


def _cell(text: str) -> str:
    """Text in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _likelihoods(model: TrainedModel, run: Path, corpus: str) -> Iterator[str]:
    """What the run has measured on these weights, as rows: text, nats per token, perplexity, kind, tokens."""
    found: list[tuple[object, float, float, str, int]] = []
    rows = [row for row in read_metrics(run) if "validation_nats" in row and row["step"] == model.step]
    for last in rows[-1:]:
        nats, error = (
            math.inf if last[name] is None else last[name] for name in ("validation_nats", "validation_stderr")
        )
        kind, count = last.get("validation_kind", "bound"), int(last.get("validation_tokens", 0))
        found.append((f"validation part of {corpus}", nats, error, kind, count))
    kept = Scores.read(run / KEPT, silent).entries.get(hash_weights(model.denoiser), {})
    for values in kept.values():
        if isinstance(values, dict) and (own := Likelihood.parse(values)) is not None:
            text = values.get("set", "a test set")
            found.append((text, own.nats_per_token, own.stderr, own.kind, own.num_tokens))
    for text, nats, error, kind, count in found:
        scale = math.exp(nats) if nats < 700 else math.inf
        numbers = f"{nats:.4f} ± {error:.4f} | {scale:.2f} ± {scale * error:.2f}"
        yield f"| {_cell(str(text))} | {numbers} | {kind} | {count:,} |"


def _samples(run: Path | None, step: int) -> Iterator[str]:
    """The samples that a run has kept at a step, each as a block of the card, whatever characters it has."""
    path = None if run is None else run / "samples" / f"step-{step:08d}.jsonl"
    if path is None or not path.is_file():
        return
    for number, line in enumerate(read_bounded(path, 64 * MIB).splitlines(), 1):
        row = parse_json(line, f"{path}, line {number},")
        if isinstance(row, dict):
            text = "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(row.get("text")))
            text = text[:_MOST_CHARACTERS] + (" ..." if len(text) > _MOST_CHARACTERS else "")
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            how = f"{row.get('steps')} steps, {row.get('tail')} tail, seed {row.get('seed')}"
            yield f"{how}, number {row.get('index')}:\n\n{fence}text\n{text}\n{fence}"

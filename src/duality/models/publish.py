"""Giving a model to others: the folder of ``Model.save_pretrained``, and uploading it to the Hugging Face hub.

What must hold: a folder is complete or absent, and nothing that is there is replaced; a model that is to be private is
never uploaded into a repository that is public; the files are the same on the disk and on the hub.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from duality.denoisers.readouts import CausalDenoiser
from duality.files.atomic import file_sha256, flush_to_disk, new_folder
from duality.hub import package
from duality.hub.fetch import hub_name, progress_on_terminals, reason, shown
from duality.hub.package import CARD, CONFIG, INSIDE, WEIGHTS, PretrainedConfig
from duality.models.card import CardFields, card, public_recipe
from duality.models.provenance import CORPUS, environment, read_identity
from duality.tokenizers.tokenizer import FILE
from duality.tokenizers.transformers_files import ExtraState, transformers_files
from duality.training.checkpoint import write_tensors

if TYPE_CHECKING:
    from duality.models.model import Model


def save_pretrained(model: Model, folder: Path, fields: CardFields, name: str | None = None) -> Path:
    """Write a model alone into a new folder; ``name`` is what the model card calls it."""
    target = folder.expanduser().absolute()
    check_new(target)
    with new_folder(target) as temporary:
        write_files(model, temporary, fields, name or target.name)
    return target


def check_new(target: Path) -> None:
    """Refuse a place where something is."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: give a new folder")
    inside = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    if inside:
        raise ValueError(f"{target} holds other files ({', '.join(inside[:3])}): give a new or an empty folder")


def write_files(model: Model, folder: Path, fields: CardFields, name: str) -> None:
    """Write all files of a model, and flush them to the disk."""
    extra, tokenizer = extra_state(model), model.tokenizer
    tokenizer.save(folder)
    os.replace(folder / FILE, folder / package.TOKENIZER)
    others = transformers_files(tokenizer, extra, model.length)
    texts = dict(others or {})
    weights = {f"{INSIDE}{key}": value.detach() for key, value in model.denoiser.named_parameters()}
    write_tensors(folder / WEIGHTS, weights, {"format": "pt"})
    config = PretrainedConfig(
        public_recipe(model.recipe),
        model.step,
        "ema" if model.origin is None else model.origin.weights,
        model.label_names,
        tokenizer.vocab_size,
        tokenizer.fingerprint,
        environment()["packages"],
        file_sha256(folder / WEIGHTS),
    )
    texts[CARD] = card(model, fields, name, others is not None)
    if model.origin is not None and (model.origin.folder / CORPUS).is_file():
        texts[CORPUS] = json.dumps(read_identity(model.origin.folder), indent=1)
    texts[CONFIG] = json.dumps(config.to_json() | transformers_fields(model, extra), indent=1)
    for file, text in texts.items():  # config.json is the last: without it nothing can be loaded
        (folder / file).write_text(text, encoding="utf-8")
    # the library writes weights for their owner alone: whoever may read the other files may read these
    os.chmod(folder / WEIGHTS, (folder / CONFIG).stat().st_mode)
    for path in (*folder.iterdir(), folder):
        flush_to_disk(path)


def extra_state(model: Model) -> ExtraState:
    """What the state behind the last token is; that of an autoregressive model that begins with a token is nothing."""
    if isinstance(model.denoiser, CausalDenoiser):
        return "bos_token" if model.denoiser.begin == model.tokenizer.vocab_size else None
    return None if model.mask_id is None else "mask_token"


def transformers_fields(model: Model, extra: ExtraState) -> dict[str, object]:
    """What `transformers` asks of a config.json."""
    num_tokens, denoiser = model.tokenizer.vocab_size, model.denoiser
    causal = isinstance(denoiser, CausalDenoiser)
    fields: dict[str, object] = {
        "architectures": ["DualityForCausalLM" if causal else "DualityForMaskedLM"],
        "dtype": "float32",
        "vocab_size": num_tokens + (causal or extra is not None),
    }
    if isinstance(denoiser, CausalDenoiser):
        fields["bos_token_id"] = denoiser.begin
    elif extra is not None:
        fields[f"{extra}_id"] = num_tokens
    if model.tokenizer.separator is not None:
        fields |= {"eos_token_id": model.tokenizer.separator, "pad_token_id": model.tokenizer.separator}
    return fields


def card_of(model: Model, fields: CardFields, name: str) -> str:
    """The model card that would be written."""
    return card(model, fields, name, transformers_files(model.tokenizer, extra_state(model), model.length) is not None)


def repository_named(name: str) -> str:
    """The name of a model on the hub; anything else is refused."""
    named = hub_name(name)
    if named is None or named[1] is not None:
        raise ValueError(f"{name!r} names no model of the Hugging Face hub: write OWNER/NAME")
    return named[0]


def push_to_hub(model: Model, name: str, fields: CardFields, private: bool, revision: str | None) -> str:
    """Upload a model to the hub; the address of the commit."""
    repository = repository_named(name)
    with tempfile.TemporaryDirectory(prefix="duality-") as place:
        folder = save_pretrained(model, Path(place) / "model", fields, repository)
        try:
            return uploaded(folder, repository, private, revision, f"{model.recipe.name}, step {model.step}")
        except ValueError:
            raise
        except Exception as error:  # of the network, of the hub
            raise ValueError(f"{shown(repository, revision)} {refusal(error)}") from None


def uploaded(folder: Path, name: str, private: bool, revision: str | None, message: str) -> str:
    """The address of a commit with the files of a folder; the repository is made if there is none."""
    import huggingface_hub as hub

    api = hub.HfApi(library_name="duality")
    api.create_repo(name, private=private, exist_ok=True)
    if private and not api.model_info(name).private:
        raise ValueError(
            f"the model {name} is public on the Hugging Face hub, and a private one was asked for: nothing was "
            "uploaded; make it private on its page, or choose another name"
        )
    if revision is not None:
        api.create_branch(name, branch=revision, exist_ok=True)
    with progress_on_terminals():
        found = api.upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    return str(found.commit_url)


def refusal(error: Exception) -> str:
    """Why the hub does not take something, and what to do."""
    from huggingface_hub import errors

    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if status in (401, 403):
        return "does not take this from you: set HF_TOKEN to a token that may write there"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "cannot be reached, because HF_HUB_OFFLINE is set: unset it, or write a folder (--folder)"
    return reason(error)

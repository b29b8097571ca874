"""Giving a model to others: the folder of ``Model.save_pretrained``, and uploading it to the Hugging Face hub.

What must hold: a folder is complete or absent, and nothing that is there is replaced; a model that is to be private is
never uploaded into a repository that is public; the files are the same on the disk and on the hub.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from duality.denoisers.readouts import CausalDenoiser
from duality.files.atomic import file_sha256, new_folder
from duality.hub import package
from duality.hub.card import CardFields, make_card, public_recipe
from duality.hub.fetch import describe_name, explain_error, hub_name, progress_on_terminals
from duality.hub.package import CARD, CONFIG, INSIDE, WEIGHTS, PretrainedConfig, flush_model
from duality.models.folder import CORPUS, read_identity
from duality.models.provenance import package_versions
from duality.models.trained import TrainedModel
from duality.tokenizers.tokenizer import FILE
from duality.tokenizers.transformers_files import ExtraState, transformers_files
from duality.training.checkpoint import write_tensors


def save_pretrained(model: TrainedModel, folder: Path, fields: CardFields, name: str | None = None) -> Path:
    """Write a model alone into a new folder; ``name`` is what the model card calls it."""
    target = folder.expanduser().absolute()
    check_new(target)
    tokenizer, origin = model.tokenizer, model.origin
    others, asked = _for_transformers(model)
    texts = dict(others or {})
    texts[CARD] = make_card(model, fields, name or target.name, others is not None)
    if origin is not None and (origin.folder / CORPUS).is_file():
        texts[CORPUS] = json.dumps(read_identity(origin.folder), indent=1)
    with new_folder(target) as place:
        tokenizer.save(place)
        os.replace(place / FILE, place / package.TOKENIZER)
        weights = {f"{INSIDE}{key}": value.detach() for key, value in model.denoiser.named_parameters()}
        write_tensors(place / WEIGHTS, weights, {"format": "pt"})
        config = PretrainedConfig(
            public_recipe(model.recipe),
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
        flush_model(place)
    return target


def check_new(target: Path) -> None:
    """Refuse a place where something is."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: give a new folder")
    inside = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    if inside:
        raise ValueError(f"{target} holds other files ({', '.join(inside[:3])}): give a new or an empty folder")


def card_of(model: TrainedModel, fields: CardFields, name: str) -> str:
    """The model card that would be written."""
    return make_card(model, fields, name, _for_transformers(model)[0] is not None)


def repository_named(name: str) -> str:
    """The name of a model on the hub; anything else is refused."""
    named = hub_name(name)
    if named is None or named[1] is not None:
        raise ValueError(f"{name!r} names no model of the Hugging Face hub: write OWNER/NAME")
    return named[0]


def push_to_hub(model: TrainedModel, name: str, fields: CardFields, private: bool, revision: str | None) -> str:
    """Upload a model to the hub, whose repository is made if there is none; the address of the commit."""
    import huggingface_hub as hub

    repository = repository_named(name)
    with tempfile.TemporaryDirectory(prefix="duality-") as place:
        folder = save_pretrained(model, Path(place) / "model", fields, repository)
        try:
            api = hub.HfApi(library_name="duality")
            api.create_repo(repository, private=private, exist_ok=True)
            public = private and not api.model_info(repository).private
            if not public:
                if revision is not None:
                    api.create_branch(repository, branch=revision, exist_ok=True)
                with progress_on_terminals():
                    message = f"{model.recipe.name}, step {model.step}"
                    found = api.upload_folder(
                        repo_id=repository, folder_path=folder, revision=revision, commit_message=message
                    )
                return str(found.commit_url)
        except Exception as error:  # of the network, of the hub
            raise ValueError(f"{describe_name(repository, revision)} {_explain_refusal(error)}") from None
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


def _explain_refusal(error: Exception) -> str:
    """Why the hub does not take something, and what to do."""
    from huggingface_hub import errors

    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if status in (401, 403):
        return "does not take this from you: set HF_TOKEN to a token that may write there"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "cannot be reached, because HF_HUB_OFFLINE is set: unset it, or write a folder (--folder)"
    return explain_error(error)

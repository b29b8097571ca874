"""Folders of models on the Hugging Face hub, fetched into the cache of `huggingface_hub`.

The library keeps what it fetches in its own cache ($HF_HOME), and fetches nothing if $HF_HUB_OFFLINE is 1. Only data
are fetched: weights, configurations and tokenizers, no programs.

What must hold: a folder that cannot be had is one line that says why and what to do; a name that is in the cache is
found there without a network.
"""

from __future__ import annotations

from pathlib import Path

DATA = ["*.json", "*.safetensors", "*.bin", "*.txt", "*.model"]


def folder_of(name: str, revision: str | None = None) -> Path:
    """The folder of the model OWNER/NAME on this machine, at a branch, tag or commit; fetched if it is not there."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    shown = f"hf:{name}" + (f"@{revision}" if revision else "")
    where = f"https://huggingface.co/{name}"
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=DATA))
    except errors.HFValidationError:
        raise ValueError(f"{shown} is no name of a model: write hf:OWNER/NAME or hf:OWNER/NAME@REVISION") from None
    except errors.GatedRepoError:
        raise ValueError(f"{shown} is open to some accounts only: ask for access at {where}, and log in") from None
    except errors.RevisionNotFoundError:
        raise ValueError(
            f"{shown} does not exist: {name} has no revision {revision or 'main'}; look at {where}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ValueError(
            f"{shown} does not exist on the Hugging Face hub, or is private: look at the name, or log in"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        if constants.is_offline_mode():
            raise ValueError(
                f"{shown} is not in the cache, and HF_HUB_OFFLINE is set: unset it where there is a network, or fetch "
                "the folder elsewhere and give its path"
            ) from None
        raise no_network(shown, error) from None
    except Exception as error:  # of the network and of the hub, of many kinds
        raise no_network(shown, error) from None


def no_network(shown: str, error: BaseException) -> ValueError:
    """The error of a hub that cannot be reached."""
    cause = error.__cause__ or error
    reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return ValueError(
        f"{shown} cannot be fetched ({type(cause).__name__}: {reason[:200]}), and is not in the cache: look at the "
        "network, or fetch the folder elsewhere and give its path"
    )


def hub_name(source: str) -> tuple[str, str | None] | None:
    """Name and revision of a model that is given as hf:OWNER/NAME or hf:OWNER/NAME@REVISION; None for a path.

    >>> hub_name("hf:s-sahoo/duo"), hub_name("hf:s-sahoo/duo@v2"), hub_name("folder/duo.ckpt")
    (('s-sahoo/duo', None), ('s-sahoo/duo', 'v2'), None)
    """
    if not source.startswith("hf:"):
        return None
    name, _, revision = source.removeprefix("hf:").partition("@")
    return name, revision or None

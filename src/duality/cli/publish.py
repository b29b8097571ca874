"""The command `publish`: a model alone, for others: in a folder, or on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from duality.cli.common import Flag, Folder, KeptStep, Round

HubName = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
Datasets = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="OWNER/NAME")]


def publish(
    run: Folder,
    name: HubName = None,
    /,
    folder: Path | None = None,
    license: str = "unknown",
    dataset: Datasets = (),
    private: Flag = False,
    revision: str | None = None,
    weights: Literal["ema", "model"] = "ema",
    round_number: Round = None,
    kept_step: KeptStep = None,
    dry_run: Flag = False,
) -> int:
    """Write the model of a run alone, with its tokenizer and a model card: into a folder, or onto the hub.

    Args:
        run: the run folder; or another model that `duality sample` takes.
        name: the model on the Hugging Face hub, which is made if there is none; HF_TOKEN says who you are.
        folder: a new folder instead of the hub.
        license: the licence of the weights, as the hub names it, such as apache-2.0.
        dataset: a dataset of the hub that the model was trained on; can be repeated.
        private: only you, or your organisation, can see it.
        revision: the branch of the hub; main if not given.
        weights: averaged (ema) or raw (model) weights.
        round_number: after this round of a distillation instead of the last; 0 is what it began from.
        kept_step: the weights at this training step instead of the newest; the run must have kept that checkpoint.
        dry_run: print the model card and stop.
    """
    from duality.cli.console import say
    from duality.models.card import CardFields
    from duality.models.model import load
    from duality.models.publish import card_of, check_new, push_to_hub, repository_named, save_pretrained

    check_target(name, folder, private, revision)
    fields = CardFields(license, dataset)
    if folder is not None:
        check_new(folder)
    elif name is not None:
        repository_named(name)
    model = load(run, say, "cpu", weights, round_number, kept_step)
    if dry_run:
        print(card_of(model, fields, name or str(folder)))
    elif folder is not None:
        print(save_pretrained(model, folder, fields))
    elif name is not None:
        print(push_to_hub(model, name, fields, private, revision))
    return 0


def check_target(name: str | None, folder: Path | None, private: bool, revision: str | None) -> None:
    """Refuse none or two places, and what belongs to the other one."""
    if (name is None) == (folder is None):
        raise ValueError("say where: OWNER/NAME on the Hugging Face hub, or --folder FOLDER; one of the two")
    if folder is not None and (private or revision is not None):
        raise ValueError("--private and --revision belong to the hub: give OWNER/NAME, or leave them out with --folder")

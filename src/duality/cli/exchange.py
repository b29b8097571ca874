"""The commands `import`, `export` and `publish`: models that others have released, and ours for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from duality.cli.console import say
from duality.cli.options import AnyModel, Flag, Folder, KeptStep, Round, Step, Weights

Source = Annotated[str, Positional, arg(metavar="SOURCE")]
HubName = Annotated[str | None, Positional, arg(metavar="OWNER/NAME")]
Datasets = Annotated[tuple[str, ...], UseAppendAction, arg(metavar="OWNER/NAME")]
MethodName = Literal["duo", "udlm", "mdlm", "sedd", "d3pm", "ar"]


def import_model(
    source: Source,
    /,
    out: Path,
    method: MethodName | None = None,
    tokenizer: str | None = None,
    heads: int | None = None,
    length: int | None = None,
    kept_step: Step = None,
) -> int:
    """Make a run of a model that others have trained and released.

    Args:
        source: a checkpoint (.ckpt), a folder with config.json and weights, or hf:OWNER/NAME[@REVISION].
        out: the folder of the new run.
        method: what the model is, if the file does not say it.
        tokenizer: its tokenizer, if it is not that of GPT-2 or BERT: the folder of a run, a tokenizer.json,
            hf:OWNER/NAME, or a name such as bytes.
        heads: the heads of its attention, if the file does not say it.
        length: the tokens of a sequence, if the file does not say it.
        kept_step: after how many steps of training the weights are, if the file does not say it.
    """
    from duality.hub.exchange import ImportRequest, import_released

    made = import_released(source, out, ImportRequest(method, tokenizer, heads, length, kept_step), say)
    print(f"{made} is a run: duality sample {made}")
    return 0


def export_model(
    run: Folder, /, out: Path, layout: Literal["duo-hf", "duo-ckpt"] = "duo-hf", kept_step: Step = None
) -> int:
    """Write the weights of a run in the layout of the released models.

    Args:
        run: the run folder.
        out: the new folder (duo-hf), or the new file (duo-ckpt), whose name ends with .ckpt.
        layout: a folder with config.json and model.safetensors, which holds the averaged weights; or a checkpoint of
            Lightning, which holds the raw weights too.
        kept_step: the checkpoint of this training step instead of the newest.
    """
    from duality.hub.exchange import export_run

    print(f"{export_run(run, out, layout, kept_step, say)} is written in the layout {layout}")
    return 0


def publish(
    run: AnyModel,
    name: HubName = None,
    /,
    folder: Path | None = None,
    license: str = "unknown",
    dataset: Datasets = (),
    private: Flag = False,
    revision: str | None = None,
    weights: Weights = "ema",
    round_number: Round = None,
    kept_step: KeptStep = None,
    dry_run: Flag = False,
) -> int:
    """Write the model of a run alone, with its tokenizer and a model card: into a folder, or onto the hub.

    Args:
        name: the model on the Hugging Face hub, which is made if there is none; HF_TOKEN says who you are.
        folder: a new folder instead of the hub.
        license: the licence of the weights, as the hub names it, such as apache-2.0.
        dataset: a dataset of the hub that the model was trained on; can be repeated.
        private: only you, or your organisation, can see it.
        revision: the branch of the hub; main if not given.
        dry_run: print the model card and stop.
    """
    from duality.hub.publish import CardFields, card_of, check_new, push_to_hub, repository_named, save_pretrained
    from duality.models.model import load

    if (name is None) == (folder is None):
        raise ValueError("say where: OWNER/NAME on the Hugging Face hub, or --folder FOLDER; one of the two")
    if folder is not None and (private or revision is not None):
        raise ValueError("--private and --revision belong to the hub: give OWNER/NAME, or leave them out with --folder")
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

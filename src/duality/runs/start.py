"""What a training begins from: a new network, a run that is distilled, or a model that is finetuned.

A finetuning (``train(start=SOURCE)``, `duality train --from SOURCE`) continues the training of a model on other data.
Its weights and their average are those that ``load`` gives for the source, the averaged ones; its tokenizer is that of
the source. What must fit the source: the backbone (but for dropout and initialisation), the network that the method
makes of it, the tokenizer, the labels. Everything else may differ: the data, the length, how it is trained, and a
method whose network is the same one, such as Duo after UDLM.

What must hold: what does not fit leaves no run behind; the first step of a finetuning sees the model of its source,
whatever is frozen and with adapters or without; a finetuning continues with the source that it began from.

The weights that a run begins from: those of another run, or of a model alone, which has averaged ones only.

What must hold: what base.json records of them is what was read, by its checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path

import torch
from torch import nn

from duality.data.corpus import Corpus
from duality.files.progress import Reporter
from duality.hub import package
from duality.hub.fetch import ModelSource, model_source
from duality.models import folder as folders
from duality.models.folder import (
    checksums,
    create,
    exists,
    is_finetuning,
    open_folder,
    read_base,
    read_recipe,
    weights_checksum,
    write_base,
    write_source,
)
from duality.models.load import parts_of_pretrained
from duality.models.model import Model, load, network
from duality.models.provenance import check_tokenizer
from duality.models.size import check_training, memory_of, trained_bytes
from duality.protocols import Vocabulary
from duality.ranks import job
from duality.recipes import catalogue
from duality.recipes.recipe import Recipe
from duality.recipes.shapes import outline, parameter_shapes, trained_shapes
from duality.runs.corpora import check_present, corpus_of_run, loader, prepared, vocabulary_of
from duality.runs.steps import Session, phases_of
from duality.tokenizers.specs import KeptTokenizer, original
from duality.tokenizers.tokenizer import NumberTokenizer
from duality.training import checkpoint
from duality.training.adapters import is_adapter, merged, plain_name
from duality.training.checkpoint import Tensors
from duality.training.parallel import SINGLE, Layout, layout_of, put
from duality.training.state import TrainState, copy_into, load_weights

_FREE = ("backbone.dropout:", "backbone.embedding_std:")  # of the fields of a backbone: the weights mean the same


def vocabulary_in(corpus: Corpus) -> Vocabulary:
    """The sizes of a corpus's vocabulary."""
    return Vocabulary(corpus.tokenizer.vocab_size, len(corpus.label_names))


def layout_for(recipe: Recipe, corpus: Corpus, device: torch.device) -> Layout:
    """How the weights of a recipe lie on the ranks."""
    needed = trained_bytes(recipe, vocabulary_in(corpus))
    return layout_of(recipe.parallel, job(), device, needed, memory_of(device))


def check_checkpoint(path: Path, recipe: Recipe, corpus: Corpus, folder: Path) -> None:
    """Refuse a checkpoint of another tokenizer or network, before the network takes any memory."""
    check_tokenizer(checkpoint.load(path, ()), corpus.tokenizer, folder)
    shapes = trained_shapes(recipe, vocabulary_in(corpus))
    checkpoint.check_shapes(checkpoint.shapes_of_group(path, "model"), shapes)


def untrained(recipe: Recipe, corpus: Corpus, device: torch.device | str, layout: Layout = SINGLE) -> TrainState:
    """The state before the first step; with a teacher's network, if the recipe is a distillation."""
    vocabulary = vocabulary_in(corpus)
    check_training(recipe, vocabulary, device, layout.divided)
    model, teacher = network(recipe, vocabulary_of(recipe.data, corpus), device), None
    if recipe.distillation is not None:
        teacher = network(recipe, vocabulary, device)
    return TrainState.fresh(model, recipe.training, teacher, layout)


# --- a distillation


def begin_from(base: Path, recipe: Recipe, folder: Path, report: Reporter) -> None:
    """Create the run of ``recipe`` in ``folder``, with the weights of the run or model ``base`` and their average."""
    source = model_source(base)
    check_present(source.folder, recipe)
    open_folder(recipe, folder, resume=False)
    path = checkpoint_of(source, report)
    corpus = corpus_of_run(source.folder, recipe, report)
    if path is not None:
        own = read_recipe(source.folder)
        check_checkpoint(path, own, corpus, source.folder)
        checkpoint.check_shapes(*(parameter_shapes(each, vocabulary_in(corpus)) for each in (own, recipe)))
    start, state = beginning(source, path), untrained(recipe, corpus, "cpu")
    phases_of(recipe, corpus, state.teacher)  # what cannot be distilled leaves no run behind
    load_weights(state.model, start.model)
    copy_into(state.ema, start.ema)
    if state.teacher is not None:
        state.teach("weights")
    write_base(folder, start.record)
    write_first(Session(recipe, folder, corpus, state, "cpu"))


def write_first(session: Session) -> None:
    """Write the checkpoint that a run begins with, then what says that it is a run."""
    if session.recipe.distillation is not None:
        session.save_round()
    session.save()
    session.saver.wait()
    create(session.recipe, session.folder, session.corpus)


# --- a finetuning


@dataclass(frozen=True)
class StartingPoint:
    """What is known of the model that a finetuning begins from, without its weights."""

    place: str
    recipe: Recipe
    step: int
    tokenizer: KeptTokenizer
    label_names: tuple[str, ...]
    reads_ids: bool
    """Whether its text is ids, as tensors are written."""


def place_of(source: Path | str) -> str:
    """Where a source is, in a form that is kept: an absolute path, or a name of the hub with its commit."""
    found = model_source(source)
    return str(found.pinned if found.commit else found.folder.resolve())


def source_of(place: str, model: Model) -> StartingPoint:
    """What is known of a model that was loaded."""
    tokenizer = model.tokenizer
    kept = KeptTokenizer(original(model.recipe.data.tokenizer), tokenizer.vocab_size, tokenizer.fingerprint)
    return StartingPoint(
        place, model.recipe, model.step, kept, model.label_names, isinstance(tokenizer, NumberTokenizer)
    )


def read_source(source: Path | str, report: Reporter) -> StartingPoint:
    """What is known of the model of a source: a run, or whatever else ``load`` reads. Rank 0 of a job reads it."""
    return job().once(lambda: source_of(place_of(source), load(source, report, "cpu")))


def structure(model: nn.Module) -> Iterator[object]:
    """What a network consists of, without its numbers: its modules, their settings, the shapes of their weights."""
    for name, part in model.named_modules():
        settings = {
            key: value
            for key, value in vars(part).items()
            if not key.startswith("_") and (is_dataclass(value) or isinstance(value, (bool, int, float, str, tuple)))
        }
        yield name, type(part), settings, [(key, tuple(value.shape)) for key, value in part.named_parameters()]


def misfits(source: StartingPoint, recipe: Recipe) -> list[str]:
    """Where a recipe does not fit the model that it is to begin from, as ``path: of the model -> of the recipe``."""
    spec = source.tokenizer.spec or source.tokenizer
    own = replace(source.recipe, data=replace(source.recipe.data, tokenizer=spec))
    # a tokenizer of which it is not known what it was made as is taken as it is
    asked = source.tokenizer.spec and original(recipe.data.tokenizer)
    wanted = replace(recipe, data=replace(recipe.data, tokenizer=asked or spec))
    changes = catalogue.differences(own, wanted)
    fixed = [each for each in changes if each.startswith(("backbone", "data.tokenizer", "data.labels:"))]
    vocabulary = Vocabulary(source.tokenizer.vocab_size, len(source.label_names))
    networks = (outline(replace(each, backbone=own.backbone), vocabulary) for each in (own, wanted))
    if own.method != wanted.method and len({str(list(structure(each))) for each in networks}) > 1:
        fixed += [each for each in changes if each.startswith("method")]
    return [each for each in fixed if not each.startswith(_FREE)]


def finetuning_from(source: StartingPoint, recipe: Recipe) -> Recipe:
    """The recipe with the tokenizer of the model that it begins from; one that does not fit is refused."""
    found = misfits(source, recipe)
    if found:
        raise ValueError(
            f"{recipe.name} does not fit {source.place} ({'; '.join(found)}): a finetuning keeps network, tokenizer "
            "and labels of its source; leave RECIPE out to take the recipe of the source, and leave these changes out"
        )
    return replace(recipe, data=replace(recipe.data, tokenizer=source.tokenizer))


def begin_finetuning(place: str, recipe: Recipe, folder: Path, report: Reporter) -> None:
    """Create the run of ``recipe`` in ``folder``, with the weights of the model of a source."""
    open_folder(recipe, folder, resume=False)
    model = load(place, report, "cpu")
    recipe = finetuning_from(source_of(place, model), recipe)
    corpus = prepared(recipe, report, tokenizer=model.tokenizer)
    if corpus.label_names != model.label_names:
        known, found = (", ".join(names) or "none" for names in (model.label_names, corpus.label_names))
        raise ValueError(
            f"the labels of the corpus are {found}, and those of {place} {known}: a finetuning has the same labels, "
            "all of them"
        )
    loader(recipe, corpus, folder)  # refuses a text that is too short
    state = untrained(recipe, corpus, "cpu")
    begin_with(state, dict(model.denoiser.named_parameters()))
    write_source(folder, place, model.step, weights_checksum(model.denoiser))
    write_first(Session(recipe, folder, corpus, state, "cpu"))


def begin_with(state: TrainState, weights: dict[str, torch.Tensor]) -> None:
    """Give a new state, whose network may have adapters, the weights of a model; adapters stay as they are."""
    own = {name: value for name, value in state.model.named_parameters() if not is_adapter(name)}
    found, wanted = (
        {name: tuple(value.shape) for name, value in tensors.items()}
        for tensors in (weights, {plain_name(name): value for name, value in own.items()})
    )
    checkpoint.check_shapes(found, wanted)
    for name, value in own.items():
        for target in (value, state.ema[name]):
            put(target, weights[plain_name(name)])


def check_source(folder: Path, place: str, report: Reporter) -> None:
    """Refuse to continue the run in ``folder`` from another model than it began from."""
    record = read_base(folder)
    if record is None or not is_finetuning(folder):
        raise ValueError(
            f"{folder} did not begin as a finetuning: continue it without --from (start=), or choose another --out "
            "(out=)"
        )
    step, where = record["step"], f"step {record['step']} of {record.get('source')}"
    assert isinstance(step, int)
    there = checkpoint.steps_saved(Path(place) / "checkpoints") if exists(Path(place)) else []
    if exists(Path(place)) and step not in there and record.get("source") == place:
        report(f"{folder} began from {where}, which is not kept any more and is not compared")
        return
    model = load(place, report, "cpu", step=step) if step in there else load(place, report, "cpu")
    if weights_checksum(model.denoiser) != record["weights"]:
        raise ValueError(
            f"{folder} is a finetuning of {where}, and the weights of {place} are others: give the source that it "
            "began from, continue it without --from (start=), or choose another --out (out=)"
        )


# --- the weights of another run


@dataclass(frozen=True)
class Beginning:
    """Raw and averaged weights, and the record of where they come from."""

    model: Tensors
    ema: Tensors
    record: dict[str, object]


def is_model_alone(folder: Path) -> bool:
    """Whether a folder has a model alone, and no run."""
    return package.exists(folder) and not folders.exists(folder)


def checkpoint_of(source: ModelSource, report: Reporter) -> Path | None:
    """The checkpoint that a run is begun from; None for a model alone, which has none."""
    if is_model_alone(source.folder):
        return None
    path = checkpoint.newest_intact(source.folder / "checkpoints", report, ("model", "ema"))
    if path is None:
        raise ValueError(f"{source.place} has no checkpoint yet: there is nothing to begin from")
    return path


def beginning(source: ModelSource, path: Path | None) -> Beginning:
    """The weights of a model alone, or of the checkpoint of a run at ``path``, which was found to fit."""
    if path is None:
        parts = parts_of_pretrained(source, package.read_config(source.folder))
        record = {"run": parts.origin.place, "step": parts.step, "commit": parts.origin.commit}
        digest = parts.origin.sha256
        return Beginning(parts.tensors, parts.tensors, {**record, "model": digest, "ema": digest})
    saved, training = checkpoint.load(path, ("model", "ema")), folders.read_recipe(source.folder).training
    record = {"run": str(source.folder.resolve()), "step": saved.step, **checksums(path)}
    return Beginning(merged(saved.groups["model"], training), merged(saved.groups["ema"], training), record)

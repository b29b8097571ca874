"""What a training begins from: a new network, a run that is distilled, or a model that is finetuned.

A run goes on with the model that it began from, wherever that is now, which is compared by the checksums in base.json.

A finetuning (``train(start=SOURCE)``, `duality train --from SOURCE`) continues the training of a model on other data.
Its weights and their average are those that ``load`` gives for the source, the averaged ones; its tokenizer is that of
the source. What must fit the source: the backbone (but for dropout and initialisation), the network that the method
makes of it, the tokenizer, the labels. Everything else may differ: the data, the length, how it is trained, and a
method whose network is the same one, such as Duo after UDLM.

A distillation begins with the weights of a run, raw and averaged, or with those of a model alone, which has averaged
ones only.

What must hold: what does not fit leaves no run behind; the first step of a finetuning sees the model of its source,
whatever is frozen and with adapters or without; what base.json records of the weights is what was read, by its
checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from duality.data.corpus import Corpus
from duality.files.atomic import file_sha256
from duality.files.progress import Reporter, silent
from duality.hub import package
from duality.hub.fetch import model_source
from duality.models import folder as folders
from duality.models.model import load, network
from duality.models.size import Outline
from duality.protocols import Vocabulary
from duality.ranks import job
from duality.recipes import catalogue
from duality.recipes.corpus import count_vocabulary, make_loader, prepare_corpus
from duality.recipes.derive import method_phases
from duality.recipes.recipe import Recipe
from duality.runs.corpus import check_present, corpus_of_run
from duality.tokenizers.specs import KeptTokenizer, TokenizerSpec
from duality.tokenizers.tokenizer import NumberTokenizer
from duality.training import checkpoint
from duality.training.adapters import merge_adapters, plain_weights
from duality.training.loop import TrainState, load_weights
from duality.training.parallel import SINGLE, Layout

_WEIGHTS = ("model", "ema")
_FREE = ("backbone.dropout:", "backbone.embedding_std:")  # of the fields of a backbone: the weights mean the same


def check_checkpoint(path: Path, recipe: Recipe, corpus: Corpus, folder: Path) -> None:
    """Refuse a checkpoint of another tokenizer or network, before the network takes any memory."""
    folders.check_tokenizer(checkpoint.load(path, ()), corpus.tokenizer, folder)
    shapes = Outline(recipe, count_vocabulary(recipe.data, corpus)).shapes(adapters=True)
    checkpoint.check_shapes(checkpoint.shapes_of_group(path, "model"), shapes)


def make_state(
    recipe: Recipe, corpus: Corpus, device: torch.device | str, layout: Layout | None = None, report: Reporter = silent
) -> TrainState:
    """The state before the first step; with a teacher's network, if the recipe is a distillation.

    It lies on the ranks of the job as the recipe says, if no ``layout`` is given. A part that is trained is reported.
    """
    vocabulary = count_vocabulary(recipe.data, corpus)
    outline = Outline(recipe, vocabulary)
    if (words := outline.describe_trained()) is not None:
        report(f"{outline.parameters:,} parameters; {words}")
    layout = outline.lay_out(device, layout)
    model, teacher = network(recipe, vocabulary, device), None
    if recipe.distillation is not None:
        teacher = network(recipe, replace(vocabulary, counts=None), device)
    return TrainState.fresh(model, recipe.training, teacher, layout)


@dataclass(frozen=True)
class DistillationBase:
    """The run or model that is distilled: a distillation begins with its weights and their average."""

    place: Path
    """A folder, or a name of the hub with its commit."""

    def begin(self, recipe: Recipe, _out: Path, report: Reporter) -> tuple[Corpus, TrainState, dict[str, object]]:
        """The corpus of a distillation and its first state, and what base.json says of them."""
        source = model_source(self.place)
        folder = source.folder
        check_present(folder, recipe)
        alone = package.exists(folder) and not folders.exists(folder)
        path = None if alone else checkpoint.newest_intact(folder / "checkpoints", report, _WEIGHTS)
        if path is None and not alone:
            raise ValueError(f"{source.place} has no checkpoint yet: there is nothing to begin from")
        corpus = corpus_of_run(folder, recipe, report)
        if path is None:
            found = load(self.place, report, "cpu", package.PretrainedConfig.read(folder).weights)
            assert found.origin is not None, "a model that is read has an origin"
            model = ema = {name: value.detach() for name, value in found.denoiser.named_parameters()}
            record: dict[str, object] = {"run": found.origin.place, "step": found.step, "commit": found.origin.commit}
            record |= {"model": found.origin.sha256, "ema": found.origin.sha256}
        else:
            own = folders.read_recipe(folder)
            check_checkpoint(path, own, corpus, folder)
            saved = checkpoint.load(path, _WEIGHTS)
            model, ema = (merge_adapters(saved.groups[group], own.training) for group in _WEIGHTS)
            record = {"run": str(folder.resolve()), "step": saved.step, **checkpoint.checksums(path, _WEIGHTS)}
        state = make_state(recipe, corpus, "cpu", SINGLE)
        # what cannot be distilled leaves no run behind
        method_phases(recipe, corpus.tokenizer.vocab_size, state.teacher)
        load_weights(state.model, model)
        load_weights(state.ema, ema)
        if state.teacher is not None:
            state.teach("weights")
        return corpus, state, record

    def check(self, folder: Path, report: Reporter) -> None:
        """Refuse to continue the distillation in ``folder``, which began from another base."""
        record, base = folders.read_base(folder), model_source(self.place).folder
        if record is None:
            report(f"{folder} has no base.json, which says what it began from: {base} is not compared with it")
            return
        if "weights" in record:
            raise ValueError(
                f"{folder} is a finetuning of {record.get('source')}, no distillation: choose another --out"
            )
        kept, alone = base / "checkpoints" / f"step-{record['step']:08d}", base / package.WEIGHTS
        where, found = f"step {record['step']} of {record.get('run')}", f"{base} has no checkpoint of that step"
        if kept.is_dir() or alone.is_file():
            both = file_sha256(alone) if alone.is_file() else None
            own = checkpoint.checksums(kept, _WEIGHTS) if both is None else dict.fromkeys(_WEIGHTS, both)
            if own == {group: record.get(group) for group in _WEIGHTS}:
                return
            found = f"the weights of {base} at that step are others"
        elif record.get("run") == str(base.resolve()):
            report(f"{folder} began from {where}, which is not kept any more and is not compared")
            return
        raise ValueError(
            f"{folder} is a distillation of {where}, and {found}: give the run that it began from, or choose another "
            f"--out (out=) for a new distillation; `duality train {folders.read_recipe(folder).name} --out "
            f"{folder} --resume` continues it without its base"
        )


@dataclass(frozen=True)
class FinetuningSource:
    """The model that a finetuning begins from: what is known of it without its weights."""

    place: str
    """An absolute path, or a name of the hub with its commit."""
    recipe: Recipe
    step: int
    tokenizer: KeptTokenizer
    label_names: tuple[str, ...]
    reads_ids: bool
    """Whether its text is ids, as tensors are written."""

    @staticmethod
    def read(source: Path | str) -> FinetuningSource:
        """What is known of the model of a source: a run, or whatever else ``load`` reads. Rank 0 of a job reads it."""

        def read() -> FinetuningSource:
            found, model = model_source(source), load(source, device="cpu")
            place, tokenizer = str(found.pinned if found.commit else found.folder.resolve()), model.tokenizer
            kept = KeptTokenizer(_original(model.recipe.data.tokenizer), tokenizer.vocab_size, tokenizer.fingerprint)
            ids = isinstance(tokenizer, NumberTokenizer)
            return FinetuningSource(place, model.recipe, model.step, kept, model.label_names, ids)

        return job().once(read)

    def fit(self, recipe: Recipe) -> Recipe:
        """The recipe with the tokenizer of the model that it begins from; one that does not fit is refused."""
        spec = self.tokenizer.spec or self.tokenizer
        own = replace(self.recipe, data=replace(self.recipe.data, tokenizer=spec))
        # a tokenizer of which it is not known what it was made as is taken as it is
        asked = self.tokenizer.spec and _original(recipe.data.tokenizer)
        wanted = replace(recipe, data=replace(recipe.data, tokenizer=asked or spec))
        changes = catalogue.differences(own, wanted)
        fixed = [each for each in changes if each.startswith(("backbone", "data.tokenizer", "data.labels:"))]
        vocabulary = Vocabulary(self.tokenizer.vocab_size, len(self.label_names))
        networks = (Outline(replace(each, backbone=own.backbone), vocabulary).network for each in (own, wanted))
        if own.method != wanted.method and len({str(list(_structure(each))) for each in networks}) > 1:
            fixed += [each for each in changes if each.startswith("method")]
        found = [each for each in fixed if not each.startswith(_FREE)]
        if found:
            raise ValueError(
                f"{recipe.name} does not fit {self.place} ({'; '.join(found)}): a finetuning keeps network, tokenizer "
                "and labels of its source; leave RECIPE out to take the recipe of the source, and leave these changes "
                "out"
            )
        return replace(recipe, data=replace(recipe.data, tokenizer=self.tokenizer))

    def begin(self, recipe: Recipe, out: Path, report: Reporter) -> tuple[Corpus, TrainState, dict[str, object]]:
        """The corpus of a finetuning and its first state, whose adapters are new, and what base.json says of them."""
        model = load(self.place, report, "cpu")
        corpus = prepare_corpus(recipe, report, tokenizer=model.tokenizer)
        if corpus.label_names != model.label_names:
            known, found = (", ".join(names) or "none" for names in (model.label_names, corpus.label_names))
            raise ValueError(
                f"the labels of the corpus are {found}, and those of {self.place} {known}: a finetuning has the same "
                "labels, all of them"
            )
        make_loader(recipe, corpus, out / folders.STREAM)  # refuses a text that is too short
        state = make_state(recipe, corpus, "cpu", SINGLE)
        for own in (dict(state.model.named_parameters()), state.ema):
            load_weights(plain_weights(own), dict(model.denoiser.named_parameters()))
        record = {"source": self.place, "step": model.step, "weights": _hash_parameters(model.denoiser)}
        return corpus, state, record

    def check(self, folder: Path, report: Reporter) -> None:
        """Refuse to continue the finetuning in ``folder``, which began from another model."""
        record, place = folders.read_base(folder), Path(self.place)
        if record is None or "weights" not in record:
            raise ValueError(
                f"{folder} did not begin as a finetuning: continue it without --from (start=), or choose another --out "
                "(out=)"
            )
        step, where = cast(int, record["step"]), f"step {record['step']} of {record.get('source')}"
        kept = checkpoint.steps_saved(place / "checkpoints") if folders.exists(place) else None
        if kept is not None and step not in kept and record.get("source") == self.place:
            report(f"{folder} began from {where}, which is not kept any more and is not compared")
            return
        model = load(self.place, report, "cpu", step=step if kept and step in kept else None)
        if _hash_parameters(model.denoiser) != record["weights"]:
            raise ValueError(
                f"{folder} is a finetuning of {where}, and the weights of {self.place} are others: give the source "
                "that it began from, continue it without --from (start=), or choose another --out (out=)"
            )


def _original(spec: TokenizerSpec) -> TokenizerSpec | None:
    """What a tokenizer was made as; None if that is not known."""
    return spec.spec if isinstance(spec, KeptTokenizer) else spec


def _structure(model: nn.Module) -> Iterator[object]:
    """What a network consists of, without its numbers: its modules, their settings, the shapes of their weights."""
    for name, part in model.named_modules():
        settings = {
            key: value
            for key, value in vars(part).items()
            if not key.startswith("_") and (is_dataclass(value) or isinstance(value, (bool, int, float, str, tuple)))
        }
        yield name, type(part), settings, [(key, tuple(value.shape)) for key, value in part.named_parameters()]


def _hash_parameters(model: nn.Module) -> str:
    """The sha256 of the names and numbers of a model's weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.named_parameters(), key=lambda each: each[0]):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

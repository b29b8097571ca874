"""A trained model as the parts that everything about it is computed from, read from a run or from a folder of its own.

``Model`` (model.py) is a ``TrainedModel`` with all that a trained model does. The modules that do one thing each
(sampling, the model card, publishing) take a ``TrainedModel`` and so need not import the others.

What must hold: the names and shapes of the weights are compared with those of the network before either is allocated;
whatever is wrong with a folder ends in one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from duality.denoisers.conditioning import Guided, with_labels
from duality.files.atomic import file_sha256
from duality.files.progress import Reporter
from duality.hub import package
from duality.hub.fetch import ModelSource
from duality.hub.package import INSIDE, PretrainedConfig
from duality.models import folder as folders
from duality.models.size import Outline
from duality.protocols import AnyDenoiser, Measure, Process, Sampler, Schedule, Vocabulary
from duality.recipes.recipe import Recipe
from duality.registry import suggestion
from duality.samplers.choice import sampler_named
from duality.tokenizers.tokenizer import Tokenizer
from duality.training import Precision, checkpoint
from duality.training.adapters import merge_adapters
from duality.training.checkpoint import Shapes, Tensors
from duality.training.loop import load_weights
from duality.training.precision import computing

Weights = Literal["ema", "model"]  # averaged, or raw

_FLOATS = ("F64", "F32", "F16", "BF16")
_LISTED = 40  # names of tensors in a message
_AGAIN = "fetch the folder again"


@dataclass(frozen=True)
class Origin:
    """Where weights came from: a folder or ``hf:owner/name``, the commit there, and the sha256 of their file.

    ``folder`` is where the files are on this machine.
    """

    place: str
    sha256: str
    weights: Weights
    folder: Path
    commit: str | None = None


@dataclass(frozen=True)
class TrainedModel:
    """The parts of a trained model; ``step`` is the training step of its weights, ``origin`` where they were.

    ``precision`` is what it computes in (``training.precision``), whatever it was trained in.
    """

    recipe: Recipe
    step: int
    denoiser: nn.Module
    tokenizer: Tokenizer
    label_names: tuple[str, ...] = ()
    origin: Origin | None = None
    precision: Precision = "float32"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.denoiser.parameters()).device

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Inside, its network computes in its precision."""
        with computing(self.precision, self.device):
            yield

    @property
    def length(self) -> int:
        """The number of tokens of the sequences that it was trained on."""
        return self.recipe.data.length

    @property
    def schedule(self) -> Schedule:
        """The schedule that it is sampled with."""
        return self.recipe.method.sampling_schedule()

    @property
    def sampler(self) -> Sampler:
        """Its own sampler."""
        return self.recipe.method.sampler(self.tokenizer.vocab_size)

    @property
    def measure(self) -> Measure:
        """Its likelihood."""
        return self.recipe.method.measure(self.tokenizer.vocab_size)

    @property
    def mask_id(self) -> int | None:
        """The mask token; None if it has none."""
        process = self.recipe.method.process(self.tokenizer.vocab_size)
        return None if process is None else process.mask_id

    def process(self) -> Process:
        """The discrete process that the model reverses."""
        process = self.recipe.method.process(self.tokenizer.vocab_size)
        if process is None:
            raise ValueError(
                f"{type(self.recipe.method).__name__} has no discrete process: it is written by its own sampler only; "
                "leave the sampler out"
            )
        return process

    def named_sampler(self, name: str = "own", eta: float | None = None) -> Sampler:
        """Its own sampler, or another one of its process by name; ``eta`` is the strength of a psi sampler."""
        if name != "own":
            return sampler_named(name, self.process(), eta=eta)
        if eta is not None:
            raise ValueError(f"eta is {eta}, and the model's own sampler has none: it is the strength of a psi sampler")
        return self.sampler

    def with_label(self, label: str | None, guidance: float | None = None) -> AnyDenoiser:
        """The denoiser for a label that the model was trained with, or guided towards it."""
        names = self.label_names
        if label is None and guidance is None:
            return self.denoiser
        if not names:
            raise ValueError(
                "label and guidance need a class-conditional model, and this one was trained without labels: train one "
                "on labelled text with --set data.labels=true data.packing=document"
            )
        if label is None:
            raise ValueError(f"guidance without label: say towards which of {', '.join(names)}")
        if label not in names:
            raise ValueError(f"unknown label {label!r}: {suggestion(label, names)}")
        number = names.index(label)
        if guidance is None:
            return with_labels(self.denoiser, torch.tensor([number], device=self.device))
        return Guided(self.denoiser, number, guidance)  # which refuses a model without a belief


def network(
    recipe: Recipe, vocabulary: Vocabulary, device: torch.device | str = "cpu", weights: Tensors | None = None
) -> nn.Module:
    """The network of a recipe, with these ``weights``, which are not trained any more, or untrained.

    The first weights of an untrained one depend on the recipe's seed only.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        made = recipe.method.network(recipe.backbone, vocabulary).to(device)
    if weights is None:
        return made
    if odd := [name for name, value in weights.items() if not value.isfinite().all()]:
        names = ", ".join(odd[:_LISTED])
        raise ValueError(f"weights are not finite ({names}): take an older checkpoint, or train again")
    load_weights(made, weights)
    return made.requires_grad_(False)


def read_model(
    source: ModelSource, report: Reporter, weights: Weights, round: int | None, step: int | None, device: torch.device
) -> TrainedModel:
    """The model of a run, or one that is alone in a folder, in float32; ``load`` has the arguments."""
    if weights not in ("ema", "model"):
        raise ValueError(f"weights is {weights!r}: choose 'ema' (averaged) or 'model' (raw)")
    if round is not None and step is not None:
        raise ValueError(f"round {round} and step {step}: each says which weights to load; leave one of them out")
    folder, groups = source.folder, (weights,)
    if not folders.exists(folder) and package.exists(folder):
        if round is not None or step is not None:
            raise ValueError(
                f"{source.place} is a model alone: it has neither rounds nor other steps than its own; leave them out"
            )
        return _read_pretrained(source, weights, device)
    recipe, names = folders.read_recipe(folder), tuple(folders.read_identity(folder)["labels"])
    tokenizer = folders.read_tokenizer(folder)
    if round is None:
        path = checkpoint.newest_intact(folder / "checkpoints", report, groups, step)
    else:
        path = _find_round(folder, recipe, round, groups)
    if path is None:
        raise ValueError(
            f"{folder} has no checkpoint yet: train it first (duality train {recipe.name} --out {folder} --resume)"
        )
    folders.check_tokenizer(checkpoint.load(path, ()), tokenizer, folder)
    vocabulary = Vocabulary(tokenizer.vocab_size, len(names))
    outline = Outline(recipe, vocabulary)
    saved = checkpoint.load(path, groups, outline.shapes(adapters=True))
    outline.check(device)
    made = network(recipe, vocabulary, device, merge_adapters(saved.groups[weights], recipe.training))
    origin = Origin(str(folder.resolve()), checkpoint.checksums(path, groups).get(weights, ""), weights, folder)
    return TrainedModel(recipe, saved.step, made, tokenizer, names, origin)


def _find_round(folder: Path, recipe: Recipe, number: int, groups: Sequence[str]) -> Path:
    """The checkpoint of the weights after round ``number``, whose ``groups`` of tensors are intact."""
    if recipe.distillation is None:
        raise ValueError(f"{folder} is no distillation: it has no rounds; leave the round out")
    there = folders.list_rounds(folder, recipe)
    if number not in there:
        raise ValueError(f"{folder} has no round {number}: there are {', '.join(map(str, there))}")
    path = folder / folders.ROUNDS / f"step-{number * recipe.distillation.round_steps:08d}"
    if problem := checkpoint.damage(path, groups):
        raise ValueError(f"{path} is damaged ({problem}): restore it from a backup, or look at another round")
    return path


def _read_pretrained(source: ModelSource, weights: Weights, device: torch.device) -> TrainedModel:
    """A model that is alone in a folder."""
    folder, config = source.folder, PretrainedConfig.read(source.folder)
    if config.weights != weights:
        raise ValueError(f"{source.place} has the weights {config.weights!r} alone, and {weights!r} were asked for")
    tokenizer, path = folders.read_tokenizer(folder), folder / package.WEIGHTS
    found = (tokenizer.vocab_size, tokenizer.fingerprint)
    if found != (config.num_tokens, config.tokenizer_sha256):
        raise ValueError(
            f"{source.place} was trained with a vocabulary of {config.num_tokens} tokens (fingerprint "
            f"{config.tokenizer_sha256[:12]}), but {folder / package.TOKENIZER} has {found[0]} "
            f"({found[1][:12]}): put back the file that belongs to it"
        )
    if not path.is_file():
        raise ValueError(f"{source.place} has no {path.name}: {_AGAIN}")
    vocabulary = Vocabulary(config.num_tokens, len(config.label_names))
    outline = Outline(config.recipe, vocabulary)
    _check_tensors(path, {f"{INSIDE}{name}": shape for name, shape in outline.shapes().items()})
    digest = file_sha256(path)
    if config.weights_sha256 not in (None, digest):
        raise ValueError(f"{path} is not the file that {package.CONFIG} was written for (sha256): {_AGAIN}")
    tensors = {name.removeprefix(INSIDE): value.float() for name, value in load_file(path).items()}
    outline.check(device)
    made = network(config.recipe, vocabulary, device, tensors)
    place = source.place if source.commit else str(folder.resolve())
    origin = Origin(place, digest, weights, folder, source.commit)
    return TrainedModel(config.recipe, config.step, made, tokenizer, config.label_names, origin)


def _check_tensors(path: Path, expected: Shapes) -> None:
    """Refuse a file whose tensors are not those of the network, by the names, shapes and types at its beginning."""
    try:
        with safe_open(path, framework="pt") as content:
            slices = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
            found = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in sorted(slices.items())}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no valid safetensors file ({error}): {_AGAIN}") from None
    both = {name: (*facts, expected[name]) for name, facts in found.items() if name in expected}
    problems = {
        "missing": sorted(expected.keys() - found.keys()),
        "unknown": sorted(found.keys() - expected.keys()),
        "of another shape": [
            f"{name} {own} instead of {wanted}" for name, (own, _, wanted) in both.items() if own != wanted
        ],
        "no numbers that weights can be": [
            f"{name} {kind}" for name, (_, kind, _) in both.items() if kind not in _FLOATS
        ],
    }
    words = []
    for kind, names in ((kind, names) for kind, names in problems.items() if names):
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        words.append(f"{len(names)} {kind}: {', '.join(f'{name:.200}' for name in names[:_LISTED])}{more}")
    if words:
        raise ValueError(f"the tensors of {path} do not fit the network of its config.json ({'; '.join(words)})")

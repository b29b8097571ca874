"""A trained model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from duality.data.packing import Sequences
from duality.data.tokenizers import Tokenizer, load_tokenizer
from duality.denoisers.memo import Memoized
from duality.denoisers.readouts import SubsDenoiser
from duality.evaluation.likelihood import Likelihood, likelihood
from duality.protocols import Process, Reporter, Sampler, Schedule, Vocabulary
from duality.recipes.config import nearest
from duality.recipes.recipe import Recipe
from duality.runs.folder import read_recipe, saved_round
from duality.runs.provenance import check_tokenizer, read_identity
from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.generate import generate
from duality.samplers.grids import Cosine, Grid, Linear, LinearConstantLinear
from duality.samplers.psi import Psi
from duality.training import checkpoint
from duality.training.state import load_weights

# the follow-up paper's: a small chance in every step of the loop, a larger one where the rule itself makes it small
_ETA = {"psi-constant": 0.01, "psi-cap": 0.05, "psi-rescale": 0.05, "psi-loop": 0.01, "psi-mix": 0.5}


SAMPLER_NAMES = ("own", "ancestral", "analytic", *_ETA)


GRID_NAMES = ("linear", "cosine", "loop")


def named_grid(name: str | None, sampler: str) -> Grid:
    """A grid of times by name; the one that suits the sampler if no name is given."""
    grids: dict[str, Grid] = {"linear": Linear(), "cosine": Cosine(), "loop": LinearConstantLinear()}
    chosen = ("loop" if sampler == "psi-loop" else "linear") if name is None else name
    if chosen not in grids:
        raise ValueError(f"no grid {chosen!r}: {nearest(chosen, grids)}")
    if (chosen == "loop") != (sampler == "psi-loop"):
        raise ValueError(
            f"the grid {chosen} with the sampler {sampler}: the loop stands still at one level, where psi-loop draws "
            "anew and every other sampler does nothing; use the two together, or neither"
        )
    return grids[chosen]


@dataclass(frozen=True)
class Model:
    """A trained model with all its parts."""

    recipe: Recipe
    step: int
    denoiser: nn.Module
    tokenizer: Tokenizer
    label_names: tuple[str, ...] = ()

    @property
    def schedule(self) -> Schedule:
        return self.recipe.method.schedule()

    @property
    def sampler(self) -> Sampler:
        return self.recipe.method.sampler(self.tokenizer.vocab_size)

    def process(self) -> Process:
        """The discrete process that the model reverses."""
        own = self.sampler
        if not isinstance(own, (Ancestral, Analytic)):
            raise ValueError(
                f"{type(self.recipe.method).__name__} is written by no sampler but its own ({type(own).__name__}): "
                "leave the sampler out"
            )
        return own.process

    def named_sampler(self, name: str, eta: float | None = None) -> Sampler:
        """Its own sampler, or another one of its process by name; ``eta`` is the strength of a psi sampler."""
        if name not in SAMPLER_NAMES:
            raise ValueError(f"no sampler {name!r}: {nearest(name, SAMPLER_NAMES)}")
        if name.startswith("psi-"):
            rule: Any = name.removeprefix("psi-")
            default = _ETA[name]
            return Psi(self.process(), rule, default if eta is None else eta)
        if eta is not None:
            raise ValueError(f"eta is {eta}, and the sampler {name} has none: it is the strength of a psi sampler")
        if name == "own":
            return self.sampler
        return Ancestral(self.process()) if name == "ancestral" else Analytic(self.process())

    def evaluate(self, sequences: Sequences, **options: Any) -> Likelihood:
        """Nats per token of ``sequences``, by the method's own measure; options as for ``evaluate.likelihood``."""
        return likelihood(self.denoiser, self.recipe.method.measure(self.tokenizer.vocab_size), sequences, **options)

    def generate(
        self,
        wrap: Callable[[Any], Any] = lambda denoiser: denoiser,
        sampler: Sampler | None = None,
        steps: int | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Tokens; options as for ``generate.generate``. ``wrap`` bends the belief (``wrappers``)."""
        chosen = sampler or self.sampler
        bent = wrap(self.denoiser)
        if isinstance(self.denoiser, SubsDenoiser) and not self.denoiser.depends_on_alpha:
            bent = Memoized(bent)
        count = chosen.default_steps(options["length"]) if steps is None else steps
        return generate(bent, self.schedule, chosen, steps=count, **options)


def network(recipe: Recipe, vocabulary: Vocabulary, device: torch.device | str = "cpu") -> nn.Module:
    """The untrained network of a recipe; its first weights depend on the recipe's seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        return recipe.method.network(recipe.backbone, vocabulary).to(device)


def load(
    folder: Path,
    report: Reporter,
    device: torch.device | str = "cpu",
    weights: str = "ema",
    round_number: int | None = None,
) -> Model:
    """The newest intact checkpoint of the run in ``folder``, with its averaged (``ema``) or raw (``model``) weights.

    ``round_number`` asks for the weights after that round of a distillation instead; 0 is what it began from.
    """
    recipe = read_recipe(folder)
    tokenizer = load_tokenizer(folder)
    if round_number is not None:
        saved: checkpoint.Checkpoint | None = saved_round(folder, recipe, round_number)
    else:
        saved = checkpoint.load_newest(folder / "checkpoints", report)
    if saved is None:
        raise ValueError(
            f"{folder} has no checkpoint yet: train it first (duality train {recipe.name} --out {folder} --resume)"
        )
    check_tokenizer(saved.state, tokenizer, folder)
    names = tuple(read_identity(folder)["labels"])
    denoiser = network(recipe, Vocabulary(tokenizer.vocab_size, len(names)), device)
    load_weights(denoiser, saved.groups[weights])
    denoiser.requires_grad_(False)
    return Model(recipe, saved.step, denoiser, tokenizer, names)


def sample_row(model: Model, tokens: list[int], index: int, steps: int, tail: str, seed: int) -> dict[str, Any]:
    """A sample with what made it."""
    return {
        "index": index,
        "seed": seed,
        "steps": steps,
        "tail": tail,
        "trained_steps": model.step,
        "text": model.tokenizer.decode(tokens),
        "tokens": tokens,
    }

"""What follows from a recipe: the phases of its training, its distillation, its finetuning.

A distillation and a finetuning are new runs, which begin from the weights of another. Method, data and network are
those of the other run; steps, batch, learning rate and average follow from its own, in the proportions of the paper.
All weights are trained, also of a run that had adapters or frozen parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from duality.protocols import AnyDenoiser, Distillation, Phase
from duality.recipes.config import build
from duality.recipes.recipe import Recipe
from duality.training.distillation import distillation_named, required_sampler

_FINETUNED = "-finetuned"


def method_phases(recipe: Recipe, num_tokens: int, teacher: AnyDenoiser | None = None) -> tuple[Phase, ...]:
    """The phases of a recipe's method, with ends at most the steps of the training, the last one exactly there.

    With a ``teacher`` those of its distillation, one for each round.
    """
    if recipe.distillation is not None and teacher is not None:
        return recipe.distillation.phases(recipe.method, num_tokens, teacher)
    steps, planned = recipe.training.steps, recipe.training.phase_steps
    *first, last = recipe.method.phases(num_tokens, steps if planned is None else planned)
    return (*(replace(phase, until=min(phase.until, steps)) for phase in first), replace(last, until=steps))


def derive_distillation(
    base: Recipe, distillation: Distillation | str, step: int, given: Mapping[str, object] | None = None
) -> Recipe:
    """The distillation of a run of ``base`` that has been trained for ``step`` steps, in the paper's proportions.

    By name it has the fields that are ``given``, and a base that it does not fit is refused. If not given, the steps of
    a round are a hundredth of those of the base, as in the paper, but at least 150: the base of a laptop recipe has a
    few thousand steps, and in a hundredth of them the student does not come near its teacher, so that the next round
    would begin from a worse one.

    The learning rate is a fifth of that of the base, with a warm-up of a hundredth of the steps, then constant; the
    average is over the last tenth of a round. At rounds of 10 000 steps this is the paper's 6e-5, 500 and 0.999.
    The batch is a quarter of that of the base, as the paper's 128 of 512, but at least 64, or the whole batch of a base
    that has less: a quarter of a small batch has so much noise in its gradient that short rounds learn little.
    It is sampled, if nothing else is said, with as many steps as the last round has taught, with the tail that is best
    after this distillation, and at temperature 1 if the distillation itself sharpens.
    """
    if isinstance(distillation, str):
        required_sampler(base.method, 2, distillation)  # refuses a model that it does not fit
        fields = {"round_steps": max(base.training.steps // 100, 150), **(given or {})}
        distillation = build(distillation_named(distillation), fields)
    before, total, kind = base.training.of_all_weights(), distillation.steps, type(distillation).__name__.lower()
    training = replace(
        before,
        steps=total,
        batch_size=min(before.batch_size, max(before.batch_size // 4, 64)),
        learning_rate=before.learning_rate / 5,
        warmup=max(1, total // 100),
        decay=0.0,
        ema=max(0.0, 1 - 10 / distillation.round_steps),
        log_every=min(before.log_every, distillation.round_steps),
        eval_every=distillation.round_steps,
        save_every=min(before.save_every, distillation.round_steps),
    )
    return replace(
        base,
        name=f"{base.name}-{kind}",
        summary=f"{base.name}, distilled with {kind} for {distillation.rounds} rounds",
        source=f"{base.name} at step {step}",
        training=training,
        distillation=distillation,
        generation=replace(
            base.generation,
            steps=distillation.sampling_steps,
            tail=distillation.tail,
            temperature=1.0 if distillation.sharpens else base.generation.temperature,
        ),
    )


def derive_finetuning(base: Recipe, step: int, steps: int | None = None, adapters: bool = False) -> Recipe:
    """The finetuning of a model of ``base`` that has been trained for ``step`` steps: its recipe with less training.

    It takes ``steps`` steps; if not given, a tenth of those of the base, but at least 100. The learning rate is a fifth
    of that of the base, as for a distillation, or that of the base for ``adapters``, which are new; its warm-up is a
    twentieth of the steps. The average is over the last tenth of the steps, or shorter if that of the base is. Only the
    last phase of the method is trained, because the others have ended.
    """
    before = base.training.of_all_weights()
    steps = max(before.steps // 10, 100) if steps is None else steps
    training = replace(
        before,
        steps=steps,
        learning_rate=before.learning_rate if adapters else before.learning_rate / 5,
        warmup=max(1, steps // 20),
        ema=min(before.ema, max(0.0, 1 - 10 / steps)),
        log_every=max(1, min(before.log_every, steps // 10)),
        eval_every=min(before.eval_every, max(1, steps // 4)),
        save_every=min(before.save_every, max(1, steps // 4)),
        phase_steps=0,
    )
    return replace(
        base,
        name=f"{base.name.removesuffix(_FINETUNED)}{_FINETUNED}",
        summary=f"{base.name}, finetuned",
        source=f"{base.name} at step {step}",
        training=training,
        distillation=None,
    )

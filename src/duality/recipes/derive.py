"""What follows from a recipe: the phases of its training, its distillation, its finetuning.

A distillation and a finetuning are new runs, which begin from the weights of another. Method, data and network are
those of the other run; steps, batch, learning rate and average follow from its own, in the proportions of the paper.
All weights are trained, also of a run that had adapters or frozen parts.
"""

from __future__ import annotations

from dataclasses import replace

from duality.protocols import AnyDenoiser, Distillation, Phase
from duality.recipes.recipe import Recipe
from duality.training.settings import of_all_weights

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


def default_round_steps(steps: int) -> int:
    """The steps of a round for a base of this many: a hundredth, as in the paper, but at least 150.

    The base of a laptop recipe has a few thousand steps. In a hundredth of them the student does not come near its
    teacher, and the next round begins from a worse one.

    >>> default_round_steps(2_600), default_round_steps(1_000_000)
    (150, 10000)
    """
    return max(steps // 100, 150)


def derive_distillation(base: Recipe, distillation: Distillation, step: int) -> Recipe:
    """The distillation of a run of ``base`` that has been trained for ``step`` steps, in the paper's proportions.

    The learning rate is a fifth of that of the base, with a warm-up of a hundredth of the steps, then constant; the
    average is over the last tenth of a round. At rounds of 10 000 steps this is the paper's 6e-5, 500 and 0.999.
    The batch is a quarter of that of the base, as the paper's 128 of 512, but at least 64, or the whole batch of a base
    that has less: a quarter of a small batch has so much noise in its gradient that short rounds learn little.
    It is sampled, if nothing else is said, with as many steps as the last round has taught, with the tail that is best
    after this distillation, and at temperature 1 if the distillation itself sharpens. All weights are trained, also
    of a base that had adapters or frozen parts.
    """
    before, total, kind = of_all_weights(base.training), distillation.steps, type(distillation).__name__.lower()
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
    last phase of the method is trained, because the others have ended. All weights are trained.
    """
    before = of_all_weights(base.training)
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

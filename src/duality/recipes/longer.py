"""Train longer: which recipe a run goes on with when it is given another number of steps or rounds.

The rule. From the step where the run is, learning rate and phases are those of the new number of steps, as if it had
been planned from the start; so the rate of a run that had cooled down rises again. A phase that has ended does not
begin again: if the new number would put the run back into one, the phases stay divided as they were
(``training.phase_steps``) and the last one goes on. A distillation gets further rounds, each with its own delta, and is
then sampled with the steps of its new last round. Fewer steps than were taken are refused.

What must hold: what a run does from a step on depends on its recipe and its checkpoint alone, so that a longer training
that is killed and resumed equals one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from duality.protocols import Phase
from duality.recipes.recipe import Recipe


def divided(phases: Sequence[Phase], steps: int) -> tuple[Phase, ...]:
    """The phases with ends at most ``steps``, the last one exactly there."""
    *first, last = phases
    return (*(replace(phase, until=min(phase.until, steps)) for phase in first), replace(last, until=steps))


def method_phases(recipe: Recipe, num_tokens: int) -> tuple[Phase, ...]:
    """The phases of a recipe's method, divided as the recipe says."""
    training = recipe.training
    planned = training.steps if training.phase_steps is None else training.phase_steps
    return divided(recipe.method.phases(num_tokens, planned), training.steps)


def phases_ended(recipe: Recipe, step: int) -> int:
    """How many phases have ended before ``step``; the last one does not end."""
    ends = [phase.until for phase in method_phases(recipe, 2)]  # they do not depend on the vocabulary
    return sum(end <= step for end in ends[:-1])


def longer(before: Recipe, wanted: Recipe, step: int) -> Recipe:
    """``wanted``, which may have another number of steps than ``before``, for a run that has taken ``step`` steps."""
    if wanted.training.phase_steps is None:  # phases that were kept as they were stay so
        wanted = replace(wanted, training=replace(wanted.training, phase_steps=before.training.phase_steps))
    if wanted.distillation is not None or phases_ended(wanted, step) >= phases_ended(before, step):
        return wanted
    return replace(wanted, training=replace(wanted.training, phase_steps=before.training.steps))


def check_steps(wanted: Recipe, step: int) -> None:
    """Refuse fewer steps than a run has taken."""
    if wanted.training.steps < step:
        rounds = "" if wanted.distillation is None else f" ({wanted.distillation.rounds} rounds)"
        raise ValueError(
            f"training.steps is {wanted.training.steps}{rounds}, and the run has taken {step} steps: give at least as "
            "many, or choose another --out (out=)"
        )


def with_rounds(before: Recipe, rounds: int) -> Recipe:
    """A distillation with another number of rounds, and what follows from it."""
    old = before.distillation
    if old is None or rounds == old.rounds:
        return before
    new, generation = replace(old, rounds=rounds), before.generation  # type: ignore[type-var]  # all are dataclasses
    if generation.steps == old.sampling_steps:
        generation = replace(generation, steps=new.sampling_steps)
    return replace(
        before,
        summary=before.summary.replace(f"for {old.rounds} rounds", f"for {rounds} rounds"),
        distillation=new,
        training=replace(before.training, steps=new.steps),
        generation=generation,
    )


def news(before: Recipe, after: Recipe, step: int) -> str:
    """What changes when a run is trained longer, in a sentence."""
    training, kept = after.training, after.training.phase_steps
    text = (
        f"training.steps changes from {before.training.steps} to {training.steps}: from step {step + 1} on, learning "
        f"rate ({training.rate(step):.3g} there) and phases are those of {training.steps} steps"
    )
    ended = "" if kept is None else f", except that a phase that has ended does not begin again (phase_steps {kept})"
    return text + ended

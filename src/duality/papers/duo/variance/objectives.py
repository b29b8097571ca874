"""Objectives by name, for the study of gradient variance: what a run could be trained on, at which times.

    own               the last phase of the training of the run's method (never a distillation)
    plain             the bound; at the times of the run's own training
    plain/polynomial  the same at other times: log-linear, polynomial, cosine
    window            the bound on the curriculum's range of alpha, with the tokens argmax w as input: tau -> 0
    tau=0.01          the curriculum's objective, with softmax(w / tau) as input
    udlm              ``plain`` in the dense form of UDLM: the same value, by another computation
    mdlm              ``plain`` of absorbing noise

``window`` and ``tau=...`` also take times: those above, within the range of alpha, or the Gaussian schedules
linear-variance, linear-signal, linear-log-snr. Without a name they have the run's own Gaussian schedule.

Other times change the variance of an objective and not its mean. ``window`` and ``tau=...`` have another mean than
``plain``: they leave out the levels outside the range, and with tau > 0 the input keeps signal that the bound has lost.

What must hold: all objectives read the same times and, for ``window`` and ``tau=...``, the same Gaussian latents w; as
tau goes to 0, ``tau=...`` becomes ``window``; a name that has no meaning for the run is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from duality.diffusion import GAUSSIAN_SCHEDULES, SCHEDULES, gaussian
from duality.diffusion.processes import Uniform
from duality.diffusion.schedules import Dual, GaussianSchedule, LinearVariance, LogLinear
from duality.fused.formulas import UniformBound
from duality.fused.loss import fused_loss
from duality.methods.base import last_level
from duality.methods.duo import Duo
from duality.models.model import Model
from duality.noise import Noise
from duality.objectives.base import belief_in, dropout_of
from duality.objectives.continuous_time import ContinuousTimeBound
from duality.objectives.curriculum import TemperedBound
from duality.protocols import AnyDenoiser, Denoiser, Latent, Loss, Objective, Schedule, TopK, Valid
from duality.registry import suggestion

PAPER_WINDOW = (0.05, 0.95)
_PLAIN, _WINDOW, _TAU = "plain", "window", "tau="
_DENSE, _MASKED, _OWN = "udlm", "mdlm", "own"
_UNIFORM_DEFAULT = ("plain/log-linear", "plain/polynomial", "window", "tau=0.001", "tau=0.01", "tau=0.03")
_ABSORBING_DEFAULT = ("plain/log-linear", "plain/polynomial")
_SHARED = 32  # entries of the latent that are drawn for every tau: enough for 0.03 at 2 048 tokens


@dataclass(frozen=True)
class DenseUniform(Uniform):
    """Uniform noise without its closed form: a process of another type has the general, dense one."""


@dataclass(frozen=True)
class DiscreteTimes:
    """The times of a discrete schedule as a Gaussian schedule: mu at time t is that of the level alpha(t)."""

    schedule: Schedule
    vocab_size: int

    def mu(self, time: Tensor) -> Tensor:
        return gaussian.inverse_level(self.schedule.alpha(time), self.vocab_size)

    def mu_prime(self, time: Tensor) -> Tensor:
        return self.schedule.alpha_prime(time) / gaussian.level_slope(self.mu(time), self.vocab_size)

    def gaussian_time(self, mu: Tensor) -> Tensor:
        return self.schedule.time(gaussian.level(mu, self.vocab_size))


@dataclass(frozen=True)
class PairedBound:
    """``TemperedBound``, and with tau = 0 its limit, from latents that are the same for all taus.

    The largest ``_SHARED`` entries of w are drawn, and the network reads as many of them as tau needs: the first ones
    have the law of fewer entries drawn alone. So two taus differ in the softmax and in nothing else. A tau that needs
    more entries has draws of its own.
    """

    schedule: Dual
    tau: float

    @cached_property
    def num_kept(self) -> int:
        """How many entries besides the true token's the network reads; the argmax needs 1."""
        return TemperedBound(self.schedule, self.tau).num_kept if self.tau > 0 else 1

    @property
    def num_drawn(self) -> int:
        """How many entries are drawn."""
        return max(self.num_kept, min(_SHARED, self.schedule.vocab_size - 1))

    def __call__(
        self, denoiser: AnyDenoiser, x: Tensor, t: Tensor, noise: Noise, valid: Valid = None, dropout: bool = False
    ) -> Loss:
        states, mu = self.schedule.vocab_size, self.schedule.mu(t)
        alpha, slope = gaussian.level(mu, states), self.schedule.alpha_prime(t)
        soft, z = gaussian.tempered_latents(x, mu[:, None], self.tau or 1.0, self.num_drawn, states, noise)
        read: Latent = z
        if self.tau > 0:
            ids, weights = (part[..., : self.num_kept + 1] for part in (soft.ids, soft.weights))
            read = TopK(ids, weights / weights.sum(-1, keepdim=True))
        belief = belief_in(Uniform(states), denoiser, read, alpha, valid, dropout_of(noise, dropout))
        return fused_loss(belief, UniformBound(x, z, alpha[:, None], slope[:, None], states), valid)


def _parse(name: str) -> tuple[str, float, str]:
    """The kind of a name (window with a tau too), its tau, 0 without one, and its times, empty if it has none.

    >>> _parse("tau=0.01/polynomial")
    ('window', 0.01, 'polynomial')
    """
    head, slash, times = name.partition("/")
    kinds, known = (_PLAIN, _WINDOW, _DENSE, _MASKED, _OWN), _schedule_names(SCHEDULES, GAUSSIAN_SCHEDULES)
    if slash and (head == _OWN or times not in known):
        raise ValueError(
            f"objective {name!r} has the times {times!r}: they are {', '.join(known)}; {_OWN!r} has its own"
        )
    if not head.startswith(_TAU):
        if head not in kinds:
            raise ValueError(f"no objective {name!r}: {suggestion(head, (*kinds, 'tau=0.001'))}")
        return head, 0.0, times
    try:
        tau = float(head.removeprefix(_TAU))
    except ValueError:
        tau = -1.0
    if not 0 < tau < float("inf"):
        raise ValueError(
            f"objective {name!r}: tau must be a positive number, such as tau=0.001; its limit 0 is {_WINDOW!r}"
        )
    return _WINDOW, tau, times


def _schedule_names(*registries: Iterable[str]) -> dict[str, str]:
    """The registered schedules by their names in small letters: log-linear for LogLinear."""
    entries = [entry for registry in registries for entry in registry]
    return {re.sub(r"(?<!^)(?=[A-Z])", "-", entry).lower(): entry for entry in entries}


def objectives_of(
    model: Model, names: Sequence[str] = (), window: tuple[float, float] | None = None
) -> dict[str, Objective]:
    """Objectives by name for a run; those that fit it if none are named.

    ``window`` is the range of alpha of ``window`` and ``tau=...``: the run's own if not given, or the paper's if the
    run has none.
    """
    own = model.recipe.method.phases(model.tokenizer.vocab_size, model.recipe.training.steps)[-1].objective
    usual: Sequence[str] = (_OWN,)
    if isinstance(own, ContinuousTimeBound):  # the bound, and for uniform noise the curriculum
        usual = _UNIFORM_DEFAULT if isinstance(own.process, Uniform) else _ABSORBING_DEFAULT
    chosen = {name: _parse(name) for name in names or usual}
    repeated = sorted(name for name in chosen if list(names).count(name) > 1)
    if repeated:
        raise ValueError(f"{', '.join(repeated)} stands twice in the list of objectives: name each once")
    return {name: _make_objective(name, *parsed, model, own, window) for name, parsed in chosen.items()}


def _make_objective(
    name: str, kind: str, tau: float, times: str, model: Model, own: Objective, window: tuple[float, float] | None
) -> Objective:
    """The objective of a name; one that has no meaning for the run's noise or its network's output is refused.

    Discrete times end at the last level alpha(1) of the run's training.
    """
    if kind == _OWN:
        return own
    method, states = model.recipe.method, model.tokenizer.vocab_size
    process, about = method.process(states), f"a run of {type(method).__name__}"
    if process is None or not isinstance(model.denoiser, Denoiser):
        raise ValueError(
            f"objective {name!r} needs a belief about tokens and a discrete process, which {about} does not have: "
            f"use {_OWN!r}"
        )
    for kinds, noise, fits in (
        ((_WINDOW, _DENSE), "uniform", isinstance(process, Uniform)),
        ((_MASKED,), "absorbing", process.mask_id is not None),
    ):
        if kind in kinds and not fits:
            raise ValueError(f"objective {name!r} is for {noise} noise, and {about} has {process}: use {_PLAIN!r}")
    end = 0.0 if process.mask_id is not None else LogLinear().eps
    if isinstance(own, ContinuousTimeBound):
        end = last_level(own.schedule)
    discrete, gaussians = _schedule_names(SCHEDULES), _schedule_names(GAUSSIAN_SCHEDULES)
    schedule: Schedule | None = None
    if times in discrete:
        entry = SCHEDULES[discrete[times]]
        schedule = entry(eps=end) if "eps" in inspect.signature(entry).parameters else entry()
    if kind != _WINDOW:
        if times in gaussians:
            raise ValueError(
                f"objective {name!r}: {times} is a Gaussian schedule, for {_WINDOW!r} and 'tau=...' only; "
                f"the bound has {', '.join(discrete)}"
            )
        usual = own.schedule if isinstance(own, ContinuousTimeBound) else LogLinear(end)
        return ContinuousTimeBound(DenseUniform(states) if kind == _DENSE else process, schedule or usual)
    gaussian_schedule: GaussianSchedule = LinearVariance()
    if isinstance(method, Duo):
        gaussian_schedule, window = method.gaussian_schedule, window or (method.alpha_min, method.alpha_max)
    if times in gaussians:
        gaussian_schedule = GAUSSIAN_SCHEDULES[gaussians[times]]()
    elif schedule is not None:
        gaussian_schedule = DiscreteTimes(schedule, states)
    return PairedBound(Dual(states, gaussian_schedule, *(window or PAPER_WINDOW)), tau)

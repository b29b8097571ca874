"""Psi samplers: a mixture of an ancestral step and a step to clean tokens that is followed by new noise.

    q_Psi = kappa q_s + (1 - kappa) F_s(q_0),    F_s(q) = alpha_s q + (1 - alpha_s) prior

with q_s the posterior and q_0 the posterior at alpha_s = 1, both at the belief p: one network call. A token that gets
new noise is drawn again in a later step, so errors can be corrected; kappa = 1 is ancestral sampling, and so is every
step to alpha_s = 1. A clean token gets new noise with probability (1 - kappa)(1 - alpha_s), which the rules choose (for
absorbing noise they are ReMDM's rules, and it is the probability of being masked again):

    constant   eta
    cap        min(eta, (1 - alpha_s) / alpha_t)
    rescale    eta min(1, (1 - alpha_s) / alpha_t)
    loop       eta where the level is constant (``grids.LinearConstantLinear``), 0 where it rises
    mix        none of these: kappa = eta

each at most 1 - alpha_s, where kappa is 0; that makes ``cap`` the same as ``constant``, and both names are kept because
the literature has both. From the follow-up of the paper, for any process of the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from duality.diffusion import posterior
from duality.diffusion.posterior import Routes
from duality.samplers.base import RouteSampler

Rule = Literal["constant", "cap", "rescale", "loop", "mix"]


def _kappa(rule: Rule, eta: float, alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The share of the ancestral step; 1 at alpha_s = 1, where there is no noise."""
    rest = 1 - alpha_s
    if rule == "mix":
        share = torch.full_like(rest, eta)
    else:
        most = rest / alpha_t  # infinite at alpha_t = 0
        renewed = torch.full_like(rest, eta)
        if rule == "cap":
            renewed = torch.minimum(renewed, most)
        elif rule == "rescale":
            renewed = eta * most.clamp_max(1.0)
        elif rule == "loop":
            renewed = torch.where(alpha_s == alpha_t, renewed, 0.0)
        share = (1 - renewed / rest).clamp(0.0, 1.0)
    return torch.where(rest > 0, share, 1.0)


@dataclass(frozen=True)
class Psi(RouteSampler):
    """Ancestral steps in which a share of the tokens gets new noise, by a ``rule`` of strength ``eta``."""

    rule: Rule = "rescale"
    eta: float = 0.05

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule is {self.rule!r}: choose one of {', '.join(get_args(Rule))}")
        if not 0 <= self.eta <= 1:
            meaning = "kappa itself (1: ancestral)" if self.rule == "mix" else "a probability of drawing again"
            raise ValueError(f"eta is {self.eta}: for rule {self.rule!r} it is {meaning} and must be in [0, 1]")

    def routes(self, p_z: Tensor, prior_z: Tensor, alpha_t: Tensor, alpha_s: Tensor) -> Routes:
        """The probabilities of a step's three routes."""
        share = _kappa(self.rule, self.eta, alpha_t, alpha_s)
        return posterior.psi_routes(p_z, prior_z, alpha_t, alpha_s, share)


# The rules by name, with the strengths of the follow-up paper: small where every step has that probability, larger
# where the rule lowers it.
constant = partial(Psi, rule="constant", eta=0.01)
cap = partial(Psi, rule="cap", eta=0.05)
rescale = partial(Psi, rule="rescale", eta=0.05)
loop = partial(Psi, rule="loop", eta=0.01)
mix = partial(Psi, rule="mix", eta=0.5)

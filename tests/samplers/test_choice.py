"""Samplers and grids by name: the registered class with its options, or a refusal that says what to do."""

from __future__ import annotations

import pytest

from duality.diffusion.processes import Absorbing, Uniform
from duality.samplers.ancestral import Ancestral
from duality.samplers.choice import grid_named, sampler_named
from duality.samplers.grids import Cosine, Linear, LinearConstantLinear
from duality.samplers.psi import Psi


def test_a_sampler_by_name_has_its_defaults_and_takes_its_options() -> None:
    assert sampler_named("ancestral", Uniform(5)) == Ancestral(Uniform(5))
    assert sampler_named("psi-loop", Absorbing(5), eta=None) == Psi(Absorbing(5), "loop", 0.01)
    assert sampler_named("psi-mix", Absorbing(5)) == Psi(Absorbing(5), "mix", 0.5)
    assert sampler_named("psi-cap", Uniform(5), eta=0.2) == Psi(Uniform(5), "cap", 0.2)


def test_an_option_that_a_sampler_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"eta is 0.1, and the sampler ancestral has no eta: leave it out"):
        sampler_named("ancestral", Uniform(5), eta=0.1)
    with pytest.raises(ValueError, match="no sampler 'ancestrial': did you mean ancestral"):
        sampler_named("ancestrial", Uniform(5))


def test_a_grid_suits_its_sampler() -> None:
    assert grid_named(None) == Linear()
    assert grid_named("cosine", "psi-mix") == Cosine()
    assert grid_named(None, "psi-loop") == LinearConstantLinear()
    for name, sampler in (("loop", "ancestral"), ("linear", "psi-loop"), ("cosine", "psi-loop")):
        with pytest.raises(ValueError, match="use the two together, or neither"):
            grid_named(name, sampler)

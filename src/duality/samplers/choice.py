"""Samplers and grids by name, as the command line and ``Model.sample`` choose them."""

from __future__ import annotations

import inspect

from duality.protocols import Grid, Process, Sampler
from duality.samplers import GRIDS, SAMPLERS

# The samplers that need a particular grid; all others use any grid whose level rises at every step.
_OWN_GRID = {"psi-loop": "loop"}


def sampler_named(name: str, process: Process, **options: float | None) -> Sampler:
    """A registered sampler for a process; an option that is not None must be one that the sampler has."""
    entry = SAMPLERS[name]
    given = {option: value for option, value in options.items() if value is not None}
    allowed = inspect.signature(entry).parameters
    for option, value in given.items():
        if option not in allowed:
            raise ValueError(f"{option} is {value}, and the sampler {name} has no {option}: leave it out")
    sampler: Sampler = entry(process, **given)
    return sampler


def grid_named(name: str | None, sampler: str = "ancestral") -> Grid:
    """A registered grid; the one that suits the sampler if no name is given."""
    suited = _OWN_GRID.get(sampler, "linear")
    chosen = suited if name is None else name
    entry = GRIDS[chosen]
    if chosen != suited and (chosen in _OWN_GRID.values() or sampler in _OWN_GRID):
        raise ValueError(
            f"the grid {chosen} with the sampler {sampler}: the loop stays at one level, where psi-loop draws "
            "again and every other sampler does nothing; use the two together, or neither"
        )
    grid: Grid = entry()
    return grid

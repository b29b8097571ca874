"""Ways to write: one file each."""

from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.psi import Psi

SAMPLERS: tuple[type, ...] = (Ancestral, Analytic, Psi)

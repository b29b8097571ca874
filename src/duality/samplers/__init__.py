"""Ways to write: one file each. ``SAMPLERS`` are those of a discrete process, which the common tests run over.

``Autoregressive`` and the samplers of Gaussian models start from no discrete process and have tests of their own.
"""

from duality.samplers.analytic import Analytic
from duality.samplers.ancestral import Ancestral
from duality.samplers.autoregressive import Autoregressive
from duality.samplers.psi import Psi

SAMPLERS: tuple[type, ...] = (Ancestral, Analytic, Psi)

__all__ = ["SAMPLERS", "Analytic", "Ancestral", "Autoregressive", "Psi"]

"""How good a model is."""

from duality.evaluate.judge import Judge, load_judge
from duality.evaluate.likelihood import Likelihood, likelihood
from duality.evaluate.quality import Quality, quality

__all__ = ["Judge", "Likelihood", "Quality", "likelihood", "load_judge", "quality"]

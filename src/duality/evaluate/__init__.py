"""How good a model is."""

from duality.evaluate.judge import Judge, Quality, load_judge, quality
from duality.evaluate.likelihood import Likelihood, likelihood

__all__ = ["Judge", "Likelihood", "Quality", "likelihood", "load_judge", "quality"]

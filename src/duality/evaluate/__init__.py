"""How good a model is."""

from duality.evaluate.likelihood import Likelihood, likelihood

__all__ = ["Likelihood", "likelihood"]

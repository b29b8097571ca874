"""Methods the paper compares with and that share little with the rest: one small file each, objective to sampler."""

from duality.baselines.bert_mouth import BertMouth, Gibbs, MaskedTokens, PseudoLikelihood
from duality.baselines.diffusion_bert import DiffusionBERT, SpindleBound, SpindleDenoiser, SpindleSampler
from duality.baselines.diffusion_lm import DiffusionLM
from duality.baselines.plaid import Plaid, PlaidBound, PlaidDenoiser

__all__ = [
    "BertMouth",
    "DiffusionBERT",
    "DiffusionLM",
    "Gibbs",
    "MaskedTokens",
    "Plaid",
    "PlaidBound",
    "PlaidDenoiser",
    "PseudoLikelihood",
    "SpindleBound",
    "SpindleDenoiser",
    "SpindleSampler",
]

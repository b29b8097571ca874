"""Methods the paper compares with and that share little with the rest: one small file each, objective to sampler."""

from duality.baselines.bert_mouth import BertMouth, Gibbs, MaskedTokens, PseudoLikelihood
from duality.baselines.diffusion_bert import DiffusionBERT, SpindleBound, SpindleDenoiser, SpindleSampler

__all__ = [
    "BertMouth",
    "DiffusionBERT",
    "Gibbs",
    "MaskedTokens",
    "PseudoLikelihood",
    "SpindleBound",
    "SpindleDenoiser",
    "SpindleSampler",
]

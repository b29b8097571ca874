"""How a model learns: one file for each objective, and their common part in ``base``.

    continuous_time   the continuous-time bound of a belief, for any process (Duo, UDLM, MDLM)
    curriculum        the bound with tempered Gaussian latents as input (Duo)
    discrete_time     the bound of a chain of T steps, for any process (D3PM)
    score_entropy     the bound of a score model, for any process (SEDD)
    next_token        the autoregressive cross-entropy
    variational       the bound of a Gaussian diffusion over vectors (Plaid, Diffusion-LM)
    consistency       Discrete Consistency Distillation
    through_time      Self-Distillation Through Time

A test checks that every registered objective trains some recipe or distillation.
"""

from duality.registry import Registry

OBJECTIVES = Registry(
    "objective",
    {
        "continuous-time-bound": "duality.objectives.continuous_time:ContinuousTimeBound",
        "tempered-bound": "duality.objectives.curriculum:TemperedBound",
        "discrete-time-bound": "duality.objectives.discrete_time:DiscreteTimeBound",
        "score-entropy": "duality.objectives.score_entropy:ScoreEntropy",
        "next-token": "duality.objectives.next_token:NextToken",
        "variational": "duality.objectives.variational:Variational",
        "consistency": "duality.objectives.consistency:Consistency",
        "through-time": "duality.objectives.through_time:ThroughTime",
    },
)

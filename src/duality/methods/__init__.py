"""Named assemblies of process, schedule, network, objectives and sampler: what a recipe chooses and a table compares.

    duo               uniform noise, the Rao-Blackwellised bound, with or without curriculum
    udlm              uniform noise, the same bound alone
    mdlm              absorbing noise, the bound as a weighted cross-entropy
    sedd              any process, a network that gives ratios
    d3pm              any process, the bound of a chain with T steps
    ar                the autoregressive transformer
    plaid             Gaussian diffusion over learned embeddings, trained on its bound
    diffusion_lm      Gaussian diffusion over embeddings, regression and rounding
    diffusion_bert    absorbing noise that masks informative tokens first
    bert_mouth        a masked language model with Gibbs sampling

A method is one frozen dataclass that satisfies ``protocols.Method``. The name is the class's name: it is written in
the JSON of recipes.
"""

from duality.registry import Registry

METHODS = Registry(
    "method",
    {
        "Duo": "duality.methods.duo:Duo",
        "UDLM": "duality.methods.udlm:UDLM",
        "MDLM": "duality.methods.mdlm:MDLM",
        "SEDD": "duality.methods.sedd:SEDD",
        "D3PM": "duality.methods.d3pm:D3PM",
        "AR": "duality.methods.ar:AR",
        "Plaid": "duality.methods.plaid:Plaid",
        "BertMouth": "duality.methods.bert_mouth:BertMouth",
        "DiffusionBERT": "duality.methods.diffusion_bert:DiffusionBERT",
        "DiffusionLM": "duality.methods.diffusion_lm:DiffusionLM",
    },
)

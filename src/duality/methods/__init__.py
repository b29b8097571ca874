"""Named assemblies of process, schedule, network, objectives and sampler."""

from duality.methods.ar import AR
from duality.methods.bert_mouth import BertMouth
from duality.methods.d3pm import D3PM
from duality.methods.diffusion_bert import DiffusionBERT
from duality.methods.diffusion_lm import DiffusionLM
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.plaid import Plaid
from duality.methods.sedd import SEDD
from duality.methods.udlm import UDLM

METHODS: tuple[type, ...] = (
    Duo,
    UDLM,
    MDLM,
    SEDD,
    D3PM,
    AR,
    Plaid,
    BertMouth,
    DiffusionBERT,
    DiffusionLM,
)

"""The paper's runs: one function per row of Tables 1 and 2, with its hyper-parameters.

All share the 12 x 768 network, AdamW at 3e-4 after 2 500 steps of warm-up, batches of 512, an average with decay 0.9999
and a million steps (``Training``'s defaults); a row is its method. Table 1 is LM1B with sentence packing, 128 tokens of
bert-base-uncased; without packing (its first column, and the only one that has SEDD) it is the same recipe with
``data.packing=document data.padding=ignore``.
Table 2, and Table 1's last column, is OpenWebText, 1024 tokens of GPT-2. Both are datasets by name (data/named.py):
they come from the Hugging Face hub, or from ``--data lm1b=FOLDER``, in the parts of the literature. Of a file that is
given without a name, 5 % are held out. These need GPUs; the laptop recipes do not.

Different from the paper: absorbing chains end at alpha = 0 instead of 1e-3, where a true bound would be infinite.
BERT-Mouth, DiffusionBERT, Diffusion-LM and D3PM are numbers that the paper quotes; here they are trained like the
others.
"""

from __future__ import annotations

from dataclasses import replace

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
from duality.networks import SIZES
from duality.recipes.recipe import Data, Recipe, derived
from duality.tokenizers.specs import BPE, Pretrained
from duality.training.settings import Training


def duo_lm1b() -> Recipe:
    """Duo on LM1B."""
    return Recipe(
        name="duo-lm1b",
        summary="Duo on LM1B, packed",
        source="Table 1, row 11",
        method=Duo(),
        data=Data(corpus="lm1b", tokenizer=Pretrained("bert-base-uncased"), length=128),
        backbone=SIZES["small"](),
        training=Training(),
    )


def duo_plain_lm1b() -> Recipe:
    return derived(duo_lm1b(), "duo-plain-lm1b", "Duo without curriculum", "Table 3, row 2", Duo(curriculum=0.0))


def ar_lm1b() -> Recipe:
    return derived(duo_lm1b(), "ar-lm1b", "the autoregressive transformer", "Table 1, row 1", AR())


def bert_mouth_lm1b() -> Recipe:
    return derived(duo_lm1b(), "bert-mouth-lm1b", "BERT-Mouth", "Table 1, row 2", BertMouth())


def diffusion_bert_lm1b() -> Recipe:
    return derived(duo_lm1b(), "diffusion-bert-lm1b", "DiffusionBERT", "Table 1, row 4", DiffusionBERT())


def d3pm_absorb_lm1b() -> Recipe:
    return derived(duo_lm1b(), "d3pm-absorb-lm1b", "D3PM, absorbing", "Table 1, row 3", D3PM(noise="absorbing"))


def unpacked(base: Recipe) -> Recipe:
    """Rows with one sentence each: Table 1's first column."""
    return replace(base, data=replace(base.data, packing="document", padding="ignore"))


def sedd_absorb_lm1b() -> Recipe:
    base = unpacked(duo_lm1b())
    return derived(base, "sedd-absorb-lm1b", "SEDD, absorbing, unpacked", "Table 1, row 5", SEDD(noise="absorbing"))


def mdlm_lm1b() -> Recipe:
    return derived(duo_lm1b(), "mdlm-lm1b", "MDLM", "Table 1, row 6", MDLM())


def d3pm_uniform_lm1b() -> Recipe:
    return derived(duo_lm1b(), "d3pm-uniform-lm1b", "D3PM, uniform", "Table 1, row 7", D3PM(noise="uniform"))


def diffusion_lm_lm1b() -> Recipe:
    return derived(duo_lm1b(), "diffusion-lm-lm1b", "Diffusion-LM", "Table 1, row 8", DiffusionLM())


def plaid_lm1b() -> Recipe:
    """As retrained for the paper's appendix: without self-conditioning, 100 K steps."""
    return derived(duo_lm1b(), "plaid-lm1b", "Plaid", "Table 1, text (appendix C.1)", Plaid(), steps=100_000)


def sedd_uniform_lm1b() -> Recipe:
    base = unpacked(duo_lm1b())
    return derived(base, "sedd-uniform-lm1b", "SEDD, uniform, unpacked", "Table 1, row 9", SEDD(noise="uniform"))


def udlm_lm1b() -> Recipe:
    return derived(duo_lm1b(), "udlm-lm1b", "UDLM", "Table 1, row 10; Table 3, row 3", UDLM())


def on_owt(base: Recipe, row: int) -> Recipe:
    """The same model on OpenWebText, for Table 2."""
    return replace(
        base,
        name=base.name.replace("-lm1b", "-owt"),
        summary=base.summary.replace("LM1B, packed", "OpenWebText").removesuffix(", unpacked"),
        source=f"Table 2, row {row}",
        # of a file without a name as many as of the dataset, whose last 100 000 of 8 013 769 are for validation
        data=Data(corpus="openwebtext", tokenizer=Pretrained("gpt2"), length=1024, validation=0.01248),
    )


def ar_owt() -> Recipe:
    return on_owt(ar_lm1b(), 1)


def sedd_absorb_owt() -> Recipe:
    return on_owt(sedd_absorb_lm1b(), 2)


def d3pm_absorb_owt() -> Recipe:
    """Quoted by the paper from a run of 1.3 M steps."""
    base = on_owt(d3pm_absorb_lm1b(), 3)
    return replace(base, training=replace(base.training, steps=1_300_000))


def mdlm_owt() -> Recipe:
    return on_owt(mdlm_lm1b(), 4)


def sedd_uniform_owt() -> Recipe:
    return on_owt(sedd_uniform_lm1b(), 5)


def plaid_owt() -> Recipe:
    """Quoted by the paper from a run of 1.3 M steps."""
    base = on_owt(plaid_lm1b(), 6)
    return replace(base, training=replace(base.training, steps=1_300_000))


def udlm_owt() -> Recipe:
    return on_owt(udlm_lm1b(), 7)


def duo_owt() -> Recipe:
    return on_owt(duo_lm1b(), 8)


def duo_small() -> Recipe:
    """The paper's network and optimisation on your own corpus; needs a GPU."""
    return replace(
        duo_lm1b(),
        name="duo-small",
        summary="the paper's 12 x 768 network and optimisation, on your --data",
        source="Table 1, row 11 (hyper-parameters; corpus and tokenizer are yours)",
        data=Data(tokenizer=BPE(vocab_size=32_768), length=128),
    )


ROWS = (
    duo_lm1b,
    duo_plain_lm1b,
    ar_lm1b,
    bert_mouth_lm1b,
    d3pm_absorb_lm1b,
    diffusion_bert_lm1b,
    sedd_absorb_lm1b,
    mdlm_lm1b,
    d3pm_uniform_lm1b,
    diffusion_lm_lm1b,
    sedd_uniform_lm1b,
    udlm_lm1b,
    plaid_lm1b,
    ar_owt,
    sedd_absorb_owt,
    d3pm_absorb_owt,
    mdlm_owt,
    sedd_uniform_owt,
    plaid_owt,
    udlm_owt,
    duo_owt,
    duo_small,
)

"""Laptop recipes: every model of the paper's tables on real prose, in minutes on two CPU cores.

One network, one corpus, one optimisation; a recipe differs from ``duo-laptop`` in the method, and elsewhere only if the
method needs it. docs/results.md gives the reasons for these settings.
"""

from __future__ import annotations

from dataclasses import replace

from duality.diffusion.schedules import LinearLogSnr, Polynomial
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
from duality.recipes.recipe import Data, Generation, Recipe, derived, duo_of
from duality.tokenizers.specs import Characters
from duality.training.settings import Training

# At 0.8 more of the words are words, and the entropy is still near that of real text (docs/results.md).
SHARPER = Generation(temperature=0.8)


def duo_laptop() -> Recipe:
    """Duo on real prose, in minutes on two CPU cores: what `make demo` trains."""
    return Recipe(
        name="duo-laptop",
        summary="Duo on public-domain novels, BPE, minutes on a laptop CPU",
        source="laptop twin of Table 1, row 11",
        # A quarter of so few steps for the curriculum; a range of alpha and a schedule with many samples at little
        # noise, where a small network learns most (docs/results.md).
        method=Duo(
            curriculum=0.25, tau=0.03, alpha_max=0.99, gaussian_schedule=LinearLogSnr(), training_schedule=Polynomial()
        ),
        data=Data(length=64),
        backbone=SIZES["micro"](),
        training=Training(
            steps=2600,
            batch_size=16,
            learning_rate=6e-3,
            warmup=100,
            decay=0.4,
            betas=(0.9, 0.99),
            weight_decay=0.05,
            ema=0.99,
            log_every=20,
            eval_every=650,
            save_every=325,
        ),
        generation=SHARPER,
    )


def duo_laptop_plain() -> Recipe:
    """The same without curriculum, for the paper's ablation."""
    base = duo_laptop()
    return replace(
        base,
        name="duo-laptop-plain",
        summary="duo-laptop without the curriculum",
        source="laptop twin of Table 3, row 2",
        method=replace(duo_of(base), curriculum=0.0),
    )


def duo_laptop_chars() -> Recipe:
    """Characters instead of subwords: a small, readable vocabulary."""
    base = duo_laptop()
    return replace(
        base,
        name="duo-laptop-chars",
        summary="duo-laptop on characters",
        data=replace(base.data, tokenizer=Characters(), length=128),
        training=replace(base.training, batch_size=8),
    )


def duo_laptop_authors() -> Recipe:
    """Class-conditional: the class is the author. For `duality sample --label melville --guidance 2`."""
    base = duo_laptop()
    return replace(
        base,
        name="duo-laptop-authors",
        summary="duo-laptop conditioned on the author, for guidance",
        source="laptop scale; guidance is the reason to choose uniform noise",
        # a document is a whole book: it ends in one row of hundreds, and padding is not worth learning
        data=replace(base.data, packing="document", labels=True, split="position", padding="ignore"),
    )


def udlm_laptop() -> Recipe:
    """Duo without curriculum and without its loss."""
    return derived(
        duo_laptop(),
        "udlm-laptop",
        "UDLM: the uniform bound in its dense form",
        "laptop twin of Table 1, row 10; Table 3, row 3",
        UDLM(training_schedule=Polynomial()),
        generation=SHARPER,
    )


def mdlm_laptop() -> Recipe:
    """Absorbing noise."""
    return derived(
        duo_laptop(),
        "mdlm-laptop",
        "MDLM: masked diffusion",
        "laptop twin of Table 1, row 6",
        MDLM(training_schedule=Polynomial(eps=0.0)),
        generation=SHARPER,
    )


def sedd_absorb_laptop() -> Recipe:
    """Ratios instead of beliefs, absorbing noise."""
    return derived(
        duo_laptop(),
        "sedd-absorb-laptop",
        "SEDD with absorbing noise",
        "laptop twin of Table 1, row 5",
        SEDD(noise="absorbing", training_schedule=Polynomial()),
    )


def sedd_uniform_laptop() -> Recipe:
    """Ratios instead of beliefs, uniform noise."""
    return derived(
        duo_laptop(),
        "sedd-uniform-laptop",
        "SEDD with uniform noise",
        "laptop twin of Table 1, row 9",
        SEDD(noise="uniform", training_schedule=Polynomial()),
    )


def d3pm_absorb_laptop() -> Recipe:
    """A chain of 1000 steps, absorbing noise."""
    return derived(
        duo_laptop(),
        "d3pm-absorb-laptop",
        "D3PM with absorbing noise, T = 1000",
        "laptop twin of Table 1, row 3",
        D3PM(noise="absorbing", training_schedule=Polynomial(eps=0.0)),
        generation=SHARPER,
    )


def d3pm_uniform_laptop() -> Recipe:
    """A chain of 1000 steps, uniform noise."""
    return derived(
        duo_laptop(),
        "d3pm-uniform-laptop",
        "D3PM with uniform noise, T = 1000",
        "laptop twin of Table 1, row 7",
        D3PM(noise="uniform", training_schedule=Polynomial()),
        generation=SHARPER,
    )


def ar_laptop() -> Recipe:
    """Left to right."""
    return derived(
        duo_laptop(),
        "ar-laptop",
        "the autoregressive transformer",
        "laptop twin of Table 1, row 1",
        AR(),
        generation=SHARPER,
    )


def bert_mouth_laptop() -> Recipe:
    """A masked language model, sampled one token at a time."""
    return derived(
        duo_laptop(),
        "bert-mouth-laptop",
        "BERT-Mouth: a masked language model with Gibbs sampling",
        "laptop twin of Table 1, row 2",
        BertMouth(),
    )


def diffusion_bert_laptop() -> Recipe:
    """Absorbing noise that masks rare tokens first."""
    return derived(
        duo_laptop(),
        "diffusion-bert-laptop",
        "DiffusionBERT: masked diffusion with the spindle schedule",
        "laptop twin of Table 1, row 4",
        DiffusionBERT(),
        generation=SHARPER,
    )


def diffusion_lm_laptop() -> Recipe:
    """Gaussian noise on embeddings, regression, rounding."""
    return derived(
        duo_laptop(),
        "diffusion-lm-laptop",
        "Diffusion-LM: embedding diffusion with rounding",
        "laptop twin of Table 1, row 8",
        # Regression learns little at the smallest noise levels, which the bound includes. So z_0 keeps much noise here,
        # and the learned rounding removes it (6.6 nats at 600 steps, against 8.8 at 0.03).
        DiffusionLM(embedding_width=16, offset=0.4),
    )


def plaid_laptop() -> Recipe:
    """Gaussian noise on learned embeddings, with a learned schedule."""
    return derived(
        duo_laptop(),
        "plaid-laptop",
        "Plaid: embedding diffusion trained on its bound",
        "laptop twin of Table 2, row 6",
        Plaid(),
    )


ROWS = (
    duo_laptop,
    duo_laptop_plain,
    duo_laptop_chars,
    duo_laptop_authors,
    ar_laptop,
    bert_mouth_laptop,
    d3pm_absorb_laptop,
    diffusion_bert_laptop,
    sedd_absorb_laptop,
    mdlm_laptop,
    d3pm_uniform_laptop,
    diffusion_lm_laptop,
    sedd_uniform_laptop,
    udlm_laptop,
    plaid_laptop,
)

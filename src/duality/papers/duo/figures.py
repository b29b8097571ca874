"""Every figure of the paper with the runs that draw ours; ``recipes.tables`` says how they are numbered."""

from __future__ import annotations

from duality.papers.duo.index import Distilled, Figure, Run, Training
from duality.papers.duo.sample_tables import (
    ALL_ROUNDS,
    AR,
    DCD,
    DCD_EMA,
    DUO,
    JUDGE,
    MDLM,
    SDTT,
    SEDD_ABSORB,
    SEDD_UNIFORM,
    quality,
)
from duality.papers.duo.tables import VARIANCE_WITH, VARIANCE_WITHOUT, WITH_CURRICULUM, WITHOUT_CURRICULUM, packed


def fixed_tau(tau: str) -> Run:
    """Duo with a curriculum of all 150 K steps at this tau."""
    changes = (f"method.tau={tau}", "method.curriculum=1.0", "training.steps=150000")
    return Run("duo-lm1b", changes, f"duo-lm1b-tau-{tau}")


_TAUS = (
    Run("duo-plain-lm1b", ("training.steps=150000",), "duo-plain-lm1b-150k"),
    *(fixed_tau(tau) for tau in ("0.001", "0.01", "0.1")),
)


def samples(number: int, label: str, title: str, run: Training, steps: int, tail: str, *numbers: str) -> Figure:
    """A figure with the text of samples, and in its caption their generative perplexity and entropy."""
    trainings = (run.base, run) if isinstance(run, Distilled) else (run,)
    shown = f"duality sample {run.folder} --num 2 --steps {steps} --tail {tail}"
    measure = (shown, quality(run, tail, steps=f"--steps {steps}"))
    return Figure(number, label, f"Samples in {steps} steps of {title}", trainings, measure, numbers)


_TEXTS = (
    samples(13, "", "Duo, Greedy-Tail", DUO, 8, "greedy", "121.02", "4.91"),
    samples(14, "qual:duo-T1024", "Duo, Greedy-Tail", DUO, 1024, "greedy", "72.05", "5.22"),
    samples(15, "", "distilled Duo, Greedy-Tail", DCD_EMA, 8, "greedy", "79.24", "5.25"),
    samples(16, "", "distilled Duo, Greedy-Tail", DCD_EMA, 1024, "greedy", "42.46", "5.25"),
    samples(17, "qual:mdlm-T8", "MDLM", MDLM, 8, "ancestral", "830.82", "5.91"),
    samples(18, "qual:mdlm-T1024", "MDLM", MDLM, 1024, "ancestral", "104.85", "5.63"),
    samples(19, "qual:mdlm-sdtt-T8", "distilled MDLM", SDTT, 8, "ancestral", "193.05", "5.58"),
    samples(20, "qual:mdlm-sdtt-T1024", "distilled MDLM", SDTT, 1024, "ancestral", "36.89", "5.39"),
)

_EACH_ROUND = (
    quality(SDTT, rounds=ALL_ROUNDS),
    quality(DCD, rounds=ALL_ROUNDS),
    quality(DCD, "greedy", rounds=ALL_ROUNDS),
    "duality plot runs/quality-mdlm-owt-sdtt-ancestral runs/quality-duo-owt-dcd-ancestral "
    "runs/quality-duo-owt-dcd-greedy --rounds rounds.png",
)

FIGURES: dict[int, Figure] = {
    each.number: each
    for each in (
        Figure(
            1,
            "fig:duo_schematic",
            "Uniform-state diffusion as the argmax of Gaussian diffusion",
            reason="an illustration; theory.md has its statements on a toy",
        ),
        Figure(
            2,
            "fig:grad_var",
            "Gradient variance of the 100 weights that vary most, with and without curriculum",
            (WITH_CURRICULUM, WITHOUT_CURRICULUM),
            (VARIANCE_WITH, VARIANCE_WITHOUT),
            tables=(4,),
        ),
        Figure(
            3,
            "fig:distillation-vs-base",
            "Sample quality of Duo and MDLM, before and after five rounds of distillation",
            (DUO, MDLM, DCD, SDTT),
            (quality(DUO), quality(MDLM), quality(DCD), quality(DCD, "greedy"), quality(SDTT)),
            tables=(5, 7),
        ),
        Figure(
            4,
            "fig:dcd-nfes",
            "Sample quality of Duo and of distilled Duo, ancestral and Greedy-Tail",
            (DUO, DCD),
            (quality(DUO), quality(DCD), quality(DCD, "greedy")),
            tables=(6, 7),
        ),
        Figure(
            5,
            "fig:appendix-duo-vs-others",
            "How samples come about: autoregressive, masked, uniform-state, deterministic trajectory",
            reason="an illustration; `duality sample RUN --watch` shows it for a run",
        ),
        Figure(
            6,
            "fig:snr",
            "The diffusion transformation operator for bert-base-uncased",
            reason="no training; `duality.diffusion.gaussian.level` computes it",
        ),
        Figure(
            7,
            "fig:lm1b_train",
            "Training loss of Duo with curriculum, UDLM and MDLM on LM1B",
            (packed("duo-lm1b"), packed("udlm-lm1b"), packed("mdlm-lm1b")),
            note="`loss.png` of each run folder",
        ),
        Figure(
            8,
            "fig:tau_ablations",
            "Training loss at tau = 0, 0.001, 0.01 and 0.1 on LM1B, 150 K steps",
            _TAUS,
            note="`loss.png` of each run folder",
        ),
        Figure(
            9,
            "fig:gen_ppl_owt_all_methods",
            "Sample quality of Duo, MDLM, SEDD and AR",
            (DUO, MDLM, SEDD_ABSORB, SEDD_UNIFORM, AR),
            (
                *(quality(run) for run in (DUO, MDLM, SEDD_ABSORB, SEDD_UNIFORM)),
                f"duality quality {AR.folder} --steps own {JUDGE} --out runs/quality-ar-owt",
            ),
            tables=(5,),
            note="Table 5 does not have the autoregressive model",
        ),
        Figure(
            10,
            "fig:dcd_ablation",
            "Distillation with weights or with their average as teacher",
            (DUO, DCD, DCD_EMA),
            tuple(quality(run, tail) for run in (DCD, DCD_EMA) for tail in ("ancestral", "greedy")),
            tables=(6,),
        ),
        Figure(
            11,
            "fig:distillation",
            "Generative perplexity of Duo with DCD and MDLM with SDTT after each round",
            (DUO, MDLM, DCD, SDTT),
            _EACH_ROUND,
            tables=(7,),
        ),
        Figure(
            12,
            "fig:entropy_distillation",
            "Entropy of Duo with DCD and MDLM with SDTT after each round",
            (DUO, MDLM, DCD, SDTT),
            _EACH_ROUND,
            tables=(7,),
        ),
        *_TEXTS,
    )
}

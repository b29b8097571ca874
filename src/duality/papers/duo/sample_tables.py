"""Tables 5 to 7 of the paper: generative perplexity and entropy of samples, before and after distillation.

All models are trained on OpenWebText. Rows are numbers of sampling steps T; the judge is GPT-2 Large. The paper does
not say how many samples it measured: ``--num`` of `duality quality` is left at its default.
"""

from __future__ import annotations

from duality.papers.duo.index import Distilled, Run, Series, Table, rows_of

STEPS = "--steps 8,16,32,64,128,256,512,1024"
JUDGE = "--judge gpt2-large"

DUO, MDLM, AR = (Run(f"{model}-owt") for model in ("duo", "mdlm", "ar"))
SEDD_UNIFORM, SEDD_ABSORB = (Run(f"sedd-{noise}-owt") for noise in ("uniform", "absorb"))
DCD = Distilled(DUO, "dcd")  # Algorithm 1
DCD_EMA = Distilled(DUO, "dcd", " --teacher ema", "-ema")  # Algorithm 2
SDTT = Distilled(MDLM, "sdtt")

_PAIR = ("Gen PPL", "Entropy")
ALL_ROUNDS = "--rounds 0,1,2,3,4,5 "


def quality(run: Run | Distilled, tail: str = "ancestral", rounds: str = "", steps: str = STEPS) -> str:
    """The command that measures the samples of a run."""
    name = run.folder.removeprefix("runs/")
    return f"duality quality {run.folder} {rounds}{steps} --tail {tail} {JUDGE} --out runs/quality-{name}-{tail}"


def sampled(model: str, columns: tuple[int, ...], run: Run) -> Series:
    """The samples of a trained model."""
    return Series(model, columns, (run,), (quality(run),))


def distilled(model: str, columns: tuple[int, ...], run: Distilled, tail: str, rounds: str = "") -> Series:
    """The samples of a distilled model."""
    return Series(model, columns, (run.base, run), (quality(run, tail, rounds),))


TABLE_5 = Table(
    5,
    "tab:gen_ppl_entropy_base_models",
    "Generative perplexity and entropy of models that are not distilled, on OpenWebText",
    tuple(f"{model}, {measure}" for model in ("Duo", "SEDD Uniform", "MDLM", "SEDD Absorb") for measure in _PAIR),
    rows_of("""
1024: 77.69 5.55 99.90 5.56 104.85 5.63 105.03 5.62
512: 78.14 5.55 100.44 5.56 104.43 5.63 104.45 5.62
256: 78.62 5.55 103.41 5.56 112.70 5.66 109.82 5.63
128: 80.02 5.55 105.82 5.57 120.77 5.67 117.28 5.65
64: 85.62 5.57 113.02 5.57 143.88 5.70 138.42 5.67
32: 96.19 5.57 125.21 5.57 196.79 5.75 184.71 5.72
16: 122.78 5.58 165.66 5.58 343.33 5.81 316.33 5.77
8: 198.27 5.57 276.89 5.59 830.82 5.91 748.37 5.85
"""),
    (
        sampled("Duo", (0, 1), DUO),
        sampled("SEDD Uniform", (2, 3), SEDD_UNIFORM),
        sampled("MDLM", (4, 5), MDLM),
        sampled("SEDD Absorb", (6, 7), SEDD_ABSORB),
    ),
    rows_are="T",
)

TABLE_6 = Table(
    6,
    "tab:dcd_ablation",
    "Distillation of Duo with the weights (Algorithm 1) or their average (Algorithm 2) as teacher, on OpenWebText",
    (
        *(f"Duo (base), {measure}" for measure in _PAIR),
        *(f"Duo Distilled, Alg. {number}, {measure}" for number in (1, 2) for measure in _PAIR),
        *(f"Duo Distilled, Alg. {number}, {measure}, Greedy-Tail" for number in (1, 2) for measure in _PAIR),
    ),
    rows_of("""
1024: 77.69 5.55 50.55 5.36 57.09 5.44 36.53 5.19 42.46 5.25
512: 78.14 5.55 52.43 5.38 58.35 5.46 37.58 5.21 44.05 5.25
256: 78.62 5.55 53.69 5.43 58.46 5.47 39.08 5.26 44.73 5.28
128: 80.02 5.55 54.16 5.46 60.35 5.51 40.12 5.30 45.69 5.31
64: 85.62 5.57 55.83 5.49 62.31 5.52 43.12 5.35 47.87 5.34
32: 96.19 5.57 61.31 5.52 67.31 5.54 46.31 5.38 51.74 5.36
16: 122.78 5.58 75.24 5.53 83.89 5.55 54.11 5.37 59.83 5.34
8: 198.27 5.57 111.88 5.52 127.94 5.54 69.58 5.30 79.24 5.25
"""),
    (
        sampled("Duo (base)", (0, 1), DUO),
        distilled("Algorithm 1", (2, 3), DCD, "ancestral"),
        distilled("Algorithm 2", (4, 5), DCD_EMA, "ancestral"),
        distilled("Algorithm 1, Greedy-Tail", (6, 7), DCD, "greedy"),
        distilled("Algorithm 2, Greedy-Tail", (8, 9), DCD_EMA, "greedy"),
    ),
    rows_are="T",
)

_BY_ROUND = (
    (
        "Base Model",
        """
1024: 104.85 5.63 77.69 5.55 71.72 5.22
512: 104.43 5.63 78.14 5.55 73.98 5.23
256: 112.70 5.66 78.62 5.55 73.59 5.22
128: 120.77 5.67 80.02 5.55 74.37 5.22
64: 143.88 5.70 85.62 5.57 78.19 5.23
32: 196.79 5.75 96.19 5.57 84.52 5.20
16: 343.33 5.81 122.78 5.58 98.24 5.13
8: 830.82 5.91 198.27 5.57 121.89 4.91
""",
    ),
    (
        "Round 1",
        """
1024: 79.12 5.59 67.58 5.54 59.22 5.26
512: 79.40 5.59 67.37 5.53 61.57 5.28
256: 84.28 5.61 67.78 5.54 60.91 5.27
128: 89.97 5.62 70.43 5.55 62.54 5.27
64: 105.90 5.65 74.45 5.56 65.38 5.28
32: 141.78 5.69 81.89 5.56 71.28 5.27
16: 249.15 5.76 103.03 5.57 82.99 5.23
8: 618.15 5.85 164.49 5.56 108.52 5.06
""",
    ),
    (
        "Round 2",
        """
1024: 61.75 5.53 60.09 5.51 51.30 5.29
512: 62.52 5.53 60.15 5.50 52.38 5.31
256: 66.80 5.56 59.84 5.51 52.00 5.30
128: 70.52 5.57 62.53 5.54 53.79 5.32
64: 82.51 5.60 65.78 5.55 57.06 5.32
32: 107.93 5.65 71.77 5.55 60.88 5.33
16: 183.41 5.71 89.59 5.56 72.64 5.31
8: 458.83 5.80 137.87 5.56 97.68 5.19
""",
    ),
    (
        "Round 3",
        """
1024: 49.53 5.48 56.89 5.48 45.24 5.28
512: 50.42 5.49 56.13 5.48 46.06 5.31
256: 52.96 5.50 56.49 5.49 46.09 5.31
128: 56.70 5.52 58.49 5.52 47.71 5.33
64: 65.02 5.55 61.39 5.54 50.23 5.35
32: 83.85 5.59 65.96 5.55 53.64 5.36
16: 135.75 5.64 82.30 5.56 64.09 5.34
8: 323.56 5.71 122.49 5.55 85.04 5.25
""",
    ),
    (
        "Round 4",
        """
1024: 42.53 5.44 52.78 5.42 40.41 5.24
512: 43.61 5.44 53.27 5.43 40.25 5.26
256: 45.27 5.46 54.40 5.47 41.83 5.30
128: 49.14 5.48 55.17 5.50 43.30 5.33
64: 55.72 5.50 57.62 5.52 45.02 5.35
32: 70.82 5.54 62.42 5.54 49.02 5.38
16: 111.40 5.59 76.83 5.55 57.49 5.37
8: 253.59 5.65 114.80 5.54 75.84 5.30
""",
    ),
    (
        "Round 5",
        """
1024: 36.89 5.39 50.55 5.36 36.53 5.19
512: 37.16 5.40 52.43 5.38 37.58 5.21
256: 38.65 5.41 53.69 5.43 39.08 5.26
128: 41.98 5.43 54.16 5.46 40.12 5.30
64: 47.04 5.45 55.83 5.49 43.12 5.35
32: 62.29 5.49 61.31 5.52 46.31 5.38
16: 89.17 5.53 75.24 5.53 54.11 5.37
8: 193.05 5.58 111.88 5.52 69.58 5.30
""",
    ),
)

TABLE_7 = Table(
    7,
    "tab:genppl-entropy-duo",
    "Duo distilled with DCD and MDLM distilled with SDTT, round by round, on OpenWebText",
    tuple(
        f"{model}, {measure}"
        for model in ("MDLM w/ SDTT, ancestral", "Duo w/ DCD, ancestral", "Duo w/ DCD, Greedy-Tail")
        for measure in _PAIR
    ),
    tuple(row for group, text in _BY_ROUND for row in rows_of(text, group)),
    (
        distilled("MDLM w/ SDTT, ancestral", (0, 1), SDTT, "ancestral", ALL_ROUNDS),
        distilled("Duo w/ DCD, ancestral", (2, 3), DCD, "ancestral", ALL_ROUNDS),
        distilled("Duo w/ DCD, Greedy-Tail", (4, 5), DCD, "greedy", ALL_ROUNDS),
    ),
    rows_are="T",
)

SAMPLE_TABLES = (TABLE_5, TABLE_6, TABLE_7)

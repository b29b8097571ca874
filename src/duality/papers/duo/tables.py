"""Every table of the paper with the runs that give our numbers: 1 to 4 here, 5 to 7 in ``recipes.sample_tables``.

Numbers of tables and figures are those of LaTeX: the environments ``table`` and ``table*``, and separately ``figure``
and ``figure*``, counted in the order of the source, main text and appendix in one count (each has one caption, nothing
sets the counters, and algorithms have a counter of their own). tests/recipes/test_paper_tables.py counts them again and
compares every label, heading and number with the source, where that is present. Numbers are text, as printed.

The corpora are datasets by name (data/datasets.py), as the recipes say.
"""

from __future__ import annotations

from dataclasses import replace

from duality.papers.duo.index import NONE, Remark, Row, Run, Series, Table, rows_of
from duality.papers.duo.sample_tables import SAMPLE_TABLES

UNPACKED = ("data.packing=document", "data.padding=ignore")


def packed(recipe: str) -> Run:
    """LM1B with sentence packing."""
    return Run(recipe)


def unpacked(recipe: str) -> Run:
    """LM1B with one sentence in each sequence; recipes of SEDD are so by themselves."""
    return Run(recipe) if recipe.startswith("sedd-") else Run(recipe, UNPACKED, f"{recipe}-unpacked")


def owt(recipe: str) -> Run:
    """OpenWebText."""
    return Run(recipe)


def measured(run: Run, suite: str, row: int, columns: tuple[int, ...], model: str) -> Series:
    """The perplexities of a run on a suite of test sets."""
    return Series(model, columns, (run,), (f"duality eval {run.folder} --suite {suite}",), row)


# --- Table 1

_ABSORBING, _UNIFORM = "Diffusion (absorbing state)", "Diffusion (Uniform-state / Gaussian)"
_HE, _ARRIOLA = "reported by He et al. (2022)", "with packing reported by Arriola et al. (2025)"

# The row, the prefix of its recipes.
_LIKELIHOODS = (
    (Row("Transformer", ("22.3", "22.8", "17.5"), "Autoregressive", f"retrained; {_ARRIOLA}"), "ar"),
    (Row("BERT-Mouth", (NONE, "142.9", NONE), _ABSORBING, _HE), "bert-mouth"),
    (Row("D3PM Absorb", (NONE, "76.9", NONE), _ABSORBING), "d3pm-absorb"),
    (Row("DiffusionBert", (NONE, "63.8", NONE), _ABSORBING), "diffusion-bert"),
    (Row("SEDD Absorb", ("32.7", NONE, "24.1"), _ABSORBING, "retrained"), "sedd-absorb"),
    (Row("MDLM", ("27.0", "31.8", "23.2"), _ABSORBING, _ARRIOLA), "mdlm"),
    (Row("D3PM Uniform", (NONE, "137.9", NONE), _UNIFORM), "d3pm-uniform"),
    (Row("Diffusion-LM", (NONE, "118.6", NONE), _UNIFORM, _HE), "diffusion-lm"),
    (Row("SEDD Uniform", ("40.3", NONE, "29.7"), _UNIFORM), "sedd-uniform"),
    (Row("UDLM", ("31.3", "36.7", "27.4"), _UNIFORM, "retrained"), "udlm"),
    (Row("Duo (Ours)", ("29.9", "33.7", "25.2"), _UNIFORM), "duo"),
)


def _three(row: int, printed: Row, model: str) -> tuple[Series, ...]:
    """The runs of a row of Table 1: one for each number."""
    runs = (unpacked(f"{model}-lm1b"), packed(f"{model}-lm1b"), owt(f"{model}-owt"))
    return tuple(
        measured(run, suite, row, (column,), printed.label)
        for column, (run, suite) in enumerate(zip(runs, ("lm1b", "lm1b", "owt")))
        if printed.numbers[column] != NONE
    )


TABLE_1 = Table(
    1,
    "tab:lm1b-ppl",
    "Test perplexities on LM1B, and perplexities on OpenWebText",
    ("LM1B without packing", "LM1B", "OWT"),
    tuple(row for row, _ in _LIKELIHOODS),
    tuple(each for number, (row, model) in enumerate(_LIKELIHOODS) for each in _three(number, row, model)),
    note="Diffusion models have bounds. The paper excludes Plaid, which it trained for 100 K steps only.",
)


# --- Table 2

_SAHOO, _LOU = "taken from Sahoo et al. (2024)", "taken from Lou et al. (2023), 1.3 M steps"
_ZERO_SHOT = (
    ("ar", "Autoregressive", _SAHOO, "Transformer: 82.05 25.75 51.25 51.28 52.09 49.01 41.73"),
    ("sedd-absorb", _ABSORBING, _SAHOO, "SEDD Absorb: 100.09 34.28 68.20 49.86 62.09 44.53 38.48"),
    ("d3pm-absorb", _ABSORBING, _LOU, "D3PM Absorb: 200.82 50.86 138.92 93.47 - - -"),
    ("mdlm", _ABSORBING, _SAHOO, "MDLM: 95.26 32.83 67.01 47.52 61.15 41.89 37.37"),
    ("sedd-uniform", _UNIFORM, "retrained", "SEDD Uniform: 105.51 41.10 82.62 57.29 82.64 55.89 50.86"),
    ("plaid", _UNIFORM, _LOU, "Plaid: 142.60 50.86 91.12 57.28 - - -"),
    ("udlm", _UNIFORM, "retrained", "UDLM: 112.82 39.42 77.59 53.57 80.96 50.98 44.08"),
    ("duo", _UNIFORM, "", "Duo (Ours): 89.35 33.57 73.86 49.78 67.81 44.48 40.39"),
)
_ZERO_SHOT_ROWS = tuple(replace(rows_of(text, group)[0], note=note) for _, group, note, text in _ZERO_SHOT)
_ALL_SETS = tuple(range(7))

TABLE_2 = Table(
    2,
    "tab:zeroshot-ppl",
    "Zero-shot perplexities of models trained on OpenWebText",
    ("PTB", "Wikitext", "LM1B", "Lambada", "AG News", "Pubmed", "Arxiv"),
    _ZERO_SHOT_ROWS,
    tuple(
        measured(owt(f"{model}-owt"), "zero-shot", number, _ALL_SETS, _ZERO_SHOT_ROWS[number].label)
        for number, (model, *_) in enumerate(_ZERO_SHOT)
    ),
    note="Diffusion models have bounds. The Wikitext column has 50.86 for both D3PM Absorb and Plaid.",
)


# --- Table 3

_ABLATION = ("duo-lm1b", "duo-plain-lm1b", "udlm-lm1b")
_ABLATION_ROWS = rows_of("""
Duo (Ours): 33.7
& w/o CL: 35.0
& w/o improved training loss: 36.7
""")

TABLE_3 = Table(
    3,
    "tab:duo-ablations",
    "Ablation of the curriculum and of the Rao-Blackwellised loss, on LM1B",
    ("PPL",),
    _ABLATION_ROWS,
    tuple(
        measured(packed(recipe), "lm1b", number, (0,), _ABLATION_ROWS[number].label)
        for number, recipe in enumerate(_ABLATION)
    ),
    note="The last row is UDLM; its loss and that of the row above are the same number in two forms.",
)


# --- Table 4

_KEPT = ("training.steps=500000", "training.keep=50")
WITH_CURRICULUM = Run("duo-lm1b", ("method.curriculum=1.0", *_KEPT), "duo-lm1b-curriculum")
WITHOUT_CURRICULUM = Run("duo-plain-lm1b", _KEPT, "duo-plain-lm1b-kept")
_AT = "--step 10000,20000,50000,100000,500000"
VARIANCE_WITH = f"duality variance {WITH_CURRICULUM.folder} --objectives tau=0.001 {_AT} --out runs/variance-curriculum"
VARIANCE_WITHOUT = f"duality variance {WITHOUT_CURRICULUM.folder} --objectives plain {_AT} --out runs/variance-plain"

TABLE_4 = Table(
    4,
    "tab:grad_variance",
    "Variance of gradients and of the loss, with and without curriculum (CL), on LM1B",
    (
        "Gradient Variance, All weights, CL",
        "Gradient Variance, All weights, w/o CL",
        "Gradient Variance, Top 100 weights, CL",
        "Gradient Variance, Top 100 weights, w/o CL",
        "Loss Variance, CL",
        "Loss Variance, w/o CL",
    ),
    rows_of("""
10k: 2815.36 10852.9 0.30 11.7 7.09 9.19
20k: 2471.65 7811.04 0.85 20.09 6.29 7.72
50k: 1890.76 6315.7 1.21 34.2 5.33 6.85
100k: 1469.85 5454.7 0.86 55.1 4.97 6.32
500k: 947.98 1678.47 1.15 1.92 4.76 5.47
"""),
    (
        Series("Duo with a fixed tau of 0.001", (0, 2, 4), (WITH_CURRICULUM,), (VARIANCE_WITH,)),
        Series("Duo without curriculum", (1, 3, 5), (WITHOUT_CURRICULUM,), (VARIANCE_WITHOUT,)),
    ),
    rows_are="training steps",
)


# --- all of them

TABLES: dict[int, Table] = {each.number: each for each in (TABLE_1, TABLE_2, TABLE_3, TABLE_4, *SAMPLE_TABLES)}

_KEPT_ALL = Run("duo-lm1b", ("training.keep=100",), "duo-lm1b-kept")
REMARKS = (
    Remark(
        "Section 5.1",
        "Plaid on LM1B after 100 K steps: PPL",
        "89.9",
        "Plaid which attained a PPL of 89.9 in 100K steps",
        (packed("plaid-lm1b"),),
        ("duality eval runs/plaid-lm1b --suite lm1b",),
    ),
    Remark(
        "Section 5.1",
        "Duo on LM1B after 100 K steps: PPL",
        "43.0",
        "achieves a PPL of 43.0 in the same number of steps",
        (_KEPT_ALL,),
        ("duality eval runs/duo-lm1b-kept --suite lm1b --step 100000",),
    ),
    Remark(
        "Section 5.1",
        "Duo on LM1B after 510 K steps, 10 K of them without curriculum: PPL",
        "35.2",
        "at 510K steps, \\method{} achieves a PPL of $35.2$",
        (_KEPT_ALL,),
        ("duality eval runs/duo-lm1b-kept --suite lm1b --step 510000",),
    ),
)


def table(number: int) -> Table:
    """A table of the paper by its number."""
    if number not in TABLES:
        raise ValueError(f"the paper has no table {number}: its tables are {', '.join(map(str, TABLES))}")
    return TABLES[number]


def published_rows(number: int, headings: list[str]) -> list[list[str]]:
    """The rows of a table of the paper under these headings; rows that have none of them are left out."""
    found = table(number)
    columns = [found.columns.index(heading) for heading in headings]
    rows = [[f"paper: {row.label}", *(row.numbers[column] for column in columns)] for row in found.rows]
    return [row for row in rows if any(cell != "-" for cell in row[1:])]

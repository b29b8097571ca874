"""The page docs/paper.md: every table and figure of the paper, its recipes, commands and numbers, and ours.

    python -m duality.papers.duo.page > docs/paper.md      after the index or a recipe has changed

The paper's content is in ``recipes.tables`` and ``recipes.paper_figures``, the GPU-days are those of
``kept``. `duality recipes --table N` prints one table (``paper_lines``). What must hold: docs/paper.md is what
``page`` gives, and every number of ours in it stands in the page that it links; tests compare them. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from duality.papers.duo.figures import FIGURES
from duality.papers.duo.gpu_days import kept, total
from duality.papers.duo.index import DEVICES, Figure, Series, Table, Training
from duality.papers.duo.tables import REMARKS, TABLES

# Perplexities of docs/results.md, in the order of Table 1; none is comparable with the paper's.
SMALL = {
    "ar-laptop": "= 80.0 ± 0.8",
    "bert-mouth-laptop": "pseudo 56.8 ± 1.9",
    "d3pm-absorb-laptop": "≤ 182.2 ± 3.2",
    "diffusion-bert-laptop": "≤ 178.4 ± 3.1",
    "sedd-absorb-laptop": "≤ 188.3 ± 3.4",
    "mdlm-laptop": "≤ 179.5 ± 3.2",
    "d3pm-uniform-laptop": "≤ 235.6 ± 4.6",
    "diffusion-lm-laptop": "≤ 728.9 ± 7.7",
    "sedd-uniform-laptop": "≤ 396.6 ± 8.3",
    "udlm-laptop": "≤ 237.5 ± 4.7",
    "duo-laptop": "≤ 236.0 ± 4.6",
}
ABLATED = {"duo-laptop": "≤ 236.0 ± 4.6", "duo-laptop-plain": "≤ 234.7 ± 4.6", "udlm-laptop": "≤ 237.5 ± 4.7"}

_THIRTEEN = (
    "Ours at small scale, not comparable with the paper's: 1.4 M parameters, 1 000 steps on eleven books, PPL for each "
    "token of a BPE with K = 2 048 (`duality compare … --steps 1000`, the whole command and what it says are in "
    "[results.md](results.md#thirteen-models-a-million-tokens))"
)
_MOLECULES = "`duality reproduce` tries it on molecules"
_NOT_COMPARABLE = "Ours at small scale is not comparable in size, only in order"

# What there is of ours at small scale, below each table.
ELSEWHERE = {
    1: f"{_THIRTEEN}.",
    2: "There is no zero-shot number of ours.",
    3: f"{_THIRTEEN}. Fifty trainings with several seeds: [results.md](results.md#what-does-the-curriculum-do).",
    4: f"{_NOT_COMPARABLE}: `duality variance runs/demo …` in [results.md](results.md#what-does-the-curriculum-do).",
    5: f"{_NOT_COMPARABLE}: {_MOLECULES} "
    "([reproduction.md](reproduction.md#duo-against-mdlm-at-few-steps-figure-3-tables-5-and-7)), and "
    "[results.md](results.md#thirteen-models-a-million-tokens) has Gen PPL of all models.",
    6: f"{_NOT_COMPARABLE}: {_MOLECULES} "
    "([reproduction.md](reproduction.md#algorithm-1-weights-beats-algorithm-2-their-average-table-6)); on prose: "
    "[results.md](results.md#few-steps-on-prose-at-equal-entropy).",
    7: f"{_NOT_COMPARABLE}: {_MOLECULES} "
    "([reproduction.md](reproduction.md#each-round-of-distillation-helps-at-8-steps-table-7)).",
}

INTRODUCTION = f"""\
# The paper's tables and figures

This page is an index of [the paper](https://arxiv.org/abs/2506.10892): each table and figure, the recipe that trains a
row, the commands that give the number, the paper's number, and ours. Tables and figures have the numbers that LaTeX
gives them, main text and appendix in one count. `duality recipes --table 2` prints a table in the terminal.

- **None of the paper's runs has been trained with this library.** Instead of our number there is *not run*, with the
  GPU-days that the training needs: days × devices by `duality plan RECIPE {DEVICES}`,
  which are GPUs of 80 GB with a peak of 989 T operations per second, of which 40 % are reached (a guess). A
  distillation includes the training of its base. Evaluation and sampling are not included.
- **What was measured at small scale is not comparable** with the paper's numbers: data, tokens and sizes are others. It
  is linked below each table; [reproduction.md](reproduction.md) has the paper's claims with verdicts.
- LM1B and OpenWebText are datasets by name ([data.md](data.md)): they come from the Hugging Face hub, or from
  `--data lm1b=FOLDER`, `--data openwebtext=FOLDER`. The judge `gpt2-large` needs the extra `judge`.
- In Tables 1 to 3 each line is one run. An empty cell belongs to another run, or the paper has no number for it.

This page is written by `python -m duality.papers.duo.page > docs/paper.md`; a test compares it."""

DISAGREEMENTS = """\
## Where the paper's numbers do not agree

- Table 2 has 50.86 on Wikitext for D3PM Absorb and for Plaid, two models whose rows are quoted from one source.
- The captions of Figures 13 and 14 have a Gen PPL of 121.02 and 72.05 for Duo with Greedy-Tail in 8 and 1024 steps;
  Table 7 has 121.89 and 71.72. The entropies agree.
- The samples of distilled Duo in Figures 15 and 16 have the numbers of Algorithm 2 in Table 6 (79.24 and 42.46), not
  those of Algorithm 1 (69.58 and 36.53), which is the paper's method. Their commands therefore have `--teacher ema`.
- The appendix says that MDLM is distilled on LM1B. The base of MDLM in Table 7 has the numbers of Table 5, whose models
  are trained on OpenWebText. The commands distill the model of OpenWebText.
- The caption of Table 3 names Algorithm 1 as the curriculum; that algorithm is the distillation."""


def row_label(table: Table, number: int) -> str:
    """A row of a table by its number, from 0: numbered if it is a model, else below its heading."""
    row = table.rows[number]
    if table.by_rows:
        return f"{number + 1} {row.label}"
    return f"{row.group}, {row.label}" if row.group else row.label


def paper_lines(table: Table) -> tuple[list[str], list[list[str]]]:
    """The heading and the lines of a table: a line for each run of a row, or the rows as in the paper."""
    if table.by_rows:
        lines = []
        for each in table.series:
            assert each.row is not None
            lines.append([row_label(table, each.row), each.described, *table.numbers(each, each.row)])
        return ["row", "recipe", *table.columns], lines
    return [table.rows_are, *table.columns], [
        [row_label(table, number), *row.numbers] for number, row in enumerate(table.rows)
    ]


def column_lines(table: Table) -> list[list[str]]:
    """For a table whose series are columns: which columns, and the recipe of each."""
    return [["; ".join(table.columns[column] for column in each.columns), each.described] for each in table.series]


# --- Markdown


def markdown(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    cells = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def fenced(commands: Iterable[str]) -> str:
    """Commands in a block, each once."""
    return "\n".join(("```", *dict.fromkeys(commands), "```"))


def needed(trainings: Sequence[Training], days: dict[str, float]) -> str:
    """What stands in the place of our number."""
    return f"not run: needs {total(trainings, days):.1f} GPU-days"


def code(text: str) -> str:
    return f"`{text}`"


def section(table: Table, days: dict[str, float]) -> Iterator[str]:
    """A table of the paper."""
    yield f"## Table {table.number}: {table.title}"
    heading, lines = paper_lines(table)
    if table.by_rows:
        full = [
            [line[0], code(line[1]), *line[2:], needed(each.trainings, days)]
            for line, each in zip(lines, table.series, strict=True)
        ]
        yield markdown([*heading, "ours"], full)
    else:
        yield markdown(heading, lines)
        runs = [
            [columns, code(recipe), needed(each.trainings, days)]
            for (columns, recipe), each in zip(column_lines(table), table.series, strict=True)
        ]
        yield markdown(["columns", "recipe", "ours"], runs)
    notes = [f"{row.label}: {row.note}." for row in table.rows if row.note]
    if table.note or notes:
        yield " ".join((*((table.note,) if table.note else ()), *notes))
    yield fenced(command for each in table.series for command in each.commands)
    yield ELSEWHERE[table.number]
    small = {1: SMALL, 3: ABLATED}.get(table.number)
    if small is not None:
        yield markdown(["recipe", "PPL at small scale"], [[code(name), value] for name, value in small.items()])


def figure_line(figure: Figure, days: dict[str, float]) -> list[str]:
    """A figure of the paper, as a line of the table of figures."""
    printed = [f"Gen PPL {figure.numbers[0]}, entropy {figure.numbers[1]}"] if figure.numbers else []
    printed += [f"Table {number}" for number in figure.tables]
    recipes = dict.fromkeys(Series("", (), (each,), ()).described for each in figure.trainings)
    return [
        str(figure.number),
        figure.title,
        ", ".join(map(code, recipes)) or "none",
        "; ".join(printed) or "no numbers",
        "; ".join(filter(None, (needed(figure.trainings, days) if recipes else figure.reason, figure.note))),
    ]


def figures(days: dict[str, float]) -> Iterator[str]:
    """All figures of the paper, and the numbers of its text."""
    yield "## Figures"
    heading = ["figure", "shows", "recipe", "the paper's numbers", "ours"]
    yield markdown(heading, [figure_line(each, days) for each in FIGURES.values()])
    for each in FIGURES.values():
        if each.commands:
            yield f"Figure {each.number}:"
            yield fenced(each.commands)
    yield "## Numbers of the text"
    lines = [
        [each.where, each.title, code(each.trainings[-1].recipe), each.number, needed(each.trainings, days)]
        for each in REMARKS
    ]
    yield markdown(["where", "what", "recipe", "the paper's number", "ours"], lines)
    yield fenced(command for each in REMARKS for command in each.commands)


def page() -> str:
    """The page."""
    days = kept()
    everything = total((run for table in TABLES.values() for each in table.series for run in each.trainings), days)
    parts = [INTRODUCTION, f"All trainings of the seven tables, each once, need {everything:.0f} GPU-days."]
    for each in TABLES.values():
        parts += section(each, days)
    return "\n\n".join([*parts, *figures(days), DISAGREEMENTS]) + "\n"


if __name__ == "__main__":
    print(page(), end="")

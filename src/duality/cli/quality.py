"""Measure the samples of runs with an external judge or with scorers, and draw the measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from duality.cli.console import say
from duality.cli.options import Device, Flag, Folders, KeptStep, make_flags
from duality.evaluation.requests import SAMPLER_NAMES, SweepRequest, list_values
from duality.samplers import GRIDS

_SAMPLERS = f"the model's own or others, with commas: {', '.join(SAMPLER_NAMES)}."
_GRIDS = f"{', '.join(GRIDS)}; the one that suits the sampler if not given."
if TYPE_CHECKING:
    SweepFlags = SweepRequest
else:
    SweepFlags = make_flags(
        SweepRequest,
        **dict.fromkeys(("steps", "tail", "temperature", "rounds"), str),
        sampler=Annotated[str, arg(help=_SAMPLERS)],
        grid=Annotated[str | None, arg(help=_GRIDS)],
        checkpoint=KeptStep,
    )


@dataclass(frozen=True)
class _Readers:
    """Who reads the samples."""

    judge: str | None = None
    """smollm2 (fetched), a .gguf file, a Hugging Face folder or name (gpt2-large is the paper's), the folder of an
    autoregressive run, or none; if not given, smollm2 without --score and none with it."""
    score: str = "none"
    """molecules (validity, uniqueness, novelty and diversity of SMILES; needs RDKit), an entry point of the group
    duality.scorers, or a function of yours as module:function; several with commas."""

    def resolve(self) -> tuple[str | None, tuple[str, ...]]:
        """The judge and the scorers."""
        scorers = () if self.score == "none" else tuple(list_values("--score", "names", self.score, str))
        judge = self.judge or ("none" if scorers else "smollm2")
        return None if judge == "none" else judge, scorers


_REQUEST, _READ_BY = SweepFlags(), _Readers()


def quality(
    runs: Folders,
    /,
    request: Annotated[SweepFlags, arg(name="")] = _REQUEST,
    readers: Annotated[_Readers, arg(name="")] = _READ_BY,
    out: Path = Path("runs/quality"),
    batch_size: int = 16,
    corpus: str | None = None,
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the samples of runs with a judge or with scorers; samples and scores that are kept in OUT are used again.

    Args:
        runs: run folders, folders of `duality publish`, or models of the Hugging Face hub (hf:OWNER/NAME@REVISION).
        request: how the samples are made, in every combination of what is given with commas.
        readers: who reads the samples.
        out: a folder for samples, scores, the tables (quality.json, quality.md, frontiers.md) and the figures.
        batch_size: samples at a time; the result does not depend on it.
        corpus: where the corpus of the first run is now, if it was moved or the model is from elsewhere.
        json: print the rows as JSON instead of the tables.
    """
    from duality.evaluation.frontiers import has_frontiers
    from duality.evaluation.sweep import measure_runs
    from duality.files.atomic import json_text

    judge, scorers = readers.resolve()
    rows = measure_runs(
        runs,
        request,
        judge=judge,
        scorers=scorers,
        out=out,
        device=device,
        batch_size=batch_size,
        corpus=corpus,
        report=say,
    )
    if json:
        print(json_text([row.to_json() for row in rows]))
    else:
        for name in ("quality.md", *(["frontiers.md"] if has_frontiers(rows) else [])):
            print((out / name).read_text(encoding="utf-8"))
    say(f"samples, scores, tables and figures are in {out}")
    return 0


def plot(
    tables: Annotated[tuple[Path, ...], Positional, arg(metavar="TABLE ...")],
    /,
    out: Path = Path("quality.png"),
    rounds: Path | None = None,
    frontiers: Path = Path("frontiers.png"),
    quality: str | None = None,
    diversity: str | None = None,
) -> int:
    """Draw what `duality quality` measured, from one or several of its folders or quality.json, and print the tables.

    Args:
        tables: folders of `duality quality`, or quality.json files.
        out: the figure against steps.
        rounds: a figure against rounds of distillation as well.
        frontiers: the figure of quality against diversity, if there is more than one temperature.
        quality: gen_ppl, or a column of a scorer such as validity; if not given, the first column of a scorer, or
            gen_ppl.
        diversity: entropy, distinct_1, distinct_2, distinct_3, or a column of a scorer such as novelty; if not given,
            novelty if it was measured, or entropy.
    """
    from duality.evaluation.figures import draw, plot_frontiers
    from duality.evaluation.frontiers import frontiers as frontiers_of
    from duality.evaluation.frontiers import has_frontiers
    from duality.evaluation.samples import read_rows
    from duality.evaluation.tables import several_temperatures, short_table

    if not tables:
        raise ValueError("nothing to draw: name folders that `duality quality --out` made")
    places = read_rows(tables)
    rows = list(places)
    draw(rows, out, rounds)
    print(short_table(rows))
    if (quality or diversity) and not several_temperatures(rows):
        raise ValueError("frontiers need more than one temperature: measure with --temperature 0.6,0.8,1.0")
    if quality or diversity or has_frontiers(rows):
        found = frontiers_of(places, quality, diversity)
        plot_frontiers(found, frontiers)
        print(found.markdown())
    return 0

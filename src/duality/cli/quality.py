"""Measure the samples of runs with an external judge or with scorers, and draw the measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from tyro.conf import Positional, arg

from duality.cli.console import say
from duality.cli.options import Device, Flag, Folders, KeptStep
from duality.samplers import GRIDS, SAMPLERS

if TYPE_CHECKING:
    from duality.evaluation.sweep.runs import SweepSettings

_Value = TypeVar("_Value")
_SAMPLERS = f"the model's own or others, with commas: {', '.join(('own', *SAMPLERS))}."
_GRIDS = f"{', '.join(GRIDS)}; the one that suits the sampler if not given."


@dataclass(frozen=True)
class Varied:
    """What is varied: samples are made in every combination."""

    steps: str = "8,16,32,64"
    """network calls for each sample, several with commas; own is the model's own number, such as one per token for an
    autoregressive model."""
    sampler: Annotated[str, arg(help=_SAMPLERS)] = "own"
    tail: str = "ancestral"
    """the last step draws (ancestral), takes the most likely tokens (greedy), or those given the noisy token too
    (posterior); several with commas."""
    temperature: str = "1.0"
    """below 1 sharpens the belief, above 1 flattens it; several with commas give the frontier of quality against
    diversity, on which models are compared at equal diversity."""
    rounds: str = "last"
    """of distilled runs the last round, all, or some, with commas; 0 is the model before distillation."""


@dataclass(frozen=True)
class Shared:
    """What the samples of all cases have in common."""

    num: int = 64
    """samples of each kind."""
    length: int | None = None
    """tokens of a sample; the length the run was trained on if not given."""
    eta: float | None = None
    """the strength of a psi sampler."""
    grid: Annotated[str | None, arg(help=_GRIDS)] = None
    top_p: float = 1.0
    """draw from the fewest tokens that hold this share of the belief."""
    seed: int = 0
    """the same seed gives the same samples."""
    checkpoint: KeptStep = None


@dataclass(frozen=True)
class Readers:
    """Who reads the samples."""

    judge: str | None = None
    """smollm2 (fetched), a .gguf file, a Hugging Face folder or name (gpt2-large is the paper's), the folder of an
    autoregressive run, or none; if not given, smollm2 without --score and none with it."""
    score: str = "none"
    """molecules (validity, uniqueness, novelty and diversity of SMILES; needs RDKit), an entry point of the group
    duality.scorers, or a function of yours as module:function; several with commas."""

    def chosen(self) -> tuple[str | None, tuple[str, ...]]:
        """The judge and the scorers."""
        scorers = () if self.score == "none" else _split(self.score)
        judge = self.judge or ("none" if scorers else "smollm2")
        return None if judge == "none" else judge, scorers


_VARIED, _SHARED, _READERS = Varied(), Shared(), Readers()


def quality(
    runs: Folders,
    /,
    varied: Annotated[Varied, arg(name="")] = _VARIED,
    shared: Annotated[Shared, arg(name="")] = _SHARED,
    readers: Annotated[Readers, arg(name="")] = _READERS,
    out: Path = Path("runs/quality"),
    batch_size: int = 16,
    corpus: str | None = None,
    device: Device = "auto",
    json: Flag = False,
) -> int:
    """Measure the samples of runs with a judge or with scorers; samples and scores that are kept in OUT are used again.

    Args:
        runs: run folders, folders of `duality publish`, or models of the Hugging Face hub (hf:OWNER/NAME@REVISION).
        varied: what is varied.
        shared: what all samples have in common.
        readers: who reads the samples.
        out: a folder for samples, scores, the tables (quality.json, quality.md, frontiers.md) and the figures.
        batch_size: samples at a time; the result does not depend on it.
        corpus: where the corpus of the first run is now, if it was moved or the model is from elsewhere.
        json: print the rows as JSON instead of the tables.
    """
    from duality.evaluation.frontier_report import has_frontiers
    from duality.evaluation.sweep.runs import measure_runs
    from duality.files.atomic import json_text

    judge, scorers = readers.chosen()
    rows = measure_runs(
        runs,
        _settings_of(varied, shared),
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


def _settings_of(varied: Varied, shared: Shared) -> SweepSettings:
    """The settings of the sweep that the flags describe."""
    from duality.evaluation.sweep.runs import SweepSettings

    def whole(word: str) -> int:
        if not word.isdecimal():
            raise ValueError
        return int(word)

    steps = _parse("--steps", "whole numbers", varied.steps, lambda word: None if word == "own" else whole(word))
    named: dict[str, Literal["last", "all"]] = {"last": "last", "all": "all"}
    temperatures = _parse("--temperature", "numbers", varied.temperature, float)
    return SweepSettings(
        steps=steps,
        samplers=_split(varied.sampler),
        tails=_split(varied.tail),
        temperatures=temperatures,
        rounds=named.get(varied.rounds) or _parse("--rounds", "whole numbers", varied.rounds, whole),
        **asdict(shared),
    )


def _split(text: str) -> tuple[str, ...]:
    """The words between commas."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise ValueError(f"{text!r} names nothing: write one or several, with commas between")
    return found


def _parse(flag: str, kind: str, text: str, read: Callable[[str], _Value]) -> tuple[_Value, ...]:
    """The values between commas; a word that is none is refused."""
    found = []
    for word in _split(text):
        try:
            found.append(read(word))
        except ValueError:
            raise ValueError(f"{flag} {word!r}: write {kind}, with commas between") from None
    return tuple(found)


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
    from duality.evaluation.figures import draw
    from duality.evaluation.frontier_report import frontiers as frontiers_of
    from duality.evaluation.frontier_report import has_frontiers, plot_frontiers
    from duality.evaluation.sweep.samples import read_rows
    from duality.evaluation.tables import markdown, several_temperatures

    if not tables:
        raise ValueError("nothing to draw: name folders that `duality quality --out` made")
    places = read_rows(tables)
    rows = list(places)
    draw(rows, out, rounds)
    print(markdown(rows))
    if (quality or diversity) and not several_temperatures(rows):
        raise ValueError("frontiers need more than one temperature: measure with --temperature 0.6,0.8,1.0")
    if quality or diversity or has_frontiers(rows):
        found = frontiers_of(places, quality, diversity)
        plot_frontiers(found, frontiers)
        print(found.markdown())
    return 0

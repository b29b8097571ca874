"""The figures of a report: quality against steps, and frontiers of quality against diversity.

matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from duality.evaluation.sweep.samples import sample_path, stored_samples
from duality.papers.duo.reproduce.claims import Arm, Claim
from duality.papers.duo.reproduce.domains import Domain
from duality.papers.duo.reproduce.findings import Evidence, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Save = Callable[[Path], None]
SHOWN = 8  # number of steps of the frontiers


@dataclass(frozen=True)
class Picture:
    """A figure in a file."""

    title: str
    path: Path


def pictures_of(out: Path, domain: Domain, claims: Sequence[Claim], evidence: Evidence) -> list[Picture]:
    """The figures that the arms of the claims allow."""
    arms = list(dict.fromkeys(arm for claim in claims for arm in claim.arms()))
    plain = [arm for arm in arms if arm.tail == "ancestral" and arm.sampler == "own" and arm.round is None]
    found: list[Picture] = []
    if any(arm.steps is not None for arm in plain):
        path = out / f"{domain.name}-steps.png"
        plot_steps(plain, evidence, path)
        found.append(Picture(f"{domain.quality} against steps, temperature 1", path))
    frontier = [arm for arm in plain if arm.steps in (SHOWN, evidence.domain.amount.many, None)]
    if len(frontier) > 1:
        path = out / f"{domain.name}-frontiers.png"
        plot_frontiers(frontier, evidence, path)
        found.append(Picture(f"{domain.quality} against {domain.diversity} over temperatures", path))
    drawn = molecules(out, frontier, evidence) if domain.scorer == "molecules" else None
    return found if drawn is None else [*found, drawn]


def plot_steps(arms: Sequence[Arm], evidence: Evidence, target: Path) -> None:
    """Quality and diversity against steps at temperature 1, the mean over seeds: a line for each model."""
    axes, save = canvas(2)
    for model in dict.fromkeys(arm.model for arm in arms if arm.steps is not None):
        own = sorted(
            (arm for arm in arms if arm.model == model and arm.steps is not None), key=lambda arm: arm.steps or 0
        )
        for panel, name in zip(axes, measures(evidence), strict=True):
            panel.plot([arm.steps or 0 for arm in own], [at_one(evidence, arm, name) for arm in own], "o-", label=model)
    for arm in (arm for arm in arms if arm.steps is None):
        for panel, name in zip(axes, measures(evidence), strict=True):
            panel.axhline(at_one(evidence, arm, name), color="grey", ls="--", label=arm.words)
    for panel, name in zip(axes, measures(evidence), strict=True):
        panel.set(xscale="log", xlabel="steps", ylabel=name, title="temperature 1, mean over seeds")
        steps = sorted({arm.steps for arm in arms if arm.steps is not None})
        panel.set_xticks(steps, [str(each) for each in steps])
        panel.set_xticks([], minor=True)
        if name == "gen_ppl":
            panel.set_yscale("log")
    axes[0].legend(fontsize=8)
    save(target)


def at_one(evidence: Evidence, arm: Arm, name: str) -> float:
    """A measure of an arm at temperature 1, the mean over seeds."""
    rows = [row for seed in evidence.seeds(arm) for row in evidence.rows(arm, seed) if row.temperature == 1.0]
    return fmean(figure(row, name) for row in rows)


def plot_frontiers(arms: Sequence[Arm], evidence: Evidence, target: Path) -> None:
    """Quality against diversity: a line over temperatures for each arm, the mean over its seeds; few steps dashed."""
    axes, save = canvas(1)
    temperatures = evidence.domain.amount.temperatures
    models = list(dict.fromkeys(arm.model for arm in arms))
    for arm in arms:
        rows = [row for seed in evidence.seeds(arm) for row in evidence.rows(arm, seed)]
        line = []
        for temperature in temperatures:
            same = [row for row in rows if row.temperature == temperature]
            line.append([fmean(figure(row, name) for row in same) for name in measures(evidence)])
        style = "--" if arm.steps == SHOWN else "-"
        upward, across = zip(*line, strict=True)
        colour = f"C{models.index(arm.model) % 10}"
        axes[0].plot(across, upward, marker="o", ms=3, lw=1.4, ls=style, color=colour, label=arm.words)
    title = f"temperatures {temperatures[0]} to {temperatures[-1]}, mean over seeds"
    axes[0].set(xlabel=evidence.domain.diversity, ylabel=evidence.domain.quality, title=title)
    if evidence.domain.quality == "gen_ppl":
        axes[0].set_yscale("log")
    axes[0].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    save(target)


def measures(evidence: Evidence) -> tuple[str, str]:
    """The names of quality and diversity."""
    return evidence.domain.quality, evidence.domain.diversity


def molecules(out: Path, arms: Sequence[Arm], evidence: Evidence) -> Picture | None:
    """Molecules that a distilled model wrote in few steps."""
    from duality.evaluation.molecules import draw

    wanted = [arm for arm in arms if arm.model == "duo-posterior" and arm.steps == SHOWN and arm.tail == "ancestral"]
    if not wanted:
        return None
    row = next(row for row in evidence.rows(wanted[0], 1) if row.temperature == 1.0)
    texts = stored_samples(sample_path(evidence.folder(wanted[0], 1), row.case), row.case).texts
    paths = draw(texts, out / "molecules")
    return Picture(f"the first samples of {wanted[0].words}", next(path for path in paths if path.suffix == ".png"))


def canvas(count: int) -> tuple[list[Axes], Save]:
    """Axes side by side, and the function that writes the figure."""
    from matplotlib.figure import Figure  # without pyplot: the backend of a user's notebook stays as it is

    figure_ = Figure(figsize=(5.5 * count + 3 * (count == 1), 4.6), layout="constrained")
    places = figure_.subplots(1, count, squeeze=False)

    def save(target: Path) -> None:
        figure_.savefig(target, dpi=120)

    return list(places[0]), save

"""The figures of a report: quality against steps, and frontiers of quality against diversity.

They have the style of ``evaluation.figures``. matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from duality.evaluation.figures import canvas, save, use_log_scale
from duality.evaluation.sweep.samples import sample_path, stored_samples

if TYPE_CHECKING:
    from duality.papers.duo.reproduce.claims import Arm
    from duality.papers.duo.reproduce.findings import Evidence

_SHOWN = 8  # number of steps of the frontiers


def pictures_of(out: Path, evidence: Evidence) -> list[tuple[str, Path]]:
    """The figures that the arms of the claims allow: their titles and files."""
    domain, arms = evidence.domain, dict.fromkeys(arm for claim in evidence.claims for arm in claim.arms())
    plain = [arm for arm in arms if arm.tail == "ancestral" and arm.sampler == "own" and arm.round is None]
    found: list[tuple[str, Path]] = []
    if any(arm.steps is not None for arm in plain):
        found.append((f"{domain.quality} against steps, temperature 1", out / f"{domain.name}-steps.png"))
        _plot_steps(plain, evidence, found[-1][1])
    frontier = [arm for arm in plain if arm.steps in (_SHOWN, domain.amount.many, None)]
    if len(frontier) > 1:
        title = f"{domain.quality} against {domain.diversity} over temperatures"
        found.append((title, out / f"{domain.name}-frontiers.png"))
        _plot_frontiers(frontier, evidence, found[-1][1])
    shown = [arm for arm in frontier if arm.model == "duo-posterior" and arm.steps == _SHOWN]
    if domain.scorer == "molecules" and shown:
        found.append((f"the first samples of {shown[0].words}", _draw_molecules(shown[0], evidence, out)))
    return found


def _plot_steps(arms: Sequence[Arm], evidence: Evidence, target: Path) -> None:
    """Quality and diversity against steps at temperature 1, the mean over seeds: a line for each model."""
    stepped = sorted((arm for arm in arms if arm.steps is not None), key=lambda arm: arm.steps or 0)
    steps = sorted({arm.steps or 0 for arm in stepped})
    figure, panels = canvas(2)
    for panel, name in zip(panels, (evidence.domain.quality, evidence.domain.diversity), strict=True):
        for model in dict.fromkeys(arm.model for arm in arms if arm.steps is not None):
            own = [arm for arm in stepped if arm.model == model]
            panel.plot([arm.steps or 0 for arm in own], [evidence.mean(arm, name) for arm in own], "o-", label=model)
        for arm in (arm for arm in arms if arm.steps is None):
            panel.axhline(evidence.mean(arm, name), color="grey", ls="--", label=arm.words)
        panel.set(xscale="log", xlabel="steps", ylabel=name, title="temperature 1, mean over seeds")
        panel.set_xticks(steps, [str(each) for each in steps])
        panel.set_xticks([], minor=True)
        if name == "gen_ppl":
            use_log_scale(panel)
    save(figure, target)


def _plot_frontiers(arms: Sequence[Arm], evidence: Evidence, target: Path) -> None:
    """Quality against diversity: a line over temperatures for each arm, the mean over its seeds; few steps dashed."""
    quality, diversity = evidence.domain.quality, evidence.domain.diversity
    temperatures, models = evidence.domain.amount.temperatures, list(dict.fromkeys(arm.model for arm in arms))
    figure, (axes,) = canvas()
    for arm in arms:
        across, upward = ([evidence.mean(arm, name, each) for each in temperatures] for name in (diversity, quality))
        dashes, colour = "--" if arm.steps == _SHOWN else "-", f"C{models.index(arm.model) % 10}"
        axes.plot(across, upward, marker="o", ms=3, lw=1.4, ls=dashes, color=colour, label=arm.words)
    title = f"temperatures {temperatures[0]} to {temperatures[-1]}, mean over seeds"
    axes.set(xlabel=diversity, ylabel=quality, title=title)
    if quality == "gen_ppl":
        use_log_scale(axes)
    save(figure, target)


def _draw_molecules(arm: Arm, evidence: Evidence, out: Path) -> Path:
    """Molecules that a distilled model wrote in few steps."""
    from duality.evaluation.molecules import draw

    row = next(row for row in evidence.rows(arm, 1) if row.temperature == 1.0)
    texts = stored_samples(sample_path(evidence.folder(arm, 1), row.case), row.case).texts
    return next(path for path in draw(texts, out / "molecules") if path.suffix == ".png")

"""The report of a reproduction: for each claim the paper's figure, ours with its interval, the verdict.

The rule of the verdict stands first, before any number. report.md is the report, report.html the same as one web page
that needs nothing else, with the figures inside: quality against steps, and frontiers of quality against diversity,
in the style of ``evaluation.figures``.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from markdown_it import MarkdownIt

from duality.evaluation.figures import canvas, save, use_log_scale
from duality.evaluation.molecules import Molecules
from duality.evaluation.samples import Samples
from duality.evaluation.tables import table
from duality.files.atomic import write_atomically
from duality.papers.duo.reproduce.claims import RULE, Arm
from duality.papers.duo.reproduce.findings import Evidence, Finding

_HEADERS = ("claim", "paper", "ours", "95 % interval", "at equal", "single points (temperature 1)", "verdict")
_SHOWN = 8  # number of steps of the frontiers
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .3em .6em; text-align: left; vertical-align: top; }
th { background: #f4f4f4; }
td.shows { background: #e5f5e5; } td.contradicts { background: #fbe3e0; }
img { max-width: 100%; }
h2 { margin-top: 2em; } h3 { margin-top: 1.6em; }
"""


def write_report(out: Path, budget: str, chapters: Sequence[Evidence]) -> None:
    """Write report.md, report.html and the figures.

    A chapter for each domain: what is measured and how much of it, how many verdicts there are of each kind, claims.
    """
    names = (f"{each.domain.name} ({', '.join(claim.name for claim in each.claims)})" for each in chapters)
    parts = [
        "# The paper's claims, tried again",
        f"`duality reproduce --budget {budget}`, on {'; '.join(names)}.",
        f"**The rule, stated before any number.** {RULE}",
        "The paper's figures are of its own setting (LM1B or OpenWebText, 170 million parameters, GPT-2 Large as "
        "judge) and are not comparable in size, only in order. A claim of this project says: beyond the paper.",
    ]
    for evidence in chapters:
        domain, every = evidence.domain, [finding for rows in evidence.findings.values() for finding in rows]
        judge = "" if domain.judge is None else f" under {domain.judge}"
        compared = f"diversity is {domain.diversity}" if domain.diversity else "each model at its own best temperature"
        parts += [
            f"## {domain.title}",
            f"Quality is {domain.quality}{judge} ({domain.better} is better), {compared}. Of {len(every)} comparisons: "
            f"{_count_verdicts(every)}",
            f"Training seeds: {domain.bases} of the models that are sampled, {domain.students} of each distillation, "
            f"{domain.short} of the short runs that compare likelihoods. Samples in each setting and for each seed: "
            f"{domain.few_num} at 8 steps and fewer, {domain.num} at more, twice as many where a model has one seed. "
            f"Temperatures: {', '.join(map(str, domain.temperatures))}.",
        ]
        if not domain.diversity and _plain_arms(evidence):
            parts.append(_tabulate_quality(evidence))
        parts += [f"![{title}]({path.name})" for title, path in _draw_pictures(out, evidence)]
        for claim in evidence.claims:
            found = evidence.findings[claim.name]
            parts += [f"### {claim.title} ({claim.where})", _count_verdicts(found)]
            parts.append(table([_HEADERS, *(_cells(each) for each in found)]).rstrip("\n"))
    text = "\n\n".join(parts) + "\n"
    write_atomically(out / "report.md", text)
    write_atomically(out / "report.html", _make_page(text, out))


def verdict_table(found: Mapping[str, Mapping[str, Sequence[Finding]]]) -> str:
    """How often each verdict was found, for each claim: what the terminal shows."""
    rows = [(name, claim, _count_verdicts(rows)) for name, claims in found.items() for claim, rows in claims.items()]
    return table([("data", "claim", "verdicts"), *rows])


def _count_verdicts(rows: Sequence[Finding]) -> str:
    """How often each verdict was found."""
    counts = Counter(finding.verdict for finding in rows)
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda each: -each[1])) + "."


def _cells(finding: Finding) -> tuple[str, ...]:
    """A finding as a line of the table: both figures and their difference, its interval, and what else is known."""
    mark = f"**{finding.verdict}**" if finding.verdict in ("shows", "contradicts") else finding.verdict
    if math.isnan(finding.value):
        return finding.statement, finding.paper, "–", "–", "–", finding.points, mark
    figures, digits = {
        "nats per token": ("PPL {:.3f} and {:.3f}", "+.4f"),
        "of the variance": ("{:.3g} and {:.3g}", ".2f"),
        "of the milliseconds per sample": ("{:.2f} and {:.2f} ms", ".2f"),
    }.get(finding.unit, ("{:.1f} and {:.1f}", "+.1f" if finding.unit.startswith("points") else "+.3f"))
    both = figures.format(finding.first, finding.second)
    return (
        finding.statement,
        finding.paper,
        f"{both}: {finding.value:{digits}} {finding.unit}",
        f"[{finding.low:{digits}}, {finding.high:{digits}}]",
        finding.at or "–",
        finding.points or "–",
        mark,
    )


def _make_page(text: str, folder: Path) -> str:
    """The report as a web page; figures are read from ``folder``, and a cell with a verdict has its class."""

    def figure(found: re.Match[str]) -> str:
        data = base64.b64encode((folder / found[1]).read_bytes()).decode()
        image = f'<img alt="{found[2]}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{found[2]}</figcaption></figure>"

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r'<p><img src="(.*?)" alt="(.*?)" /></p>', figure, body)
    body = re.sub(r"<td>(<strong>(shows|contradicts)</strong></td>)", r'<td class="\2">\1', body)
    title = re.sub(r"</?\w+>", "", body.partition("\n")[0])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )


def _plain_arms(evidence: Evidence) -> list[Arm]:
    """The arms that are sampled as usual, with different numbers of steps."""
    return [arm for arm in evidence.arms() if (arm.tail, arm.sampler, arm.round) == ("ancestral", "own", None)]


def _tabulate_quality(evidence: Evidence) -> str:
    """The quality of every model at every number of steps, in its own best temperature, with the 95 % interval."""
    plain, scale = _plain_arms(evidence), evidence.domain.scale
    steps = sorted({arm.steps for arm in plain if arm.steps is not None})
    rows = [("model", *(f"{each} steps" for each in steps), "one step per token")]
    for model in dict.fromkeys(arm.model for arm in plain):
        cells = []
        for each in (*steps, None):
            arm = Arm(model, each)
            found = evidence.measure_alone(arm) if arm in plain else None
            cells.append("" if found is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(scale * part for part in found)))
        rows.append((model, *cells))
    return table(rows).rstrip("\n")


# --- figures


def _draw_pictures(out: Path, evidence: Evidence) -> list[tuple[str, Path]]:
    """Draw the figures that the arms of the claims allow: their titles and files.

    The first has quality, and diversity if it is compared at, against steps, a line for each model; the second quality
    against diversity, or else against temperature, a line for each arm, few steps dashed. Both show means over seeds.
    """
    domain, mean, found = evidence.domain, evidence.mean, list[tuple[str, Path]]()
    quality, diversity, temperatures = domain.quality, domain.diversity, domain.temperatures
    plain, at = _plain_arms(evidence), "temperature 1" if domain.diversity else "the best temperature of each"
    models = list(dict.fromkeys(arm.model for arm in plain if arm.steps is not None))
    if models:
        steps = sorted({arm.steps for arm in plain if arm.steps is not None})
        measures = [each for each in (quality, diversity) if each]
        figure, panels = canvas(len(measures))
        for panel, name in zip(panels, measures, strict=True):
            for model in models:
                own = {arm.steps: arm for arm in plain if arm.model == model and arm.steps is not None}
                panel.plot(sorted(own), [mean(own[each], name) for each in sorted(own)], "o-", label=model)
            for arm in (arm for arm in plain if arm.steps is None):
                panel.axhline(mean(arm, name), color="grey", ls="--", label=arm.words)
            panel.set(xscale="log", xlabel="steps", ylabel=name, title=f"{at}, mean over seeds")
            panel.set_xticks(steps, [str(each) for each in steps])
            panel.set_xticks([], minor=True)
            if name == "gen_ppl":
                use_log_scale(panel)
        found.append((f"{quality} against steps, {at}", out / f"{domain.name}-steps.png"))
        save(figure, found[-1][1])
    frontier = [arm for arm in plain if arm.steps in (_SHOWN, domain.many, None)]
    if len(frontier) > 1:
        figure, (axes,) = canvas()
        models = list(dict.fromkeys(arm.model for arm in frontier))
        for arm in frontier:
            upward = [mean(arm, quality, each) for each in temperatures]
            across = [mean(arm, diversity, each) for each in temperatures] if diversity else temperatures
            dashes, colour = "--" if arm.steps == _SHOWN else "-", f"C{models.index(arm.model) % 10}"
            axes.plot(across, upward, marker="o", ms=3, lw=1.4, ls=dashes, color=colour, label=arm.words)
        title = f"temperatures {temperatures[0]} to {temperatures[-1]}, mean over seeds"
        axes.set(xlabel=diversity or "temperature", ylabel=quality, title=title)
        if quality == "gen_ppl":
            use_log_scale(axes)
        across_what = f"{diversity} over temperatures" if diversity else "temperature"
        found.append((f"{quality} against {across_what}", out / f"{domain.name}-frontiers.png"))
        save(figure, found[-1][1])
    shown = [arm for arm in frontier if arm.model == "duo-posterior" and arm.steps == _SHOWN]
    if domain.scorer == "molecules" and shown:
        row, folder = next(iter(evidence.counted_rows(shown[0]).items()))  # of the first seed
        texts = Samples.read(folder, row).texts
        picture = next(path for path in Molecules().draw(texts, out / "molecules") if path.suffix == ".png")
        found.append((f"the first samples of {shown[0].words}", picture))
    return found

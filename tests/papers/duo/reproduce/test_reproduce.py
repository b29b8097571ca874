"""A whole reproduction on a tiny budget: real trainings, distillations, samples, scores, a verdict and a report."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from duality.evaluation.frontiers import Curve, Point
from duality.evaluation.metrics import Values
from duality.files.atomic import json_text
from duality.papers.duo.reproduce.claims import (
    Arm,
    Comparison,
    Domain,
    Training,
    read_domains,
)
from duality.papers.duo.reproduce.findings import Evidence, Finding, _decide, _paired_interval
from duality.papers.duo.reproduce.report import _make_page
from duality.papers.duo.reproduce.run import _jobs_of, _train, reproduce
from duality.runs.requests import RoundChanges

SIZE = ("backbone=nano", "data.tokenizer=bytes", "data.length=12", "data.packing=document", "data.split=document")
SHORT = ("training.steps=6", "training.batch_size=4", "training.eval_every=0", "training.warmup=1")


def words(texts: list[str]) -> dict[str, list[float]]:
    """A scorer: how many texts have letters only, and how long they are."""
    return {"letters": [float(text.isalpha()) for text in texts], "size": [float(len(text)) for text in texts]}


def tiny(folder: Path) -> Domain:
    """A domain with an amount of seconds."""
    text = folder / "words.txt"
    text.write_text("".join(f"word{number} and more\n" for number in range(60)))
    changes = (f"data.corpus={text}", "data.documents=lines", *SIZE, *SHORT)
    bases = {"duo": Training("duo-laptop", changes), "mdlm": Training("mdlm-laptop", changes)}
    two = RoundChanges(rounds=2, round_steps=2, delta=1 / 16, compare="output", teacher="weights")
    students = {
        "duo-output": Training(base="duo", method="dcd", rounds=two),
        "duo-posterior": Training(base="duo", method="dcd", rounds=replace(two, compare="posterior")),
        "duo-ema": Training(base="duo", method="dcd", rounds=replace(two, teacher="ema")),
        "mdlm-sdtt": Training(base="mdlm", method="sdtt", rounds=RoundChanges(rounds=2, round_steps=2, delta=1 / 32)),
    }
    short = {"short-duo-plain": Training("duo-laptop", (*changes, "method.curriculum=0"))}
    short["short-duo-window"] = Training("duo-laptop", (*changes, "method.curriculum=0.5", "method.tau=0"))
    short["short-duo-curriculum"] = Training("duo-laptop", (*changes, "method.curriculum=0.5", "method.tau=0.1"))
    return Domain(
        name="words",
        title="Words",
        quality="letters",
        better="higher",
        unit="points",
        scale=100.0,
        diversity="entropy",
        scorer="tests.papers.duo.reproduce.test_reproduce:words",
        judge=None,
        models={**bases, **students, **short},
        length=12,
        bases=1,
        students=1,
        short=2,
        num=3,
        few_num=3,
        temperatures=(0.5, 1.0),
        few=(2, 8),
        many=12,
        sequences=3,
        draws=40,
    )


CLAIMS = ("curriculum", "variance", "teacher")


def reproduced(folder: Path, said: list[str]) -> dict[str, dict[str, list[Finding]]]:
    """The tiny reproduction in a folder."""
    return reproduce(folder / "out", "quick", [tiny(folder)], CLAIMS, report=said.append)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished reproduction."""
    folder = tmp_path_factory.mktemp("done")
    reproduced(folder, [])
    return folder


def test_a_tiny_reproduction_decides_reports_and_is_not_done_twice(done: Path) -> None:
    kept = json.loads((done / "out" / "findings.json").read_text())
    assert set(kept["words"]) == set(CLAIMS)
    assert len(kept["words"]["curriculum"]) == 3
    for each in kept["words"]["variance"]:
        assert 0 < each["low"] < each["value"] < each["high"]
        assert each["verdict"] == _decide(each["low"] - 1, each["high"] - 1, "lower"), "1 is no difference"
    report = (done / "out" / "report.md").read_text()
    assert "excludes zero" in report.split("## Words")[0], "the rule stands before any number"
    assert report.count("| ") > 10
    html = (done / "out" / "report.html").read_text()
    assert "<table>" in html
    assert "data:image/png;base64," in html
    assert 'src="http' not in html
    assert "href" not in html
    said: list[str] = []
    again = reproduced(done, said)
    assert kept["words"]["teacher"][0]["verdict"] == again["words"]["teacher"][0].verdict
    assert not [line for line in said if line.startswith("training")]
    assert (done / "out" / "report.md").read_text() == report


def test_a_killed_reproduction_goes_on_and_reports_the_same(done: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from pathlib import Path\n"
        "from tests.papers.duo.reproduce.test_reproduce import reproduced\n"
        "if __name__ == '__main__':\n"
        f"    reproduced(Path({str(tmp_path)!r}), [])\n"
    )
    root = Path(__file__).parents[4]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root / "src", root, root / "tests")))}
    process = subprocess.Popen([sys.executable, str(program)], env=environment)
    runs = tmp_path / "out" / "words" / "runs"
    limit = time.monotonic() + 120
    while not list(runs.glob("*/checkpoints/*")):
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < limit, "no checkpoint within two minutes"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "findings.json").exists()
    reproduced(tmp_path, [])
    for name in ("findings.json", "report.md"):
        assert (tmp_path / "out" / name).read_text() == (done / "out" / name).read_text()


def test_a_model_is_counted_at_its_best_temperature_by_other_samples(tmp_path: Path) -> None:
    """The scorer's ``size`` is the quality: a text is longest at some temperature, which half of the samples choose."""
    domain = replace(tiny(tmp_path), diversity="", quality="size", num=4, few_num=4, few=(2, 8))
    reproduce(tmp_path / "out", "quick", [domain], ("teacher",), report=lambda text: None)
    evidence = Evidence(tmp_path / "out" / "words", domain, domain.read_claims(("teacher",)))
    for arm in evidence.arms():
        chosen, (counted,) = evidence.rows(arm), evidence.counted_rows(arm)
        assert {(row.seed, row.num) for row in chosen} == {(1, 4)}  # one seed: twice as many samples
        assert (counted.seed, counted.num) == (0, 8)
        best = max(chosen, key=lambda row: row.measure("size")[0] or 0.0)
        assert counted.temperature == best.temperature
        value, low, high = evidence.measure_alone(arm)
        assert value == pytest.approx(counted.measure("size")[0])
        assert low <= value <= high
    report = (tmp_path / "out" / "report.md").read_text()
    assert "each model at its own best temperature" in report
    assert "| model | 8 steps |" in report


def test_a_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    domain = tiny(tmp_path)
    model = domain.models["duo"]
    _train(Evidence(tmp_path, domain), "duo", 1, 1.0, print, lambda units: None)
    other = replace(model, changes=(*model.changes, "training.learning_rate=0.5"))
    changed = replace(domain, models={"duo": other})
    with pytest.raises(ValueError, match=r"other settings.*learning_rate.*choose another --out"):
        _train(Evidence(tmp_path, changed), "duo", 1, 1.0, print, lambda units: None)


def test_every_claim_of_every_budget_names_models_that_exist() -> None:
    for name in ("quick", "full"):
        for domain in read_domains(name):
            for claim in domain.read_claims():
                assert claim.comparisons, claim.name
                kinds = {each.kind for each in claim.comparisons}
                for arm in Evidence(Path(), domain, [claim]).arms(*kinds):
                    assert arm.model in domain.models, (claim.name, arm)


def test_the_jobs_of_a_budget_need_only_jobs_and_train_each_model_once() -> None:
    (domain,) = read_domains("quick")
    jobs = _jobs_of(Evidence(Path("out"), domain, domain.read_claims()))
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names)
    assert all(need in names for job in jobs for need in job.needs)
    assert sum(name.startswith("molecules: train duo-posterior") for name in names) == domain.students


def test_one_domain_of_a_budget_can_be_chosen() -> None:
    assert [domain.name for domain in read_domains("full", names=("prose",))] == ["prose"]
    with pytest.raises(ValueError, match=r"no domain 'prose' in the budget quick: it has molecules"):
        read_domains("quick", names=("prose",))


def test_another_judge() -> None:
    molecules, prose = read_domains("full", judge="gpt2-large")
    assert (molecules.judge, prose.judge) == (None, "gpt2-large")
    with pytest.raises(ValueError, match="no samples are judged here"):
        read_domains("quick", judge="gpt2-large")


def test_the_numbers_of_seeds_can_be_chosen() -> None:
    def seeds(every: int | None = None, bases: int | None = None) -> tuple[int, int, int]:
        found = read_domains("full", every, base_seeds=bases)[0]
        return found.bases, found.students, found.short

    assert seeds(2) == (2, 2, 2)
    assert seeds(2, 1) == (1, 2, 2)
    assert seeds(None, 1)[1:] == seeds()[1:]
    with pytest.raises(ValueError, match="base_seeds is 0"):
        seeds(None, 0)


class Known(Evidence):
    """Evidence whose samples have known qualities, by the number of steps; a step takes a millisecond."""

    qualities: ClassVar[dict[int | None, float]] = {2: 0.1, 8: 0.45, 32: 0.6, None: 0.5}

    def read_curves(self, arm: Arm) -> list[Curve]:
        good = round(100 * self.qualities[arm.steps])
        quality = Values(torch.tensor([1.0] * good + [0.0] * (100 - good)), torch.ones(100))
        spread = [Values(torch.full((100,), level), torch.ones(100)) for level in (0.2, 0.8)]
        return [Curve("", tuple(Point(t, quality, each) for t, each in zip((0.5, 1.0), spread, strict=True)))]

    def describe(self, arm: Arm) -> str:
        return f"{self.qualities[arm.steps]}"

    def compare_speed(self, comparison: Comparison) -> Finding:
        first, second = ((arm.steps or 20) / 1.0 for arm in (comparison.arms[0], comparison.other))
        return Finding("", "", first, second, first / second, 0.0, 0.0, "of the milliseconds", "shows")


def test_speed_at_equal_quality_is_that_of_the_first_arm_that_is_as_good(tmp_path: Path) -> None:
    (domain,) = read_domains("quick")
    evidence, ar = Known(tmp_path, domain), Arm("ar", None)
    arms = tuple(Arm("duo", steps) for steps in (2, 8, 32))
    found = evidence.decide(Comparison("equal quality", arms, ar, "not given"))
    assert found.value == 8 / 20, "45 of 100 and 50 of 100 do not differ, 10 and 50 do"
    assert "duo, 8 steps" in found.statement
    missed = evidence.decide(Comparison("equal quality", arms[:1], ar, "not given"))
    assert missed.verdict == "quality not reached"
    assert math.isnan(missed.value)
    assert "0.1 (duo, 2 steps) and 0.5" in missed.points
    written = json.loads(json_text([asdict(missed), asdict(found)]))
    assert [each["value"] for each in written] == [None, 8 / 20]


def test_an_unknown_claim_is_refused_with_the_names_there_are() -> None:
    molecules, prose = read_domains("full")
    with pytest.raises(ValueError, match=r"no claim 'tail'.*tails"):
        molecules.read_claims(("tail",))
    assert [claim.name for claim in molecules.read_claims(("rounds", "sdtt"))] == ["rounds", "sdtt"]
    assert [claim.name for claim in prose.read_claims(("rounds", "sdtt"))] == ["sdtt"], "prose is without rounds"


@pytest.mark.parametrize(
    ("low", "high", "claimed", "expected"),
    [
        (0.1, 0.2, "higher", "shows"),
        (-0.2, -0.1, "higher", "contradicts"),
        (-0.2, -0.1, "lower", "shows"),
        (0.1, 0.2, "lower", "contradicts"),
        (-0.1, 0.1, "lower", "undecided at this budget"),
        (float("nan"), float("nan"), "lower", "undecided at this budget"),
    ],
)
def test_the_interval_decides(low: float, high: float, claimed: str, expected: str) -> None:
    assert _decide(low, high, claimed) == expected


def test_with_three_seeds_their_spread_gives_the_interval_and_with_one_the_error_of_the_text() -> None:
    assert _paired_interval([(0.5, 0.1)])[1] == pytest.approx(0.196)
    mean, half = _paired_interval([(0.4, 0.0), (0.5, 0.0), (0.6, 0.0)])
    assert mean == pytest.approx(0.5)
    assert half == pytest.approx(4.303 * 0.1 / 3**0.5)


def test_the_page_has_the_tables_and_marks_verdicts(tmp_path: Path) -> None:
    text = "# A title\n\nsome **bold** `code` & <text>\n\n| a | verdict |\n|---|---|\n| 1 < 2 | **shows** |\n"
    made = _make_page(text, tmp_path)
    assert "<title>A title</title>" in made
    assert "<h1>A title</h1>" in made
    assert '<td>1 &lt; 2</td>\n<td class="shows"><strong>shows</strong></td>' in made
    assert "<strong>bold</strong> <code>code</code> &amp; &lt;text&gt;" in made

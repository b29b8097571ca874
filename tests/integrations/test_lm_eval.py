"""lm-evaluation-harness itself, on tasks from local files: its numbers are those of ``Model.log_likelihood``."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import ROOT, small_recipe

import duality
from duality.models.model import Model, load
from duality.models.requests import ScoreRequest
from duality.models.sampling import Row, write_samples
from duality.models.scoring import Passage, Window

pytest.importorskip("lm_eval", reason="the harness is not installed: pip install 'diffusion-duality[eval]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LENGTH, DRAWS = 32, 4
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
TASKS = {
    "last_word": (
        "output_type: loglikelihood\n"
        "doc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\n"
        "doc_to_target: \"{{' '+text.split(' ')[-1]}}\"\n"
        "metric_list:\n"
        "  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}\n"
        "  - {metric: acc, aggregation: mean, higher_is_better: true}\n"
    ),
    "which_end": (
        "output_type: multiple_choice\n"
        "doc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\n"
        "doc_to_choice: \"{{[text.split(' ')[-1], 'zebra']}}\"\n"
        "doc_to_target: 0\n"
        "metric_list:\n  - {metric: acc, aggregation: mean, higher_is_better: true}\n"
    ),
    "whole": (
        "output_type: loglikelihood_rolling\n"
        'doc_to_text: ""\n'
        'doc_to_target: "{{text}}"\n'
        "metric_list:\n  - metric: word_perplexity\n  - metric: byte_perplexity\n  - metric: bits_per_byte\n"
    ),
    "continue": (
        "output_type: generate_until\n"
        "doc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\n"
        "doc_to_target: \"{{text.split(' ')[-1]}}\"\n"
        'generation_kwargs: {until: [" "], max_gen_toks: 8, do_sample: false}\n'
        "metric_list:\n  - metric: exact_match\n"
    ),
}


def sentences() -> list[str]:
    """Pieces of the licence of 3 to 30 words."""
    words = (ROOT / "LICENSE").read_text(encoding="utf-8").split()
    return [" ".join(words[start : start + count]) for start, count in zip(range(50, 1000, 60), (3, 9, 20, 5, 30, 7))]


TEXTS = sentences()


@dataclass(frozen=True)
class Place:
    """A folder with the tasks, and trained runs."""

    tasks: Path
    runs: dict[str, Path]

    def evaluate(self, name: str, task: str, **arguments: Any) -> dict[str, Any]:
        import lm_eval
        from lm_eval.tasks import TaskManager

        import duality.integrations.lm_eval  # noqa: F401  # which registers the model

        found: dict[str, Any] = lm_eval.simple_evaluate(
            model="duality",
            model_args={"run": str(self.runs[name]), "draws": DRAWS, "batch_size": 5, "device": "cpu"} | arguments,
            tasks=[f"duality_{task}"],
            task_manager=TaskManager(include_path=str(self.tasks), include_defaults=False),
            bootstrap_iters=0,
        )
        return found

    def values(self, name: str, task: str, **arguments: Any) -> list[Any]:
        """What the model gave for each request."""
        samples = self.evaluate(name, task, **arguments)["samples"][f"duality_{task}"]
        samples.sort(key=lambda sample: sample["doc_id"])
        return [answer for sample in samples for answer in sample["resps"]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, english: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("harness")
    data = folder / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    for name, body in TASKS.items():
        head = f"task: duality_{name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        (folder / f"{name}.yaml").write_text(f"{head}test_split: test\n{body}metadata: {{version: 1}}\n")
    runs = {}
    for name in ("ar-laptop", "mdlm-laptop", "duo-laptop", "sedd-absorb-laptop", "plaid-laptop"):
        duality.train(small_recipe(english, name=name), out=folder / name)
        runs[name] = folder / name
    with pytest.MonkeyPatch.context() as patch:
        for key, value in (OFFLINE | {"HF_HOME": str(folder / "hf")}).items():
            patch.setenv(key, value)
        yield Place(folder, runs)


def split(text: str) -> tuple[str, str]:
    context, _, word = text.rpartition(" ")
    return context, " " + word


def direct(model: Model, context: str, continuation: str) -> float:
    """log p with the noise that the adapter gives a context."""
    from duality.integrations.lm_eval import _noise_seed

    seed = _noise_seed(0, context)
    return -model.log_likelihood(continuation, context=context, num_draws=DRAWS, seed=seed).nats


@pytest.mark.parametrize("name", ["ar-laptop", "mdlm-laptop", "duo-laptop", "sedd-absorb-laptop"])
def test_the_last_word_costs_what_the_model_says(place: Place, name: str) -> None:
    """Some contexts are longer than the model: they are cut off, and the word is still paid for."""
    model = load(place.runs[name], device="cpu")
    assert any(len(text) > LENGTH for text in TEXTS)
    expected = [direct(model, *split(text)) for text in TEXTS]
    results = place.evaluate(name, "last_word")["results"]["duality_last_word"]
    assert results["perplexity,none"] == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)
    found = [answer[0][0] for answer in place.values(name, "last_word")]
    assert found == pytest.approx(expected, rel=1e-4)
    assert max(found) < 0


def test_choices_are_compared_with_the_same_noise(place: Place) -> None:
    model = load(place.runs["mdlm-laptop"], device="cpu")
    pairs = [(direct(model, split(text)[0], split(text)[1]), direct(model, split(text)[0], " zebra")) for text in TEXTS]
    results = place.evaluate("mdlm-laptop", "which_end")["results"]["duality_which_end"]
    assert results["acc,none"] == pytest.approx(sum(first > second for first, second in pairs) / len(pairs))


@pytest.mark.parametrize("name", ["ar-laptop", "mdlm-laptop", "plaid-laptop"])
def test_a_rolling_likelihood_pays_for_every_token_once(place: Place, name: str) -> None:
    from duality.integrations.lm_eval import _noise_seed

    model = load(place.runs[name], device="cpu")
    rows = [
        Passage(model.tokenizer.encode(text), seed=_noise_seed(0, text), filled=name != "plaid-laptop")
        for text in TEXTS
    ]
    scores = model.score(rows, ScoreRequest(DRAWS))
    assert [score.num_tokens for score in scores] == [len(text.encode()) for text in TEXTS]
    nats, size = sum(score.nats for score in scores), sum(len(text.encode()) for text in TEXTS)
    results = place.evaluate(name, "whole")["results"]["duality_whole"]
    assert results["bits_per_byte,none"] == pytest.approx(nats / size / math.log(2), rel=1e-4)
    short = [text for text in TEXTS if len(text.encode()) <= LENGTH]  # one window: no question of how to cut
    assert short
    for text in short:
        alone = model.log_likelihood(text, num_draws=DRAWS, seed=_noise_seed(0, text)).nats
        assert scores[TEXTS.index(text)].nats == pytest.approx(alone, rel=1e-4)


def test_the_windows_are_those_of_the_harness() -> None:
    """Except that a window holds no more than the model's length, its context included."""
    import numpy as np
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    for count in range(1, 40):
        tokens = list(range(count))
        theirs = [make_disjoint_window(pair) for pair in get_rolling_token_windows(tokens, -1, 8, 1)]
        ours = Window.cut([Passage(np.array(tokens), filled=True)], 8)
        assert [window.ids[window.known :].tolist() for window in ours] == [paid for _, paid in theirs]
        for window, (known, paid) in zip(ours, theirs, strict=True):
            cut = [token for token in known if token >= 0][max(0, len(known) + len(paid) - 8) :]
            assert window.ids[: window.known].tolist() == (cut if known[0] >= 0 else [])


@pytest.mark.parametrize("name", ["ar-laptop", "mdlm-laptop"])
def test_generation_stops_and_is_no_longer_than_asked_for(place: Place, name: str) -> None:
    found = [answer[0] for answer in place.values(name, "continue")]
    assert len(found) == len(TEXTS)
    assert all(" " not in text and len(text) <= 8 for text in found)
    assert found == [answer[0] for answer in place.values(name, "continue")]


def requests_of(*pairs: tuple[str, dict[str, Any]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance("generate_until", {}, pair, number) for number, pair in enumerate(pairs)]


@pytest.mark.parametrize("name", ["ar-laptop", "mdlm-laptop", "sedd-absorb-laptop"])
def test_a_long_generation_is_written_in_parts(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens than the model's length, behind a context that is longer: each part follows the one before."""
    from duality.integrations.lm_eval import DualityLM

    text, wanted = "You may reproduce " * 5, 70
    lm = DualityLM(str(place.runs[name]), device="cpu")
    whole, before = lm.model.tokenizer.encode(text).tolist(), len(text)

    def spy(model: Model, request: Any, *, row: Row) -> Any:
        held = len(row) - row.count(None)
        assert LENGTH // 2 <= len(row) <= LENGTH
        assert row[:held] == whole[len(whole) - held :]  # what stands directly before it
        (sample,) = write_samples(model, request, row=row)
        assert sample.tokens[:held] == whole[len(whole) - held :]
        # end-of-text and bytes that are no text would end the generation, or hide how many there are
        made = [token if token < 128 else 65 for token in sample.tokens[held:]]
        whole.extend(made)
        return [replace(sample, tokens=sample.tokens[:held] + made)]

    monkeypatch.setattr(Model, "write", spy)
    (found,) = lm.generate_until(requests_of((text, {"max_gen_toks": wanted, "until": []})), disable_tqdm=True)
    assert len(found) == wanted
    assert found == lm.model.tokenizer.decode(whole[before:])


def test_a_text_ends_before_the_first_stop_string() -> None:
    from duality.integrations.lm_eval import _before_stop

    assert _before_stop("yes. Q: no\n\n", ["\n\n", "Q:", ""]) == "yes. "
    assert _before_stop("yes", ["no"]) == "yes"


def test_greedy_generation_is_what_is_greedy_says(place: Place) -> None:
    from lm_eval.api.instance import Instance

    from duality.integrations.lm_eval import DualityLM

    lm, context = DualityLM(str(place.runs["ar-laptop"]), device="cpu"), "You may"
    (text,) = lm.generate_until(requests_of((context, {"max_gen_toks": 6, "until": ["\n"]})), disable_tqdm=True)
    pairs = [(context, text), (context, text[:-1] + "~")]
    found = lm.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs], disable_tqdm=True)
    assert [is_greedy for _, is_greedy in found] == [True, False]


def test_the_error_is_logged_and_an_empty_text_costs_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    from lm_eval.api.instance import Instance

    from duality.integrations.lm_eval import DualityLM

    lm = DualityLM(str(place.runs["mdlm-laptop"]), draws=3, device="cpu")
    with caplog.at_level(logging.INFO, "lm_eval.duality"):
        texts = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in ("", "The cat.")]
        found = lm.loglikelihood_rolling(texts, disable_tqdm=True)
    assert found[0] == 0.0
    assert found[1] < 0
    assert re.search(r"1 requests: kind 'bound', 3 draws each, mean standard error \d+\.\d+ nats", caplog.text)


def test_what_the_adapter_refuses(place: Place) -> None:
    from duality.integrations.lm_eval import DualityLM

    run = str(place.runs["mdlm-laptop"])
    with pytest.raises(ValueError, match="has no argument 'pretrained'; allowed are run, draws"):
        DualityLM(pretrained="gpt2")
    with pytest.raises(ValueError, match="an argument 'run', the run's folder"):
        DualityLM()
    with pytest.raises(ValueError, match="draws is 0: it must be a whole number of at least 1"):
        DualityLM(run, draws=0)
    with pytest.raises(ValueError, match="a Gaussian model reads vectors"):
        place.evaluate("plaid-laptop", "last_word")


def command(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | OFFLINE | {"HF_HOME": str(place.tasks / "hf"), "PYTHONPATH": str(ROOT / "src")}
    line = [sys.executable, "-m", "duality.integrations.harness", *arguments]
    return subprocess.run(line, cwd=place.tasks, env=environment, capture_output=True, text=True, check=False)


def test_the_command_is_the_harness_with_our_model(place: Place) -> None:
    arguments = f"run={place.runs['mdlm-laptop']},draws=2,batch_size=16"
    task = ("--tasks", "duality_last_word", "--include_path", str(place.tasks))
    found = command(place, "--model", "duality", "--model_args", arguments, *task)
    assert found.returncode == 0, found.stderr
    assert "duality_last_word" in found.stdout
    assert "mean standard error" in found.stderr
    wrong = command(place, "--model", "duality", "--model_args", "run=nowhere", *task)
    assert wrong.returncode == 2, wrong.stderr
    assert wrong.stderr.splitlines()[-1].startswith("error: ")


def test_the_example_of_the_documentation_runs(place: Place, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (task,), (line,) = (
        re.findall(r"```yaml\n(.*?)```", page, re.DOTALL),
        re.findall(r"^duality-lm-eval (.*)$", page, re.M),
    )
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "last_word.yaml").write_text(task, encoding="utf-8")
    shutil.copy(place.tasks / "texts.jsonl", tmp_path)
    shutil.copytree(place.runs["duo-laptop"], tmp_path / "runs" / "mine")
    found = command(replace(place, tasks=tmp_path), *line.split())
    assert found.returncode == 0, found.stderr
    assert "last_word" in found.stdout

"""Suites of test sets: their table, what is missing, and results that are kept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support import session
from support.runs import ROOT, quiet, small_recipe

from duality.cli.main import main
from duality.data.corpus import encode_corpus
from duality.data.packing import Sequences
from duality.evaluation import suites
from duality.models.likelihood import KEPT, Likelihood
from duality.models.model import Model, load
from duality.papers.duo.page import table
from duality.protocols import Kind

SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A diffusion model and an autoregressive one, each trained for a moment."""
    root = tmp_path_factory.mktemp("suites")
    for name in ("duo", "ar"):
        recipe = small_recipe(ROOT / "LICENSE", "training.steps=5", name=f"{name}-laptop")
        session.train(recipe, root / name, report=quiet)
    return {name: root / name for name in ("duo", "ar")}


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Places of three of the seven sets; no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("DUALITY_CACHE", str(tmp_path / "cache"))
    ptb, lambada, news = (tmp_path / name for name in ("ptb", "lambada", "news"))
    for folder in (ptb, lambada, news):
        folder.mkdir()
    (ptb / "ptb.valid.txt").write_text(" no it was n't black monday \n but while N shares fell N % \n" * 3)
    (lambada / "lambada_test.jsonl").write_text(json.dumps({"text": " “Yes,” he said . "}) + "\n")
    (news / "test.jsonl").write_text(json.dumps({"text": "Oil prices soar."}) + "\n")
    return {"ptb": ptb, "lambada": lambada, "ag-news": news}


def options(sets: dict[str, Path]) -> list[str]:
    return [part for name, place in sets.items() for part in ("--data", f"{name}={place}")]


def test_the_table_has_every_set_and_the_rows_of_the_paper(
    runs: dict[str, Path], sets: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(runs["duo"]), "--suite", "zero-shot", *options(sets), "--draws", "2"]) == 0
    out = capsys.readouterr().out
    head = next(line for line in out.splitlines() if "PTB" in line)
    assert head == "|  | PTB | Wikitext | LM1B | Lambada | AG News | Pubmed | Arxiv |"
    ours = next(line for line in out.splitlines() if line.startswith(f"| {runs['duo']}")).split(" | ")
    assert [cell == "missing" for cell in ours[1:-1]] == [False, True, True, False, False, True]
    assert ours[1].startswith("≤ ")
    assert "Arxiv is missing: " in out
    assert "--data arxiv=FOLDER" in out
    assert "| paper: Duo (Ours) | 89.35 | 33.57 | 73.86 | 49.78 | 67.81 | 44.48 | 40.39 |" in out


def test_a_number_is_that_of_the_wrapped_text_without_end_of_text(
    runs: dict[str, Path], sets: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """An autoregressive model through the command equals a direct computation."""
    assert main(["eval", str(runs["ar"]), "--suite", "zero-shot", *options(sets), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sets"]["ptb"]
    text = "no it wasn't black mondaybut while 1 shares fell 1 %" * 3  # nothing in between, as in the paper's code
    path = sets["ptb"] / "direct.txt"
    path.write_text(text)
    model = load(runs["ar"])
    store = encode_corpus(path, model.tokenizer, eos=False)
    direct = model.likelihood(Sequences(store, model.length))
    assert found["num_tokens"] == len(text) == direct.num_tokens
    assert found["nats_per_token"] == pytest.approx(direct.nats_per_token, rel=1e-9)
    assert found["perplexity"] == pytest.approx(math.exp(direct.nats_per_token), rel=1e-9)


def test_results_are_kept_and_belong_to_weights_text_and_settings(
    runs: dict[str, Path], sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = list[int]()
    likelihood = Model.likelihood

    def counted(self: Model, *arguments: object, **keywords: object) -> object:
        calls.append(1)
        return likelihood(self, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "likelihood", counted)
    (runs["duo"] / KEPT).unlink(missing_ok=True)
    command = ["eval", str(runs["duo"]), "--suite", "zero-shot", *options(sets), "--json"]
    assert main([*command, "--draws", "2"]) == 0
    first = capsys.readouterr().out
    assert len(calls) == 3
    assert main([*command, "--draws", "2", "--batch-size", "3"]) == 0
    assert len(calls) == 3
    assert capsys.readouterr().out == first
    assert main([*command, "--draws", "3"]) == 0
    assert len(calls) == 6
    assert main([*command, "--draws", "3", "--latents", "gaussian"]) == 0
    assert len(calls) == 9
    (sets["ptb"] / "ptb.valid.txt").write_text(" another text \n" * 9)
    assert main([*command, "--draws", "2"]) == 0
    assert len(calls) == 10
    kept = json.loads((runs["duo"] / KEPT).read_text())
    (runs["duo"] / KEPT).write_text(json.dumps({who: dict.fromkeys(row, 5) for who, row in kept.items()}))
    assert main([*command, "--draws", "2"]) == 0  # what cannot be read is measured again
    assert len(calls) == 13
    (runs["duo"] / KEPT).write_text("{damaged")
    assert main([*command, "--draws", "2", "--weights", "model"]) == 0
    assert len(calls) == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--suite", "zero-shot", "--data", "ptb"], "it says where a set is, such as --data ptb=FOLDER"),
        (["--suite", "zero-shot", "--data", "text8=x"], "the suite zero-shot has no set 'text8'"),
        (["--suite", "zero-shot", "--data", "ptb=/nowhere"], "ptb=/nowhere: there is no such file or folder"),
        (["--suite", "lm1b", "--split", "train"], "do not belong to --suite"),
        (["--data", "a", "--data", "b"], "--data is given 2 times: without --suite one text is evaluated"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(runs["duo"]), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_headings_are_columns_of_the_paper() -> None:
    for suite in suites.SUITES.values():
        if suite.table is not None:
            assert set(suite.sets) <= set(table(suite.table).columns)


@pytest.mark.slow
def test_real_sets_are_read_and_measured(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED}: the real test sets are not here")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    names = {"ptb": "ptb", "wikitext-103": "wikitext-2", "lm1b": "lm1b", "lambada": "lambada"}
    places = {name: SHARED / folder for name, folder in names.items()}
    pubmed = SHARED / "pubmed" / "pubmed_abstracts.jsonl.xz"
    command = ["eval", str(runs["duo"]), "--suite", "zero-shot", *options(places), "--limit", "8", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["missing"]) == {"ag-news", "pubmed", "arxiv"}
    for name in names:
        assert found["sets"][name]["num_tokens"] == 8 * 32
        assert 1 < found["sets"][name]["perplexity"] < 1e6
    assert main(["eval", str(runs["duo"]), "--data", f"pubmed={pubmed}", "--column", "abstract", "--limit", "8"]) == 0
    assert "over 256 tokens in 8 sequences" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "sign"), [("bound", "≤ "), ("exact", ""), ("pseudo-likelihood", "pseudo ")])
def test_a_number_says_which_kind_it_is(kind: Kind, sign: str) -> None:
    result = Likelihood(1.0, 0.1, 1.0, 0.0, 0.0, 10, 2, 1, kind, 4.0, 4.0, 0.0, 0)
    found = suites.SUITES["zero-shot"].lines([suites._Outcome("PTB", "ptb", result)], "ours")
    assert found[1][1].startswith(f"{sign}2.72")

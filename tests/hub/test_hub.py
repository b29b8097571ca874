"""The Hugging Face hub, both ways: the real client against a small hub on loopback, and what can go wrong there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import hub as hubs
from support.hub import Hub, serving
from support.pretrained import untrained_model

import duality
from duality.cli.main import main
from duality.hub.fetch import fetch_folder
from duality.models.model import Model, load

NOWHERE = "http://127.0.0.1:9"  # no service is there: a connection is refused at once


@pytest.fixture(scope="module")
def model() -> Model:
    return untrained_model("mdlm-laptop")


@pytest.fixture(scope="module")
def saved(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save_pretrained(tmp_path_factory.mktemp("hub") / "model")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process's client is pointed at; its cache is cold."""
    with serving() as made:
        hubs.use(monkeypatch, made.endpoint, tmp_path / "cache")
        monkeypatch.chdir(tmp_path)
        yield made


def test_a_model_goes_to_the_hub_and_comes_back(model: Model, hub: Hub) -> None:
    url = model.push_to_hub("me/first", license="mit")
    commit = hub.models["me/first"].branches["main"]
    assert url == f"{hub.endpoint}/me/first/commit/{commit}"
    assert b'license: "mit"' in hub.models["me/first"].files("main")["README.md"]
    assert b"duality sample hf:me/first" in hub.models["me/first"].files("main")["README.md"]
    for source in ("me/first", "hf:me/first", f"hf:me/first@{commit}"):
        found = duality.load(source)
        assert found.sample(1, steps=3) == model.sample(1, steps=3)
        assert found.origin is not None
        assert (found.origin.place, found.origin.commit) == ("hf:me/first", commit)
    assert Model.from_pretrained("me/first", revision="main").step == 7


def test_a_revision_is_a_branch_or_a_commit(model: Model, saved: Path, hub: Hub) -> None:
    old = hub.add("me/two", files_of(saved))
    model.push_to_hub("me/two", revision="dev")
    hub.add("me/two", {"config.json": b"{}"})
    assert load("me/two", revision="dev").step == 7
    assert load(f"hf:me/two@{old}").origin == load("me/two", revision=old).origin
    with pytest.raises(ValueError, match=r"config.json is of a model of the type None"):
        load("me/two")
    with pytest.raises(ValueError, match=r"me/two of the Hugging Face hub at v9 does not have this revision"):
        load("me/two", revision="v9")
    with pytest.raises(ValueError, match="give one of the two"):
        load("hf:me/two@dev", revision="main")


def test_a_folder_that_exists_comes_before_the_hub(model: Model, hub: Hub) -> None:
    model.save_pretrained(Path("me/here"))
    origin = load("me/here").origin
    assert origin is not None
    assert origin.commit is None
    with pytest.raises(ValueError, match=r"me/absent is not a run: there is no such folder in me"):
        load("me/absent")  # a mistyped path is not asked for on the hub
    assert hub.requests == []
    with pytest.raises(ValueError, match=r"me/here of the Hugging Face hub does not exist"):
        load("hf:me/here")


def test_only_what_is_needed_is_fetched_and_the_weights_last(saved: Path, hub: Hub) -> None:
    others = {"pytorch_model.bin": b"\x80", "run.py": b"1", "sub/model.safetensors": b"", "sub/a.json": b"{}"}
    hub.add("me/full", files_of(saved) | others)
    folder = fetch_folder("me/full")
    assert {path.name for path in folder.iterdir()} == files_of(saved).keys() - {"README.md"}
    keys = ("vocab_size", "model_length", "hidden_dim", "cond_dim", "n_blocks", "n_heads", "dropout", "causal")
    released = json.dumps(dict.fromkeys(keys, 1)).encode()
    hub.add("me/released", {"config.json": released, "model.safetensors": b"much"})
    hub.requests.clear()
    with pytest.raises(ValueError, match="import it with `duality import FOLDER --out RUN`"):
        load("hf:me/released")
    assert not [request for request in hub.requests if "model.safetensors" in request]
    hub.add("me/empty", {"README.md": b""})
    with pytest.raises(ValueError, match=r"has no config.json"):
        load("hf:me/empty")


def test_a_warm_cache_needs_no_network(saved: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("me/kept", files_of(saved))
    first = load("hf:me/kept")
    hub.requests.clear()
    hubs.use(monkeypatch, hub.endpoint, tmp_path / "cache", offline=True)
    assert load("hf:me/kept").origin == first.origin
    hubs.use(monkeypatch, NOWHERE, tmp_path / "cache")
    assert load("hf:me/kept").origin == first.origin
    assert hub.requests == []


def test_one_line_says_why_there_is_no_model(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*command: str) -> str:
        assert main(list(command)) == 2
        output = capsys.readouterr()
        assert output.out == ""
        (line,) = output.err.splitlines()
        return line

    assert "does not exist, or is private" in refused("sample", "hf:me/none")
    line = refused("eval", "nobody/none")
    assert line.startswith("duality: error: there is no folder nobody/none, and the model nobody/none of the Hugging")
    assert "names no model of the Hugging Face hub: write hf:OWNER/NAME" in refused("sample", "hf:none")
    hubs.use(monkeypatch, hub.endpoint, tmp_path / "cold", offline=True)
    assert "is not in the cache, and HF_HUB_OFFLINE is set" in refused("sample", "hf:me/none")
    hubs.use(monkeypatch, NOWHERE, tmp_path / "cold")
    assert "cannot be had ([Errno 111] Connection refused): look at the network" in refused("sample", "hf:me/none")
    assert "cannot be had" in refused("quality", "hf:me/none", "--judge", "none")


def test_a_private_model_is_for_those_with_a_token(
    model: Model, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.push_to_hub("me/secret", private=True)
    assert hub.models["me/secret"].private
    assert load("hf:me/secret").step == 7
    hubs.use(monkeypatch, hub.endpoint, tmp_path / "other", token=None)
    with pytest.raises(ValueError, match="does not exist, or is private: look at the name, and set HF_TOKEN"):
        load("hf:me/secret")


def test_nothing_is_uploaded_where_it_must_not_be(
    model: Model, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hub.add("me/public", {"README.md": b"mine"})
    with pytest.raises(ValueError, match="is public on the Hugging Face hub, and a private one was asked for"):
        model.push_to_hub("me/public", private=True)
    hubs.use(monkeypatch, hub.endpoint, tmp_path / "cache", token=None)
    with pytest.raises(ValueError, match="does not take this from you: set HF_TOKEN"):
        model.push_to_hub("me/public")
    hubs.use(monkeypatch, hub.endpoint, tmp_path / "cache", offline=True)
    with pytest.raises(ValueError, match="because HF_HUB_OFFLINE is set"):
        model.push_to_hub("me/public")
    hubs.use(monkeypatch, NOWHERE, tmp_path / "cache")
    with pytest.raises(ValueError, match=r"Connection refused"):
        model.push_to_hub("me/public")
    for wrong in ("public", "a/b/c", "me/public@main", "/me/public"):
        with pytest.raises(ValueError, match="names no model of the Hugging Face hub"):
            model.push_to_hub(wrong)
    assert hub.models["me/public"].branches == {"main": before}


@pytest.mark.slow
def test_the_variables_of_the_environment_are_honoured(saved: Path, tmp_path: Path) -> None:
    """In processes of their own, which read HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE as a user sets them."""
    with serving() as made:
        given = {"HF_ENDPOINT": made.endpoint, "HF_TOKEN": hubs.TOKEN, "HF_HOME": str(tmp_path / "home")}

        def run(*commands: list[str], **others: str) -> str:
            script = (
                f"import sys\nfrom duality.cli.main import main\nsys.exit(max(main(each) for each in {commands!r}))"
            )
            variables = {**os.environ, **given, **others}
            found = subprocess.run(
                [sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False
            )
            assert found.returncode == 0, found.stderr
            assert found.stderr == ""
            return found.stdout

        sample = ["sample", "hf:me/mine", "--num", "1", "--steps", "2", "--json"]
        url, written = run(["publish", str(saved), "me/mine", "--private"], sample).splitlines()
        assert url.startswith(f"{made.endpoint}/me/mine/commit/")
        assert run(sample, HF_HUB_OFFLINE="1").splitlines() == [written]
    assert json.loads(written)["trained_steps"] == 7
    assert (tmp_path / "home" / "hub" / "models--me--mine").is_dir()

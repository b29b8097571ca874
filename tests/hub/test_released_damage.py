"""Released files that are malicious, damaged or of another model: one line that says what; nothing is left."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.released import (
    HF_CONFIG,
    SEDD_CONFIG,
    averaged,
    changed,
    numbers_folder,
    prefixed,
    reference_tensors,
    write_checkpoint,
    write_folder,
)
from support.trainers import paper_config, write_trained
from torch import Tensor

from duality.cli.main import main
from duality.files.progress import silent
from duality.hub.exchange import ImportRequest, import_released
from duality.training.checkpoint import load, newest_intact, save

Refused = Callable[..., str]


@pytest.fixture
def tensors(golden: Path) -> dict[str, Tensor]:
    return reference_tensors(golden)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The line of a refused import; nothing but the source is there afterwards."""

    def run(source: Path, *flags: str) -> str:
        tokenizer = numbers_folder(tmp_path / "numbers")
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        code = main(
            ["import", str(source), "--out", str(tmp_path / "a" / "run"), "--tokenizer", str(tokenizer), *flags]
        )
        assert code == 2
        assert sorted(tmp_path.rglob("*")) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


class Exploit:
    """An object that runs a command when it is made again."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.place}",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_objects_that_could_run_code_are_refused_by_name(
    protocol: int, tensors: dict[str, Tensor], tmp_path: Path, refused: Refused
) -> None:
    ran, path = tmp_path / "ran", tmp_path / "model.ckpt"
    content = {"state_dict": prefixed(tensors), "callbacks": Exploit(ran), "other": io.BytesIO(b"x")}
    torch.save(content, path, pickle_protocol=protocol)
    line = refused(path)
    assert "posix.system" in line
    assert "_io.BytesIO" in line
    assert not ran.exists()


def test_the_configuration_and_the_tokenizer_in_a_checkpoint_are_read_as_data(
    tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning keeps omegaconf's configuration and transformers' tokenizer: neither library is needed or run."""

    path = write_trained(tmp_path / "model.ckpt", tensors, paper_config("mdlm"))
    for name in [each for each in sys.modules if each.split(".")[0] in ("omegaconf", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    run = import_released(
        path, tmp_path / "run", ImportRequest(tokenizer=str(numbers_folder(tmp_path / "numbers", 36)))
    )
    recipe = json.loads((run / "recipe.json").read_text())
    assert (recipe["method"]["type"], recipe["data"]["length"]) == ("MDLM", 12)
    assert not {"omegaconf", "transformers"} & sys.modules.keys()


def test_archives_that_are_cut_or_no_archives(tensors: dict[str, Tensor], tmp_path: Path, refused: Refused) -> None:
    whole = write_checkpoint(tmp_path / "whole.ckpt", tensors).read_bytes()
    path = tmp_path / "model.ckpt"
    for content in (whole[: len(whole) // 2], b"", b"no archive", whole[:-10], b"\x80\x02}q\x00."):
        path.write_bytes(content)
        assert "is no whole checkpoint of torch" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other/readme", "nothing")
    assert "0 records data.pkl" in refused(path)
    place = whole.index(tensors["output_layer.linear.weight"].numpy().tobytes())
    path.write_bytes(whole[: place + 10] + bytes([whole[place + 10] ^ 1]) + whole[place + 11 :])
    assert "does not match its checksum" in refused(path)


def test_tensors_that_repeat_few_bytes_do_not_fill_the_memory(tmp_path: Path, refused: Refused) -> None:
    huge = torch.zeros(1).expand(1 << 20, 1 << 16)
    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": {"backbone.vocab_embed.embedding": huge}}, path)
    assert "say that they have 274,877,906,944 bytes" in refused(path)


def rewritten(path: Path, change: Callable[[str, bytes], bytes], packed: int = zipfile.ZIP_STORED) -> Path:
    """The same archive with other records."""
    with zipfile.ZipFile(path) as archive:
        records = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return path


def test_records_that_are_no_numbers_of_this_machine(
    tensors: dict[str, Tensor], tmp_path: Path, refused: Refused
) -> None:
    path, whole = tmp_path / "model.ckpt", write_checkpoint(tmp_path / "model.ckpt", tensors).read_bytes()
    assert "an entry is compressed" in refused(rewritten(path, lambda _name, content: content, zipfile.ZIP_DEFLATED))
    path.write_bytes(whole)
    big = {"byteorder": b"big"}
    assert "not little-endian" in refused(rewritten(path, lambda name, old: big.get(name.rpartition("/")[2], old)))
    path.write_bytes(whole)
    shorter = rewritten(path, lambda name, old: old[:-4] if name.endswith("/data/3") else old)
    assert "its records have other sizes than its tensors" in refused(shorter)


def test_small_files_that_would_take_minutes(tensors: dict[str, Tensor], tmp_path: Path, refused: Refused) -> None:
    nested: list[object] = ["x"]
    for _ in range(30):
        nested = [nested, nested]
    path = write_checkpoint(tmp_path / "model.ckpt", tensors, hyper_parameters={"config": nested})
    assert f"the hyper_parameters of {path} have more than 100,000 values" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"x" * 100_000)
        for number in range(50):  # all of them are the bytes of the first
            entry = copy(archive.infolist()[0])
            entry.filename = f"a/data/{number}"
            archive.filelist.append(entry)
            archive.NameToInfo[entry.filename] = entry
    assert "entries overlap" in refused(path)


def test_numbers_that_are_not_finite_are_no_weights(
    tensors: dict[str, Tensor], tmp_path: Path, refused: Refused
) -> None:
    name = "blocks.0.attn_out.weight"
    for number, value in enumerate((float("nan"), float("inf"), 1e300)):
        odd = tensors[name].double().clone()
        odd[0, 0] = value
        source = write_folder(tmp_path / f"hf{number}", prefixed({**tensors, name: odd}))
        assert f"not finite in float32 ({name})" in refused(source)
    shadow = [value.clone() for value in averaged(tensors)]
    shadow[0][0] = float("nan")
    assert "not finite" in refused(write_checkpoint(tmp_path / "model.ckpt", tensors, ema={"shadow_params": shadow}))


def test_a_run_whose_weights_are_not_finite_is_not_measured(
    tensors: dict[str, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, tokens = write_folder(tmp_path / "hf", prefixed(tensors)), numbers_folder(tmp_path / "numbers")
    run = import_released(source, tmp_path / "run", ImportRequest(tokenizer=str(tokens)))
    place = newest_intact(run / "checkpoints", silent)
    assert place is not None
    saved = load(place)
    saved.groups["ema"]["backbone.head.bias"][0] = float("nan")
    save(run / "checkpoints", saved.step, saved.groups, saved.state)
    for command in (["eval", str(run), "--data", "x"], ["publish", str(run), "--folder", str(tmp_path / "new")]):
        assert main(command) == 2
        assert "weights are not finite (backbone.head.bias)" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_in_bfloat16_is_imported(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    half = {name: value.bfloat16() for name, value in tensors.items()}
    tokens = numbers_folder(tmp_path / "numbers")
    request = ImportRequest(tokenizer=str(tokens))
    assert import_released(write_folder(tmp_path / "hf", prefixed(half)), tmp_path / "run", request).is_dir()


def test_averages_that_do_not_fit(tensors: dict[str, Tensor], tmp_path: Path, refused: Refused) -> None:
    shadow, path = averaged(tensors), tmp_path / "model.ckpt"
    wrong = [*shadow[:7], torch.zeros(5), *shadow[8:]]
    cases: dict[str, Any] = {
        "has 29 tensors, and the network 30 weights": {"shadow_params": shadow[:-1]},
        "has 31 tensors": {"shadow_params": [*shadow, torch.zeros(3)]},
        "number 7 is (5,), blocks.0.attn_out.weight is (64, 64)": {"shadow_params": wrong},
        "no list shadow_params": {"decay": 0.9},
        "holds a str instead of a tensor": {"shadow_params": ["a"]},
    }
    for words, ema in cases.items():
        write_checkpoint(path, tensors, ema=ema)
        assert words in refused(path)


def test_safetensors_whose_header_lies(tensors: dict[str, Tensor], tmp_path: Path, refused: Refused) -> None:
    folder = write_folder(tmp_path / "hf", prefixed(tensors))
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + size])
    name = "backbone.output_layer.linear.bias"
    header[name]["shape"] = [3700]
    lying = json.dumps(header).encode()
    contents = [whole[:-1000], whole[:100], b"", struct.pack("<Q", 1 << 60) + whole[8:]]
    for content in (*contents, struct.pack("<Q", len(lying)) + lying + whole[8 + size :]):
        file.write_bytes(content)
        assert "is no valid safetensors file" in refused(folder)


def test_missing_extra_and_misshaped_tensors_are_all_named(
    tensors: dict[str, Tensor], tmp_path: Path, refused: Refused
) -> None:
    odd = {name: value for name, value in tensors.items() if name != "blocks.1.attn_out.weight"}
    odd |= {"blocks.0.norm2.weight": torch.ones(63), "label.weight": torch.ones(2)}
    for source in (write_folder(tmp_path / "hf", prefixed(odd)), write_checkpoint(tmp_path / "model.ckpt", odd)):
        line = refused(source)
        for name in (
            "missing: blocks.1.attn_out.weight",
            "label.weight",
            "blocks.0.norm2.weight (63,) instead of (64,)",
        ):
            assert name in line
    whole = {**tensors, "blocks.0.norm2.weight": torch.ones(64, dtype=torch.int64)}
    assert "blocks.0.norm2.weight (torch.int64)" in refused(write_folder(tmp_path / "ids", prefixed(whole)))
    assert "no tensor named vocab_embed.embedding" in refused(write_folder(tmp_path / "none", {"a": torch.ones(2)}))


SECTIONS = {
    "model": {**SEDD_CONFIG["model"], "hiden_size": 1},
    "graph": {"type": "absorp"},
    "noise": {"type": "cosine"},
}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            changed(HF_CONFIG, n_block=2, hidden_dims=3),
            ["'n_block' (did you mean n_blocks", "'hidden_dims' (did you mean"],
        ),
        (changed(HF_CONFIG, n_blocks="2", dropout=True), ["n_blocks is '2', and must be a whole", "dropout is True"]),
        (changed(HF_CONFIG, model_type="bert"), ["model_type is 'bert' (choose from ar, d3pm, duo"]),
        (changed(HF_CONFIG, cfg=True), ["a network with labels"]),
        (changed(HF_CONFIG, hidden_dim=128, n_heads=8), ["width 128 and 64; heads 8 and 4"]),
        (changed(HF_CONFIG, vocab_size=50258), ["num_states 50258 and 37"]),
        (changed(HF_CONFIG, model_type="udlm", time_conditioning=False), ["time_conditioning is false"]),
        (changed(HF_CONFIG, causal=True), ["causal 1 and False"]),
        (changed(HF_CONFIG, model_length=None), ["give --length"]),
        (changed(HF_CONFIG, model_type=None), ["give --method duo|udlm"]),
        ({**SEDD_CONFIG, **SECTIONS}, ["'hiden_size' (did you mean hidden_size", "'absorp'", "only loglinear"]),
        ({**SEDD_CONFIG, "noise": {"type": "geometric", "sigma_max": -1}}, ["noise.sigma_max is -1"]),
        ({**SEDD_CONFIG, "tokens": 50257}, ["num_states 50258 and 37"]),
        ([1, 2], ["holds no object"]),
    ],
)
def test_configurations_that_are_wrong(
    config: Any, words: list[str], tensors: dict[str, Tensor], tmp_path: Path, refused: Refused
) -> None:
    line = refused(write_folder(tmp_path / "hf", prefixed(tensors), config))
    assert all(each in line for each in words), line


def test_what_a_user_may_give_wrongly(tensors: dict[str, Tensor], tmp_path: Path, refused: Refused) -> None:
    folder = write_folder(tmp_path / "hf", prefixed(tensors))
    assert "its network is not causal" in refused(folder, "--method", "ar")
    assert "heads is 8, and the tensors" in refused(folder, "--heads", "8")
    assert "length is 0: it must be at least 1" in refused(folder, "--length", "0")
    assert "and less than 2**63" in refused(folder, "--length", str(10**20))
    assert "has 37 ids, and the model 36 tokens" in refused(folder, "--method", "mdlm")
    assert "others are made from a text" in refused(folder, "--tokenizer", "bpe")
    (folder / "config.json").unlink()
    assert "has no config.json" in refused(folder)
    (tmp_path / "notes.txt").touch()
    assert "is no released model" in refused(tmp_path / "notes.txt")


def test_nothing_is_overwritten(tensors: dict[str, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_folder(tmp_path / "hf", prefixed(tensors))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    assert main(["import", str(source), "--out", str(tmp_path / "run")]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes"]


def test_a_disk_that_is_full_leaves_nothing(
    tensors: dict[str, Tensor], tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails after the weights, before the recipe."""

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr("duality.models.folder._environment", full)
    assert "No space left" in refused(write_folder(tmp_path / "hf", prefixed(tensors)))

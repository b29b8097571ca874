"""Models of the paper's size: both layouts are imported in little time and little memory."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.released import HF_CONFIG, changed, numbers_folder, prefixed, write_folder

from duality.hub.released.weights import FREQUENCIES, Sizes, released_shapes, rotary_frequencies
from duality.training import checkpoint

SIZES = Sizes(50_258, 768, 12, 12)
CONFIG = changed(HF_CONFIG, vocab_size=50_258, model_length=1024, hidden_dim=768, n_blocks=12, n_heads=12)
IMPORTS = """
import json, resource, sys, time
from duality.cli.main import main
home, began = sys.argv[1], time.process_time()
for source, run in (("folder", "run-0"), ("model.ckpt", "run-1")):
    assert main(["import", f"{home}/{source}", "--out", f"{home}/{run}", "--tokenizer", f"{home}/numbers"]) == 0
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"seconds": time.process_time() - began, "peak": peak}))
"""


@pytest.mark.slow
def test_a_model_of_170_million_weights(tmp_path: Path) -> None:
    """Random numbers in the released layouts. Processor time is measured, as the machine may be busy."""
    if shutil.disk_usage(tmp_path).free < 6e9:
        pytest.skip("4 GB of files are written, and the disk has no room for them")
    shapes = released_shapes(SIZES)
    noise = torch.empty(SIZES.num_states * SIZES.width + len(shapes)).uniform_(-1, 1)
    # every tensor begins at another place, so that no two are equal
    tensors = {
        name: noise[number : number + math.prod(shape)].view(shape).clone()
        for number, (name, shape) in enumerate(shapes.items())
    }
    tensors[FREQUENCIES] = rotary_frequencies(64)
    numbers_folder(tmp_path / "numbers", SIZES.num_states)
    write_folder(tmp_path / "folder", prefixed(tensors), CONFIG)
    shadow = [value for name, value in tensors.items() if name != FREQUENCIES]
    hyper = {"config": {"algo": {"name": "duo"}, "model": {"length": 1024}}}
    torch.save(
        {"state_dict": prefixed(tensors), "ema": {"shadow_params": shadow}, "hyper_parameters": hyper},
        tmp_path / "model.ckpt",  # the average shares the bytes of the weights: the file is as small as it can be
    )
    output = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    measured = json.loads(output.splitlines()[-1])
    size = min((tmp_path / name).stat().st_size for name in ("folder/model.safetensors", "model.ckpt"))
    print(f"{measured['seconds']:.1f} s, {measured['peak'] / 1e9:.2f} GB for {size / 1e9:.2f} GB")
    assert size > 4 * 169_627_218
    assert measured["peak"] < 3 * size
    assert measured["seconds"] < 60
    for run in ("run-0", "run-1"):
        saved = checkpoint.shapes_of_group(tmp_path / run / "checkpoints" / "step-00000000", "ema")
        assert sum(math.prod(shape) for shape in saved.values()) == 169_627_218
    shutil.rmtree(tmp_path, ignore_errors=True)  # 4 GB

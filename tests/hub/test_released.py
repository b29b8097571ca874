"""Names and shapes of the released network: those of the released list, in its order, and every difference named."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.released import reference_tensors

from duality.hub.released import weights as released
from duality.hub.released.weights import Sizes

SMALL = Sizes(50_258, 768, 12, 12)
PUBLISHED = {
    "duo/mdlm/sedd/d3pm on gpt2": SMALL,
    "bert-base-uncased": Sizes(30_522, 768, 12, 12),
    "AR on gpt2": Sizes(50_258, 768, 12, 12, causal=True),
}


def published_shapes(golden: Path, title: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the list whose heading has this title."""
    text = (golden / "state_dict_small_170M.txt").read_text(encoding="utf-8")
    (part,) = [part for part in text.split("# small, ")[1:] if part.startswith(title)]
    rows = [line.split("\t") for line in part.splitlines()[1:] if line.strip() and not line.startswith("#")]
    return {name: tuple(ast.literal_eval(shape)) for name, shape, _ in rows}


@pytest.mark.parametrize("title", PUBLISHED)
def test_the_papers_network_name_by_name_and_shape_by_shape(golden: Path, title: str) -> None:
    expected, sizes = published_shapes(golden, title), PUBLISHED[title]
    found = released.released_shapes(sizes)
    assert list(found.items()) == list(expected.items())  # the order too
    assert released.sizes_of(expected, None, "the list") == sizes


def test_every_weight_of_ours_has_one_released_name() -> None:
    with torch.device("meta"):
        network = SMALL.backbone(0.1).build(SMALL.num_states)
    names = released.weight_names(12, causal=False)
    assert sorted(names.values()) == sorted(name for name, _ in network.named_parameters())
    assert [name for name in released.released_names(12, False) if name != released.FREQUENCIES] == list(names)


def test_frequencies_are_the_released_ones(golden: Path) -> None:
    tensors = reference_tensors(golden)
    assert torch.equal(released.rotary_frequencies(16), tensors[released.FREQUENCIES])


def test_all_differences_are_named(golden: Path) -> None:
    tensors = reference_tensors(golden)
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    del shapes["blocks.0.attn_qkv.weight"], shapes["output_layer.linear.bias"]
    shapes |= {"blocks.1.norm1.weight": (63,), "cond_map.embedding_table.weight": (3, 128)}
    sizes = released.sizes_of(shapes, None, "x")
    with pytest.raises(ValueError, match="does not hold") as caught:
        released.check_shapes(shapes, released.released_shapes(sizes), "x")
    text = str(caught.value)
    assert "missing: blocks.0.attn_qkv.weight, output_layer.linear.bias" in text
    assert "not of this network: cond_map.embedding_table.weight" in text
    assert "of another shape: blocks.1.norm1.weight (63,) instead of (64,)" in text


def test_the_prefix_is_found_and_a_teacher_is_left() -> None:
    tensors = {"teacher.vocab_embed.embedding": 1, "backbone._orig_mod.vocab_embed.embedding": 2, "other.bias": 3}
    prefix, own = released.without_prefix(tensors, "x")
    assert (prefix, own) == ("backbone._orig_mod.", {"vocab_embed.embedding": 2, "other.bias": 3})


def test_help_and_import_load_none_of_it() -> None:
    script = "import sys, duality, duality.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "safetensors", "huggingface_hub", "pickletools", "duality.hub.exchange"} & set(loaded)


def test_positions_of_another_base_are_refused(golden: Path) -> None:
    tensors = reference_tensors(golden)
    tensors[released.FREQUENCIES] = tensors[released.FREQUENCIES] ** 1.25  # of base 100 000
    with pytest.raises(ValueError, match="rotary positions with base 10000"):
        released.check_numbers(tensors, Sizes(37, 64, 2, 4), "x")

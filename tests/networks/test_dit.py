"""The network: equal to the released one, soft inputs, padding without effect, dropout that belongs to the sample."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from duality.denoisers.readouts import MeanDenoiser
from duality.hub.released.weights import weight_names
from duality.networks import SIZES
from duality.networks.dit import DiT, DiTNetwork
from duality.noise import Noise
from duality.protocols import Prefix, TopK


def reference(golden: Path, file: str = "dit_tiny.npz") -> tuple[DiTNetwork, dict[str, torch.Tensor]]:
    """Our network with the released weights, in float64, and the released inputs and outputs."""
    data = np.load(golden / file)
    meta = json.loads(str(data["__meta__"]))
    config = DiT(
        width=meta["config/hidden_size"],
        depth=meta["config/n_blocks"],
        heads=meta["config/n_heads"],
        time_width=meta["config/cond_dim"],
        dropout=meta["config/dropout"],
    )
    network = config.build(meta["config/vocab_size"], causal=meta["config/causal"])
    tensors = {name: torch.from_numpy(data[name]) for name in data.files if name != "__meta__"}
    names = weight_names(config.depth, network.causal)
    network.load_state_dict({ours: tensors[f"state_dict/{theirs}"] for theirs, ours in names.items()})
    return network.double(), tensors


@pytest.mark.parametrize("file", ["dit_tiny.npz", "dit_causal_tiny.npz"])
def test_logits_and_gradients_are_the_released_ones(golden: Path, file: str) -> None:
    network, tensors = reference(golden, file)
    level = tensors["sigma"].double() if "sigma" in tensors else torch.zeros(len(tensors["x"]))
    logits = network(tensors["x"], level)
    assert torch.allclose(logits, tensors["logits"].double(), atol=2e-5)
    (logits * tensors["loss_weight"]).sum().backward()
    ours, names = dict(network.named_parameters()), weight_names(network.config.depth, network.causal)
    checked = 0
    for name, gradient in tensors.items():
        if name.startswith("grads/"):
            mine = ours[names[name.removeprefix("grads/")]].grad
            assert mine is not None
            assert torch.allclose(mine, gradient.double(), rtol=1e-3, atol=1e-4)
            checked += 1
    assert checked == len(ours)


def test_soft_inputs_are_the_released_ones(golden: Path) -> None:
    network, tensors = reference(golden)
    batch, length, vocab_size = tensors["x_soft"].shape
    every = torch.arange(vocab_size).expand(batch, length, -1)
    dense = TopK(every, torch.softmax(tensors["x_soft"].double(), -1))
    assert torch.allclose(network(dense, tensors["sigma"].double()), tensors["logits_soft"].double(), atol=2e-5)
    sparse = TopK(tensors["topk_idx"], tensors["topk_w_f64"])
    assert torch.allclose(network(sparse, tensors["sigma"].double()), tensors["logits_topk"].double(), atol=2e-5)


def random_network(config: DiT, vocab_size: int = 11, **options: Any) -> DiTNetwork:
    """A network in which zero-initialised weights are random too."""
    torch.manual_seed(0)
    network = config.build(vocab_size, **options).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("size", ["nano", "mini"])
def test_a_causal_network_does_not_depend_on_later_tokens(size: str) -> None:
    network = random_network(SIZES[size](), causal=True)
    x = torch.randint(0, 11, (2, 9))
    level = torch.zeros(2, dtype=torch.float64)
    before = network(x, level)
    changed = x.clone()
    changed[:, 5] = (x[:, 5] + 1) % 11
    after = network(changed, level)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("size", ["nano", "mini"])
def test_the_cache_gives_the_same_as_the_whole_prefix(size: str) -> None:
    """With the convolution of the laptop sizes and without."""
    network = random_network(SIZES[size](), causal=True)
    x, level = torch.randint(0, 11, (3, 8)), torch.zeros(3, dtype=torch.float64)
    whole, cache = network(x, level), network.empty_cache(3, 8)
    for place in range(8):
        one = network(Prefix(x[:, place : place + 1], place + 1, cache), level)
        assert torch.allclose(one[:, 0], whole[:, place], atol=1e-12)


def test_the_sizes_are_named_in_order() -> None:
    with torch.device("meta"):
        counts = [sum(value.numel() for value in make().build(100).parameters()) for make in SIZES.values()]
    assert counts == sorted(counts)
    assert len(set(counts)) == len(counts)


def test_labels_change_the_logits_and_no_label_is_the_last_label() -> None:
    network = random_network(SIZES["nano"](), num_labels=3)
    x, level = torch.randint(0, 11, (4, 6)), torch.full((4,), 0.3, dtype=torch.float64)
    logits = [network(x, level, labels=torch.full((4,), label)) for label in range(4)]
    assert torch.equal(network(x, level), logits[3])
    assert not torch.allclose(logits[0], logits[1])
    with pytest.raises(ValueError, match=r"data\.labels=true"):
        random_network(SIZES["nano"]())(x, level, labels=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="no conditioning"):
        SIZES["nano"]().build(11, causal=True, num_labels=2)


def test_a_vertex_is_a_token() -> None:
    network = random_network(SIZES["nano"]())
    x, level = torch.randint(0, 11, (2, 7)), torch.tensor([0.3, 2.0])
    vertex = TopK(torch.stack([x, (x + 1) % 11], -1), torch.tensor([1.0, 0.0]).expand(2, 7, 2))
    assert torch.allclose(network(x, level), network(vertex, level), atol=1e-12)


def test_relu2_is_the_square_of_the_positive_part() -> None:
    torch.manual_seed(0)
    config = DiT(width=8, depth=1, heads=2, time_width=4, activation="relu2")
    block = config.build(5).double().blocks[0]
    x = torch.randn(3, 8, dtype=torch.float64)
    names = ("mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")
    first, first_bias, last, last_bias = (block.get_parameter(name) for name in names)
    inside = (x @ first.T + first_bias).clamp_min(0) ** 2
    torch.testing.assert_close(block.get_submodule("mlp")(x), inside @ last.T + last_bias)


def test_attention_ignores_padding() -> None:
    """The tokens at padding, and their number, change nothing at other positions."""
    network = random_network(SIZES["nano"]())
    x, level = torch.randint(0, 11, (1, 6)), torch.tensor([0.5])
    alone = network(x, level)
    longer = torch.cat([x, torch.randint(0, 11, (1, 5))], 1)
    valid = torch.arange(11)[None] < 6
    assert torch.allclose(network(longer, level, valid)[:, :6], alone, atol=1e-12)
    assert not torch.allclose(network(longer, level)[:, :6], alone, atol=1e-3)


def test_dropout_belongs_to_the_sample_and_needs_noise() -> None:
    network = random_network(replace(SIZES["nano"](), dropout=0.3))
    x, level = torch.randint(0, 11, (4, 7)), torch.rand(4)
    noise = Noise.of(0, 0, torch.arange(4))
    dropped = network(x, level, None, noise)
    assert not torch.allclose(dropped, network(x, level))
    assert torch.allclose(network(x, level), network(x, level))
    parts = [network(x[i : i + 2], level[i : i + 2], None, noise.select(torch.arange(i, i + 2))) for i in (0, 2)]
    assert torch.allclose(dropped, torch.cat(parts), atol=1e-12)


def test_untrained_belief_is_uniform_and_float32_in_bfloat16() -> None:
    denoiser = MeanDenoiser(SIZES["nano"]().build(13))
    x, alpha = torch.randint(0, 13, (2, 5)), torch.tensor([0.2, 0.9], dtype=torch.float64)
    log_p = denoiser.log_probs(x, alpha)
    assert torch.allclose(log_p.exp(), torch.full_like(log_p, 1 / 13), atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert denoiser.log_probs(x, alpha).dtype == torch.float32


def test_small_is_the_papers_size() -> None:
    """169 627 218 parameters at V = 50 258, as the released state dict lists."""
    with torch.device("meta"):
        network = SIZES["small"]().build(50_258)
    assert sum(parameter.numel() for parameter in network.parameters()) == 169_627_218


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "whole even"),
        ({"dropout": 1.0}, "dropout"),
        ({"depth": 0}, "at least 1"),
        ({"activation": "tanh"}, "choose from"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SIZES["nano"](), **changes)

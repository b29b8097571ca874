"""What a training needs on many devices, before it is started: memory, batches, bytes over the network, days.

Memory of a device, in bytes:

    state         4 for each weight, 4 for its average; if it is trained, 8 for its two moments and 4 for its gradient;
                  4 more for a teacher (ddp: of all weights; fsdp: of 1 / shard of them)
    put together  fsdp only: weights and gradients of everything outside the blocks, and of the blocks in use
    activations   what the network keeps for its backward pass, counted on the network itself: it is run once without
                  numbers (``FakeTensorMode``), and every tensor that autograd keeps is weighed
    loss          a chunk of logits and its slopes, and the gradient of the head, which the fused loss makes at once
    validation    instead of the last three and of the gradients: the averaged weights, put together on every device

Bytes that a device sends in a step, with N devices, S of which share the weights, and P weights of 4 bytes:

    ddp           2 (N - 1) / N of the gradients (a ring)
    fsdp          (S - 1) / S of: the weights (forward), those of the blocks again (backward), the gradients (twice on
                  CPUs, where gloo adds them up on every rank); and 2 (R - 1) / R of its part of the gradients, for
                  R = N / S groups. Weights are put together for every micro-batch, a teacher's too

The time of a step is that of its kernels, counted on the real code (``cost``) and simulated for a GPU (``roofline``),
or what was measured. Gradients over the network are not in it.

The share of the peak that is reached (MFU) compares it with the operations that a step needs, whatever it computes: for
each token 6 of each weight, those of the embedding excepted, which is only looked up, and 12 length x width for the
attention of each block. A teacher adds a third. A recomputed block is computed a third more. A weight that is not
trained, frozen or below an adapter, has 4 and no gradient.

What must hold: the memory of all tensors is within 15 % of what is measured (``benchmarks/memory.py``). A process has
more: its libraries, and what its allocator keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from duality.denoisers.wrapping import unwrap
from duality.files.progress import Reporter
from duality.fused.lazy import chunk_rows
from duality.models.roofline import GPU, find_gpu
from duality.models.size import ASSUMED, expected_vocabulary, known_vocab_size
from duality.noise import Noise
from duality.protocols import Network, VectorDenoiser
from duality.ranks import divisors
from duality.recipes.recipe import Recipe
from duality.registry import one_line
from duality.tokenizers.specs import HubTokenizer
from duality.training.adapters import choose_trained
from duality.training.parallel import blocks_of, check_groups

_FLOAT = 4
_USABLE = 0.92  # of a device's memory: the rest is the context of the device and what lies between blocks

Strategy = Literal["single", "ddp", "fsdp"]


@dataclass(frozen=True)
class Sizes:
    """What of a network counts: numbers of weights, and bytes of activations for a row of a batch.

    Adapters are weights of their block. ``head`` is 0 if it is frozen. ``row`` and ``fixed`` are the bytes that each
    row of a batch, and a batch of any size, keep for the backward pass.
    """

    parameters: int
    in_blocks: int
    largest_block: int
    head: int
    embedding: int
    width: int
    depth: int
    num_states: int
    row: float
    fixed: float
    trained: int
    trained_in_blocks: int

    @staticmethod
    def of(recipe: Recipe, device: torch.device) -> Sizes:
        """The sizes of a recipe's network on a device of this kind; no memory is taken."""
        try:
            (network, model, one), (_, _, two) = (_kept_bytes(recipe, rows, device) for rows in (1, 2))
        except RuntimeError as error:
            why = f"cannot be outlined ({one_line(error)}): take a smaller data.length or backbone"
            raise ValueError(f"{recipe.name} with sequences of {recipe.data.length:,} tokens {why}") from error
        blocks = [list(block.parameters()) for block in blocks_of(model)]
        per_block = [_count(block) for block in blocks]
        embedding = dict(model.named_parameters()).get("backbone.embedding")
        return Sizes(
            parameters=_count(model.parameters()),
            trained=_count(model.parameters(), trained=True),
            in_blocks=sum(per_block),
            trained_in_blocks=sum(_count(block, trained=True) for block in blocks),
            largest_block=max(per_block, default=0),
            head=_count(network.head.parameters(), trained=True),
            embedding=0 if embedding is None else embedding.numel(),
            width=network.head.in_features,
            depth=len(per_block),
            num_states=network.head.out_features,
            row=two - one,
            fixed=2 * one - two,
        )

    def try_strategies(self, recipe: Recipe, devices: int, memory: float, device: torch.device) -> Iterator[Fit]:
        """For every strategy the largest micro-batch that fits, and what a device then needs; one row if none does."""
        known = sorted({recipe.parallel.shard, 8})  # the recipe's groups, and those of a machine
        groups = [devices, *(size for size in known if 1 < size < devices and devices % size == 0)]
        strategies: list[tuple[Strategy, int]] = [("ddp", 1), *(("fsdp", size) for size in groups)]
        if devices == 1:
            strategies = [("single", 1)]
        for strategy, shard in strategies:
            shares = reversed(divisors(recipe.training.batch_size // devices))
            tried = [_estimate(recipe, self, strategy, devices, shard, rows, device) for rows in shares]
            yield next((fit for fit in tried if fit.is_within(memory)), tried[-1])

    def find_smallest(self, recipe: Recipe, memory: float, device: torch.device, most: int = 4096) -> Fit | None:
        """The smallest number of devices on which a training fits; None if none up to ``most`` does."""
        counts = (each for each in divisors(recipe.training.batch_size) if each <= most)
        found = (fit for devices in counts for fit in self.try_strategies(recipe, devices, memory, device))
        return next((fit for fit in found if fit.is_within(memory)), None)

    def count_operations(self, recipe: Recipe) -> float:
        """The operations of training on a token."""
        forward = 2 * (self.parameters - self.embedding) + 4 * recipe.data.length * self.width * self.depth
        gradients = self.trained / self.parameters  # a pass of their own, as long as the forward one if all are trained
        recompute = 1 if recipe.training.recompute else 0
        return forward * (2 + gradients + (1 if recipe.distillation is not None else 0) + recompute)


@dataclass(frozen=True)
class Fit:
    """A training on so many devices: how the batch is divided, and the bytes that a device needs, and sends in a step.

    ``validation`` are those that it needs while the model is validated, between two steps.
    """

    strategy: Strategy
    devices: int
    shard: int
    micro_batch: int
    accumulations: int
    state: float
    gathered: float
    activations: float
    loss: float
    validation: float
    sent: float

    @property
    def memory(self) -> float:
        """The bytes that a device needs."""
        return max(self.state + self.gathered + self.activations + self.loss, self.validation)

    def is_within(self, memory: float) -> bool:
        """Whether the training fits into the memory of a device."""
        return self.memory <= _USABLE * memory


@dataclass(frozen=True)
class Speed:
    """How fast a job is: ``operations`` of a token, tokens in a second, seconds of a step, days of the training.

    ``mfu`` is the share of the peak, None if that is not known; ``phases`` are seconds of a step in each phase.
    """

    operations: float
    tokens_per_second: float
    step_seconds: float
    days: float
    mfu: float | None
    phases: dict[str, float]


def find_speed(recipe: Recipe, sizes: Sizes, fit: Fit, gpu: GPU | None, measured: float | None = None) -> Speed | None:
    """The speed of a job: ``measured``, in seconds of a step, or else counted; None if neither is possible."""
    from duality.models.cost import count_training

    training, phases = recipe.training, dict[str, float]()
    if measured is not None:
        seconds = measured
    elif gpu is None:
        return None
    else:
        counted = count_training(recipe, fit.micro_batch, fit.accumulations)
        phases = {phase.name: phase.seconds(gpu, fit.accumulations) for phase in counted}
        total = sum(phase.steps for phase in counted)
        seconds = sum(phase.steps / total * phases[phase.name] for phase in counted)
    operations, tokens = sizes.count_operations(recipe), training.batch_size * recipe.data.length / seconds
    mfu = None if gpu is None else operations * tokens / (fit.devices * gpu.bfloat16)
    return Speed(operations, tokens, seconds, training.steps * seconds / 86_400, mfu, phases)


def check_plan(recipe: Recipe, devices: int, report: Reporter) -> None:
    """Refuse devices over which a training cannot be divided, and say what of its vocabulary is assumed.

    A tokenizer of the hub is fetched, so that the number of its tokens is known.
    """
    batch, tokenizer = recipe.training.batch_size, recipe.data.tokenizer
    if devices < 1 or batch % devices:
        fitting = ", ".join(map(str, divisors(batch)))
        raise ValueError(f"--devices {devices}: a batch of {batch} can be divided over {fitting} devices")
    check_groups(recipe.parallel.shard, devices)
    if isinstance(tokenizer, HubTokenizer):
        tokenizer.train((), progress=report)
    if known_vocab_size(tokenizer) is None:
        report(f"how many tokens there are depends on the text: {ASSUMED} are assumed")


def _count(weights: Iterable[nn.Parameter], trained: bool = False) -> int:
    """How many numbers the weights have, or those of them that are trained."""
    return sum(value.numel() for value in weights if value.requires_grad or not trained)


def _kept_bytes(recipe: Recipe, rows: int, device: torch.device) -> tuple[Network, nn.Module, float]:
    """The network, its model, and the bytes that autograd keeps when it reads ``rows`` rows."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    on_gpu = device.type == "cuda" and recipe.training.precision == "auto"  # which need not be in this machine
    dtype = torch.bfloat16 if on_gpu else recipe.training.dtype_on(device)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.random.fork_rng(devices=[]):
        model = recipe.method.network(recipe.backbone, expected_vocabulary(recipe))
        choose_trained(model, recipe.training)
        network = next(part for part in model.modules() if isinstance(part, Network))
        network.prepare(recompute=recipe.training.recompute, compile=False)
        held: list[Tensor] = []  # all of them, as a storage that is freed may give its number to another one

        def keep(tensor: Tensor) -> Tensor:
            held.append(tensor)
            return tensor

        inputs = torch.zeros(rows, recipe.data.length, dtype=torch.int64)
        if isinstance(unwrap(model), VectorDenoiser):
            width = next(part for part in network.children() if isinstance(part, nn.Linear)).in_features
            inputs = torch.zeros(rows, recipe.data.length, width)
        noise = Noise(torch.zeros(rows, dtype=torch.int64))
        lower = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), lower:
            keep(network.hidden(inputs, torch.ones(rows), None, noise))
        own = {each.untyped_storage()._cdata for each in model.parameters()}
        kept = {each._cdata: each.nbytes() for each in (tensor.untyped_storage() for tensor in held)}
        return network, model, float(sum(size for number, size in kept.items() if number not in own))


def _estimate(
    recipe: Recipe, sizes: Sizes, strategy: Strategy, devices: int, shard: int, rows: int, device: torch.device
) -> Fit:
    """What a device needs when it computes ``rows`` rows at a time, and the bytes that it sends in a step."""
    weights, trained, blocks = (_FLOAT * count for count in (sizes.parameters, sizes.trained, sizes.in_blocks))
    networks = 1 if recipe.distillation is None else 2  # with the teacher's
    accumulations = -(-recipe.training.batch_size // (devices * rows))
    kept, positions = rows * sizes.row + sizes.fixed, rows * recipe.data.length
    logits = min(chunk_rows(sizes.num_states, device, learning=True), positions) * sizes.num_states
    # the gradient of the head is new memory unless it becomes the gradient of the weights, in the only micro-batch
    alone = strategy == "single" and accumulations == 1
    loss = 2 * logits * _FLOAT + (0 if alone else sizes.head * _FLOAT) + 2 * positions * sizes.width * _FLOAT
    # the first pass keeps activations while gradients of the blocks do not exist yet, but for buckets of ddp
    divisor = shard if strategy == "fsdp" else 1
    held = weights * (1 + networks)  # weight, average; the teacher's weight
    # and two moments and the gradient of what is trained; a validation needs no gradient
    state, validation = (held + 3 * trained) / divisor, (held + 2 * trained) / divisor + weights
    if alone:
        state -= min(sizes.trained_in_blocks * _FLOAT, kept)
    gathered = sent = 0.0
    if strategy == "ddp":
        sent = 2 * (devices - 1) / devices * trained
    elif strategy == "fsdp":
        # outside the blocks weights and gradients; of the blocks the one in use and the next, and gradients
        gathered = (networks + 1) * (weights - blocks) + _FLOAT * (2 * networks + 2) * sizes.largest_block
        # the blocks twice: they are given back after the forward pass; the teacher's have no other one
        read = accumulations * (weights * networks + blocks)
        added, groups = (2 if device.type == "cpu" else 1) * trained, devices // shard
        sent = (shard - 1) / shard * (read + added) + 2 * (groups - 1) / groups * trained / shard
    return Fit(strategy, devices, shard, rows, accumulations, state, gathered, kept, loss, validation, sent)


def operations_per_second(recipe: Recipe, device: torch.device) -> tuple[float, float] | None:
    """Operations of a token, and the peak of the device; None if the peak is not known for its precision."""
    if device.type != "cuda" or recipe.training.dtype_on(device) != torch.bfloat16:
        return None
    gpu = find_gpu(torch.cuda.get_device_name(device))
    return None if gpu is None else (Sizes.of(recipe, device).count_operations(recipe), gpu.bfloat16)

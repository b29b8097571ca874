"""What runs on the pretend GPU: each case returns the waits of one step, or None where they are not counted.

A step of training is the third one, so that what is made once is made. Waits of a sampling step are those of twice as
many steps without those of half of them, for each step: what is asked once for a batch of samples is left out.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import ROOT, small_recipe

import duality
from duality.data.documents import Document
from duality.data.encode import write_store
from duality.data.loader import Batch
from duality.data.packing import Sequences
from duality.denoisers.clamp import Clamped, ClampedScore
from duality.denoisers.conditioning import Guided, with_labels
from duality.denoisers.filters import Temperature, TopP
from duality.methods import METHODS
from duality.methods.ar import AR
from duality.methods.d3pm import D3PM
from duality.methods.diffusion_bert import DiffusionBERT
from duality.methods.duo import Duo
from duality.methods.mdlm import MDLM
from duality.methods.plaid import Plaid
from duality.methods.sedd import SEDD
from duality.models.likelihood import likelihood
from duality.models.sampling import with_memo
from duality.networks.dit import DiT
from duality.protocols import AnyDenoiser, Distillation, Method, Vocabulary
from duality.samplers import SAMPLERS
from duality.samplers.choice import grid_named, sampler_named
from duality.samplers.generate import generate
from duality.tokenizers.tokenizer import ByteTokenizer
from duality.training import Precision
from duality.training.distillation import DCD, SDTT
from duality.training.loop import StepRecord, TrainState, take_step
from duality.training.precision import computing
from duality.training.settings import Training

Waits = Counter[str]
Case = Callable[[Path, Any], Waits | None]  # of a folder to write to, and ``gpu.device``

TOKENS, LENGTH, BATCH, LABELS = 300, 8, 4, 3
NETWORK = DiT(width=16, depth=2, heads=2, time_width=8, dropout=0.1, conv=3)


@dataclass(frozen=True)
class _Batches:
    """The same few random rows in every step."""

    padding: str = "none"
    labels: bool = False

    def batch(self, step: int) -> Batch:
        ids = torch.randint(0, TOKENS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(step))
        end = torch.arange(LENGTH) < torch.tensor([[8], [5], [6], [3]])
        valid = end if self.padding == "ignored" else None
        padding = ~end if self.padding in ("modelled", "light") else None
        paid = end | (torch.arange(LENGTH) % 3 == 0) if self.padding == "light" else None
        return Batch(ids, valid, torch.arange(BATCH) % LABELS if self.labels else None, padding, paid).pin()


FULL = _Batches()


def _training(
    method: Method,
    phase: int = 0,
    distillation: Distillation | None = None,
    batches: _Batches = FULL,
    **how: Any,
) -> Case:
    """The third step of a phase."""

    def run(_folder: Path, gpu: Any) -> Waits:
        training = Training(steps=100, batch_size=BATCH, warmup=0, **how)
        vocabulary = Vocabulary(TOKENS, LABELS if batches.labels else 0)
        model, teacher = (method.network(NETWORK, vocabulary).to("cuda") for _ in range(2))
        state = TrainState.fresh(model, training, None if distillation is None else teacher)
        phases = method.phases(TOKENS, 100) if distillation is None else distillation.phases(method, TOKENS, teacher)
        state.step = phases[phase - 1].until if phase else 0
        for _ in range(2):
            take_step(state, batches, phases, training)  # type: ignore[arg-type]  # which only has ``batch``
        waits: Waits
        with gpu.record_waits() as waits:
            take_step(state, batches, phases, training)  # type: ignore[arg-type]
        return waits

    return run


TRAINING: dict[str, Case] = {name: _training(METHODS[name]()) for name in METHODS} | {
    "Duo, bound": _training(Duo(), 1),
    "Duo, tau 0.1": _training(Duo(tau=0.1)),
    "SEDD, uniform": _training(SEDD("uniform")),
    "D3PM, uniform": _training(D3PM("uniform")),
    "Plaid, self-conditioned": _training(Plaid(self_conditioning=True)),
    "DCD": _training(Duo(), distillation=DCD(round_steps=100)),
    "DCD, posterior": _training(Duo(), distillation=DCD(round_steps=100, compare="posterior")),
    "SDTT": _training(MDLM(), distillation=SDTT(round_steps=100)),
    "SDTT, DiffusionBERT": _training(DiffusionBERT(), distillation=SDTT(round_steps=100)),
    "Muon": _training(Duo(), 1, optimizer="muon"),
    "float32": _training(Duo(), 1, optimizer="muon", precision="float32"),
    "TensorFloat-32": _training(Duo(), 1, precision="tf32"),
    "recompute": _training(Duo(), 1, recompute=True),
    "no clipping": _training(Duo(), 1, clip=0.0),
    "adapters": _training(Duo(), 1, lora=2),
    "labels": _training(MDLM(), batches=_Batches(labels=True)),
    **{
        f"{type(method).__name__}, {padding} padding": _training(method, phase, batches=_Batches(padding))
        for method, phase in ((Duo(), 1), (MDLM(), 0), (AR(), 0))
        for padding in ("ignored", "modelled", "light")
    },
}


def _sampling(
    method: Method,
    wrap: Callable[[AnyDenoiser], AnyDenoiser] = lambda denoiser: denoiser,
    *,
    sampler: str | None = None,
    labels: int = 0,
    precision: Precision = "float32",
    **how: Any,
) -> Case:
    """One step, on average, of the further steps that a longer grid has."""

    def run(_folder: Path, gpu: Any) -> Waits:
        torch.manual_seed(0)
        model = method.network(NETWORK, Vocabulary(TOKENS, labels)).to("cuda").requires_grad_(False)
        for weight in model.parameters():
            weight.data += 0.1 * torch.randn(weight.shape).to("cuda")
        process = method.process(TOKENS)
        own = method.sampler(TOKENS) if sampler is None or process is None else sampler_named(sampler, process)
        grid = grid_named(None, sampler or "ancestral")
        options = {"num": BATCH, "grid": grid, "batch_size": BATCH, "device": "cuda", **how}

        def write(factor: int) -> Waits:
            steps = own.steps(LENGTH) * factor if isinstance(method, AR) or own.steps(LENGTH, 1) > 1 else 4 * factor
            length = steps if isinstance(method, AR) else LENGTH
            with gpu.record_waits() as waits, computing(precision, torch.device("cuda")):
                denoiser = with_memo(wrap(model))
                generate(denoiser, method.sampling_schedule(), own, length=length, steps=steps, **options)
            return Counter({**waits, "steps": steps})

        few, many = write(1), write(2)
        steps = many.pop("steps") - few.pop("steps")
        return Counter(
            {place: -(-(count - few[place]) // steps) for place, count in many.items() if count > few[place]}
        )

    return run


def _known() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and which of them are known: a prompt and one further on."""
    return torch.arange(LENGTH).to("cuda"), (torch.arange(LENGTH) % 11 < 3).to("cuda")


def _clamped(denoiser: AnyDenoiser) -> AnyDenoiser:
    return Clamped(denoiser, *_known())


def _clamped_score(noise: str) -> Callable[[AnyDenoiser], AnyDenoiser]:
    process = SEDD(noise).process(TOKENS)
    return lambda denoiser: ClampedScore(denoiser, process, *_known())


def _prompted(denoiser: AnyDenoiser) -> AnyDenoiser:
    """A prompt for an autoregressive model, which is as long as the longer of its two texts."""
    known = torch.arange(2 * LENGTH) < 3
    return Clamped(denoiser, torch.arange(2 * LENGTH).to("cuda"), known.to("cuda"))


def _of_label(denoiser: AnyDenoiser) -> AnyDenoiser:
    return with_labels(denoiser, torch.ones(1, dtype=torch.int64).to("cuda"))


_WRAPPED: dict[str, Callable[[AnyDenoiser], AnyDenoiser]] = {
    "infill": _clamped,
    "top-p": lambda denoiser: TopP(denoiser, 0.9),
    "temperature, top-p, infill": lambda denoiser: _clamped(TopP(Temperature(denoiser, 0.8), 0.9)),
}
SAMPLING: dict[str, Case] = {name: _sampling(METHODS[name]()) for name in METHODS} | {
    **{
        f"{type(method).__name__}, {name}": _sampling(method, sampler=name)
        for method in (Duo(), MDLM())
        for name in SAMPLERS
        if name != "analytic"
    },
    **{
        f"{type(method).__name__}, {tail}": _sampling(method, tail=tail)
        for method in (Duo(), MDLM(), AR(), SEDD(), Plaid(), DiffusionBERT())
        for tail in ("greedy", "posterior")
    },
    **{
        f"{type(method).__name__}, {name}": _sampling(method, wrap)
        for method in (Duo(), MDLM(), DiffusionBERT())
        for name, wrap in _WRAPPED.items()
    },
    **{f"{name}, bfloat16": _sampling(METHODS[name](), precision="bfloat16") for name in METHODS},
    "SEDD, uniform": _sampling(SEDD("uniform")),
    "SEDD, infill": _sampling(SEDD(), _clamped_score("absorbing")),
    "SEDD, uniform, infill": _sampling(SEDD("uniform"), _clamped_score("uniform")),
    "AR, prompt and top-p": _sampling(AR(), lambda denoiser: _prompted(TopP(denoiser, 0.9))),
    "Duo, guided": _sampling(Duo(), lambda denoiser: Guided(denoiser, 1, 2.0), labels=LABELS),
    "MDLM, guided": _sampling(MDLM(), lambda denoiser: Guided(denoiser, 1, 2.0), labels=LABELS),
    "MDLM, labels": _sampling(MDLM(), _of_label, labels=LABELS),
}


def _likelihood(method: Method, **how: Any) -> Case:
    """The measure of a method, end terms included."""

    def run(folder: Path, _gpu: Any) -> None:
        store = write_store(folder / "store", [Document("text", ("a small text. " * 8,))], ByteTokenizer())
        model = method.network(NETWORK, Vocabulary(257)).to("cuda").requires_grad_(False)
        sequences = Sequences(store, LENGTH)
        found = likelihood(model, method.measure(257), sequences, batch_size=3, device="cuda", **how)
        assert math.isfinite(found.nats_per_token)

    return run


LIKELIHOOD: dict[str, Case] = {name: _likelihood(METHODS[name](), num_draws=2) for name in METHODS} | {
    "Duo, Gaussian latents": _likelihood(Duo(), latents="gaussian"),
    "SEDD, uniform": _likelihood(SEDD("uniform")),
    "D3PM, uniform": _likelihood(D3PM("uniform")),
}


class _Killed(Exception):
    """What ends a run in its middle."""


def _kill(record: StepRecord) -> None:
    if record.step == 2:
        raise _Killed


def _run(name: str, *changes: str, distill: bool = False) -> Case:
    """A whole run: train, save, resume, validate; read the model and sample; distill it."""

    def run(folder: Path, _gpu: Any) -> None:
        out, how = folder / "run", {"device": "cuda", "progress": False}
        few = ("training.steps=3", "training.save_every=1", "data.length=16", *changes)
        small = small_recipe(ROOT / "LICENSE", *few, name=name)
        with contextlib.suppress(_Killed):
            duality.train(small, out=out, watch=_kill, **how)  # type: ignore[arg-type]
        duality.train(small, out=out, resume=True, **how)  # type: ignore[arg-type]
        model = duality.load(out, device="cuda")
        assert len(model.sample(2, prompt="The", progress=False)) == 2
        if distill:
            short = {"rounds": 2, "round_steps": 1, "delta": 0.25}
            duality.distill(out, out=folder / "short", **short, **how)  # type: ignore[arg-type]

    return run


RUNS: dict[str, Case] = {
    "duo-laptop": _run("duo-laptop", "generation.steps=2", distill=True),
    "mdlm-laptop": _run("mdlm-laptop", "generation.steps=2", distill=True),
    "ar-laptop": _run("ar-laptop"),
}


def _mixing(_folder: Path, _gpu: Any) -> None:
    on_gpu = torch.ones(3).to("cuda")
    for mix in (
        lambda: on_gpu + torch.ones(3),
        lambda: torch.cat([on_gpu, torch.ones(1)]),
        lambda: torch.ones(3)[on_gpu > 0],
    ):
        with pytest.raises(RuntimeError, match="mixed"):
            mix()  # type: ignore[no-untyped-call]
    assert (on_gpu + torch.tensor(1.0)).device.type == "cuda"


_QUESTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "bool": lambda x: bool(x.any()),
    "float": lambda x: float(x[0]),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "index of booleans": lambda x: x[x > 0],
    "index with a list": lambda x: x[[0, 1]],
    "to the CPU": lambda x: x.cpu(),
    "from the CPU": lambda x: torch.tensor([1.0], device=x.device),
    "slice by a number of the device": lambda x: x[: x.long()[0]],
}


def _asking(_folder: Path, gpu: Any) -> None:
    on_gpu = torch.ones(3).to("cuda")
    for name, ask in _QUESTIONS.items():
        with gpu.record_waits() as waits:
            ask(on_gpu)
        assert sum(waits.values()) == 1, (name, waits)
    with gpu.record_waits() as waits:
        torch.arange(3, device="cuda").sort()
        torch.nonzero_static(on_gpu, size=3)
        torch.where(on_gpu > 0, on_gpu, 0.0).sum().square_()
        torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    assert not waits


def _same_numbers(_folder: Path, _gpu: Any) -> None:
    """Loss, gradients and samples are those of the CPU."""
    from duality.noise import Noise

    torch.manual_seed(0)
    method = Duo()
    model = method.network(NETWORK, Vocabulary(TOKENS))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    results = []
    for device in ("cpu", "cuda"):
        own = copy.deepcopy(model).to(device)
        noise = Noise.of(0, 1, torch.arange(BATCH, device=device))
        x, t = noise.integers("x", TOKENS, LENGTH), noise.uniform("t", 1)[:, 0]
        losses = [phase.objective(own, x, t, noise, None, True).total for phase in method.phases(TOKENS, 10)]
        torch.autograd.backward(torch.stack(losses).sum())
        written = generate(
            own, method.sampling_schedule(), method.sampler(TOKENS), num=2, length=LENGTH, steps=4, device=device
        )
        results.append([*losses, *(weight.grad for weight in own.parameters()), written])
    for on_cpu, on_gpu in zip(*results):
        assert torch.allclose(on_cpu.detach(), on_gpu.detach().cpu(), rtol=1e-4, atol=1e-5)


DEVICE: dict[str, Case] = {"mixing": _mixing, "asking": _asking, "same numbers": _same_numbers}

GROUPS = {"training": TRAINING, "sampling": SAMPLING, "likelihood": LIKELIHOOD, "runs": RUNS, "device": DEVICE}

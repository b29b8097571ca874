"""The samples of cases: runs are loaded, sampled as a case says, and the network calls are counted.

``RunSampler`` is the sweep's source of samples (``evaluation.sweep.SampleSource``) for cases that name run folders.
``held_out_text`` is the real text that they are compared with. What must hold: both commands that measure samples,
`duality quality` and `duality compare`, use these two and nothing else.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from duality.denoisers.wrapping import network_of
from duality.evaluation.sweep.cases import Case
from duality.evaluation.sweep.samples import Samples, real_text
from duality.evaluation.sweep.sweep import Advance
from duality.files.progress import Reporter
from duality.models.model import Model, load
from duality.models.sampling import transform
from duality.models.size import check_sampling
from duality.noise import Noise
from duality.protocols import Latent, Network, Tail
from duality.ranks import job
from duality.recipes.recipe import Recipe
from duality.runs import corpora
from duality.samplers.choice import grid_named

_TAILS: dict[str, Tail] = {tail: tail for tail in get_args(Tail)}


@dataclass
class Calls:
    """How many sequences a network was called with."""

    sequences: int = 0


@contextmanager
def count_calls(network: Network, check: Callable[[], None] = lambda: None) -> Iterator[Calls]:
    """Count the sequences that the network is called with, for the duration of a ``with`` block.

    ``check`` runs before every call and ends the work by an error. Every call goes through ``hidden``, and not every
    one through the head. A wrapper around the denoiser would not see that a memo saves calls or that guidance doubles
    them.
    """
    calls, hidden = Calls(), network.hidden

    def counted(
        z: Latent,
        condition: Tensor,
        valid: Tensor | None = None,
        dropout: Noise | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        check()
        vectors = hidden(z, condition, valid, dropout, labels)
        calls.sequences += len(vectors)
        return vectors

    own = vars(network).get("hidden")  # not None inside another such block
    vars(network)["hidden"] = counted
    try:
        yield calls
    finally:
        if own is None:
            del vars(network)["hidden"]
        else:
            vars(network)["hidden"] = own


def weights_id(model: Model) -> str:
    """The step of a model's checkpoint and a fingerprint of its weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.denoiser.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"step {model.step}, {digest.hexdigest()[:16]}"


def tail_of(case: Case) -> Tail:
    """The tail of a case; one that does not exist is refused."""
    if case.tail not in _TAILS:
        raise ValueError(f"--tail {case.tail!r}: choose from {', '.join(_TAILS)}, several with commas")
    return _TAILS[case.tail]


def sample_case(model: Model, case: Case, batch_size: int, advance: Advance) -> Samples:
    """The samples of a case; ``advance(1)`` is called after every step of every batch."""
    with count_calls(network_of(model.denoiser)) as calls:
        start = time.perf_counter()
        found = model.sample(
            case.num,
            steps=case.steps,
            length=case.length,
            tail=tail_of(case),
            sampler=case.sampler,
            eta=case.eta,
            grid=case.grid,
            top_p=case.top_p,
            temperature=case.temperature,
            seed=case.seed,
            batch_size=batch_size,
            watch=lambda frame: advance(1) if frame.step else None,  # frame 0 is the start, before any step
        )
        seconds = time.perf_counter() - start
    tokens = torch.tensor([sample.tokens for sample in found])
    texts = [sample.text for sample in found]
    called = sum(job().all_of(calls.sequences))  # each rank of a job has written some of the samples
    return Samples(tokens, texts, seconds / case.num, called / case.num, weights_id(model))


class RunSampler:
    """Samples of cases that name run folders. One model is loaded at a time."""

    def __init__(self, device: torch.device | str, report: Reporter, batch_size: int = 16):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        self.device, self.report, self.batch_size = device, report, batch_size
        self._loaded: tuple[tuple[Path, int | None, int | None], Model, str] | None = None

    def model(self, case: Case) -> Model:
        """The model of a case."""
        return self._model_and_weights(case)[0]

    def weights(self, case: Case) -> str:
        """The identifier of the weights of a case's model."""
        return self._model_and_weights(case)[1]

    def sample(self, case: Case, advance: Advance) -> Samples:
        """The samples of a case."""
        return sample_case(self.model(case), case, self.batch_size, advance)

    def check(self, cases: Sequence[Case]) -> None:
        """Refuse, before anything is sampled, what does not exist or cannot be: a run, a round, a sampler, a length."""
        for case in cases:
            model = self.model(case)
            check_sampling(model.denoiser, min(case.num, self.batch_size), case.length, model.device)
            transform(model.denoiser, case.top_p, case.temperature)
            model.named_sampler(case.sampler, case.eta)
            grid_named(case.grid, case.sampler)
            tail_of(case)

    def total_steps(self, cases: Sequence[Case]) -> int:
        """How many steps the samples of all cases take, over all batches."""
        return sum(case.steps * -(-case.num // self.batch_size) for case in cases)

    def _model_and_weights(self, case: Case) -> tuple[Model, str]:
        """The model of a case and the identifier of its weights; loaded unless it is the last one used."""
        name = (case.run, case.round, case.checkpoint)
        if self._loaded is None or self._loaded[0] != name:
            model = load(case.run, self.report, self.device, round=case.round, step=case.checkpoint)
            self._loaded = (name, model, weights_id(model))
        return self._loaded[1:]


def held_out_text(
    recipe: Recipe,
    num: int,
    length: int,
    report: Reporter,
    run: Path | None = None,
    moved_to: str | Path | None = None,
) -> Samples | None:
    """Real text of the recipe's validation set, in whole sequences of ``length`` tokens; None if there is none.

    The corpus must be that of the training of ``run``, if one is given; ``moved_to`` is where it is now.
    """
    corpus = job().in_turn(
        lambda: (
            corpora.prepared(recipe, report) if run is None else corpora.corpus_of_run(run, recipe, report, moved_to)
        )
    )
    found = real_text(
        corpora.sequences(recipe.data, corpus.validation, corpus.tokenizer, length), corpus.tokenizer, num
    )
    if found is None:
        report(f"no real text: no sequence of the validation set of {recipe.data.corpus} has {length} tokens")
    return found

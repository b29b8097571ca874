"""The claims of the paper, each as comparisons that code can decide.

    Likelihoods   the first model has fewer nats per token of held-out text than the second
    Variances     the gradients of the first objective vary less than those of the second, at the same weights
    Better        the samples of the first arm are better than those of the second, at equal diversity
    Speed         the first arm takes fewer seconds per sample than the second
    EqualQuality  of several arms the first that is as good as a goal takes fewer seconds per sample than the goal

Every comparison names its first model or arm as the better one: that is what is claimed. The rule for a verdict is in
``RULE`` and is the same for all. ``paper`` is the figure that the paper gives, in its own setting (LM1B or OpenWebText,
170 M parameters); "beyond the paper" marks what the paper does not claim.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duality.papers.duo.reproduce.domains import Amount, Domain
from duality.papers.duo.variance.gradients import ALL, LOSS, TOP
from duality.protocols import Tail
from duality.registry import suggestion

RULE = (
    "The 95 % interval of the difference decides: it excludes zero in the claimed direction (shows), it excludes zero "
    "in the other direction (contradicts), or it contains zero (undecided at this budget). Samples are compared at "
    "equal diversity: quality is interpolated along each model's curve over temperatures, at the diversity that the "
    "second model has at temperature 1, moved into the range that both curves have. Intervals are by bootstrap over "
    "seeds and samples. As good as another means: the interval of the difference contains zero, or is on the better "
    "side of it."
)
BEYOND = "beyond the paper"


@dataclass(frozen=True)
class Arm:
    """Samples of a model: its key, the number of steps (None: its own), and how the steps are taken.

    ``round`` is a round of a distillation; None is the last.
    """

    model: str
    steps: int | None
    tail: Tail = "ancestral"
    sampler: str = "own"
    round: int | None = None

    @property
    def words(self) -> str:
        """The arm in words."""
        steps = "one step per token" if self.steps is None else f"{self.steps} steps"
        tail = "" if self.tail == "ancestral" else f", {self.tail} tail"
        sampler = "" if self.sampler == "own" else f", {self.sampler}"
        return f"{self.model}{'' if self.round is None else f' round {self.round}'}, {steps}{sampler}{tail}"


@dataclass(frozen=True)
class Likelihoods:
    """The first model has fewer nats per token than the second."""

    first: str
    second: str
    paper: str

    @property
    def statement(self) -> str:
        return f"{self.first.removeprefix('short-')} has a lower PPL than {self.second.removeprefix('short-')}"


@dataclass(frozen=True)
class Variances:
    """A variance of the first objective is lower than that of the second, at the weights of ``model``.

    Objectives are named as in `duality variance`; ``statistic`` is what varies: all weights, top 100 or loss.
    """

    model: str
    first: str
    second: str
    statistic: str
    paper: str

    @property
    def statement(self) -> str:
        return f"variance, {self.statistic}: {self.first} has less than {self.second}"


@dataclass(frozen=True)
class Better:
    """The samples of the first arm are better than those of the second, at equal diversity."""

    first: Arm
    second: Arm
    paper: str

    @property
    def statement(self) -> str:
        return f"{self.first.words} beats {self.second.words}"


@dataclass(frozen=True)
class Speed:
    """The first arm takes fewer seconds per sample than the second; both with their quality."""

    first: Arm
    second: Arm
    paper: str

    @property
    def statement(self) -> str:
        return f"{self.first.words} writes faster than {self.second.words}"


@dataclass(frozen=True)
class EqualQuality:
    """The first of ``arms``, in their order, that is as good as ``goal`` takes fewer seconds per sample than it."""

    arms: tuple[Arm, ...]
    goal: Arm
    paper: str

    @property
    def statement(self) -> str:
        return f"{self.arms[0].model} with as many steps as it needs to be as good writes faster than {self.goal.words}"


Comparison = Likelihoods | Variances | Better | Speed | EqualQuality


@dataclass(frozen=True)
class Claim:
    """A claim: a short name for the command line, a title, where it is in the paper, and its comparisons."""

    name: str
    title: str
    where: str
    comparisons: tuple[Comparison, ...] = field(default=())

    def arms(self) -> list[Arm]:
        """All arms whose samples are needed."""
        found: list[Arm] = []
        for each in self.comparisons:
            if isinstance(each, Better | Speed):
                found += [each.first, each.second]
            elif isinstance(each, EqualQuality):
                found += [*each.arms, each.goal]
        return found

    def measured(self) -> list[str]:
        """The keys of all models whose likelihood is needed."""
        compared = [each for each in self.comparisons if isinstance(each, Likelihoods)]
        return [key for each in compared for key in (each.first, each.second)]

    def varied(self) -> dict[str, tuple[str, ...]]:
        """The keys of all models at which variances are needed, each with the names of the objectives."""
        found: dict[str, tuple[str, ...]] = {}
        for each in self.comparisons:
            if isinstance(each, Variances):
                found[each.model] = tuple(dict.fromkeys((*found.get(each.model, ()), each.first, each.second)))
        return found


def perplexity(domain: Domain) -> Claim:
    """Table 1: of the short runs, or, where there are none, of the models that are sampled."""
    orders = (
        ("ar", "mdlm", "22.8 < 31.8"),
        ("mdlm", "duo", "31.8 < 33.7"),
        ("duo", "udlm", "33.7 < 36.7"),
        ("duo", "sedd-uniform", "29.9 < 40.3 (without packing)"),
        ("duo", "d3pm-uniform", "33.7 < 137.9"),
        ("mdlm", "sedd-absorb", "27.0 < 32.7 (without packing)"),
        ("mdlm", "d3pm-absorb", "31.8 < 76.9"),
    )
    kind = "short-" if "short-ar" in domain.models else ""
    return Claim(
        "perplexity",
        "The order of perplexities",
        "Table 1",
        tuple(
            Likelihoods(f"{kind}{first}", f"{kind}{second}", paper)
            for first, second, paper in orders
            if f"{kind}{first}" in domain.models and f"{kind}{second}" in domain.models
        ),
    )


def curriculum() -> Claim:
    """Table 3."""
    return Claim(
        "curriculum",
        "The curriculum lowers the perplexity",
        "Table 3",
        (
            Likelihoods("short-duo-curriculum", "short-duo-plain", "33.7 < 35.0"),
            Likelihoods("short-duo-window", "short-duo-plain", BEYOND),
            Likelihoods("short-duo-curriculum", "short-duo-window", BEYOND),
        ),
    )


def variance() -> Claim:
    """Figure 2 and the table of gradient variance, at the weights of a model that was trained without curriculum."""
    plain, soft, window = "plain/log-linear", "tau=0.001", "window"
    paper = {ALL: "1470 < 5455 (step 100 000)", TOP: "0.86 < 55.1 (step 100 000)", LOSS: "4.97 < 6.32 (step 100 000)"}
    rows: list[Comparison] = []
    for statistic, known in paper.items():
        rows.append(Variances("short-duo-plain", soft, plain, statistic, known))
        rows.append(Variances("short-duo-plain", window, plain, statistic, BEYOND))
        rows.append(Variances("short-duo-plain", soft, window, statistic, BEYOND))
    return Claim("variance", "The curriculum lowers the variance of gradients", "Figure 2, Table 4", tuple(rows))


# Gen PPL of the paper's tables of distillation: base, Algorithm 1, Algorithm 1 with Greedy-Tail, Algorithm 2
_DCD = {8: (198.27, 111.88, 69.58, 127.94), 16: (122.78, 75.24, 54.11, 83.89), 32: (96.19, 61.31, 46.31, 67.31)}
_SDTT = {8: (830.82, 193.05), 16: (343.33, 89.17), 32: (196.79, 62.29)}
_GREEDY = {8: 121.89, 16: 98.24, 32: 84.52}


def distillation(amount: Amount) -> Claim:
    """DCD at few steps, as printed and with the posterior comparison."""
    rows: list[Comparison] = []
    for steps in amount.few:
        paper = f"{_DCD[steps][1]} < {_DCD[steps][0]}" if steps in _DCD else "not given"
        rows.append(Better(Arm("duo-output", steps), Arm("duo", steps), paper))
        rows.append(Better(Arm("duo-posterior", steps), Arm("duo", steps), BEYOND))
        rows.append(Better(Arm("duo-posterior", steps), Arm("duo-output", steps), BEYOND))
    return Claim("distillation", "DCD makes few steps better", "Figure 4, Table 6", tuple(rows))


def speedup(amount: Amount) -> Claim:
    """The base at many steps against the student at few."""
    students = (
        (Arm("duo-output", 8), "111.88 at 8 steps, 77.69 at 1024"),
        (Arm("duo-output", 8, "greedy"), "69.58 at 8 steps, 77.69 at 1024"),
        (Arm("duo-posterior", 8), BEYOND),
        (Arm("duo-posterior", 8, "posterior"), BEYOND),
    )
    rows = [Better(student, Arm("duo", amount.many), paper) for student, paper in students]
    return Claim("speedup", f"8 distilled steps match {amount.many} of the base", "Figure 4", tuple(rows))


def tails(amount: Amount) -> Claim:
    """Greedy and posterior tails."""
    rows: list[Comparison] = []
    for model in ("duo", "duo-output", "duo-posterior"):
        for steps in amount.tail_steps:
            greedy = {"duo": _GREEDY.get(steps), "duo-output": _DCD.get(steps, (None,) * 4)[2]}.get(model)
            plain = {"duo": 0, "duo-output": 1}.get(model)
            paper = BEYOND if plain is None else "not given"
            if greedy is not None and plain is not None and steps in _DCD:
                paper = f"{greedy} < {_DCD[steps][plain]}"
            rows.append(Better(Arm(model, steps, "greedy"), Arm(model, steps), paper))
            rows.append(Better(Arm(model, steps, "posterior"), Arm(model, steps, "greedy"), BEYOND))
    return Claim("tails", "The last step: greedy, posterior, ancestral", "Figure 4, Table 7", tuple(rows))


def rounds(domain: Domain) -> Claim:
    """Every round improves on the one before."""
    paper = (198.27, 164.49, 137.87, 122.49, 114.80, 111.88)
    rows: list[Comparison] = []
    for model in ("duo-output", "duo-posterior"):
        for number in range(1, domain.rounds + 1):
            before = Arm("duo", 8) if number == 1 else Arm(model, 8, round=number - 1)
            last = None if number == domain.rounds else number
            known = f"{paper[number]} < {paper[number - 1]}" if model == "duo-output" else BEYOND
            rows.append(Better(Arm(model, 8, round=last), before, known))
    return Claim("rounds", "Each round of distillation helps, at 8 steps", "Table 7", tuple(rows))


def teacher(amount: Amount) -> Claim:
    """Algorithm 1 against Algorithm 2."""
    rows = [
        Better(Arm("duo-output", steps), Arm("duo-ema", steps), f"{_DCD[steps][1]} < {_DCD[steps][3]}")
        for steps in amount.few
        if steps in _DCD
    ]
    return Claim("teacher", "Algorithm 1 (weights) beats Algorithm 2 (their average)", "Table 6", tuple(rows))


def sdtt(amount: Amount) -> Claim:
    """SDTT of MDLM."""
    rows = [
        Better(
            Arm("mdlm-sdtt", steps),
            Arm("mdlm", steps),
            f"{_SDTT[steps][1]} < {_SDTT[steps][0]}" if steps in _SDTT else "not given",
        )
        for steps in amount.few
    ]
    return Claim("sdtt", "SDTT makes few steps of MDLM better", "Table 7", tuple(rows))


def crossover(amount: Amount) -> Claim:
    """Duo against MDLM, before and after distillation."""
    rows: list[Comparison] = []
    for steps in (*amount.few, amount.many):
        base = {8: "198.27 < 830.82", 16: "122.78 < 343.33", 32: "96.19 < 196.79", 128: "80.02 < 120.77"}
        rows.append(Better(Arm("duo", steps), Arm("mdlm", steps), base.get(steps, "not given")))
    for steps in amount.few:
        after = {8: "111.88 < 193.05", 16: "75.24 < 89.17", 32: "61.31 < 62.29"}
        rows.append(Better(Arm("duo-output", steps), Arm("mdlm-sdtt", steps), after.get(steps, "not given")))
        rows.append(Better(Arm("duo-posterior", steps), Arm("mdlm-sdtt", steps), BEYOND))
    return Claim("crossover", "Duo against MDLM at few steps", "Figure 3, Tables 5 and 7", tuple(rows))


def psi(amount: Amount) -> Claim:
    """Samplers that correct."""
    steps = max(amount.few)
    row = Better(Arm("duo", steps, sampler="psi-rescale"), Arm("duo", steps), "of the follow-up paper")
    return Claim("psi", f"A Psi sampler beats the ancestral one at {steps} steps", "follow-up of the paper", (row,))


def speed(amount: Amount) -> Claim:
    """Seconds per sample."""
    ar = Arm("ar", None)
    rows: list[Comparison] = [
        Speed(Arm("duo-posterior", 8), ar, "an order of magnitude fewer steps"),
        Speed(Arm("mdlm-sdtt", 8), ar, "an order of magnitude fewer steps"),
        Speed(Arm("duo-posterior", 8), Arm("duo", amount.many), "64 to 128 times fewer steps"),
    ]
    several = {"duo": (*amount.few, amount.many), "duo-posterior": amount.few, "mdlm-sdtt": amount.few}
    for model, numbers in several.items():
        rows.append(EqualQuality(tuple(Arm(model, steps) for steps in numbers), ar, "not given"))
    return Claim(
        "speed", "Seconds per sample, against AR with its memory of keys and values", "Section 5.2", tuple(rows)
    )


def claims_of(domain: Domain) -> dict[str, Claim]:
    """All claims that are tried on a domain, by name."""
    amount = domain.amount
    found = (
        perplexity(domain),
        curriculum(),
        variance(),
        distillation(amount),
        speedup(amount),
        tails(amount),
        rounds(domain),
        teacher(amount),
        sdtt(amount),
        crossover(amount),
        psi(amount),
        speed(amount),
    )
    return {claim.name: claim for claim in found if claim.name not in amount.without}


def chosen_claims(names: tuple[str, ...], domain: Domain) -> list[Claim]:
    """The claims of these names that are tried on a domain; all if there are none."""
    known = claims_of(domain)
    for name in names:
        if name not in (*known, *domain.amount.without):
            raise ValueError(f"no claim {name!r}: {suggestion(name, known)}")
    return [known[name] for name in (names or known) if name in known]

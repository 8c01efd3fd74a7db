"""The results of the native stage, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.parity.facts.plain import plain
from reports.model import Finding
from reports.text import figure, part_of

FINISH = "finish"  # a quantity: the share of the most common finish reason
NOT_RUN = "not run"  # in the coverage, for a stage that neither run has
MARGIN = 0.2  # standard deviations: a small effect (Cohen 1988), the usual smallest effect of interest
MOST_DRAWS = 20  # multiples of the first draw that may be planned; with more, a look may spend next to no error
DRAWS = 4  # the most samples, in multiples of the first draw. Of 4,096 either equality or a difference is shown
ALPHA = 0.001  # sound samplers are called different in one stage of a thousand; a nightly run has sixty stages
EQUIVALENCE_ALPHA = 0.05  # of two one-sided tests: the 90 % interval lies within the margin


def most_looks(draws: int, part: float) -> int:
    """Return the looks of a stage that draws at most `draws` times its first draw, in parts of `part` of that draw."""
    return 1 + math.ceil((draws - 1) / part - 1e-9)


class Statistic(str):
    """The name of a test, as reports list it, with what it tests: a `quantity` of both stages, or the sampler of one
    `side`.
    """

    quantity: str
    side: str

    @classmethod
    def of(cls, quantity: str, what: str) -> Statistic:
        return cls._made(f"finish reasons ({what})" if quantity == FINISH else f"{quantity}: {what}", quantity, "")

    @classmethod
    def of_sampler(cls, side: str, what: str) -> Statistic:
        return cls._made(f"{side} sampler: {what} against the learner", "", side)

    @classmethod
    def _made(cls, text: str, quantity: str, side: str) -> Statistic:
        made = cls(text)
        made.quantity, made.side = quantity, side
        return made


Tests = dict[Statistic, dict[str, float]]  # a test has: statistic, p, p_holm, both means, detectable
MadeTests = Mapping[Statistic, Mapping[str, float]]
EQUAL, DIFFERENT, UNDECIDED = "equal", "different", "undecided"
NEEDED = ("length", "surprisal", FINISH)  # their equality the stage must show; also the reward's where recorded
UNIT = {"length": " tokens", "surprisal": " nats a token", FINISH: " with the most common reason"}
OUT_OF_REACH = 10**9  # samples: more than any stage can draw


@dataclass(frozen=True)
class Quantity:
    """One quantity of both stages, in its own unit.

    - `means`: of the baseline and of the candidate, over all prompts.
    - `samples`: drawn a side until it was decided, or so far.
    - `difference`, `error` (its standard error), `spread` (a standard deviation): within prompts.
    - `p`: of two one-sided tests against `margin`; `p_holm`: corrected within the look.
    - `enough`: samples a side that show equality with power 0.8 if there is no difference.
    - `needed`: samples a side that decide with power 0.8 if the difference is the measured one.
    - `detectable`: the difference of means that the last look finds with power 0.8.
    """

    outcome: str
    means: tuple[float, float]
    samples: int
    difference: float
    error: float
    margin: float
    spread: float
    p: float
    p_holm: float
    enough: int
    needed: int
    detectable: float


@dataclass(frozen=True)
class Look:
    """What all samples of the first `draws` draws showed.

    The look may spend `alpha` on differences and `equivalence_alpha` on equality. `doubtful`: tests of a difference
    that do not reject, but that more samples may decide.
    """

    draws: int
    samples: tuple[int, int]
    alpha: float
    equivalence_alpha: float
    tests: MadeTests
    rejected: tuple[Statistic, ...]
    doubtful: tuple[Statistic, ...]
    equal: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return the details for a verdict, without the tests: those of the last look are there already."""
        return {name: plain(value) for name, value in vars(self).items() if name != "tests"}


@dataclass(frozen=True)
class Collisions:
    """Equal native samples of one prompt."""

    equal: int  # pairs
    expected: float
    clones: int  # samples

    def facts(self) -> dict[str, Any]:
        """Return the details for a verdict."""
        return {"equal pairs": self.equal, "expected": self.expected, "samples": self.clones}


@dataclass(frozen=True)
class Shift:
    """By how many places an engine's log-probabilities are shifted.

    `before` and `after` moving them back: how many tokens differ from the learner's.
    """

    by: int
    before: int
    after: int


@dataclass(frozen=True)
class Meaning:
    """What the native log-probabilities of one side's engine mean, by the numbers themselves.

    `mode`: what the engine says that it reports. `documented`: the meaning that its documentation gives them.
    `recognised`: the meaning that they have. `column`: the learner's numbers that they equal. Both are empty where none
    fits. `beyond`: the learner's column -> how many of `tokens` lie beyond the tolerance. `shift`: if they stand at
    other tokens.
    """

    engine: str
    mode: str
    documented: str
    recognised: str
    column: str
    beyond: Mapping[str, int]
    tokens: int
    shift: Shift | None = None

    def facts(self) -> dict[str, Any]:
        """Return the details for a verdict."""
        shift = dataclasses.asdict(self.shift) if self.shift is not None else {}
        return {
            "engine": self.engine, "said": self.mode, "documented": self.documented, "recognised": self.recognised,
            "column": self.column, "beyond": dict(self.beyond), "tokens": self.tokens, "shift": shift,
        }  # fmt: skip


@dataclass(frozen=True)
class NativeResult:
    """The native stage of both sides.

    `looks`: one after each draw. `draws`: the most samples, in multiples of the first draw. `part`: samples of a later
    draw, as a share of the first. `most`: samples a side that may be drawn. `tests`: tests of a difference at the last
    look. `sampler`, `meanings`, `repeats`: side -> the results of the module of that subject.
    """

    looks: tuple[Look, ...] = ()
    tests: MadeTests = field(default_factory=dict)
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    margin: float = MARGIN
    alpha: float = ALPHA
    equivalence_alpha: float = EQUIVALENCE_ALPHA
    draws: int = DRAWS
    part: float = 1.0
    most: int = 0
    samples: tuple[int, int] = (0, 0)
    identical: int = 0  # samples of the same number that both sides drew alike
    identical_expected: float = 0.0  # by chance, from the learner's likelihoods
    prompts: int = 0
    skipped: str = ""  # why nothing was tested; "" otherwise
    sampler: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    repeats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learner_delta: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    not_compared: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # what a stage lacks for comparing it with the learner and itself

    @property
    def most_looks(self) -> int:
        """Return the most looks, one after each draw."""
        return most_looks(self.draws, self.part)

    @property
    def rejected(self) -> tuple[Statistic, ...]:
        """Return the tests that showed a difference at any look."""
        return tuple(dict.fromkeys(name for look in self.looks for name in look.rejected))

    @property
    def outcomes(self) -> dict[str, str]:
        """Return quantity -> its outcome."""
        return {name: quantity.outcome for name, quantity in self.quantities.items()}

    @property
    def absent(self) -> list[str]:
        """Return quantities that the stage must compare but that were not recorded."""
        return [name for name in NEEDED if name not in self.quantities]

    @property
    def undecided(self) -> list[str]:
        """Return quantities for which neither equality nor a difference was shown."""
        return self._of(UNDECIDED)

    @property
    def adequate(self) -> bool:
        """Whether equality was shown for everything that must be equal."""
        return not self.absent and all(outcome == EQUAL for outcome in self.outcomes.values())

    @property
    def covered(self) -> str | dict[str, str]:
        """Return quantity -> outcome, or why there is none."""
        return self.skipped or self.outcomes

    @property
    def doubtful(self) -> tuple[Statistic, ...]:
        """Return tests of a difference that the next draw may decide; none once a difference was shown, or after the
        last draw.
        """
        ended = self.rejected or len(self.looks) >= self.most_looks
        return () if ended or not self.looks else self.looks[-1].doubtful

    @property
    def wants_more(self) -> bool:
        """Whether another draw may decide more. It does not after a difference was shown, nor where all draws are too
        few.
        """
        if self.rejected or not self.looks or len(self.looks) >= self.most_looks:
            return False
        undecided = [] if self.skipped else [self.quantities[name] for name in self.undecided]
        within_reach = [min(quantity.enough, quantity.needed) <= self.most for quantity in undecided]
        return bool(self.doubtful) or any(within_reach)

    def details(self) -> dict[str, Any]:
        """Return the details of the check `native`."""
        facts = {name: plain(value) for name, value in vars(self).items() if name not in ("findings", "meanings")}
        return facts | {
            "looks": [look.facts() for look in self.looks],
            "semantics": {side: plain(meaning.facts()) for side, meaning in self.meanings.items()},
            "rejected": plain(self.rejected),
            "quantities": {name: dataclasses.asdict(quantity) for name, quantity in self.quantities.items()},
            "outcomes": self.outcomes,
        }

    def summary(self) -> str:
        """Return one line: what is equal, and a clause for each quantity that is not."""
        if self.skipped:
            return self.skipped
        equal = self._of(EQUAL)
        equal_clause = f"{', '.join(equal)} equal in the mean to within {figure(self.margin)} standard deviations"
        clauses = [self._clause(name) for name in self.quantities if name not in equal]
        clauses += [f"{name} not recorded" for name in self.absent]
        if self.doubtful:
            clauses.append(f"a difference that may be chance: {ranked(self.doubtful, self.tests)}")
        return "; ".join([*clauses, *([equal_clause] if equal else [])]) or "nothing compared"

    def sentences(self) -> list[str]:
        """Return how much was drawn, and a sentence for each quantity."""
        drawn = " and ".join(f"{count:,}" for count in self.samples)
        most = f", at most {self.most:,} a side" if len(self.looks) < self.most_looks else ""
        draws = part_of(len(self.looks), self.most_looks, "draw")
        margin = f"means are equal to within {figure(self.margin)} standard deviations"
        lines = [f"{drawn} samples of {self.prompts:,} prompts in {draws}{most}; {margin}"]
        lines += [self._sentence(name) for name in self.quantities]
        return lines + [f"{name} not tested: it was not recorded for every sample" for name in self.absent]

    def _sentence(self, name: str) -> str:
        """Return both means of a quantity, its outcome, and the p of what was shown: of equality or of a difference."""
        quantity = self.quantities[name]
        differences = [test["p_holm"] for statistic, test in self.tests.items() if statistic.quantity == name]
        is_of_difference = quantity.outcome == DIFFERENT and bool(differences)
        test, p = ("difference", min(differences)) if is_of_difference else ("equivalence", quantity.p_holm)
        return f"{name} {self._means(name)}: {self._clause(name).removeprefix(f'{name} ')} ({test} test, p {p:.1g})"

    def _clause(self, name: str) -> str:
        quantity = self.quantities[name]
        if quantity.outcome == EQUAL:
            return f"{name} equal"
        if quantity.outcome == DIFFERENT:
            return f"{name} different"
        text = f"{name} undecided after {quantity.samples:,} of at most {self.most:,} samples a side"
        if self.rejected:
            return f"{text}, where a difference ended the drawing"
        if quantity.needed >= OUT_OF_REACH:
            return f"{text}; more samples of each prompt are needed"
        return f"{text}; about {rounded(quantity.needed):,} would decide it"

    def remedy(self) -> str:
        """Return the setting that draws as many samples as every undecided quantity needs; "" where none helps."""
        needed = max((self.quantities[name].needed for name in self.undecided), default=0)
        if self.rejected or not self.most < needed < OUT_OF_REACH:
            return ""
        return f" (--set native.samples={rounded(-(-needed // self.draws))})"

    def _means(self, name: str) -> str:
        first, second = self.quantities[name].means
        template = "{:.1%}" if name == FINISH else "{:.3g}"
        return f"{template.format(first)} and {template.format(second)}{UNIT.get(name, '')}"

    def _of(self, outcome: str) -> list[str]:
        return [name for name, quantity in self.quantities.items() if quantity.outcome == outcome]


@dataclass
class NativeStage:
    """The native stage of both sides while it is read. `result`: what was read so far."""

    result: NativeResult

    def set(self, **values: Any) -> None:
        """Give fields of the result these values."""
        self.result = dataclasses.replace(self.result, **values)

    def add(self, name: Literal["looks", "findings", "not_compared", "unread"], *items: Any) -> None:
        """Append to a list of the result."""
        self.set(**{name: (*getattr(self.result, name), *items)})

    def note(self, name: Literal["sampler", "meanings", "repeats", "learner_delta"], side: str, value: Any) -> None:
        """Set what was read of one side."""
        self.set(**{name: {**getattr(self.result, name), side: value}})


def ranked(names: Iterable[Statistic], tests: MadeTests) -> str:
    """Return the tests of these names with their p, the smallest first."""
    ordered = sorted(names, key=lambda name: tests[name]["p_holm"])
    return ", ".join(f"{name} (p = {figure(tests[name]['p_holm'])})" for name in ordered)


def rounded(count: int) -> int:
    """Return a count of samples rounded up to two digits, since an estimate is no more precise."""
    step = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // step) * step

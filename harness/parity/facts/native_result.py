"""What the native stage showed: plain data, filled part by part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reports.model import Finding
from reports.text import counted, figure

FINISH = "finish"  # the quantity: the share of the most common finish reason
NOT_RUN = "not run"  # in the coverage, of a stage that neither run has
MARGIN = 0.2  # standard deviations: a small effect by Cohen (1988), the usual smallest effect of interest
EQUIVALENCE_ALPHA = 0.05  # of two one-sided tests: the interval of 90 % lies within the margin


class Statistic(str):
    """A test's name, as reports list it, and what it is of: a `quantity` of both stages, or one `side`'s sampler."""

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


Tests = dict[Statistic, dict[str, float]]  # statistic, p, p_holm, both means, detectable
EQUAL, DIFFERENT, TOO_LITTLE = "equal", "different", "too little data"
NEEDED = ("length", "surprisal", FINISH)  # quantities whose equality the stage must show; reward where there is one


@dataclass
class NativeResult:
    """`tests`: of a difference: name -> statistic, p, p_holm. `quantities`: name -> outcome (`equal`, `different`,
    `too little data`) with the numbers of its equivalence test. `sampler`, `semantics`, `repeats`: side -> what is in
    the module of that name. `enough`: samples a side that would show equality of every quantity.

    `rejected`: tests that show a difference. `doubtful`: those that one draw rejects, which may be chance, and that no
    second draw has tested. `first_draw`: the tests of the first draw, where `tests` are those of a second.
    """

    tests: Tests = field(default_factory=dict)
    rejected: list[Statistic] = field(default_factory=list)
    doubtful: list[Statistic] = field(default_factory=list)
    first_draw: Tests = field(default_factory=dict)
    quantities: dict[str, dict[str, Any]] = field(default_factory=dict)
    margin: float = MARGIN
    alpha: float = 0.01
    equivalence_alpha: float = EQUIVALENCE_ALPHA
    samples: tuple[int, int] = (0, 0)
    identical: int = 0  # samples of one number that both sides drew alike
    identical_expected: float = 0.0  # by chance, as the learner's likelihoods say
    prompts: int = 0
    enough: int = 0
    skipped: str = ""  # why nothing was tested
    sampler: dict[str, dict[str, Any]] = field(default_factory=dict)
    semantics: dict[str, dict[str, Any]] = field(default_factory=dict)
    repeats: dict[str, dict[str, Any]] = field(default_factory=dict)
    learner_delta: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # what a stage lacks to be held against the learner and itself

    @property
    def outcomes(self) -> dict[str, str]:
        """Quantity -> its outcome."""
        return {name: str(one["outcome"]) for name, one in self.quantities.items()}

    @property
    def adequate(self) -> bool:
        """Was equality shown of everything that must be equal?"""
        found = self.outcomes
        return set(NEEDED) <= set(found) and all(outcome == EQUAL for outcome in found.values())

    @property
    def covered(self) -> str | dict[str, str]:
        """Quantity -> outcome, or why there is none."""
        return self.skipped or self.outcomes

    def said(self) -> str:
        """One line on what the distributions showed."""
        if self.skipped:
            return self.skipped
        if self.doubtful:
            return f"one draw differs, which may be chance: {self.shown(self.doubtful, self.tests)}"
        groups = [(outcome, [name for name, one in self.outcomes.items() if one == outcome])
                  for outcome in (DIFFERENT, EQUAL, TOO_LITTLE)]  # fmt: skip
        words = {
            EQUAL: f"equal in the mean to within {figure(self.margin)} standard deviations",
            DIFFERENT: "different",
            TOO_LITTLE: f"too little data, {counted(self.enough, 'sample')} a side would be enough",
        }
        shown = "; ".join(f"{', '.join(names)}: {words[outcome]}" for outcome, names in groups if names)
        return (
            f"{' and '.join(map(str, self.samples))} samples of {self.prompts} prompts; {shown or 'nothing compared'}"
        )

    @staticmethod
    def shown(names: list[Statistic], tests: Tests) -> str:
        """The tests of these names with their p, the smallest first."""
        ranked = sorted(names, key=lambda name: tests[name]["p_holm"])
        return ", ".join(f"{name} (p = {figure(tests[name]['p_holm'])})" for name in ranked)

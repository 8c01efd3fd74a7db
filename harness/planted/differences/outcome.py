"""Compare one verdict with the truth of its fault, and score many."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.model import Cause, Verdict
from reports.text import counted
from scenarios.planted.differences.fault import Fault, matches

NAMED_SHARE = 0.95  # the share of causes that must be named for the suite to pass


@dataclass(frozen=True)
class Outcome:
    """The judge's result for one planted fault.

    fault: the planted fault.
    verdict: the verdict; None where the fault could not be run.
    run_s: seconds of the runs.
    judge_s: seconds of judging, re-reading of the recordings included.
    live_s: seconds of the live interventions.
    starts: the number of engines that were started for the fault, and the seconds of that, which the other times
    include.
    pair: the engines.
    error: why the fault could not be run.
    """

    fault: Fault
    verdict: Verdict | None
    run_s: float = 0.0
    judge_s: float = 0.0
    live_s: float = 0.0
    starts: tuple[int, float] = (0, 0.0)
    pair: tuple[str, str] = ("", "")
    error: str = ""

    @property
    def status(self) -> str:
        return self.verdict.verdict if self.verdict else "ERROR"

    @property
    def causes(self) -> list[Cause]:
        return list(self.verdict.causes) if self.verdict else []

    @property
    def untested(self) -> bool:
        """Whether the verdict is INCONCLUSIVE, for a fault that recordings need not be sufficient to decide."""
        return self.fault.or_untested and self.status == "INCONCLUSIVE" and not self.causes

    @property
    def as_expected(self) -> bool:
        """Whether the verdict, the findings and the confounders are the expected ones, with the expected words.

        No finding of `fault.absent` may be there.
        """
        if self.untested:
            return True
        if self.error or self.verdict is None or self.status != self.fault.expected:
            return False
        names, confounders = (
            {entry.name for entry in entries} for entries in (self.verdict.findings, self.verdict.confounders)
        )
        has_all = set(self.fault.findings) <= names and set(self.fault.confounders) <= confounders
        return has_all and not names & set(self.fault.absent) and not self.untold

    @property
    def untold(self) -> list[str]:
        """The expected words that are missing from the evidence of a cause or from a finding."""
        texts = [(cause.name, cause.evidence) for cause in self.causes]
        findings = self.verdict.findings if self.verdict else ()
        texts += [(finding.name, f"{finding.summary}; {finding.effect}") for finding in findings]
        return [
            f"{name}: {words}"
            for name, words in self.fault.told.items()
            if not any(matches(name, judged_name) and words in text for judged_name, text in texts)
        ]

    @property
    def missing(self) -> list[str]:
        """Expected causes that were not named, or not with the right party."""
        return [
            f"{name} ({party})"
            for name, party in self._expected
            if not any(self._is_right(cause, name, party) for cause in self.causes)
        ]

    @property
    def wrong(self) -> list[str]:
        """Named causes that are not expected or have the wrong party. UNEXPLAINED beside a right cause counts too."""
        return [
            f"{cause.name} ({cause.party})"
            for cause in self.causes
            if not any(self._is_right(cause, name, party) for name, party in self._expected)
        ]

    @property
    def named(self) -> bool:
        """Whether every expected cause was named with the right party, and no other cause."""
        return self.as_expected and not self.missing and not self.wrong

    @property
    def party_right(self) -> bool:
        """Whether every named cause blames a party at fault."""
        return bool(self.causes) and all(
            any(self._blames(cause, party) for _, party in self._expected) for cause in self.causes
        )

    @property
    def alarm(self) -> bool:
        """Whether a control was judged DIVERGENT."""
        return self.fault.control and self.status == "DIVERGENT"

    @property
    def seconds(self) -> float:
        return round(self.run_s + self.judge_s + self.live_s, 1)

    @property
    def warm_s(self) -> float:
        """The seconds on warm engines, without those of starting engines."""
        return round(self.seconds - self.starts[1], 1)

    @property
    def to_cause_s(self) -> float | None:
        """Seconds from the end of the runs to the named causes, on running engines; None where no cause was expected
        or named.
        """
        return round(self.judge_s + self.live_s, 2) if self.fault.causes and self.named else None

    @property
    def right(self) -> bool:
        if self.fault.causes and not self.untested:
            return self.named
        return self.as_expected and not self.causes

    @property
    def _expected(self) -> list[tuple[str, str]]:
        return list(zip(self.fault.causes, self.fault.parties, strict=True))

    def _is_right(self, cause: Cause, name: str, party: str) -> bool:
        """Whether a cause is the expected one of this name and party."""
        return matches(name, cause.name) and self._blames(cause, party)

    def _blames(self, cause: Cause, party: str) -> bool:
        """Whether `cause` blames that party. For a mapping, the side must also be the one at fault."""
        if cause.party != party:
            return False
        return party != "mapping" or cause.details.get("side", self.fault.side) == self.fault.side

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "name": self.fault.name, "label": self.fault.label, "pair": list(self.pair),
            "side": self.fault.side, "expected": self.fault.expected,
            "verdict": self.status, "causes": list(self.fault.causes), "parties": list(self.fault.parties),
            "named": [{"name": c.name, "party": c.party, "proofs": len(c.proofs)} for c in self.causes],
            "found": self.as_expected, "right": self.right, "missing": self.missing, "wrong": self.wrong,
            "untold": self.untold, "alarm": self.alarm,
            "run_s": self.run_s, "judge_s": self.judge_s, "live_s": self.live_s, "seconds": self.seconds,
            "starts": self.starts[0], "starting_s": self.starts[1], "warm_s": self.warm_s,
            "reason": self.verdict.reason if self.verdict else self.error, "error": self.error,
        }  # fmt: skip


def started_since(before: tuple[int, float], now: tuple[int, float]) -> tuple[int, float]:
    """Return the engine starts between two counts, and their seconds. An engine that died is missing from the second
    count.
    """
    return max(0, now[0] - before[0]), round(max(0.0, now[1] - before[1]), 1)


@dataclass(frozen=True)
class Score:
    """Counts over the outcomes of a suite.

    faults: faults that have a difference to detect.
    detected: those with the expected verdict and findings; a fault that is rightly not tested counts as detected.
    causes: faults with a cause to name. A fault that is rightly not tested is not among them.
    named: those whose causes were all named, and no other.
    parties: those with the right party.
    controls: faults without a difference.
    quiet: controls with the right verdict.
    alarms: names of the controls that were judged DIVERGENT.
    misses: names of the faults that were not detected.
    unnamed: names of the faults whose causes were not named.
    median_s, slowest_s: seconds per fault.
    median_to_cause_s: seconds from the end of the runs to the named causes.
    """

    faults: int
    detected: int
    causes: int
    named: int
    parties: int
    controls: int
    quiet: int
    alarms: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    median_s: float | None = None
    slowest_s: float | None = None
    started: int = 0  # faults for which an engine was started
    slowest_warm_s: float | None = None  # without the seconds of those starts
    median_to_cause_s: float | None = None

    @property
    def passed(self) -> bool:
        """Whether every fault was detected, 95 % of the causes were named, and every control is right."""
        enough = self.named >= NAMED_SHARE * self.causes
        return self.detected == self.faults and enough and self.quiet == self.controls and not self.alarms

    @property
    def line(self) -> str:
        parts = [
            f"found {self.detected}/{self.faults}",
            f"named {self.named}/{self.causes}",
            f"right party {self.parties}/{self.causes}",
            f"controls right {self.quiet}/{self.controls}",
            f"false alarms {len(self.alarms)}" + (f" ({', '.join(self.alarms)})" if self.alarms else ""),
        ]
        if self.median_s is not None:
            parts.append(f"{self.median_s:.1f} s a fault in the median, {self.slowest_s:.1f} s at most")
        if self.slowest_warm_s is not None and self.started:
            what = f"{counted(self.started, 'fault')} started an engine"
            parts.append(f"{what}; without such starts {self.slowest_warm_s:.1f} s at most")
        if self.median_to_cause_s is not None:
            parts.append(f"{self.median_to_cause_s:.1f} s in the median from the end of the runs to the named cause")
        return "; ".join(parts)


def score(outcomes: Sequence[Outcome]) -> Score:
    """Return the score of a whole suite."""
    faults = [row for row in outcomes if not row.fault.control]
    causes = [row for row in faults if row.fault.causes and not row.untested]
    controls = [row for row in outcomes if row.fault.control]
    ran = [row for row in outcomes if not row.error]
    seconds = [row.seconds for row in ran]
    to_cause = [row.to_cause_s for row in causes if row.to_cause_s is not None]
    return Score(
        faults=len(faults),
        detected=sum(row.as_expected for row in faults),
        causes=len(causes),
        named=sum(row.named for row in causes),
        parties=sum(row.party_right for row in causes),
        controls=len(controls),
        quiet=sum(row.right for row in controls),
        alarms=[row.fault.label for row in controls if row.alarm],
        misses=[row.fault.label for row in faults if not row.as_expected],
        unnamed=[row.fault.label for row in causes if not row.named],
        median_s=statistics.median(seconds) if seconds else None,
        slowest_s=max(seconds, default=None),
        started=sum(row.starts[0] > 0 for row in ran),
        slowest_warm_s=max((row.warm_s for row in ran), default=None),
        median_to_cause_s=statistics.median(to_cause) if to_cause else None,
    )

"""One verdict against the truth of its fault, and the score of many."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.model import Cause, Verdict
from reports.text import counted
from scenarios.planted.differences.fault import Fault, matches

NAMED_SHARE = 0.95  # of the faults with a cause, for the suite to pass


@dataclass(frozen=True)
class Outcome:
    """What the judge made of one planted fault. Seconds: of the runs, of judging with its re-readings, of the live
    interventions. `starts`: engines that were started for it, in runs or interventions, and the seconds of that, which
    are part of the others. `error`: it could not be run."""

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
        """INCONCLUSIVE of a fault that the recordings need not suffice to tell."""
        return self.fault.or_untested and self.status == "INCONCLUSIVE" and not self.causes

    @property
    def as_expected(self) -> bool:
        """The right verdict, the findings and confounders that must stand there, none that must not, and what must be
        told of them."""
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
        """Words that must stand in the evidence of a cause, or in a finding, and do not."""
        texts = [(cause.name, cause.evidence) for cause in self.causes]
        texts += [
            (finding.name, f"{finding.summary}; {finding.effect}")
            for finding in (self.verdict.findings if self.verdict else ())
        ]
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
            if not any(matches(name, cause.name) and self._blames(cause, party) for cause in self.causes)
        ]

    @property
    def wrong(self) -> list[str]:
        """Causes that were named and are none, or with the wrong party; UNEXPLAINED beside a right one is one too."""
        return [
            f"{cause.name} ({cause.party})"
            for cause in self.causes
            if not any(matches(name, cause.name) and self._blames(cause, party) for name, party in self._expected)
        ]

    @property
    def named(self) -> bool:
        """Every cause with the right party, and no other."""
        return self.as_expected and not self.missing and not self.wrong

    @property
    def party_right(self) -> bool:
        """Whoever was named is at fault."""
        return bool(self.causes) and all(
            any(self._blames(cause, party) for _, party in self._expected) for cause in self.causes
        )

    @property
    def alarm(self) -> bool:
        """A control that was called different."""
        return self.fault.control and self.status == "DIVERGENT"

    @property
    def seconds(self) -> float:
        return round(self.run_s + self.judge_s + self.live_s, 1)

    @property
    def warm_s(self) -> float:
        """Seconds on warm engines: without those of starting any."""
        return round(self.seconds - self.starts[1], 1)

    @property
    def to_cause_s(self) -> float | None:
        """Seconds from the end of the runs to the named causes, engines up; None where none had to be named."""
        return round(self.judge_s + self.live_s, 2) if self.fault.causes and self.named else None

    @property
    def right(self) -> bool:
        return self.named if self.fault.causes and not self.untested else self.as_expected and not self.causes

    @property
    def _expected(self) -> list[tuple[str, str]]:
        return list(zip(self.fault.causes, self.fault.parties, strict=True))

    def _blames(self, cause: Cause, party: str) -> bool:
        """Whether `cause` blames that party; a mapping, on the side at fault."""
        if cause.party != party:
            return False
        return party != "mapping" or cause.details.get("side", self.fault.side) == self.fault.side

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "name": self.fault.name, "pair": list(self.pair), "side": self.fault.side, "expected": self.fault.expected,
            "verdict": self.status, "causes": list(self.fault.causes), "parties": list(self.fault.parties),
            "named": [{"name": c.name, "party": c.party, "proofs": len(c.proofs)} for c in self.causes],
            "found": self.as_expected, "right": self.right, "missing": self.missing, "wrong": self.wrong,
            "untold": self.untold, "alarm": self.alarm,
            "run_s": self.run_s, "judge_s": self.judge_s, "live_s": self.live_s, "seconds": self.seconds,
            "starts": self.starts[0], "starting_s": self.starts[1], "warm_s": self.warm_s,
            "reason": self.verdict.reason if self.verdict else self.error, "error": self.error,
        }  # fmt: skip


def started_since(before: tuple[int, float], now: tuple[int, float]) -> tuple[int, float]:
    """Engine starts between two countings, and their seconds; an engine that died takes its own with it."""
    return max(0, now[0] - before[0]), round(max(0.0, now[1] - before[1]), 1)


@dataclass(frozen=True)
class Score:
    """Counts over the outcomes. `faults` have something to be found, `causes` of them a cause to be named; one that is
    rightly not tested counts as found, and has none."""

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
        """Every fault found, 95 % of the causes named with the right party, no control alarmed, each control right."""
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
    """The score of a whole suite."""
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
        alarms=[row.fault.name for row in controls if row.alarm],
        misses=[row.fault.name for row in faults if not row.as_expected],
        unnamed=[row.fault.name for row in causes if not row.named],
        median_s=statistics.median(seconds) if seconds else None,
        slowest_s=max(seconds, default=None),
        started=sum(row.starts[0] > 0 for row in ran),
        slowest_warm_s=max((row.warm_s for row in ran), default=None),
        median_to_cause_s=statistics.median(to_cause) if to_cause else None,
    )

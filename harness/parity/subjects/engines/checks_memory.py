"""The check of memory that grows step after step: of a role, of an engine's process, of /dev/shm."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, by_findings, check
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.engines.observed_memory import FEWEST, MIB, WHAT, Held, growth
from reports.model import Finding
from reports.text import counted, figure

NAME = "memory-growth"
MOST = 5  # processes that are named at most


def _applies(e: Evidence) -> bool:
    """Whether a run is long enough to show growth, by its scenario or by its rollouts."""
    steps = [len(side.recording.steps("rollout")) for side in e.sides]
    steps += [side.recording.promised_steps for side in e.sides]
    return any(side.memory for side in e.sides) and max(steps) >= FEWEST


@check(NAME, applies=_applies, alone=True)
def memory_growth(e: Evidence) -> Outcome:
    """Whether a process holds more memory after each step; warm-up, jumps and what is given back are no growth."""
    findings, quiet = [], []
    silent: dict[str, list[str]] = {}  # reason why a run cannot be tested -> sides
    for side in e.sides:
        series = side.memory
        tested = [(record, trend) for record in series if (trend := growth(record, len(series))) is not None]
        if not tested:
            longest = max((len(record.steps) for record in series), default=0)
            why = f"memory of {counted(longest, 'step')}, {FEWEST} are needed" if series else "no memory was recorded"
            silent.setdefault(why, []).append(side.name)
            continue
        growing = [(record, trend.rate) for record, trend in tested if trend.grows]
        findings += [_finding(side, record, rate) for record, rate in growing[:MOST]]
        if growing:
            continue
        worst, trend = max(tested, key=lambda pair: pair[1].smallest)
        quiet.append(
            f"{side.name}: none of {len(tested):,} series grows; {_mib(trend.smallest)} a step would have "
            f"been found in each (in {WHAT[worst.what]} of {worst.who} no less)"
        )
    reasons = [f"{' and '.join(sides)}: {why}" for why, sides in silent.items()]
    return by_findings(NAME, findings, reasons, quiet)


def _finding(side: Side, record: Held, rate: float) -> Finding:
    steps = f"{int(record.steps[0])} to {int(record.steps[-1])}"
    return Finding(
        "memory growth",
        f"{WHAT[record.what]} of {record.who} grows by {_mib(rate)} a step",
        f"from {_mib(record.low[0])} to {_mib(record.low[-1])} in steps {steps}",
        where=side.name,
        details={"process": record.who, "memory": record.what, "mib_per_step": rate / MIB},
    )


def _mib(size: float) -> str:
    return f"{figure(float(size) / MIB)} MiB"

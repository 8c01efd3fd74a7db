"""The check of sleep and wake of an engine that shares its device with the learner."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.engines.observed import engines
from harness.parity.subjects.engines.observed_lifecycle import Lifecycle
from harness.parity.subjects.sampling.observed import on_cpu
from reports.text import counted

NAME = "lifecycle"


def _applies(e: Evidence) -> bool:
    return any(side.lifecycle is not None for side in e.sides)


@check(NAME, required=_applies, applies=_applies, alone=True)
def lifecycle(e: Evidence) -> Outcome:
    """Whether an engine slept while the learner trained, was awake for each sync and each draw, and what it freed."""
    kinds = e.diverged(Kind.LIFECYCLE)
    descriptions = {
        side.name: _in_words(side.lifecycle, on_cpu(side, e.mode)) for side in e.sides if side.lifecycle is not None
    }
    if kinds:
        place = e.first_place(*kinds)
        return outcome(NAME, "confirmed", f"{place.field}: {place.context}", kinds=kinds, sides=descriptions)
    silent = [side.name for side in e.sides if _unseen(side)]
    if silent:
        why = f"{' and '.join(silent)}: engine.sleep_level is set, and no call that put an engine to sleep was recorded"
        return outcome(NAME, "not tested", why, sides=descriptions)
    return outcome(
        NAME, "ruled out", "; ".join(f"{name}: {text}" for name, text in descriptions.items()), sides=descriptions
    )


def _unseen(side: Side) -> bool:
    """Whether sleep of some engine of this side was not recorded."""
    return side.lifecycle is not None and side.lifecycle.engines < engines(side)


def _in_words(record: Lifecycle, cpu: bool) -> str:
    if record.freed is None and not cpu:
        freed = "not recorded"
    else:  # no engine frees memory on a CPU
        freed = f"{record.freed / (1 << 20):,.0f} MiB at most" if record.freed else "nothing, on this device"
    several = f" of {counted(record.engines, 'engine')}" if record.engines > 1 else ""
    slept = f"asleep {counted(record.sleeps, 'time')}{several} at level {record.level}"
    return f"{slept}, awake for each sync and draw; freed: {freed}"

"""An engine that is used in its sleep, or does not sleep when the learner needs its memory."""

from __future__ import annotations

from collections.abc import Iterator

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.turns import Turn
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation
from harness.parity.facts.lifecycle import What
from reports.model import Cause
from reports.text import counted


def used_asleep(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """The engine's recorded calls, in their order."""
    for side in e.sides:
        missteps = side.lifecycle.missteps if side.lifecycle is not None else ()
        for what in What:
            own = [one for one in missteps if one.what is what]
            if own:
                first = own[0]
                shown = f"{counted(len(own), 'time')}, first in step {first.step}"
                details = {"engine": first.engine, "steps": sorted({one.step for one in own})}
                cause = Cause.of(
                    LIFECYCLE.key(what), side.name, f"the {side.name}'s engine {what.words}", shown, details
                )
                yield Explanation(cause, (Kind.LIFECYCLE.of(side.name),))


LIFECYCLE = CauseFamily(
    "LIFECYCLE",
    meaning="the engine was used in its sleep, drew before a sync brought its weights back, or did not sleep",
    fix="after every rollout put the engine to sleep; wake its weights before a sync, and its cache after it",
    alone="the engine's own calls are recorded in their order",
    rules=(Turn(used_asleep, "arithmetic", "it explains its own divergence alone, whatever else is open"),),
)
FAMILIES = (LIFECYCLE,)

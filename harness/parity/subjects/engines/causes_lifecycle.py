"""The cause LIFECYCLE: an engine is used while asleep, or stays awake when the learner needs its memory."""

from __future__ import annotations

from collections.abc import Iterator

from harness.parity.causes.family import CauseFamily, of_each_side
from harness.parity.causes.proof import recorded
from harness.parity.facts.divergence import ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, in_steps, without_steps
from harness.parity.subjects.engines.observed_lifecycle import What
from reports.model import Cause
from reports.text import counted


@of_each_side
def used_asleep(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find wrong calls in the engine's recorded order. Drawing before a sync brought the current weights explains the
    samples.
    """
    missteps = side.lifecycle.missteps if side.lifecycle is not None else ()
    for what in What:
        missteps_of_kind = [misstep for misstep in missteps if misstep.what is what]
        if not missteps_of_kind:
            continue
        first, steps = missteps_of_kind[0], {misstep.step for misstep in missteps_of_kind}
        evidence = f"{counted(len(missteps_of_kind), 'time')}, first in step {first.step}"
        drawn = what is What.UNSYNCED
        cause = Cause.of(
            LIFECYCLE.key(what),
            side.name,
            f"the {side.name}'s engine {what.words}",
            evidence,
            {"engine": first.engine, "steps": sorted(steps)},
            without_steps(e, side.name, steps, "leave out the steps drawn unsynced") if drawn else [],
        )
        kinds = (Kind.LIFECYCLE, *ROLLOUT) if drawn else (Kind.LIFECYCLE,)
        yield Explanation(cause, keys(kinds, side.name), in_steps(steps))


LIFECYCLE = CauseFamily(
    "LIFECYCLE",
    meaning="the engine was used in its sleep, drew before a sync brought it the current weights, or did not sleep",
    fix="after every rollout put the engine to sleep; wake its weights before a sync, and its cache after it",
    details={what: f"the engine {what.words}" for what in What},
    alone="the engine's own calls are recorded in their order",
    proof=recorded("no step differs but those that were drawn against the order of calls"),
)
FAMILIES = (LIFECYCLE,)

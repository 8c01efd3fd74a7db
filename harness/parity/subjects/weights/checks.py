"""The check of the weights that an engine computes with: the learner's current ones, or those before its last
update.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from harness.parity.checks.registry import Outcome, check, outcome, unless_native
from harness.parity.facts.divergence import DivergenceKey, Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.log_probabilities import observed_systematic
from harness.parity.subjects.weights.observed_lag import InUse
from harness.parity.subjects.weights.observed_sync_record import NEARER
from reports.text import counted, figure

NAME = "weights-in-use"
BEHIND_OPEN = "an engine that is one update behind is not ruled out"


def _records_proofs(e: Evidence) -> bool:
    return unless_native(e) and not e.of_a_framework


def _updated(e: Evidence) -> bool:
    """Whether a training run drew any rollout after an update. In float32 only runs of the harness record the proofs
    needed.
    """
    versions = {version for side in e.sides for version in side.versions}
    return (e.tolerance.half or _records_proofs(e)) and e.train and len(versions) > 1


@check(NAME, required=_records_proofs, applies=_updated, alone=True)
def weights_in_use(e: Evidence) -> Outcome:
    """Does each engine compute with the learner's weights, and not with those before the last update?"""
    return _by_scores(e) if e.tolerance.half else _by_proofs(e)


def _by_scores(e: Evidence) -> Outcome:
    """Judge runs in half precision by the learner's scores with the weights before and after each update."""
    kinds, results = e.diverged(Kind.BEHIND), e.weights_in_use
    details: dict[str, Any] = {side: _details(usage) for side, usage in results.items()}
    if kinds:
        return outcome(NAME, "confirmed", _places(e, kinds), kinds=kinds, **details)
    # No engine is behind. That is ruled out only where every update was scored with both weights, and each engine is
    # significantly nearer to the current ones.
    if why := next(_undecided(e), ""):
        return outcome(NAME, "not tested", f"{why} {BEHIND_OPEN}", **details)
    text = "; ".join(
        f"the {side} is nearer to its learner's weights than to those before the last update by "
        f"{figure(usage.best.errors)} standard errors ({figure(usage.best.critical)} would tell), in {usage.alone} of "
        f"{len(usage.steps):,} steps by themselves"
        for side, usage in results.items()
    )
    return outcome(NAME, "ruled out", text, **details)


def _details(usage: InUse) -> dict[str, Any]:
    of_the_run = [test for test in usage.tests if test.where == observed_systematic.RUN]
    return {
        "mean move of an update": usage.moved,
        "mean distance from the weights": usage.now,
        "mean distance from those before": usage.before,
        "standard errors": {test.reading: test.errors for test in of_the_run},
        "needed": usage.best.critical,
        "steps": usage.steps,
        "steps that tell by themselves": usage.alone,
    }


def _places(e: Evidence, kinds: tuple[DivergenceKey, ...]) -> str:
    return "; ".join(e.first[kind].place.context for kind in kinds)


def _undecided(e: Evidence) -> Iterator[str]:
    """Yield why it is unknown which weights an engine uses: missing scores first, then too few tokens."""
    results = e.weights_in_use
    for side in e.sides:
        if side.name not in results:
            text = f"the {side.name}'s learner did not score its samples with the weights before each update, or says "
            yield text + "what no update makes of them:"
    for side in e.sides:
        if lacking := _unscored(e, side):
            yield f"{lacking}:"
    for whose, usage in results.items():
        if usage.current:
            continue
        best = usage.best
        text = f"an update moves a log-probability by {figure(usage.moved)} nats on average, the {whose}'s engine "
        text += f"is {figure(usage.now)} off float32: over {counted(usage.tokens, 'token')} it is nearer "
        text += f"to the weights {'after' if best.errors >= 0 else 'before'} the update by "
        text += f"{figure(abs(best.errors))} standard errors ({best.reading}), and {figure(best.critical)} would "
        yield text + "tell;"


def _unscored(e: Evidence, side: Side) -> str:
    """Name the first rollouts that followed an update and were not scored with the weights before it; "" for none."""
    if lacking := _unversioned(side):
        return lacking
    first, scored = min(version for version in side.versions if version is not None), e.weights_in_use[side.name].steps
    later = {step for version, steps in side.versions.items() if version != first for step in steps}
    for step in e.steps:
        if step in later and step not in {*scored, *e.unjudged_steps}:
            return f"the {side.name}'s samples of step {step} were not held against the weights before the last update"
    return ""


def _unversioned(side: Side) -> str:
    if None in side.versions or not side.versions:
        return f"the {side.name}'s rollouts do not say with which weight version they were drawn"
    return ""


def _by_proofs(e: Evidence) -> Outcome:
    """Judge float32 runs by the proof of each sync, which is precise enough there to tell two weight versions apart."""
    kinds = tuple(Kind.BEHIND.of(side.name) for side in e.sides if side.sync.behind)
    details: dict[str, Any] = {side.name: {"distances": side.sync.distances} for side in e.sides}
    if kinds:
        return outcome(NAME, "confirmed", _places(e, kinds), kinds=kinds, **details)
    # No engine is behind. That is ruled out only where the proof of every update tells the two versions apart.
    if why := next(filter(None, [*map(_untold, e.sides), *map(_unproven, e.sides)]), ""):
        return outcome(NAME, "not tested", f"{why} {BEHIND_OPEN}", **details)
    distances = [pair for side in e.sides for pair in side.sync.distances.values()]
    if not distances:
        return outcome(NAME, "not tested", "no sync after an update was proven on its own", **details)
    least = min(before / now if now else np.inf for now, before in distances)
    text = f"each of {counted(len(distances), 'proof')} is nearer to the learner's weights than to those before the "
    return outcome(
        NAME, "ruled out", f"{text}last update, {figure(least)} times at least ({NEARER:g} would tell)", **details
    )


def _untold(side: Side) -> str:
    """Return the first proof that is as near to one weight version as to the one before; "" for none."""
    for version in side.sync.untold[:1]:
        now, before = side.sync.distances[version]
        text = f"by the proof of weight version {version} the {side.name}'s engine is {figure(now)} nats from the "
        text += f"learner's weights and {figure(before)} from those before the last update, on average; "
        return f"{text}{NEARER:g} times as far would tell, and"
    return ""


def _unproven(side: Side) -> str:
    """Name the first weight version in use that no proof of its own tells from the version before; "" for none.

    An update that changed no tensor needs no proof.
    """
    if lacking := _unversioned(side):
        return f"{lacking}:"
    record = side.sync
    for before, version in pairwise(sorted(number for number in side.versions if number is not None)):
        sent = record.learner.get(version)
        if version not in record.distances and not (sent and sent == record.learner.get(before)):
            return f"no proof tells weight version {version} of the {side.name} from the one before:"
    return ""

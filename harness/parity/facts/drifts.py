"""Mean differences, gathered beside the largest ones while the steps are compared."""

from __future__ import annotations

import numpy as np

from harness.parity.facts import behind, systematic
from harness.parity.facts.align import Match
from harness.parity.facts.clusters import prompts
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.logprob_pairs import LogprobPairs
from harness.parity.facts.rounding import both
from harness.parity.facts.systematic import Compared, Means
from harness.recordings.tables import Table
from reports.model import Place
from reports.text import figure

NAMES = ("actor_logprob", "exact_logprob")
BEFORE = ("behind_logprob", "behind_exact_logprob")


def engines(e: Evidence, b: Table, match: Match, pairs: LogprobPairs) -> None:
    """Engine against engine, one step."""
    _drift(e, Means(Compared.ENGINES), b, match, pairs)


def against_learner(
    e: Evidence, side: Side, rollout: Table, experience: Table, match: Match, pairs: LogprobPairs
) -> None:
    """One engine (the first of `pairs`) against its learner (the second), one step: in half precision against what
    float32 makes of the same weights, where that is known."""
    columns = both(experience, *NAMES)
    means, grid, same = Means(Compared.ENGINE, side.name), pairs.grid, pairs.same
    if columns is None or not e.tolerance.rounding.measured:
        _drift(e, means, rollout, match, pairs, backwards=True)
        return
    engine, learner, exact = pairs.first, pairs.second, grid.take(columns[1], match.b)
    by_float32 = [LogprobPairs(grid, same, exact, number, pairs.sample, pairs.cached) for number in (engine, learner)]
    _drift(e, means, rollout, match, by_float32[0], by_float32[1].delta)
    _drift(e, Means(Compared.TRAINER, side.name), rollout, match, by_float32[1])
    before = both(experience, *BEFORE)
    if before is not None and same.any():
        updates: behind.Updates = e.updates.setdefault(side.name, behind.Updates())
        then = (grid.take(before[0], match.b)[same], grid.take(before[1], match.b)[same])
        cluster = prompts(rollout)[match.a][grid.row[same]]
        updates.add(rollout.step, cluster, engine[same], (learner[same], exact[same]), then)


def _drift(
    e: Evidence,
    means: Means,
    rollout: Table,
    match: Match,
    pairs: LogprobPairs,
    rounding: np.ndarray | None = None,
    *,
    backwards: bool = False,
) -> None:
    if pairs.same.any():
        drift = e.drifts.setdefault(means, systematic.Drift())
        drift.add(rollout.step, prompts(rollout)[match.a], pairs, rounding, backwards=backwards)


def settle(e: Evidence) -> None:
    """Turn what the tests found into divergences, where no single token of the comparison diverged already."""
    e.drift_tests = results = systematic.tested(e.drifts, systematic.Null.of(e.tolerance, e.mean_floor))
    for (compared, side), tests in results.items():
        if compared.single is not None and compared.single.of(side) in e.first:
            continue
        for one in tests:
            if one.found:
                field, values = "mean log-probability", _values(e, side, one)
                e.diverges(
                    compared.drift.of(side),
                    [],
                    Place(one.step, "rollout", 0, -1, -1, field, *values, context=describe(one)),
                )
    e.weights_in_use = sides = behind.sides(e.updates)
    for name, found in sides.items():
        for test in found.behind:
            context = f"over {test.where} the {name} is nearer to the learner's weights before the last update than to "
            context += f"its weights, by {figure(-test.errors)} standard errors ({test.reading})"
            place = Place(
                test.step, "rollout", 0, -1, -1, "distance from the learner's weights",
                *e.side(name).paired(found.now, found.before), context=context,
            )  # fmt: skip
            e.diverges(Kind.BEHIND.of(name), [], place)


def _values(e: Evidence, side: str | None, one: systematic.Tested) -> tuple[float, float]:
    """(baseline's, candidate's) mean; of a side the reference stands in the other's place."""
    return e.side(side).paired(one.values[1], one.values[0]) if side else one.values


def describe(one: systematic.Tested) -> str:
    """One test in words."""
    if one.what == "size":
        mean = one.mean.value + one.bound
        size = f"mean |Δ| of {one.where} {figure(mean)} nats"
        return f"{size}, {figure(mean / one.unit)} times {one.unit_of}" if one.unit else f"{size}, and none is allowed"
    return (
        f"mean Δ of {one.where} {figure(one.mean.value)} nats, standard error {figure(one.mean.error)} over "
        f"{one.mean.clusters} prompts; rounding alone leaves {figure(one.bound)}"
    )

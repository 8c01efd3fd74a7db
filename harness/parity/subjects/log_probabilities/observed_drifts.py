"""Mean differences, gathered beside the largest ones while the steps are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.facts.align import Grid, Match
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.log_probabilities import observed_systematic as systematic
from harness.parity.subjects.log_probabilities.observed_clusters import prompts
from harness.parity.subjects.log_probabilities.observed_systematic import Compared, Means
from harness.parity.subjects.precision.observed_rounding import both
from harness.parity.subjects.weights import observed_lag
from harness.recordings.tables import Table
from reports.model import Place
from reports.text import figure

NAMES = ("actor_logprob", "exact_logprob")
BEFORE = ("behind_logprob", "behind_exact_logprob")


def engines(
    e: Evidence, b: Table, match: Match, grid: Grid, tokens_equal: np.ndarray, p: np.ndarray, q: np.ndarray, cached: Any
) -> None:
    """Engine against engine, one step; flat arrays on `grid`, `cached` per row."""
    _drift(
        e=e,
        means=Means(Compared.ENGINES),
        rollout=b,
        rows=match.a,
        grid=grid,
        tokens_equal=tokens_equal,
        reference=p,
        compared=q,
        rounding=None,
        cached=cached,
    )


def against_learner(
    e: Evidence, side: Side, rollout: Table, experience: Table, match: Match, grid: Grid, tokens_equal: np.ndarray,
    engine: np.ndarray, learner: np.ndarray, cached: Any,
) -> None:  # fmt: skip
    """One engine against its learner, one step: in half precision against what float32 makes of the same weights, where
    that is known."""
    logprob_columns = both(experience, *NAMES)
    exact = (
        grid.take(logprob_columns[1], match.b)
        if logprob_columns is not None and e.tolerance.rounding.measured
        else None
    )
    means = Means(Compared.ENGINE, side.name)
    if exact is None:
        _drift(
            e=e,
            means=means,
            rollout=rollout,
            rows=match.a,
            grid=grid,
            tokens_equal=tokens_equal,
            reference=learner,
            compared=engine,
            rounding=None,
            cached=cached,
        )
        return
    rounding = learner.astype(np.float64) - exact
    _drift(
        e=e,
        means=means,
        rollout=rollout,
        rows=match.a,
        grid=grid,
        tokens_equal=tokens_equal,
        reference=exact,
        compared=engine,
        rounding=rounding,
        cached=cached,
    )
    _drift(
        e=e,
        means=Means(Compared.TRAINER, side.name),
        rollout=rollout,
        rows=match.a,
        grid=grid,
        tokens_equal=tokens_equal,
        reference=exact,
        compared=learner,
        rounding=None,
        cached=cached,
    )
    before = both(experience, *BEFORE)
    if before is not None and tokens_equal.any():
        updates: observed_lag.Updates = e.updates.setdefault(side.name, observed_lag.Updates())
        then = (grid.take(before[0], match.b)[tokens_equal], grid.take(before[1], match.b)[tokens_equal])
        cluster = prompts(rollout)[match.a][grid.row[tokens_equal]]
        updates.add(rollout.step, cluster, engine[tokens_equal], (learner[tokens_equal], exact[tokens_equal]), then)


def _drift(
    e: Evidence, means: Means, rollout: Table, rows: np.ndarray, grid: Grid, tokens_equal: np.ndarray,
    reference: np.ndarray, compared: np.ndarray, rounding: np.ndarray | None, cached: Any,
) -> None:  # fmt: skip
    if not tokens_equal.any():
        return
    row = grid.row[tokens_equal]
    e.drifts.setdefault(means, systematic.Drift()).add(
        step=rollout.step,
        cluster=prompts(rollout)[rows][row],
        reference=reference[tokens_equal],
        compared=compared[tokens_equal],
        rounding=None if rounding is None else rounding[tokens_equal],
        position=grid.position[tokens_equal],
        cached=None if cached is None else (np.asarray(cached) > 0)[row],
    )


def settle(e: Evidence) -> None:
    """Turn what the tests found into divergences, where no single token of the comparison diverged already."""
    e.drift_tests = results = systematic.tested(e.drifts, systematic.Null.of(e.tolerance, e.mean_floor))
    for (compared, side), tests in results.items():
        if compared.single is not None and compared.single.of(side) in e.first:
            continue
        for mean_test in tests:
            if mean_test.found:
                field, values = "mean log-probability", _values(e, side, mean_test)
                e.diverges(
                    compared.drift.of(side),
                    [],
                    Place(
                        step=mean_test.step,
                        phase="rollout",
                        rank=0,
                        sample=-1,
                        position=-1,
                        field=field,
                        **values,
                        context=describe(mean_test),
                    ),
                )
    e.weights_in_use = sides = observed_lag.sides(e.updates)
    for name, in_use in sides.items():
        for test in in_use.behind:
            context = f"over {test.where} the {name} is nearer to the learner's weights before the last update than to "
            context += f"its weights, by {figure(-test.errors)} standard errors ({test.reading})"
            place = Place(
                step=test.step,
                phase="rollout",
                rank=0,
                sample=-1,
                position=-1,
                field="distance from the learner's weights",
                **e.side(name).paired(in_use.now, in_use.before),
                context=context,
            )
            e.diverges(Kind.BEHIND.of(name), [], place)


def _values(e: Evidence, side: str | None, test: systematic.Tested) -> dict[str, float]:
    """The means as fields of a `Place`; of a side the reference stands in the other's place."""
    reference, compared = test.values
    return e.side(side).paired(compared, reference) if side else {"baseline": reference, "candidate": compared}


def describe(test: systematic.Tested) -> str:
    """One test in words."""
    if test.what == "size":
        mean = test.mean.value + test.bound
        size = f"mean |Δ| of {test.where} {figure(mean)} nats"
        return (
            f"{size}, {figure(mean / test.unit)} times {test.unit_of}" if test.unit else f"{size}, and none is allowed"
        )
    return (
        f"mean Δ of {test.where} {figure(test.mean.value)} nats, standard error {figure(test.mean.error)} over "
        f"{test.mean.clusters} prompts; rounding alone leaves {figure(test.bound)}"
    )

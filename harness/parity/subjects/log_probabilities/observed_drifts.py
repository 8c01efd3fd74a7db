"""Mean differences, gathered beside the largest ones while the steps are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.log_probabilities import observed_systematic as systematic
from harness.parity.subjects.log_probabilities.observed_clusters import prompts
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.parity.subjects.log_probabilities.observed_systematic import ClusteredLogprobs, Compared, Means
from harness.parity.subjects.precision.observed_rounding import both
from harness.parity.subjects.weights import observed_lag
from reports.model import Place
from reports.text import figure

NAMES = ("actor_logprob", "exact_logprob")
BEFORE = ("behind_logprob", "behind_exact_logprob")


def engines(e: Evidence, pairs: LogprobPairs) -> None:
    """Engine against engine, one step."""
    _drift(e, Means(Compared.ENGINES), pairs)


def against_learner(e: Evidence, side: Side, pairs: LogprobPairs) -> None:
    """One engine, which is compared, against its learner, one step: in half precision against what float32 makes of the
    same weights, where that is known."""
    tokens, tokens_equal, learner = pairs.tokens, pairs.tokens_equal, pairs.reference
    experience = tokens.b
    logprob_columns = both(experience, *NAMES)
    means = Means(Compared.ENGINE, side.name)
    if logprob_columns is None or not e.tolerance.rounding.measured:
        _drift(e, means, pairs)
        return
    exact = tokens.take_b(logprob_columns[1])
    _drift(e, means, replace(pairs, reference=exact), rounding=learner.astype(np.float64) - exact)
    _drift(e, Means(Compared.TRAINER, side.name), replace(pairs, reference=exact, compared=learner))
    before = both(experience, *BEFORE)
    if before is not None and tokens_equal.any():
        updates: observed_lag.Updates = e.updates.setdefault(side.name, observed_lag.Updates())
        then = (tokens.take_b(before[0])[tokens_equal], tokens.take_b(before[1])[tokens_equal])
        cluster = prompts(tokens.a)[tokens.match.a][tokens.grid.row[tokens_equal]]
        now = (learner[tokens_equal], exact[tokens_equal])
        updates.add(tokens.step, cluster, pairs.compared[tokens_equal], now, then)


def _drift(e: Evidence, means: Means, pairs: LogprobPairs, rounding: np.ndarray | None = None) -> None:
    tokens, tokens_equal = pairs.tokens, pairs.tokens_equal
    if not tokens_equal.any():
        return
    row = tokens.grid.row[tokens_equal]
    e.drifts.setdefault(means, systematic.Drift()).add(
        ClusteredLogprobs(
            step=tokens.step,
            cluster=prompts(tokens.a)[tokens.match.a][row],
            reference=pairs.reference[tokens_equal],
            compared=pairs.compared[tokens_equal],
            position=tokens.grid.position[tokens_equal],
            rounding=None if rounding is None else rounding[tokens_equal],
            cached=None if pairs.cached is None else (pairs.cached > 0)[row],
        )
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

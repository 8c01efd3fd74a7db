"""Collect mean differences of log-probabilities while the steps are compared, and turn significant ones into
divergences.

Single tokens are judged elsewhere: `observed_rollouts` (engine against engine) and `observed_against_learner`. The
tests of the means are in `observed_systematic`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.facts.align import AlignedTokens
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder
from harness.parity.subjects.log_probabilities import observed_systematic as systematic
from harness.parity.subjects.log_probabilities.observed_clusters import prompts
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.parity.subjects.log_probabilities.observed_systematic import Compared, Means
from harness.parity.subjects.precision.observed_rounding import both
from harness.parity.subjects.weights import observed_lag
from reports.model import place_of_step
from reports.text import figure

NAMES = ("actor_logprob", "exact_logprob")
BEFORE = ("behind_logprob", "behind_exact_logprob")


def engines(e: EvidenceBuilder, tokens: AlignedTokens, pairs: LogprobPairs) -> None:
    """Add one step of engine against engine."""
    _drift(e, Means(Compared.ENGINES), tokens, pairs)


def against_learner(e: EvidenceBuilder, side: SideBuilder, tokens: AlignedTokens, pairs: LogprobPairs) -> None:
    """Add one step of an engine (first of `pairs`) against its learner (second of `pairs`).

    In half precision the engine is compared with the float32 log-probabilities of the same weights, where they were
    recorded.
    """
    columns = both(tokens.b, *NAMES)
    means, grid, same = Means(Compared.ENGINE, side.name), pairs.grid, pairs.same
    if columns is None or not e.tolerance.rounding.measured:
        _drift(e, means, tokens, pairs, backwards=True)
        return
    engine, learner, exact = pairs.first, pairs.second, tokens.take_b(columns[1])
    by_float32 = [LogprobPairs(grid, same, exact, number, pairs.sample, pairs.cached) for number in (engine, learner)]
    _drift(e, means, tokens, by_float32[0], by_float32[1].delta)
    _drift(e, Means(Compared.TRAINER, side.name), tokens, by_float32[1])
    before = both(tokens.b, *BEFORE)
    if before is not None and same.any():
        updates: observed_lag.Updates = e.updates.setdefault(side.name, observed_lag.Updates())
        then = (tokens.take_b(before[0])[same], tokens.take_b(before[1])[same])
        cluster = prompts(tokens.a)[tokens.match.a][grid.row[same]]
        updates.add(tokens.step, cluster, engine[same], (learner[same], exact[same]), then)


def _drift(
    e: EvidenceBuilder,
    means: Means,
    tokens: AlignedTokens,
    pairs: LogprobPairs,
    rounding: np.ndarray | None = None,
    *,
    backwards: bool = False,
) -> None:
    if pairs.same.any():
        drift = e.drifts.setdefault(means, systematic.Drift())
        drift.add(tokens.step, prompts(tokens.a)[tokens.match.a], pairs, rounding, backwards=backwards)


def note_means(e: EvidenceBuilder) -> None:
    """Turn the significant means into divergences, unless single tokens of the same comparison diverged already."""
    e.drift_tests = results = systematic.tested(e.drifts, systematic.Null.of(e.tolerance, e.mean_floor))
    for (compared, side), tests in results.items():
        # Tokens beyond the tolerance move the mean, too: it says nothing that they do not.
        if compared.single is not None and compared.single.of(side) in e.first:
            continue
        for mean_test in tests:
            if mean_test.found:
                e.note_divergence(
                    compared.drift.of(side),
                    [],
                    place_of_step(
                        step=mean_test.step,
                        phase="rollout",
                        field="mean log-probability",
                        **_values(e, side, mean_test),
                        context=describe(mean_test),
                    ),
                )
    _note_behind(e)


def _note_behind(e: EvidenceBuilder) -> None:
    """Note engines that are nearer to the learner's weights before an update than to those after it."""
    e.weights_in_use = observed_lag.sides(e.updates)
    for name, in_use in e.weights_in_use.items():
        for test in in_use.behind:
            context = f"over {test.where} the {name} is nearer to the learner's weights before the last update than to "
            context += f"its weights, by {figure(-test.errors)} standard errors ({test.reading})"
            place = place_of_step(
                step=test.step,
                phase="rollout",
                field="distance from the learner's weights",
                **e.side(name).paired(in_use.now, in_use.before),
                context=context,
            )
            e.note_divergence(Kind.BEHIND.of(name), [], place)


def _values(e: EvidenceBuilder, side: str | None, test: systematic.Tested) -> dict[str, Any]:
    """Return the two means as fields of a `Place`. For one side's comparison, the reference takes the other side's
    place.
    """
    reference, compared = test.values
    return e.side(side).paired(compared, reference) if side else {"baseline": reference, "candidate": compared}


def describe(test: systematic.Tested) -> str:
    """Return one test in words."""
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

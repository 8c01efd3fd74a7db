"""The check of mean differences of log-probabilities, which find a bias that a tolerance on single tokens lets pass."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from harness.parity.checks.registry import Outcome, check, outcome, unless_native
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.log_probabilities import observed_systematic as systematic
from harness.parity.subjects.log_probabilities.observed_drifts import describe
from harness.parity.subjects.log_probabilities.observed_systematic import Compared, Means
from reports.text import counted, figure

# Times the cap. The check counts as not tested where a bias larger than this could have been missed.
LARGEST_UNSEEN = 0.2


def _comparable(e: Evidence) -> bool:
    """Whether there is anything to average: not for native sampling without log-probabilities of a learner."""
    return bool(_expected(e) or e.log_probabilities.drift_tests)


@check("systematic", required=unless_native, applies=_comparable, alone=True)
def systematic_differences(e: Evidence) -> Outcome:
    """Mean differences of engines and learners, which rounding does not have."""
    conclude = partial(outcome, "systematic")
    results = e.log_probabilities.drift_tests
    kinds = tuple(key for key in e.first if key.kind.systematic)
    tests = [test for mean_tests in results.values() for test in mean_tests]
    details: dict[str, Any] = {
        "error rate of all tests": systematic.FALSE_ALARM,
        "tests": len(tests),
        "power": systematic.POWER,
        "smallest": {means.label: _smallest(mean_tests) for means, mean_tests in results.items() if mean_tests},
    }
    positive_tests = [(means, test) for means, mean_tests in results.items() for test in mean_tests if test.found]
    if positive_tests:
        sentences = [f"{means.words}: {describe(test)}" for means, test in positive_tests[:3]]
        if len(positive_tests) > 3:
            sentences.append(f"and {len(positive_tests) - 3} more")
        return conclude("confirmed", "; ".join(sentences), kinds=kinds, decides=bool(kinds), **details)
    # Nothing was found. That rules a bias out only where everything expected was compared, with enough tokens.
    wanted = dict.fromkeys([*_expected(e), *results])
    absent = [f"{means.words} was not compared" for means in wanted if not results.get(means)]
    if absent:
        return conclude("not tested", absent[0], missing=[f"systematic: {gap}" for gap in absent], **details)
    # The first test of each comparison is that of the run. The least sensitive of them limits what can be ruled out.
    smallest, _, means = max((mean_tests[0].smallest, means.label, means) for means, mean_tests in results.items())
    if not smallest <= LARGEST_UNSEEN * e.tolerance.cap:
        clusters = results[means][0].mean.clusters
        text = f"{means.words}: over {counted(clusters, 'prompt')} only a bias of more than {figure(smallest)} nats "
        return conclude("not tested", f"{text}would be found", **details)
    powers = [
        _power(means, mean_tests) for means, mean_tests in results.items() if means.compared is not Compared.TRAINER
    ]
    text = "; ".join(powers)
    text += f"; {len(tests):,} tests, false alarms {systematic.FALSE_ALARM:g} together, power {systematic.POWER:g}"
    missing = []
    if unmeasured := _unmeasured_size(e):
        missing.append(f"systematic: the size of differences was not held against {unmeasured}")
    return conclude("ruled out", text, missing=missing, **details)


def _unmeasured_size(e: Evidence) -> str:
    """Name what the size of a mean difference could not be held against, and why; "" where it was."""
    if not e.tolerance.half:
        return "a floor: none was measured" if math.isnan(e.mean_floor) else ""
    if e.tolerance.rounding.measured:
        return ""
    why = e.tolerance.rounding.refused or "the learner's log-probabilities in float32 were not recorded"
    return f"the learner's rounding: {why}"


def _expected(e: Evidence) -> list[Means]:
    """Return the comparisons that must be there: what is compared for one side is expected for both."""
    expected: list[Means] = []
    if not e.alone and e.mode != "native":
        expected.append(Means(Compared.ENGINES))
    if any(side.to_learner.tokens for side in e.sides):
        expected += [Means(Compared.ENGINE, side.name) for side in e.sides]
    if any(means.compared is Compared.TRAINER for means in e.log_probabilities.drift_tests):
        expected += [Means(Compared.TRAINER, side.name) for side in e.sides]
    return expected


def _smallest(tests: tuple[systematic.Tested, ...]) -> dict[str, float]:
    """Return the smallest effects that would have been found, in nats: a bias of the run and of the worst step, a mean
    |Δ|.
    """
    run = {test.what: test.smallest for test in tests if test.where == systematic.RUN}
    steps = [test.smallest for test in tests if test.what == "bias" and test.where.startswith("step")]
    return {**{f"{what} of the run": value for what, value in run.items()}, "bias of a step": max(steps)}


def _power(means: Means, tests: tuple[systematic.Tested, ...]) -> str:
    run = tests[0]
    text = f"{means.words}: mean Δ {figure(run.mean.value)} ± {figure(run.mean.error)} nats, a bias of "
    if not run.unit:
        return f"{text}{figure(run.smallest)} would be found"
    text += f"{figure(run.smallest)} ({figure(run.smallest / run.unit)} of mean |Δ|) would be found"
    for test in tests:
        if test.what == "size" and test.where == systematic.RUN:
            text += f", mean |Δ| {figure((test.mean.value + test.bound) / test.unit)} times {test.unit_of}"
    return text

"""The two native stages compared as distributions: which quantities differ, and which are equal.

Tests of a difference are made of the location (difference of means) and the shape (Kolmogorov-Smirnov distance) of
lengths, rewards and surprisal, and of the counts of finish reasons. They are permuted within prompts, and form one
family with the tests of each sampler against the learner. Equality is shown for means, to within a margin. For a shape
only a difference can be shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from harness.parity.facts.divergence import DivergenceKey, Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.native_sampler.observed import (
    DIFFERENT,
    EQUAL,
    FINISH,
    UNDECIDED,
    Look,
    NativeResult,
    Quantity,
    Statistic,
    Tests,
)
from harness.parity.subjects.native_sampler.observed_looks import DOUBT, Plan
from harness.parity.subjects.native_sampler.observed_samples import QUANTITIES, Samples
from harness.parity.subjects.native_sampler.observed_two_samples import (
    PERMUTATIONS,
    Equivalence,
    equivalence,
    holm,
    permuted_labels,
    quantile_sum,
    statistics_of,
)
from probes.format import SIDES
from reports.text import figure

MOST_SAMPLES = 20_000  # of both stages: 1,999 permutations of as many booleans are 40 MB, their weights 160 MB


@dataclass
class Compared:
    """Both stages at one look. `means`: quantity -> means of the baseline and of the candidate, over all prompts."""

    prompts: int = 0
    tests: Tests = field(default_factory=dict)
    equalities: dict[str, Equivalence] = field(default_factory=dict)
    means: dict[str, tuple[float, float]] = field(default_factory=dict)
    not_compared: list[str] = field(default_factory=list)


def compared(
    baseline: Samples, candidate: Samples, *, margin: float, permutations: int = PERMUTATIONS
) -> Compared | None:
    """Test two stages for differences and for equality; None where they have no prompt in common."""
    pair = baseline, candidate
    shared_prompts = sorted(set(baseline.prompt) & set(candidate.prompt))
    if not shared_prompts:
        return None
    comparison = Compared()
    total = len(baseline) + len(candidate)
    # Permutations of more samples would not fit in memory, so prompts are left out and reported.
    if total > MOST_SAMPLES:
        shared_prompts = shared_prompts[: max(1, len(shared_prompts) * MOST_SAMPLES // total)]
        comparison.not_compared.append(
            f"native samples beyond the first {len(shared_prompts):,} prompts: the permutations would not fit in memory"
        )
    comparison.prompts = len(shared_prompts)
    pool = _Pool.of(pair, shared_prompts)
    for side, left_out in zip(SIDES, pool.left_out, strict=True):
        if left_out:
            comparison.not_compared.append(
                f"{side}: {left_out:,} native samples of prompts that the other run does not have"
            )
    # A quantity is compared only where every sample has it.
    usable = {name: values for name, values in pool.values.items() if np.isfinite(values).all()}
    comparison.not_compared += [
        f"{name} of the native samples: not recorded for every sample" for name in QUANTITIES if name not in usable
    ]
    ended = not {None, ""} & set(pool.finish)
    if not ended:
        comparison.not_compared.append("finish reasons of the native samples: not recorded for every sample")
    permuted = permuted_labels(pool.labels, pool.stratum, permutations=permutations)
    comparison.tests = statistics_of(permuted, pool.stratum, usable, pool.finish if ended else None)
    # Equality of finish reasons is tested as the share of the most common one.
    if ended:
        usable[FINISH] = (pool.finish == _commonest(pool.finish)).astype(np.float64)
    for name, values in usable.items():
        comparison.equalities[name] = equivalence(values, pool.stratum, pool.labels, margin=margin)
        comparison.means[name] = float(values[pool.labels].mean()), float(values[~pool.labels].mean())
    return comparison


@dataclass(frozen=True)
class _Pool:
    """The samples of both stages, the baseline's first (`labels` is true for them).

    `stratum`: the number of each sample's prompt, within which labels are permuted. `left_out`: samples of either side
    that have another prompt.
    """

    labels: np.ndarray
    stratum: np.ndarray
    values: dict[str, np.ndarray]
    finish: np.ndarray
    left_out: tuple[int, ...]

    @staticmethod
    def of(pair: tuple[Samples, Samples], prompts: list[bytes]) -> _Pool:
        number_of = {prompt: index for index, prompt in enumerate(prompts)}
        strata = [np.array([number_of.get(prompt, -1) for prompt in samples.prompt], int) for samples in pair]
        parts = [(samples, numbers >= 0) for samples, numbers in zip(pair, strata, strict=True)]
        stratum = np.concatenate(strata)
        return _Pool(
            labels=np.repeat([True, False], [np.count_nonzero(kept) for _, kept in parts]),
            stratum=stratum[stratum >= 0],
            values={
                name: np.concatenate([samples.values[name][kept] for samples, kept in parts]) for name in QUANTITIES
            },
            finish=np.concatenate([samples.finish[kept] for samples, kept in parts]),
            left_out=tuple(int(np.count_nonzero(~kept)) for _, kept in parts),
        )


def _commonest(finish: np.ndarray) -> object:
    reasons, counts = np.unique(finish.astype(str), return_counts=True)
    return reasons[np.argmax(counts)]


def look(comparison: Compared, plan: Plan, draws: int, samples: tuple[int, int]) -> Look:
    """Judge the samples of the first `draws` draws: each family of tests is corrected, and held to what this look may
    spend.

    A test that does not reject and whose corrected p is at most `DOUBT` is worth another draw. That costs no error: a
    look may spend its part of alpha whatever the reason for the look.
    """
    alpha, equivalence_alpha = plan.level(plan.alpha, draws), plan.level(plan.equivalence_alpha, draws)
    holm(comparison.tests)
    corrected = {name: {"p": equality.p} for name, equality in comparison.equalities.items()}
    holm(corrected)
    return Look(
        draws, samples, alpha, equivalence_alpha, comparison.tests,
        rejected=tuple(name for name, test in comparison.tests.items() if test["p_holm"] <= alpha),
        doubtful=tuple(name for name, test in comparison.tests.items() if alpha < test["p_holm"] <= DOUBT),
        equal=tuple(name for name, test in corrected.items() if test["p_holm"] <= equivalence_alpha),
    )  # fmt: skip


def conclude(result: NativeResult, last: Compared, plan: Plan) -> NativeResult:
    """Return the result with what all looks show together: the outcome of each quantity."""
    quantities: dict[str, Quantity] = {}
    corrected = {name: {"p": equality.p} for name, equality in last.equalities.items()}
    holm(corrected)
    alpha, equivalence_alpha = plan.strictest
    alpha, equivalence_alpha = alpha / max(1, len(last.tests)), equivalence_alpha / max(1, len(last.equalities))
    doubtful = {name.quantity for name in result.doubtful}
    for name, equality in last.equalities.items():
        # A difference at any look decides. Equality counts only while no test of the quantity is doubtful.
        different = [look for look in result.looks if name in {test.quantity for test in look.rejected}]
        equal = [look for look in result.looks if name in look.equal] if name not in doubtful else []
        decided = [*different, *equal, result.looks[-1]][0]
        outcome = UNDECIDED
        if different:
            outcome = DIFFERENT
        elif equal:
            outcome = EQUAL
        quantities[name] = Quantity(
            outcome=outcome,
            means=last.means[name],
            samples=min(decided.samples),
            difference=equality.difference,
            error=equality.error,
            margin=equality.margin,
            spread=equality.spread,
            p=equality.p,
            p_holm=corrected[name]["p_holm"],
            enough=equality.enough(equivalence_alpha),
            needed=equality.needed(equivalence_alpha, alpha),
            detectable=quantile_sum(result.looks[-1].alpha, len(last.tests)) * equality.error,
        )
    return replace(result, prompts=last.prompts, tests=last.tests, quantities=quantities)


def identical(baseline: Samples, candidate: Samples) -> tuple[int, float]:
    """Return how many samples of the same number both sides drew alike, and how many chance would, by the learner's
    likelihoods.
    """
    drawn = dict(zip(baseline.sample.tolist(), baseline.output, strict=True))
    equal_count = sum(
        drawn.get(number) == row for number, row in zip(candidate.sample.tolist(), candidate.output, strict=True)
    )
    shared_numbers = np.isin(candidate.sample, baseline.sample)
    likelihood = np.nan_to_num(candidate.likelihood[shared_numbers], nan=-np.inf)
    return equal_count, float(np.exp(likelihood).sum())


def note(e: EvidenceBuilder, result: NativeResult) -> None:
    """Add the divergences of the rejected tests: samplers that do not draw as asked, and stages that differ."""
    for name in result.rejected:
        _note(e, Kind.NATIVE_SAMPLER.of(name.side) if name.side else Kind.NATIVE.of(), name, result)


def _note(e: EvidenceBuilder, key: DivergenceKey, name: Statistic, result: NativeResult) -> None:
    look = next(look for look in result.looks if name in look.rejected)
    test = look.tests[name]
    text = f"p = {figure(test['p_holm'])} after Holm's correction, alpha {figure(look.alpha)} at look {look.draws}"
    e.note_native(key, field=name, context=text, baseline=test.get("baseline"), candidate=test.get("candidate"))

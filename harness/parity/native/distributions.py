"""Two native stages as distributions: which quantities differ, which are equal, and which nobody can tell.

Location (difference of means) and shape (Kolmogorov-Smirnov distance) of lengths, rewards and surprisal, and the counts
of finish reasons: tests of a difference, permuted within prompts, in one family with those of each sampler against the
learner. Equality is of the mean, to within a margin; of a shape only a difference can be shown.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from harness.parity.facts.divergence import DivergenceKey, Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.native_result import DIFFERENT, EQUAL, FINISH, TOO_LITTLE, NativeResult, Statistic
from harness.parity.native.samples import QUANTITIES, Samples
from harness.parity.native.two_samples import (
    Equivalence,
    equivalence,
    holm,
    permuted_labels,
    quantile_sum,
    statistics_of,
)
from reports.model import Place
from reports.text import figure

MOST_SAMPLES = 20_000  # of both stages: 1,999 permutations of as many booleans are 40 MB, their weights four times that
# A difference of means is this many standard deviations of the permuted ones: p = 2e-9 if those are normal. It is taken
# for alpha² = 1e-4 of a family of 11, which is 4.4, so that heavier tails do no harm.
SURE_ERRORS = 6.0


def distributions(e: Evidence, one: Samples, two: Samples, result: NativeResult) -> dict[str, Equivalence]:
    """Add the tests of a difference to `result`; returns each quantity's test of equality."""
    shared_prompts = sorted(set(one.prompt) & set(two.prompt))
    result.prompts = len(shared_prompts)
    if not shared_prompts:
        result.skipped = "the two stages have no prompt in common"
        return {}
    if len(one) + len(two) > MOST_SAMPLES:
        shared_prompts = shared_prompts[: max(1, len(shared_prompts) * MOST_SAMPLES // (len(one) + len(two)))]
        result.not_compared.append(
            f"native samples beyond the first {len(shared_prompts)} prompts: the permutations would not fit in memory"
        )
    number_of = {prompt: index for index, prompt in enumerate(shared_prompts)}
    keep = [np.array([i for i, p in enumerate(s.prompt) if p in number_of], int) for s in (one, two)]
    for side, samples, kept in zip(e.sides, (one, two), keep, strict=True):
        if len(kept) < len(samples):
            result.not_compared.append(
                f"{side.name}: {len(samples) - len(kept)} native samples of prompts that the other run does not have"
            )
    stratum = np.concatenate(
        [[number_of[s.prompt[i]] for i in kept] for s, kept in zip((one, two), keep, strict=True)]
    ).astype(int)
    baseline = np.repeat([True, False], [len(keep[0]), len(keep[1])])
    finish = np.concatenate([one.finish[keep[0]], two.finish[keep[1]]])
    data = {name: np.concatenate([one.values[name][keep[0]], two.values[name][keep[1]]]) for name in QUANTITIES}
    usable = {name: values for name, values in data.items() if np.isfinite(values).all()}
    result.not_compared += [
        f"{name} of the native samples: not recorded for every sample" for name in QUANTITIES if name not in usable
    ]
    known = not {None, ""} & set(finish)
    if not known:
        result.not_compared.append("finish reasons of the native samples: not recorded for every sample")
    drawn = dict(zip(one.sample.tolist(), one.output, strict=True))
    result.identical = sum(
        drawn.get(number) == row for number, row in zip(two.sample.tolist(), two.output, strict=True)
    )
    shared_numbers = np.isin(two.sample, one.sample)
    result.identical_expected = float(np.exp(np.nan_to_num(two.likelihood[shared_numbers], nan=-np.inf)).sum())
    result.tests |= statistics_of(permuted_labels(baseline, stratum), stratum, usable, finish if known else None)
    means = dict(usable)
    if known:
        means[FINISH] = (finish == _commonest(finish)).astype(np.float64)
    return {
        name: equivalence(values, stratum, baseline, margin=result.margin, family=len(means))
        for name, values in means.items()
    }


def _commonest(finish: np.ndarray) -> object:
    reasons, counts = np.unique(finish.astype(str), return_counts=True)
    return reasons[np.argmax(counts)]


def reject(result: NativeResult) -> None:
    """Correct the whole family, and say what one draw shows and what it leaves in doubt.

    A test that is rejected at alpha may be chance, which a gate of many comparisons meets every week; at alpha² it is
    none. Where one is sure, those at alpha say what else is different, and whose sampler is wrong.
    """
    holm(result.tests)
    below = [name for name, test in result.tests.items() if test["p_holm"] <= result.alpha]
    sure = any(_is_sure(result.tests[name], result.alpha) for name in below)
    result.rejected, result.doubtful = (below, []) if sure else ([], below)


def reject_both(first: NativeResult, second: NativeResult) -> None:
    """The tests of two draws as those of one (Fisher 1925): in `second`, whose own tests they replace.

    Both draws together are tested at alpha / 10, so that sound samplers differ once in some 900 comparisons at an alpha
    of 0.01: at alpha / 10 here, or at alpha² in the first draw.
    """
    second.first_draw = first.tests
    for name, test in second.tests.items():
        product = max(first.tests[name]["p"] * test["p"], 1e-300) if name in first.tests else 1.0
        test["p"] = product * (1 - math.log(product))
    holm(second.tests)
    second.rejected = [name for name, test in second.tests.items() if test["p_holm"] <= second.alpha / 10]


def _is_sure(test: dict[str, float], alpha: float) -> bool:
    return test["p_holm"] <= alpha**2 or test.get("errors", 0.0) >= SURE_ERRORS


def note(e: Evidence, result: NativeResult) -> None:
    """Note what the rejected tests show: samplers that do not draw what they were asked, and those that draw unlike."""
    for name in result.rejected:
        _note(e, Kind.NATIVE_SAMPLER.of(name.side) if name.side else Kind.NATIVE.of(), name, result)


def _note(e: Evidence, key: DivergenceKey, name: Statistic, result: NativeResult) -> None:
    test = result.tests[name]
    text = f"p = {figure(test['p_holm'])} after Holm's correction, alpha {result.alpha}"
    place = Place(-1, "native", 0, -1, -1, name, test.get("baseline"), test.get("candidate"), context=text)
    e.diverges(key, [], place, phase="native")


def quantities(result: NativeResult, found: dict[str, Equivalence]) -> None:
    """What is equal, different, or neither shown, after `reject`."""
    corrected = {name: {"p": one.p} for name, one in found.items()}
    holm(corrected)
    for name, one in found.items():
        rejected, doubtful = (
            any(one.quantity == name for one in those) for those in (result.rejected, result.doubtful)
        )
        equal = corrected[name]["p_holm"] <= result.equivalence_alpha and not doubtful
        outcome = DIFFERENT if rejected else EQUAL if equal else TOO_LITTLE
        seen = quantile_sum(result.alpha, len(result.tests)) * one.error  # by the strictest test of a difference
        numbers = dataclasses.asdict(one) | {"p_holm": corrected[name]["p_holm"], "detectable": seen}
        result.quantities[name] = {"outcome": outcome} | numbers
    result.enough = max((one.enough for one in found.values()), default=0)

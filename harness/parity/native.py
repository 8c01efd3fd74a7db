"""Native stage: each engine's own sampler at the same weights, compared as distributions.

Location (difference of means) and shape (Kolmogorov-Smirnov distance) of lengths, rewards and surprisal, and the counts
of finish reasons: seven tests, permuted within prompts (`two_samples`), corrected by Holm. What the data could not have
shown is said with the smallest effect that they could.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from harness.parity.align import Match, shared
from harness.parity.evidence import Evidence, Side
from harness.parity.two_samples import holm, permuted_labels, quantile_sum, spread_within, statistics_of
from harness.store import Recording
from harness.tables import Table, mapping, number
from reports.model import Place
from reports.text import figure

LARGEST_BLIND_EFFECT = 0.6  # standard deviations; a stage that could only see more than this has not tested anything
MOST_SAMPLES = 20_000
COLLISION = 1e-6  # probability below which equal samples of a prompt are clones
QUANTITIES = ("length", "reward", "surprisal")


@dataclass(frozen=True)
class Samples:
    """One engine's native samples: a row each."""

    prompt: np.ndarray  # object: the prompt's bytes
    output: list[bytes]
    finish: np.ndarray
    values: dict[
        str, np.ndarray
    ]  # length, reward, surprisal (mean per token, nats); NaN where the learner did not score
    likelihood: np.ndarray  # log-probability of the whole sample under the learner
    seeds: list[Any]

    def __len__(self) -> int:
        return len(self.output)


@dataclass
class NativeResult:
    """`tests`: name -> statistic, p, p_holm, detectable effect. `adequate`: the data could have shown a moderate
    effect.
    """

    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)
    samples: tuple[int, int] = (0, 0)
    prompts: int = 0
    adequate: bool = False
    enough: int = 0  # samples a side that would be
    skipped: str = ""  # why nothing was tested
    learner_delta: dict[str, float] = field(default_factory=dict)
    not_compared: list[str] = field(default_factory=list)


def native_stage(e: Evidence, *, alpha: float) -> None:
    """Read both native stages into `e.notes["native"]`, and their differences into the divergences."""
    result = NativeResult()
    e.notes["native"] = result
    stages = [_tables(side.recording) for side in e.sides]
    if not stages[0] or not stages[1]:
        result.skipped = (
            "no native stage was recorded"
            if not (stages[0] or stages[1])
            else (f"no native stage was recorded for the {'baseline' if not stages[0] else 'candidate'}")
        )
        return
    samples = []
    for side, found in zip(e.sides, stages, strict=True):
        samples.append(_samples(e, side, found, result))
    result.samples = (len(samples[0]), len(samples[1]))
    _versions(e, stages, result)
    for side, one in zip(e.sides, samples, strict=True):
        _collisions(e, side, one)
    everything = e.confounded("everything")
    if everything is not None:
        result.skipped = f"the runs differ in {everything.finding.name}"
    if not result.skipped:
        _distributions(e, samples[0], samples[1], alpha, result)


def _tables(recording: Recording) -> list[Table]:
    return [table for step in recording.steps("native") if (table := recording.table("native", step)) is not None]


def _versions(e: Evidence, stages: list[list[Table]], result: NativeResult) -> None:
    """Native stages are comparable at equal weights only."""
    versions = [found[0].fields.get("weight_version") for found in stages]
    one, two = e.weights.versions
    if versions[0] in one and versions[1] in two:
        if one[versions[0]] != two[versions[1]]:
            result.skipped = f"the weights differ (versions {versions[0]} and {versions[1]})"
    elif versions[0] != versions[1]:
        result.skipped = f"the weight versions differ ({versions[0]} and {versions[1]})"


def _samples(e: Evidence, side: Side, tables: list[Table], result: NativeResult) -> Samples:
    prompts: list[bytes] = []
    outputs: list[bytes] = []
    finish: list[Any] = []
    values: dict[str, list[np.ndarray]] = {name: [] for name in QUANTITIES}
    likelihood: list[np.ndarray] = []
    for table in tables:
        prompt, output = table.rows("prompt"), table.rows("output")
        if prompt is None or output is None:
            continue
        n = len(table.sample)
        prompts += [prompt.row(i).tobytes() for i in range(n)]
        outputs += [output.row(i).tobytes() for i in range(n)]
        finish += list(table.finish) if table.finish is not None else [None] * n
        total, reward = _scored(e, side, table, result)
        lengths = output.lengths.astype(np.float64)
        values["length"].append(lengths)
        values["reward"].append(reward)
        values["surprisal"].append(-total / np.maximum(lengths, 1))
        likelihood.append(total)
    joined = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in values.items()}
    return Samples(
        np.array(prompts, object),
        outputs,
        np.array(finish, object),
        joined,
        np.concatenate(likelihood) if likelihood else np.zeros(0),
        [table.fields.get("engine_seed") for table in tables],
    )


def _scored(e: Evidence, side: Side, table: Table, result: NativeResult) -> tuple[np.ndarray, np.ndarray]:
    """(log-probability of each sample under the learner, reward); also holds the engine's own numbers against the
    learner's.
    """
    total, reward = np.full(len(table.sample), np.nan), np.full(len(table.sample), np.nan)
    score = side.recording.table("native_score", table.step)
    learner = score.rows("learner_logprob") if score is not None else None
    output = table.rows("output")
    if score is None or learner is None or output is None:
        result.not_compared.append(f"{side.name}: the learner did not score the native samples")
        return total, reward
    match = Match.of(table.sample, score.sample)
    for samples, what in ((match.only_a, "drawn but not scored"), (match.only_b, "scored but not drawn")):
        if len(samples):
            result.not_compared.append(
                f"{side.name}: {len(samples)} native samples {what}, the first is {int(samples[0])}"
            )
    complete = learner.lengths[match.b] == output.lengths[match.a]
    ia, ib = match.a[complete], match.b[complete]
    grid = shared([(output, ia), (learner, ib)])
    q = grid.take(learner, ib).astype(np.float64)
    total[ia] = np.bincount(grid.row, weights=q, minlength=len(ia))
    rewards = score.flat("reward")
    if rewards is not None:
        reward[match.a] = rewards[match.b]
    logprob = table.rows("logprob")
    if logprob is None or not np.array_equal(logprob.lengths, output.lengths):
        result.not_compared.append(f"{side.name}: the engine reported no native log-probabilities")
    elif _tempered(side.recording, e.tolerance.temperature):
        result.not_compared.append(
            f"{side.name}: native log-probabilities come after temperature, which cannot be undone for one token"
        )
    elif grid.size:
        _engine_against_learner(e, side, table, ia, grid, grid.take(logprob, ia), q, result)
    return total, reward


def _engine_against_learner(
    e: Evidence, side: Side, table: Table, ia: np.ndarray, grid: Any, p: np.ndarray, q: np.ndarray, result: NativeResult
) -> None:
    size = np.abs(p - q)
    result.learner_delta[side.name] = float(np.nanmax(size)) if np.isfinite(size).any() else float("nan")
    found = e.weigh(f"native learner:{side.name}", grid, np.ones(grid.size, bool), size)
    if len(found.beyond):
        first = found.deciding[0]
        row = int(grid.row[first])
        place = Place(
            table.step,
            "native",
            int(table.rank[ia[row]]),
            int(table.sample[ia[row]]),
            int(grid.position[first]),
            "native logprob against the learner",
            *side.paired(float(p[first]), float(q[first])),
            context=f"{len(found.beyond)} of {grid.size} tokens",
        )
        e.differs(f"native learner:{side.name}", found, table.sample[ia[np.unique(grid.row[found.deciding])]], place)


def _tempered(recording: Recording, temperature: float) -> bool:
    modes = [mapping(event.get("resolved")).get("logprobs_mode", "") for event in recording.all("engine_info")]
    return temperature != 1.0 and any("temperature" in str(mode) or "processed" in str(mode) for mode in modes)


def _collisions(e: Evidence, side: Side, samples: Samples) -> None:
    """Equal samples of one prompt: more than the learner's own probabilities allow are clones (RNG_COLLISION).

    A pair of independent samples of one prompt is equal with probability E[p(x)], estimated by the mean likelihood of
    the samples themselves; the number of equal pairs is about Poisson.
    """
    groups: dict[bytes, list[int]] = {}
    for index, prompt in enumerate(samples.prompt):
        groups.setdefault(prompt, []).append(index)
    expected, equal, clones = 0.0, 0, 0
    for members in groups.values():
        n = len(members)
        likelihood = np.exp(np.nan_to_num(samples.likelihood[members], nan=-np.inf))
        expected += (n - 1) / 2 * float(likelihood.sum())
        counts = list(_counts([samples.output[i] for i in members]).values())
        equal += sum(count * (count - 1) // 2 for count in counts)
        clones += sum(count for count in counts if count > 1)
    scored = bool(np.isfinite(samples.likelihood).any())
    e.notes[f"collisions:{side.name}"] = {"equal pairs": equal, "expected": expected, "samples": clones}
    if scored and equal and float(stats.poisson.sf(equal - 1, expected)) < COLLISION:
        e.diverges(
            f"collision:{side.name}",
            [],
            Place(
                -1,
                "native",
                0,
                -1,
                -1,
                "equal samples of one prompt",
                *side.paired(equal, expected),
                context=f"{side.name}: {equal} equal pairs, {figure(expected)} expected",
            ),
            phase="native",
        )


def _counts(values: list[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


# --- distributions --------------------------------------------------------------------------------


def _distributions(e: Evidence, one: Samples, two: Samples, alpha: float, result: NativeResult) -> None:
    shared_prompts = sorted(set(one.prompt) & set(two.prompt))
    result.prompts = len(shared_prompts)
    if not shared_prompts:
        result.skipped = "the two stages have no prompt in common"
        return
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
    if None in finish:
        result.not_compared.append("finish reasons of the native samples: not recorded for every sample")
    labels = permuted_labels(baseline, stratum)
    result.tests = statistics_of(labels, stratum, usable, finish if None not in finish else None)
    holm(result.tests)
    result.rejected = [name for name, test in result.tests.items() if test["p_holm"] <= alpha]
    _power(result, usable, stratum, baseline, alpha)
    for name in result.rejected:
        test = result.tests[name]
        e.diverges(
            "native",
            [],
            Place(
                -1,
                "native",
                0,
                -1,
                -1,
                name,
                test.get("baseline"),
                test.get("candidate"),
                context=f"p = {figure(test['p_holm'])} after Holm's correction, alpha {alpha}",
            ),
            phase="native",
        )


def _power(
    result: NativeResult, quantities: dict[str, np.ndarray], stratum: np.ndarray, baseline: np.ndarray, alpha: float
) -> None:
    """The smallest difference of means that the least favoured test of the family would have found."""
    if not result.tests:
        return
    z = quantile_sum(alpha, len(result.tests))
    one, two = int(baseline.sum()), int((~baseline).sum())
    effect = z * float(np.sqrt(1 / one + 1 / two)) if one and two else float("inf")
    for name, values in quantities.items():
        result.tests[f"{name}: mean"]["detectable"] = effect * spread_within(values, stratum)
    result.adequate = effect <= LARGEST_BLIND_EFFECT and {"length", "surprisal"} <= set(quantities)
    result.enough = int(np.ceil(2 * (z / LARGEST_BLIND_EFFECT) ** 2))


def alpha_of(recording: Recording) -> float:
    """The scenario's `native.alpha`; 0.01 where none was recorded."""
    return number(mapping(recording.scenario.get("native")).get("alpha"), 0.01)

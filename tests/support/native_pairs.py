"""Simulated pairs of native stages, drawn again from recorded samples of vLLM and SGLang at equal weights.

`fixtures/native_samples.npz` has the 2,048 native samples of one `harness parity vllm sglang`. Both sides of a sound
pair draw from all samples of a prompt. A sampler at temperature T draws a sample with weights p ** (1 / T - 1): that is
what a temperature does to whole sequences.

`python tests/support/native_pairs.py [PAIRS [TEMPERATURE]]` prints how pairs end.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from harness.parity.subjects.native_sampler.observed import NativeResult, Statistic, Tests
from harness.parity.subjects.native_sampler.observed_distributions import compared, conclude, look
from harness.parity.subjects.native_sampler.observed_looks import Plan
from harness.parity.subjects.native_sampler.observed_samples import Samples
from scenarios.settings import Native

RECORDED = Path(__file__).parents[1] / "fixtures/native_samples.npz"
DEFAULT_PLAN = Plan(part=Native.further / Native.samples)
GROUP = 4  # samples of a prompt side by side, as the built-in scenario draws them
PERMUTATIONS = 399  # what decides is below one of 1,999 anyhow


@cache
def recorded() -> dict[str, np.ndarray]:
    columns = dict(np.load(RECORDED))
    order = np.argsort(columns["prompt"], kind="stable")
    return {name: (values if values.dtype == bool else values.astype(float))[order] for name, values in columns.items()}


@cache
def weights(temperature: float) -> np.ndarray:
    """The cumulated share of each sample among those of its prompt, plus the prompt's number."""
    columns = recorded()
    prompt = columns["prompt"].astype(int)
    tilt = np.exp(-(1 / temperature - 1) * columns["surprisal"] * columns["length"])
    total = np.bincount(prompt, tilt)
    cumulated = np.cumsum(tilt / total[prompt])
    return cumulated - np.floor(cumulated - tilt / total[prompt] + 1e-9) + prompt


def drawn(rng: np.random.Generator, prompts: np.ndarray, temperature: float) -> np.ndarray:
    """A row of the recorded samples for each of `prompts`."""
    return np.searchsorted(weights(temperature), prompts + rng.random(len(prompts)) * (1 - 1e-9))


def samples(rng: np.random.Generator, rows: np.ndarray, draw: np.ndarray) -> Samples:
    columns = recorded()
    finish = np.where(columns["stop"][rows], "stop", "length").astype(object)
    values = {name: columns[name][rows] for name in ("length", "reward", "surprisal")}
    prompt = np.array([b"%d" % number for number in columns["prompt"][rows].astype(int)], object)
    return Samples(prompt, [b""] * len(rows), finish, values, np.zeros(len(rows)), np.arange(len(rows)), draw)


def sampler_tests(rng: np.random.Generator, side: str, rows: np.ndarray) -> Tests:
    """The surprisal against the learner's; the mass of a sampler that draws as asked is uniform, and so is its p."""
    columns = recorded()
    sound = columns["surplus"].sum() / columns["variance"].sum()
    variance = columns["variance"][rows]
    off = float((columns["surplus"][rows] - sound * variance).sum() / np.sqrt(variance.sum()))
    surprisal, mass = (Statistic.of_sampler(side, name) for name in ("surprisal", "mass"))
    return {
        surprisal: {"statistic": off, "p": 2 * float(stats.norm.sf(abs(off)))},
        mass: {"statistic": 0.0, "p": float(rng.random())},
    }


def ended(seed: int, temperature: float = 1.0, plan: Plan = DEFAULT_PLAN, first: int = 1024) -> NativeResult:
    """One pair, looked at until it is decided, or until the cap. `temperature`: of the candidate. `first`: samples a
    side of the first draw.
    """
    rng = np.random.default_rng(seed)
    count, most = int(recorded()["prompt"].max()) + 1, first * plan.draws
    passes = -(-most // (count * GROUP))
    prompts = np.concatenate([np.repeat(rng.permutation(count), GROUP) for _ in range(passes)])[:most]
    sizes = Native(samples=first, further=int(first * plan.part), draws=plan.draws).sizes
    draw = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    rows = drawn(rng, prompts, 1.0), drawn(rng, prompts, temperature)
    pair = [samples(rng, side, draw) for side in rows]
    result = NativeResult(**vars(plan), most=most)
    for number, so_far in enumerate(itertools.accumulate(sizes), 1):
        both = compared(*(side.first(number) for side in pair), margin=plan.margin, permutations=PERMUTATIONS)
        assert both is not None
        for name, side in zip(("baseline", "candidate"), rows, strict=True):
            both.tests |= sampler_tests(rng, name, side[:so_far])
        counts = (so_far, so_far)
        looks = (*result.looks, look(both, plan, number, counts))
        result = conclude(dataclasses.replace(result, samples=counts, looks=looks), both, plan)
        if not result.wants_more:
            break
    return result


def tally(results: list[NativeResult]) -> tuple[Counter[str], Counter[int]]:
    """How pairs ended, and after how many draws."""
    words = [
        "different" if one.rejected else "undecided" if one.undecided or one.doubtful else "equal" for one in results
    ]
    return Counter(words), Counter(len(one.looks) for one in results)


if __name__ == "__main__":
    pairs, hot = int((sys.argv[1:2] or ["1000"])[0]), float((sys.argv[2:3] or ["1"])[0])
    results = [ended(seed, hot) for seed in range(pairs)]
    for words in tally(results):
        print(dict(sorted(words.items())))
    print("samples a side, in the mean:", round(sum(result.samples[0] for result in results) / pairs))

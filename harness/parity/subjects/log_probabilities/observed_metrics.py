"""Metrics of the difference between two sets of log-probabilities of the same tokens, under the field's usual names.

Sources: k1 and k3 are Schulman's estimators (2020, "Approximating KL Divergence"). token_mult_prob_error is NVIDIA
NeMo-RL's ("Add New Models"). rollout_probs_diff_*, rollout_actor_probs_pearson_corr, the effective sample size, chi²
and the log-perplexity difference are verl's (debug metrics, rollout correction). `reports.limits` holds the limits that
their authors publish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from harness.parity.subjects.log_probabilities.observed_pairs import POSITION_EDGES, LogprobPairs

# A log-probability at least this far from 0 has seven digits in float32. Two implementations rarely agree in all of
# them.
SIZEABLE = 0.01
LIKELY = 2.0  # nats; nearer to 0 the steps of float32 are at most 1.2e-7, finer than what kernels round by
CLAMP = 20.0  # nats; beyond it an importance weight is meaningless (verl clamps there too)
PROBABILITY_EDGES = (1e-3, 1e-2, 0.1, 0.5)
_POSITIONS = [
    f"{low}-{high - 1}" if high - low > 1 else str(low)
    for low, high in zip((0, *POSITION_EDGES), POSITION_EDGES, strict=False)
]
LABELS = {
    "position": [*_POSITIONS, f"{POSITION_EDGES[-1]}+"],
    "probability": ["< 0.001", "0.001-0.01", "0.01-0.1", "0.1-0.5", "≥ 0.5"],
    "cached": ["not cached", "cached"],
}
_LOG_EDGES = np.log(PROBABILITY_EDGES)


class Bucket(NamedTuple):
    """The count of tokens in one bucket, and their mean and largest |Δ|."""

    tokens: int
    mean: float
    largest: float


@dataclass
class Buckets:
    """Count, sum and maximum of |Δ| per bucket of one kind."""

    count: np.ndarray
    total: np.ndarray
    largest: np.ndarray

    @staticmethod
    def empty(size: int) -> Buckets:
        return Buckets(np.zeros(size, np.int64), np.zeros(size), np.zeros(size))

    def add(self, index: np.ndarray, delta: np.ndarray) -> None:
        size = len(self.count)
        self.count += np.bincount(index, minlength=size)
        self.total += np.bincount(index, weights=delta, minlength=size)
        np.maximum.at(self.largest, index, delta)

    def add_sums(self, index: np.ndarray, pairs: LogprobPairs) -> None:
        """Add the sums of whole cells; `index`: the bucket of each cell."""
        size = len(self.count)
        self.count += np.bincount(index, weights=pairs.tokens, minlength=size).astype(np.int64)
        self.total += np.bincount(index, weights=pairs.size_sums, minlength=size)
        np.maximum.at(self.largest, index, pairs.largest)

    def named(self, labels: list[str]) -> dict[str, Bucket]:
        """Return the buckets that are not empty, by their labels."""
        return {
            label: Bucket(int(self.count[i]), float(self.total[i] / self.count[i]), float(self.largest[i]))
            for i, label in enumerate(labels)
            if self.count[i]
        }


def _counted(before: tuple[int, int], chosen: np.ndarray, identical: np.ndarray) -> tuple[int, int]:
    """Return `before` with a step's chosen tokens added, and the identical ones among them."""
    tokens, same = before
    return tokens + int(np.count_nonzero(chosen)), same + int(np.count_nonzero(chosen & identical))


EXACT = 1 << 22  # so many values are kept exactly: 16 MiB
_FOLDED_BITS = 11  # of the 32 bits, dropped when values are folded: a relative error of 1/4,096


@dataclass
class Quantiles:
    """Quantiles of non-negative float32 values, in bounded memory.

    Up to `EXACT` values are kept exactly. Beyond that they are counted by their leading bits, which order non-negative
    floats. A quantile is then the largest value of its bin: at most 1/4,096 too large, never too small.
    """

    fresh: list[np.ndarray] = field(default_factory=list)
    waiting: int = 0  # values in `fresh`
    counts: np.ndarray | None = None

    def add(self, values: np.ndarray) -> None:
        self.fresh.append(values.astype(np.float32, copy=False))
        self.waiting += len(values)
        if self.waiting > EXACT:
            self._fold()

    def _fold(self) -> None:
        bins = np.concatenate(self.fresh).view(np.uint32) >> _FOLDED_BITS
        counts = np.bincount(bins, minlength=1 << (31 - _FOLDED_BITS))
        self.counts = counts if self.counts is None else self.counts + counts
        self.fresh, self.waiting = [], 0

    def at(self, *quantiles: float) -> list[float]:
        """Return for each quantile the smallest value that this share of all values does not exceed."""
        if self.counts is None:
            exact_values: list[float] = np.quantile(np.concatenate(self.fresh), quantiles, method="higher").tolist()
            return exact_values
        if self.fresh:
            self._fold()
        total = np.cumsum(self.counts)
        ranks = [math.ceil(quantile * (total[-1] - 1)) for quantile in quantiles]
        bins = np.searchsorted(total, ranks, side="right").astype(np.uint32)
        largest = (bins + 1 << _FOLDED_BITS) - 1
        values: list[float] = largest.astype(np.uint32).view(np.float32).astype(float).tolist()
        return values


@dataclass
class MismatchSums:
    """The sums of which a `Mismatch` is made, added step by step."""

    tokens: int = 0
    not_finite: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    deltas: Quantiles = field(default_factory=Quantiles)  # |Δ|
    buckets: dict[str, Buckets] = field(
        default_factory=lambda: {name: Buckets.empty(len(v)) for name, v in LABELS.items()}
    )
    versions: dict[int, tuple[int, float, float]] = field(
        default_factory=dict
    )  # weight version -> tokens, sum and max of |Δ|
    largest: tuple[float, int, int, int] = (0.0, -1, -1, -1)  # |Δ|, step, sample, position
    # Step -> (tokens whose `p` is at least `SIZEABLE`, those of them whose `q` is the same number).
    identical: dict[int, tuple[int, int]] = field(default_factory=dict)
    identical_likely: tuple[int, int] = (0, 0)  # the same over all steps, of likely tokens

    def add(self, pairs: LogprobPairs, *, step: int, version: int) -> None:
        """Add one step's tokens; `p` is the first of `pairs`. `version`: the weight version that drew them."""
        p, q, delta, size = map(pairs.at_compared, (pairs.first, pairs.second, pairs.delta, pairs.size))
        self.not_finite += int(np.count_nonzero(pairs.same)) - len(p)
        if not len(p):
            return
        self.deltas.add(size)
        self.tokens += len(p)
        self._count_identical(np.abs(p), size == 0.0, step)
        at = int(size.argmax())
        if size[at] > self.largest[0]:
            row, position = pairs.place(at)
            self.largest = (float(size[at]), step, int(pairs.sample[row]), position)
        self._sum(p, q, delta, size, pairs)
        self._add_buckets(p, size, pairs)
        count, total, largest = self.versions.get(version, (0, 0.0, 0.0))
        self.versions[version] = (count + len(p), total + float(size.sum()), max(largest, float(size[at])))

    def _count_identical(self, magnitude: np.ndarray, identical: np.ndarray, step: int) -> None:
        """Count identical numbers. `magnitude`: |p|; `identical`: whether `q` is the same number."""
        sizeable = magnitude > SIZEABLE
        likely = sizeable & (magnitude < LIKELY)
        self.identical[step] = _counted(self.identical.get(step, (0, 0)), sizeable, identical)
        self.identical_likely = _counted(self.identical_likely, likely, identical)

    def _add_buckets(self, p: np.ndarray, size: np.ndarray, pairs: LogprobPairs) -> None:
        cells = pairs.cells
        self.buckets["position"].add_sums(cells.bucket, pairs)
        if pairs.cached is not None:
            self.buckets["cached"].add_sums((pairs.cached > 0).astype(np.intp)[cells.row], pairs)
        bucket = np.zeros(len(p), np.intp)
        for edge in _LOG_EDGES:
            bucket += p >= edge
        self.buckets["probability"].add(bucket, size)

    def _sum(self, p: np.ndarray, q: np.ndarray, delta: np.ndarray, size: np.ndarray, pairs: LogprobPairs) -> None:
        # With Δ = log q − log p: k1 and k3 are Schulman's estimators of KL(p‖q), the weights are importance ratios q/p,
        # and their squares give the effective sample size. Products of probabilities give their correlation.
        clamped = np.clip(delta, -CLAMP, CLAMP)
        weight = np.exp(clamped)
        prob_p, prob_q = np.exp(p), np.exp(q)
        apart = np.abs(prob_q - prob_p)
        counts = np.bincount(pairs.cells.row, weights=pairs.tokens)
        present = counts > 0
        sequence = np.bincount(pairs.cells.row, weights=-pairs.delta_sums)[present] / counts[present]
        sums = {
            "delta": size.sum(),
            "k1": -delta.sum(),
            "k3": (weight - 1.0 - clamped).sum(),
            "mult": np.exp(np.minimum(size, CLAMP)).sum(),
            "weight": weight.sum(),
            "weight2": (weight * weight).sum(),
            "apart": apart.sum(),
            "apart2": (apart * apart).sum(),
            "p": prob_p.sum(),
            "q": prob_q.sum(),
            "pp": (prob_p * prob_p).sum(),
            "qq": (prob_q * prob_q).sum(),
            "pq": (prob_p * prob_q).sum(),
            "sequences": float(len(sequence)),
            "sequence": sequence.sum(),
        }
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.sums["apart_max"] = max(self.sums.get("apart_max", 0.0), float(apart.max()))

    def mismatch(self) -> Mismatch:
        """Return what all steps show."""
        return Mismatch(
            tokens=self.tokens,
            not_finite=self.not_finite,
            sums=self.sums,
            percentiles=tuple(self.deltas.at(0.5, 0.95, 0.99)) if self.tokens else (),
            buckets={kind: buckets.named(LABELS[kind]) for kind, buckets in self.buckets.items()},
            versions=self.versions,
            largest=self.largest,
            identical=self.identical,
            identical_likely=self.identical_likely,
        )


@dataclass(frozen=True)
class Mismatch:
    """Log-probabilities `q` of tokens that were drawn under `p`, over all steps. Δ = q − p, in nats.

    `percentiles`: the 50th, 95th and 99th of |Δ|. The other fields are those of `MismatchSums`.
    """

    tokens: int
    not_finite: int
    sums: Mapping[str, float]
    percentiles: tuple[float, ...]
    buckets: Mapping[str, Mapping[str, Bucket]]  # kind -> label -> bucket, without empty ones
    versions: Mapping[int, tuple[int, float, float]]
    largest: tuple[float, int, int, int]
    identical: Mapping[int, tuple[int, int]]
    identical_likely: tuple[int, int]

    def result(self) -> dict[str, Any]:
        """Return every metric by its name; {} where nothing was compared."""
        if not self.tokens:
            return {}
        n, s = self.tokens, self.sums
        p50, p95, p99 = self.percentiles
        apart = s["apart"] / n
        # Pearson's correlation of the probabilities, from their sums; a constant has none.
        spread = np.sqrt(max(n * s["pp"] - s["p"] ** 2, 0.0) * max(n * s["qq"] - s["q"] ** 2, 0.0))
        correlation = float("nan")
        if spread > 0:
            correlation = min(1.0, float((n * s["pq"] - s["p"] * s["q"]) / spread))
        metrics = {
            "mean_delta_logprob": s["delta"] / n,
            "p50": p50,
            "p95": p95,
            "p99": p99,
            "max_delta_logprob": self.largest[0],
            "k1": s["k1"] / n,
            "k3": s["k3"] / n,
            "token_mult_prob_error": s["mult"] / n,
            "rollout_probs_diff_mean": apart,
            "rollout_probs_diff_max": s["apart_max"],
            "rollout_probs_diff_std": float(np.sqrt(max(s["apart2"] / n - apart * apart, 0.0))),
            "rollout_actor_probs_pearson_corr": correlation,
            "ess": s["weight"] ** 2 / (n * s["weight2"]),
            "importance_weight_mean": s["weight"] / n,
            "chi2": s["weight2"] / n - 1.0,
            "log_perplexity_difference": s["sequence"] / s["sequences"],
            "tokens": n,
        }
        if self.not_finite:
            metrics["not_finite"] = self.not_finite
        return metrics

    def where(self) -> dict[str, Any]:
        """Return the size and place of the largest |Δ|."""
        size, step, sample, position = self.largest
        return {"max_delta_logprob": size, "step": step, "sample": sample, "position": position}

    def by_bucket(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the tokens, mean and maximum of |Δ| of each bucket, without empty buckets."""
        by_kind = {
            kind: {
                label: {"tokens": bucket.tokens, "mean": bucket.mean, "max": bucket.largest}
                for label, bucket in buckets.items()
            }
            for kind, buckets in self.buckets.items()
        }
        versions = sorted(self.versions.items())
        by_kind["weight version"] = {
            str(v): {"tokens": c, "mean": total / c, "max": m} for v, (c, total, m) in versions
        }
        return by_kind

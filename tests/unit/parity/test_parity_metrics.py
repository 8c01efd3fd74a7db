"""Every metric against its definition, written out over single tokens."""

from __future__ import annotations

import numpy as np
import pytest

from harness.parity.facts.align import Grid
from harness.parity.subjects.log_probabilities import observed_metrics
from harness.parity.subjects.log_probabilities.observed_metrics import Mismatch, MismatchSums
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs


def collected(p: np.ndarray, q: np.ndarray, lengths: list[int], steps: int = 1, **options: object) -> Mismatch:
    sums = MismatchSums()
    cached = np.array([i % 2 for i in range(len(lengths))])
    for step in range(steps):
        sample = np.arange(len(lengths)) + 100 * step
        pairs = LogprobPairs(Grid(np.array(lengths)), np.ones(len(p), bool), p, q, sample, cached)
        sums.add(pairs, step=step, version=step)
    return sums.mismatch()


def test_metrics_by_their_definitions() -> None:
    rng = np.random.default_rng(0)
    lengths = [3, 1, 7, 5]
    p = -rng.exponential(1.0, sum(lengths))
    q = p + rng.normal(0, 0.2, len(p))
    result = collected(p, q, lengths).result()
    d, w = q - p, np.exp(q - p)
    rows = np.split(d, np.cumsum(lengths)[:-1])
    assert result["mean_delta_logprob"] == pytest.approx(np.abs(d).mean())
    assert result["max_delta_logprob"] == pytest.approx(np.abs(d).max())
    assert result["k1"] == pytest.approx(-d.mean())
    assert result["k3"] == pytest.approx((w - 1 - d).mean())
    assert result["token_mult_prob_error"] == pytest.approx(np.exp(np.abs(d)).mean())
    apart = np.abs(np.exp(q) - np.exp(p))
    assert result["rollout_probs_diff_mean"] == pytest.approx(apart.mean())
    assert result["rollout_probs_diff_max"] == pytest.approx(apart.max())
    assert result["rollout_probs_diff_std"] == pytest.approx(apart.std())
    assert result["rollout_actor_probs_pearson_corr"] == pytest.approx(np.corrcoef(np.exp(p), np.exp(q))[0, 1])
    assert result["ess"] == pytest.approx(w.sum() ** 2 / (len(w) * (w**2).sum()))
    assert result["importance_weight_mean"] == pytest.approx(w.mean())
    assert result["chi2"] == pytest.approx((w**2).mean() - 1)
    assert result["log_perplexity_difference"] == pytest.approx(np.mean([-row.mean() for row in rows]))
    assert result["tokens"] == len(p)


def test_steps_add_up_and_the_largest_is_located() -> None:
    p, q = np.full(6, -1.0), np.full(6, -1.0)
    q[4] = -1.5
    found = collected(p, q, [3, 3], steps=2)
    assert found.tokens == 12
    assert found.where() == {"max_delta_logprob": 0.5, "step": 0, "sample": 1, "position": 1}
    buckets = found.by_bucket()
    assert buckets["cached"]["cached"] == {"tokens": 6, "mean": pytest.approx(1 / 6), "max": 0.5}
    assert buckets["cached"]["not cached"]["max"] == 0.0
    assert buckets["position"]["1-3"]["max"] == 0.5 and buckets["position"]["0"]["max"] == 0.0
    assert set(buckets["weight version"]) == {"0", "1"}
    assert buckets["probability"] == {"0.1-0.5": {"tokens": 12, "mean": pytest.approx(1 / 12), "max": 0.5}}


def test_a_nan_is_counted_and_kept_out_of_the_means() -> None:
    p, q = np.full(4, -1.0), np.array([-1.0, np.nan, -1.0, -np.inf])
    found = collected(p, q, [4])
    assert found.result()["not_finite"] == 2 and found.result()["mean_delta_logprob"] == 0.0


def test_nothing_compared_is_no_metric() -> None:
    assert MismatchSums().mismatch().result() == {}


def test_a_huge_difference_does_not_overflow() -> None:
    result = collected(np.array([-1.0, -2.0]), np.array([-1.0, -5000.0]), [2]).result()
    assert all(np.isfinite(value) for value in result.values())


def test_quantiles_of_more_values_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).exponential(1e-3, 5000).astype(np.float32)
    values[:500] = 0.0
    shares = (0.0, 0.05, 0.5, 0.95, 0.99, 1.0)
    exact = np.quantile(values, shares, method="higher")
    kept = observed_metrics.Quantiles()
    kept.add(values)
    assert kept.at(*shares) == exact.tolist()
    monkeypatch.setattr(observed_metrics, "EXACT", 700)
    folded = observed_metrics.Quantiles()
    for part in np.split(values, 50):
        folded.add(part)
    assert folded.counts is not None
    found = np.array(folded.at(*shares))
    assert np.all(found >= exact) and np.all(found <= exact * (1 + 1 / 4096) + 1e-40)

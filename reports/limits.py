"""Published limits for the mismatch between engine and trainer, printed beside our figures. They decide nothing.

A verdict whose figures exceed one says so. Sources: verl, rollout correction and `rollout_probs_diff_*` guidance;
NVIDIA NeMo-RL, "Add New Models" (mean exp|Δ| at most 1.05); PRIME-RL (mismatch KL below 0.015); Miles CI gates (0.03
engine against trainer; 0 when truly on-policy).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from probes.format import number


@dataclass(frozen=True)
class Limit:
    """One published limit: its text, and the interval outside of which its authors warn."""

    text: str
    low: float = -math.inf
    high: float = math.inf

    def outside(self, value: Any) -> bool:
        return not self.low <= number(value) <= self.high and not math.isnan(number(value))


_PROBABILITY = Limit("good < 0.005, bad > 0.01 (verl)", high=0.01)
_KL = Limit("|KL| ≤ 0.1 (verl)", -0.1, 0.1)
_K3 = Limit("< 0.015 (prime-rl), ≤ 0.1 (verl)", high=0.015)
_MISMATCH_KL = Limit("< 0.015 (prime-rl)", high=0.015)
_ESS = Limit("≥ 0.3 (verl)", low=0.3)
_WEIGHT = Limit("0.5 to 2 (verl)", 0.5, 2.0)
_TOKEN_MULT = Limit("≤ 1.05 (NeMo-RL)", high=1.05)
_LOGPROB = Limit("≤ 0.03 (Miles)", high=0.03)

# By the names that are common in the field, and by ours. A metric is found by the last part of its name, in lower
# case.
LIMITS = {
    "mean_probability_difference": _PROBABILITY,
    "probability_difference_mean": _PROBABILITY,
    "mean_probs_diff": _PROBABILITY,
    "probs_diff_mean": _PROBABILITY,
    "rollout_probs_diff_mean": _PROBABILITY,
    "kl": _KL,
    "k1": _KL,
    "k1_kl": _KL,
    "kl_k1": _KL,
    "k3": _K3,
    "k3_kl": _K3,
    "kl_k3": _K3,
    "mismatch_kl": _MISMATCH_KL,
    "ess": _ESS,
    "effective_sample_size": _ESS,
    "effective_sample_size_fraction": _ESS,
    "rollout_is_eff_sample_size": _ESS,
    "importance_weight_mean": _WEIGHT,
    "mean_importance_weight": _WEIGHT,
    "rollout_is_mean": _WEIGHT,
    "token_mult_prob_error": _TOKEN_MULT,
    "mean_exp_abs_delta": _TOKEN_MULT,
    "mean_abs_delta_logprob": _LOGPROB,
    "mean_delta_logprob": _LOGPROB,
    "delta_logprob_mean": _LOGPROB,
    "logprob_abs_diff_mean": _LOGPROB,
    "train_rollout_logprob_abs_diff": _LOGPROB,
}


def limit_of(name: str) -> Limit | None:
    """Return the published limit of a metric, found by the last dotted or slashed part of its name; None
    without one.
    """
    return LIMITS.get(re.sub(r"[^a-z0-9]+", "_", re.split(r"[./]", name.lower())[-1]).strip("_"))

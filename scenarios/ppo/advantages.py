"""Rewards per token, generalised advantage estimation and whitening, on ragged rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = list[NDArray[np.float32]]

WHITEN_EPSILON = 1e-8  # as TRL and verl have it (masked_whiten)


def token_rewards(kl: Rows, reward: NDArray[np.float32], kl_coef: float) -> Rows:
    """Return -kl_coef × KL per token, plus the sample's reward at its last token (Ouyang et al., 2022, equation 2)."""
    rows = [np.asarray(-kl_coef * row, dtype=np.float32) for row in kl]
    for row, terminal in zip(rows, reward, strict=True):
        row[-1] += terminal
    return rows


def gae(rewards: Rows, values: Rows, *, gamma: float, lam: float) -> tuple[Rows, Rows]:
    """Return advantages and returns of each row.

    A_t = δ_t + γλ A_{t+1}, δ_t = r_t + γ V_{t+1} - V_t, V = 0 after the last token: Schulman et al., 2016,
    "High-dimensional continuous control using generalized advantage estimation", equation 16. Returns are A + V.
    Computed in float64 and rounded once, so that the order of summation does not show.
    """
    advantages, returns = [], []
    for reward, value in zip(rewards, values, strict=True):
        r, v = reward.astype(np.float64), value.astype(np.float64)
        delta = r + gamma * np.append(v[1:], 0.0) - v
        advantage = np.empty_like(delta)
        running = 0.0
        for t in range(len(delta) - 1, -1, -1):
            running = delta[t] + gamma * lam * running
            advantage[t] = running
        advantages.append(advantage.astype(np.float32))
        returns.append((advantage + v).astype(np.float32))
    return advantages, returns


def whiten(rows: Rows) -> Rows:
    """Return (A - mean) / sqrt(var + 1e-8) over all tokens of the whole batch; a single token becomes zero.

    The variance has Bessel's correction, as in TRL and verl.
    """
    flat = np.concatenate(rows).astype(np.float64)
    mean, variance = flat.mean(), flat.var(ddof=1) if len(flat) > 1 else 0.0
    scale = 1.0 / np.sqrt(variance + WHITEN_EPSILON)
    return [((row.astype(np.float64) - mean) * scale).astype(np.float32) for row in rows]

"""Rewards per token, GAE and whitening against closed forms, the defining sum, and TRL's loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scenarios.ppo import advantages

rows = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.floats(-5, 5, width=32), min_size=n, max_size=n) for _ in range(2)])
)
unit = st.floats(0, 1)


def f32(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


@pytest.mark.slow
@given(st.lists(rows, min_size=1, max_size=5), unit, unit)
def test_gae_is_the_discounted_sum_of_td_errors(
    batch: list[tuple[list[float], list[float]]], gamma: float, lam: float
) -> None:
    """Equation 16 of the GAE paper, as it stands: A_t = Σ_l (γλ)^l δ_{t+l}, with no recursion."""
    got, returns = advantages.gae([f32(r) for r, _ in batch], [f32(v) for _, v in batch], gamma=gamma, lam=lam)
    for (r, v), row, back in zip(batch, got, returns, strict=True):
        after = [*v[1:], 0.0]
        delta = [r[t] + gamma * after[t] - v[t] for t in range(len(r))]
        for t in range(len(r)):
            expected = sum((gamma * lam) ** later * delta[t + later] for later in range(len(r) - t))
            assert row[t] == pytest.approx(expected, rel=1e-4, abs=1e-4)
            assert back[t] == pytest.approx(expected + v[t], rel=1e-4, abs=1e-4)


def test_with_lambda_one_returns_are_the_rewards_to_go() -> None:
    _, returns = advantages.gae([f32([1, 2, 3])], [f32([9, -4, 0.5])], gamma=1.0, lam=1.0)
    assert returns[0].tolist() == pytest.approx([6, 5, 3])


def test_with_lambda_zero_advantages_are_the_td_errors() -> None:
    got, _ = advantages.gae([f32([1, 2])], [f32([3, 5])], gamma=0.9, lam=0.0)
    assert got[0].tolist() == pytest.approx([1 + 0.9 * 5 - 3, 2 - 5])


@pytest.mark.slow
def test_gae_and_whitening_are_trl_s_on_a_padded_batch() -> None:
    """trl/trainer/ppo_trainer.py, step 6 (the reversed loop) and its masked_whiten, on a full rectangle."""
    generator = torch.Generator().manual_seed(2)
    reward, value = (torch.randn(4, 9, generator=generator) for _ in range(2))
    gamma, lam = 0.98, 0.9
    last = torch.zeros(4)
    reversed_ = []
    for t in reversed(range(9)):
        next_value = value[:, t + 1] if t < 8 else 0.0
        delta = reward[:, t] + gamma * next_value - value[:, t]
        last = delta + gamma * lam * last
        reversed_.append(last)
    expected = torch.stack(reversed_[::-1], dim=1)
    got, returns = advantages.gae(list(reward.numpy()), list(value.numpy()), gamma=gamma, lam=lam)
    torch.testing.assert_close(torch.tensor(np.stack(got)), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.tensor(np.stack(returns)), expected + value, rtol=1e-5, atol=1e-5)
    whitened = (expected - expected.mean()) * torch.rsqrt(expected.var(unbiased=True) + 1e-8)
    torch.testing.assert_close(torch.tensor(np.stack(advantages.whiten(got))), whitened, rtol=1e-5, atol=1e-5)


def test_whitening_spans_the_whole_ragged_batch() -> None:
    white = advantages.whiten([f32([1, 2, 3]), f32([4]), f32([7, 0])])
    flat = np.concatenate(white)
    assert flat.mean() == pytest.approx(0, abs=1e-6)
    assert flat.std(ddof=1) == pytest.approx(1, rel=1e-6)
    assert [len(row) for row in white] == [3, 1, 2]


def test_one_token_alone_whitens_to_zero() -> None:
    assert advantages.whiten([f32([5])])[0].tolist() == [0]


def test_the_reward_falls_on_the_last_token_and_the_penalty_on_each() -> None:
    per_token = advantages.token_rewards([f32([0.5, -1, 2]), f32([1])], f32([10, -3]), 0.1)
    assert per_token[0].tolist() == pytest.approx([-0.05, 0.1, 9.8])
    assert per_token[1].tolist() == pytest.approx([-3.1])

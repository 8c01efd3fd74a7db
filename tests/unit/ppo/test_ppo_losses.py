"""PPO's losses against closed forms, and against the formulas of published implementations, token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scenarios.ppo import losses
from scenarios.settings import PPO

numbers = st.floats(-3, 3, width=32)


def tokens(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=generator) for _ in range(5)]


def test_before_any_update_the_surrogate_is_minus_the_mean_advantage() -> None:
    logprob, advantage = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([1.0, -2.0, 4.0])
    loss = losses.policy_loss(logprob, logprob, advantage, torch.zeros(3), PPO(clip=0.2, entropy_coef=0.0), count=3)
    assert loss.total.item() == pytest.approx(-1.0)
    assert loss.sums["clip_fraction"] == 0
    assert loss.sums["approx_kl"] == 0


def test_the_gradient_before_any_update_is_minus_the_advantage_over_the_count() -> None:
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    losses.policy_loss(
        logprob, logprob.detach(), torch.tensor([3.0, -1.0]), torch.zeros(2), PPO(clip=0.2, entropy_coef=0.0), count=4
    ).total.backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([-0.75, 0.25])


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"), [(1, 1.3, False), (1, 0.7, True), (-1, 1.3, True), (-1, 0.7, False)]
)
def test_clipping_stops_only_moves_that_went_too_far_already(advantage: float, ratio: float, moves: bool) -> None:
    """Figure 1 of the PPO paper: a positive advantage is clipped above 1 + c, a negative one below 1 - c."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    loss = losses.policy_loss(
        logprob,
        torch.zeros(1),
        torch.tensor([float(advantage)]),
        torch.zeros(1),
        PPO(clip=0.2, entropy_coef=0.0),
        count=1,
    )
    loss.total.backward()
    assert logprob.grad is not None
    assert bool(logprob.grad.abs().sum() > 0) == moves
    assert loss.sums["clip_fraction"] == (0 if moves else 1)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=20), st.floats(0.05, 0.5))
def test_policy_loss_is_trl_s_token_by_token(rows: list[tuple[float, float, float]], clip: float) -> None:
    """trl/trainer/ppo_trainer.py: pg_losses = -A r, pg_losses2 = -A clamp(r, 1 - c, 1 + c), mean of the larger."""
    new, old, advantage = (torch.tensor(column) for column in zip(*rows, strict=True))
    expected = 0.0
    for n, o, a in rows:
        ratio = math.exp(n - o)
        expected += max(-a * ratio, -a * min(max(ratio, 1 - clip), 1 + clip))
    loss = losses.policy_loss(
        new, old, advantage, torch.zeros(len(rows)), PPO(clip=clip, entropy_coef=0.0), count=len(rows)
    )
    assert loss.total.item() == pytest.approx(expected / len(rows), rel=1e-4, abs=1e-4)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=20), st.floats(0.05, 0.5))
def test_value_loss_is_that_of_openai_baselines(rows: list[tuple[float, float, float]], clip: float) -> None:
    """baselines/ppo2/model.py: vf_loss = .5 mean(max((v - R)^2, (old + clip(v - old) - R)^2))."""
    value, old, target = (torch.tensor(column) for column in zip(*rows, strict=True))
    expected = 0.0
    for v, o, r in rows:
        near = o + min(max(v - o, -clip), clip)
        expected += 0.5 * max((v - r) ** 2, (near - r) ** 2)
    loss = losses.value_loss(value, old, target, clip=clip, value_coef=0.5, count=len(rows))
    assert loss.total.item() == pytest.approx(0.5 * expected / len(rows), rel=1e-4, abs=1e-5)
    assert loss.sums["value_loss"].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_count_over_the_whole_mini_batch_makes_parts_add_up() -> None:
    new, old, advantage, entropy, _ = tokens(30)

    def total(part: slice) -> float:
        return losses.policy_loss(
            new[part], old[part], advantage[part], entropy[part], PPO(clip=0.2, entropy_coef=0.1), count=30
        ).total.item()

    assert total(slice(0, 7)) + total(slice(7, 30)) == pytest.approx(total(slice(0, 30)), rel=1e-5)


def test_the_entropy_bonus_lowers_the_loss() -> None:
    zero = torch.zeros(2)
    loss = losses.policy_loss(zero, zero, zero, torch.tensor([1.0, 3.0]), PPO(clip=0.2, entropy_coef=0.1), count=2)
    assert loss.total.item() == pytest.approx(-0.2)


def test_entropy_of_a_uniform_and_of_a_certain_distribution() -> None:
    assert losses.entropy(torch.zeros(1, 512)).item() == pytest.approx(math.log(512), rel=1e-6)
    assert losses.entropy(torch.tensor([[0.0, 200.0, 0.0]])).item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.slow
def test_entropy_is_torch_s() -> None:
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(1)) * 3
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(losses.entropy(logits), expected, rtol=1e-5, atol=1e-5)


def test_both_kl_estimates_average_to_the_divergence_and_k3_is_never_negative() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    exact = (p * (p / q).log()).sum().item()
    each = losses.k1(p.log(), q.log()), losses.k3(p.log(), q.log())
    for estimate in each:
        assert (p * estimate).sum().item() == pytest.approx(exact)
    assert bool((each[1] >= 0).all())

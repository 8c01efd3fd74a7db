"""The losses of PPO on ragged responses. Each is a sum over tokens, divided by a count that the caller gives.

The count is that of the whole mini-batch over all micro-batches and ranks, so neither of them changes the loss. All
tensors are float32 vectors over the response tokens of a micro-batch, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scenarios.settings import PPO


@dataclass(frozen=True)
class Loss:
    """`total`: differentiable. `sums`: sums over tokens, to be added up and divided by the count for a report."""

    total: Tensor
    sums: dict[str, Tensor]


def policy_loss(logprob: Tensor, old: Tensor, advantage: Tensor, entropy: Tensor, ppo: PPO, *, count: int) -> Loss:
    """Return the clipped surrogate loss with an entropy bonus.

    Mean of max(-A r, -A clip(r, 1 - c, 1 + c)) - entropy_coef × entropy, r = exp(logprob - old): Schulman et al.,
    2017, "Proximal policy optimization algorithms", equations 7 and 9.
    """
    log_ratio = logprob - old
    ratio = log_ratio.exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - ppo.clip, 1 + ppo.clip)
    surrogate = torch.maximum(plain, clipped)
    total = (surrogate.sum() - ppo.entropy_coef * entropy.sum()) / count
    with torch.no_grad():
        sums = {
            "policy_loss": surrogate.sum(),
            "entropy": entropy.sum(),
            "clip_fraction": (clipped > plain).float().sum(),
            "approx_kl": k3(old, logprob).sum(),
        }
    return Loss(total, {name: value.detach() for name, value in sums.items()})


def value_loss(value: Tensor, old: Tensor, target: Tensor, *, clip: float, value_coef: float, count: int) -> Loss:
    """Return the clipped squared error: value_coef × mean of ½ max((v - R)², (old + clip(v - old, -c, c) - R)²).

    Source: OpenAI Baselines, ppo2/model.py; the same in TRL and OpenRLHF.
    """
    near = old + (value - old).clamp(-clip, clip)
    plain, clipped = (value - target) ** 2, (near - target) ** 2
    error = 0.5 * torch.maximum(plain, clipped)
    with torch.no_grad():
        sums = {"value_loss": error.sum(), "value_clip_fraction": (clipped > plain).float().sum()}
    return Loss(value_coef * error.sum() / count, {name: sum_.detach() for name, sum_ in sums.items()})


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy in nats of softmax(logits) along the last dimension: logsumexp(z) - Σ p z."""
    return torch.logsumexp(logits, dim=-1) - (logits.softmax(dim=-1) * logits).sum(dim=-1)


def k1(logprob: Tensor, reference: Tensor) -> Tensor:
    """Return an unbiased estimate of KL(p ‖ q) from samples of p: log p - log q.

    Source, also of k3: Schulman, 2020, "Approximating KL divergence".
    """
    return logprob - reference


def k3(logprob: Tensor, reference: Tensor) -> Tensor:
    """Return an unbiased, never negative estimate of KL(p ‖ q) from samples of p: q/p - 1 - log(q/p)."""
    log_ratio = reference - logprob
    return log_ratio.exp() - 1 - log_ratio

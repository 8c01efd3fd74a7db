"""Makes the experience of one step: the roles' scores in; KL, advantages and returns out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes import weights
from probes.format import Flat, Ragged
from scenarios.ppo import advantages
from scenarios.ppo.actor import Scored
from scenarios.ppo.batches import Sample
from scenarios.ppo.role import MiniBatch, Rows
from scenarios.settings import PPO


@dataclass(frozen=True)
class Experience:
    """Rows of one number per response token, in the order of `samples`; `reward` has one number per sample.

    `advantage`: what the loss uses; whitened over the whole batch where `ppo.normalize_advantages` is set.
    """

    samples: list[Sample]
    finish: list[str]
    scored: Scored
    reference: Rows
    value: Rows
    reward: NDArray[np.float32]
    kl: Rows
    advantage: Rows
    returns: Rows

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the response tokens of each sample."""
        return np.array([len(sample.response) for sample in self.samples])

    def arrays(self) -> dict[str, Flat | Ragged]:
        """Return the arrays of an `experience` frame."""
        scored = self.scored
        half = {
            "edge": scored.edge,
            "drawn_edge": scored.drawn_edge,
            "exact_logprob": scored.exact,
            "behind_logprob": scored.behind,
            "behind_exact_logprob": scored.behind_exact,
        }
        return {
            **{name: Ragged.of(rows, "f4") for name, rows in half.items() if rows},
            "sample": Flat.of([sample.number for sample in self.samples], "i8"),
            "tokens": Ragged.of([sample.response for sample in self.samples], "i4"),
            "actor_logprob": Ragged.of(self.scored.logprob, "f4"),
            "reference_logprob": Ragged.of(self.reference, "f4"),
            "value": Ragged.of(self.value, "f4"),
            "kl": Ragged.of(self.kl, "f4"),
            "advantage": Ragged.of(self.advantage, "f4"),
            "return": Ragged.of(self.returns, "f4"),
            "reward": Flat.of(self.reward, "f4"),
            "margin": Ragged.of(self.scored.margin, "f4"),
            "runner_up": Ragged.of(self.scored.runner_up, "i4"),
        }

    def digest(self) -> str:
        """Return one digest of the training input: tokens, rewards, advantages, returns, old log-probabilities and
        values.
        """
        tokens = [token for sample in self.samples for token in sample.prompt + sample.response]
        parts: dict[str, NDArray[Any]] = {
            "tokens": np.array(tokens, np.int32), "reward": self.reward, "advantage": np.concatenate(self.advantage),
            "return": np.concatenate(self.returns), "logprob": np.concatenate(self.scored.logprob),
            "value": np.concatenate(self.value),
        }  # fmt: skip
        return weights.combine(weights.digests(parts))

    def share(self, indices: list[int], old: Rows, target: Rows, count: int) -> MiniBatch:
        """Return the samples at `indices` as one rank's share of a mini-batch of `count` tokens."""
        return MiniBatch(
            [self.samples[i] for i in indices], [old[i] for i in indices], [target[i] for i in indices], count
        )


@dataclass(frozen=True)
class Scores:
    """The scores of each role: rows of one number per response token; `reward` has one number per sample."""

    actor: Scored
    reference: Rows
    value: Rows
    reward: NDArray[np.float32]


def make(
    samples: list[Sample],
    finish: list[str],
    scores: Scores,
    ppo: PPO,
    *,
    whiten: Callable[[Rows], Rows] = advantages.whiten,
    rewarded: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda rewards: rewards,
) -> Experience:
    """Compute the KL penalty (k1) at every token, the reward at the last, GAE, and whitening by `whiten`.

    `rewarded`: the rewards that the returns are made of.
    """
    kl = [
        logprobs - reference_logprobs
        for logprobs, reference_logprobs in zip(scores.actor.logprob, scores.reference, strict=True)
    ]
    per_token = advantages.token_rewards(kl, rewarded(scores.reward), ppo.kl_coef)
    advantage, returns = advantages.gae(per_token, scores.value, gamma=ppo.gamma, lam=ppo.gae_lambda)
    if ppo.normalize_advantages:
        advantage = whiten(advantage)
    return Experience(
        samples=samples,
        finish=finish,
        scored=scores.actor,
        reference=scores.reference,
        value=scores.value,
        reward=scores.reward,
        kl=kl,
        advantage=advantage,
        returns=returns,
    )


def metrics(experience: Experience) -> dict[str, float]:
    """Return means over the batch. Lengths are in tokens; `length_cv` is their coefficient of variation."""
    lengths = experience.lengths
    finish = np.array(experience.finish)
    return {
        "reward_mean": float(experience.reward.mean()),
        "reward_std": float(experience.reward.std()),
        "kl_mean": float(np.concatenate(experience.kl).mean()),
        "value_mean": float(np.concatenate(experience.value).mean()),
        "return_mean": float(np.concatenate(experience.returns).mean()),
        "length_mean": float(lengths.mean()),
        "length_max": float(lengths.max()),
        "length_cv": float(lengths.std() / lengths.mean()),
        "truncated_fraction": float((finish == "length").mean()),
        "stopped_fraction": float((finish == "stop").mean()),
        "tokens": float(lengths.sum()),
    }

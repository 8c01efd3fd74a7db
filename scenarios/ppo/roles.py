"""The four roles of PPO, plain classes, each for a process of its own: actor, critic, reward and reference model.

The old log-probabilities of the loss come from the actor role, never from a rollout engine.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probes import weights
from scenarios import models
from scenarios.ppo import batches, losses
from scenarios.ppo.actor import ActorRole
from scenarios.ppo.batches import Sample
from scenarios.ppo.optimizer import Optimizer
from scenarios.ppo.role import MiniBatch, Role, Rows, flat, response_logits, to_rows, token_logprobs
from scenarios.ppo.trained_role import TrainedRole

__all__ = ["ActorRole", "CriticRole", "ReferenceRole", "RewardRole"]


class ReferenceRole(Role):
    """The policy as it was before training."""

    name = "reference"

    def load(self) -> None:
        scenario = self.scenario
        self.model = models.load_policy(self.settings.policy, dtype=scenario.model.dtype, device=self.device)

    @torch.no_grad()
    def logprobs(self, step: int, samples: list[Sample]) -> Rows:
        """Return log-probabilities of the response tokens."""
        rows: Rows = []
        with self.recorder.span("reference_forward", step=step):
            for _, batch in self._batches(samples, self.model.dtype):
                logits = response_logits(self.model, batch)
                self._shapes("reference_forward", step, batch, logits=logits)
                rows += to_rows(batch.split(token_logprobs(logits, batch.target)))
        self._answered("reference_forward", step, samples, rows)
        return rows


class RewardRole(Role):
    """A sequence-classification model with one label. A tokenizer other than the policy's is served through text.

    A policy may have more rows than its tokenizer has tokens, and draw an id that the reward model has no row for. Such
    ids are left out: they stand for no text.
    """

    name = "reward"

    def load(self) -> None:
        self.model = models.load_reward(self.settings.reward, dtype=self.scenario.model.dtype, device=self.device)
        reward_tokenizer = models.load_tokenizer(self.settings.reward)
        self._other = None if reward_tokenizer.get_vocab() == self.tokenizer.get_vocab() else reward_tokenizer

    @torch.no_grad()
    def rewards(self, step: int, samples: list[Sample]) -> NDArray[np.float32]:
        """Return one reward for each sample, of prompt and response together."""
        rewards: list[float] = []
        samples = [self._translated(sample) for sample in samples]
        # A classifier finds the last token by its pad id; without a pad id it can only take one sample at a time.
        pad = self.model.config.get_text_config().pad_token_id
        size = 1 if pad is None else self.scenario.ppo.micro_batch_size
        with self.recorder.span("reward_forward", step=step):
            for part in batches.micro(samples, size):
                batch = batches.make(samples[part], pad=pad or 0, packing=False, device=self.device)
                mask = torch.zeros_like(batch.ids)
                for row, sample in enumerate(samples[part]):
                    mask[row, : len(sample)] = 1
                output = self.model(input_ids=batch.ids, attention_mask=mask).logits[:, 0].float()
                self._shapes("reward_forward", step, batch, reward=output)
                rewards += output.tolist()
        answer = np.array(rewards, dtype=np.float32)
        self._answered("reward_forward", step, samples, [answer])
        return answer

    def _translated(self, sample: Sample) -> Sample:
        if self._other is None:
            embeddings: Any = self.model.get_input_embeddings()
            rows = embeddings.num_embeddings
            prompt, response = (tuple(id_ for id_ in ids if id_ < rows) for ids in (sample.prompt, sample.response))
            return dataclasses.replace(sample, prompt=prompt, response=response)
        text = str(self.tokenizer.decode([*sample.prompt, *sample.response], skip_special_tokens=True))
        return Sample(sample.number, (), tuple(self._other.encode(text)))


class CriticRole(TrainedRole):
    """The value model and its optimizer."""

    name = "critic"

    def load(self) -> None:
        scenario, ppo = self.scenario, self.scenario.ppo
        self.model = models.load_value(
            self.settings.policy, seed=scenario.seed, dtype=scenario.model.dtype, device=self.device
        )
        self.optimizer = Optimizer(self.model, ppo.critic_lr, ppo.max_grad_norm, self.parallel)

    @torch.no_grad()
    def values(self, step: int, samples: list[Sample]) -> Rows:
        """Return the value of the state before each response token."""
        rows: Rows = []
        with self.recorder.span("critic_forward", step=step):
            for _, batch in self._batches(samples, self.model.head.weight.dtype):
                values = self.model(**batch.inputs())[batch.row, batch.column]
                self._shapes("critic_forward", step, batch, values=values)
                rows += to_rows(batch.split(values))
        self._answered("critic_forward", step, samples, rows)
        return rows

    def _loss(self, step: int, micro: MiniBatch) -> losses.Loss:
        ppo, batch = self.scenario.ppo, self._batch(micro.samples, self.model.head.weight.dtype)
        value = self.model(**batch.inputs())[batch.row, batch.column]
        self._shapes("critic_minibatch", step, batch, value=value)
        old, target = flat(micro.old, value), flat(micro.target, value)
        return losses.value_loss(value, old, target, clip=ppo.value_clip, value_coef=ppo.value_coef, count=micro.count)

    def _trained_digests(self) -> dict[str, str]:
        return weights.digests(self.model.state_dict())

    def learner_state(self) -> dict[str, Any]:
        """Return weights and optimizer state, on the CPU."""
        model = {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}
        return {"model": model, "optimizer": self.optimizer.state_dict()}

    def load_learner(self, state: dict[str, Any]) -> None:
        """Continue from `learner_state`."""
        self.pristine = False
        self.load()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

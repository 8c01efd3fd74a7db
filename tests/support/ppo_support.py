"""What the tests of the PPO stack share: a random model without pretraining, and a whole stack in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import built_in_tokenizer
import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from scenarios.engines.make import EngineOptions
from scenarios.models.quiet import quiet
from scenarios.ppo.beginning import Beginning
from scenarios.ppo.roles import ActorRole, CriticRole, ReferenceRole, RewardRole
from scenarios.ppo.trainer import Trainer
from scenarios.remote import Actor, Local, call
from scenarios.session import EngineSession
from scenarios.settings import PPO, Rollout, Sampling, Scenario

CLASSES = {"actor": ActorRole, "critic": CriticRole, "reward": RewardRole, "reference": ReferenceRole}


def random_models(home: Path, *, tied: bool = False) -> dict[str, str]:
    """A policy and a reward model of two thin layers with random weights: settings of a role."""
    tokenizer = built_in_tokenizer.trained()
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 48, "max_position_embeddings": 256, "tie_word_embeddings": tied,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2,
    }  # fmt: skip
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(0)
        policy = Qwen2ForCausalLM(Qwen2Config(**shape))
        policy.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
        reward = Qwen2ForSequenceClassification(Qwen2Config(**shape, num_labels=1))  # type: ignore[call-arg]
        for name, model in (("policy", policy), ("reward", reward)):
            model.save_pretrained(home / name)
            tokenizer.save_pretrained(home / name)
    return {"policy": str(home / "policy"), "reward": str(home / "reward")}


def scenario(**ppo: Any) -> Scenario:
    """A scenario of a few short samples."""
    settings: dict[str, Any] = {"train_batch_size": 4, "micro_batch_size": 2, "actor_lr": 3e-3, "critic_lr": 3e-3}
    return Scenario(
        steps=4,
        rollout=Rollout(prompts_per_step=4, samples_per_prompt=2),
        sampling=Sampling(max_tokens=8),
        ppo=PPO(**(settings | ppo)),
    )


def with_(scenario: Scenario, **sections: dict[str, Any]) -> Scenario:
    """`scenario` with fields of its sections replaced."""
    changed = {name: dataclasses.replace(getattr(scenario, name), **fields) for name, fields in sections.items()}
    return dataclasses.replace(scenario, **changed)


@contextmanager
def stack(scenario: Scenario, paths: dict[str, str], names: tuple[str, ...] = tuple(CLASSES)) -> Iterator[Stack]:
    """Roles and an embedded engine session as actors of this process."""
    made = Stack(scenario, paths, names)
    try:
        yield made
    finally:
        for actor in [*(actors[0] for actors in made.roles.values()), made.session]:
            actor.stop()


class Stack:
    def __init__(self, scenario: Scenario, paths: dict[str, str], names: tuple[str, ...]) -> None:
        torch.set_num_threads(1)  # idle OpenMP threads spin
        self.scenario = scenario
        self.session: Actor = Local(EngineSession, "hf", paths["policy"], scenario.to_json(), EngineOptions("cpu"))
        self.roles: dict[str, list[Actor]] = {
            name: [Local(CLASSES[name], scenario.to_json(), dict(paths), urgent=("abort_sync",))] for name in names
        }

    def trainer(self, run_dir: Path, **kwargs: Any) -> Trainer:
        """A trainer of one run, with the session recording into the same directory."""
        call(self.session, "record_to", str(run_dir))
        return Trainer(self.scenario.to_json(), self.roles, self.session, run_dir, Beginning(**kwargs))

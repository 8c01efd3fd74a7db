"""OpenRLHF's settings in the terms of `harness.frameworks.shared_meanings`.

They have the names of 0.11.2 (cli/train_ppo_ray.py), and the flat names of 0.5 to 0.9, which many scripts still use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks.settings import Settings
from harness.frameworks.shared_meanings import ENGINE, Meaning
from probes.adapters.openrlhf_driver import WITHOUT_EFFECT


def _bf16(value: Any, settings: Settings) -> str:
    return "bf16" if str(value).lower() in ("true", "1") else str(value)


_NEW: Mapping[str, Meaning] = {
    "rollout.batch_size": Meaning("prompts a step", 1024),
    "rollout.n_samples_per_prompt": Meaning("samples a prompt", 1),
    "train.batch_size": Meaning("samples an update", 128),
    "train.micro_batch_size": Meaning("samples a micro-batch", 1),
    "rollout.micro_batch_size": Meaning("samples a scoring batch", 1),
    "train.max_epochs": Meaning("passes over a step", 1),
    "train.num_episodes": Meaning("steps or epochs", 1),
    "data.max_len": Meaning("context", 2048),
    "rollout.max_new_tokens": Meaning("response length"),
    "rollout.temperature": Meaning("temperature", 1.0),
    "rollout.top_p": Meaning("top-p", 1.0),
    "actor.adam.lr": Meaning("learning rate of the actor", 1e-6),
    "critic.adam.lr": Meaning("learning rate of the critic", 9e-6),
    "algo.kl.init_coef": Meaning("KL coefficient", 0.01),
    "actor.eps_clip": Meaning("clip", 0.2),
    "actor.entropy_coef": Meaning("entropy coefficient"),
    "algo.advantage.gamma": Meaning("gamma", 1),
    "algo.advantage.lambd": Meaning("lambda", 1),
    "algo.advantage.estimator": Meaning("estimator", "gae"),
    "actor.model_name_or_path": Meaning("policy"),
    "critic.model_name_or_path": Meaning("critic"),
    "reward.model_name_or_path": Meaning("reward model"),
    "data.prompt_dataset": Meaning("prompts"),
    "data.max_samples": Meaning("prompts in all", 100_000_000),
    "ds.param_dtype": Meaning("precision", "bf16"),
    "train.seed": Meaning("seed", 42),
    "vllm.tensor_parallel_size": Meaning("tensor parallelism of the engine", 1),
    "vllm.num_engines": Meaning("engines"),
    "vllm.gpu_memory_utilization": Meaning("memory of the engine", 0.95),
    "vllm.enforce_eager": Meaning("eager", False),
    "ds.zero_stage": Meaning("sharding", 2),
}
# The flat names. Their defaults changed between versions, so the value of an absent one is not known.
_OLD: Mapping[str, Meaning] = {
    "backend": Meaning(ENGINE, "vllm"),  # an option of forks with a second engine
    "rollout_batch_size": Meaning("prompts a step"),
    "n_samples_per_prompt": Meaning("samples a prompt"),
    "train_batch_size": Meaning("samples an update"),
    "micro_train_batch_size": Meaning("samples a micro-batch"),
    "micro_rollout_batch_size": Meaning("samples a scoring batch"),
    "max_epochs": Meaning("passes over a step"),
    "num_episodes": Meaning("steps or epochs"),
    "prompt_max_len": Meaning("prompt length"),
    "generate_max_len": Meaning("response length"),
    "temperature": Meaning("temperature"),
    "top_p": Meaning("top-p"),
    "actor_learning_rate": Meaning("learning rate of the actor"),
    "critic_learning_rate": Meaning("learning rate of the critic"),
    "init_kl_coef": Meaning("KL coefficient"),
    "eps_clip": Meaning("clip"),
    "gamma": Meaning("gamma"),
    "lambd": Meaning("lambda"),
    "advantage_estimator": Meaning("estimator"),
    "pretrain": Meaning("policy"),
    "critic_pretrain": Meaning("critic"),
    "reward_pretrain": Meaning("reward model"),
    "prompt_data": Meaning("prompts"),
    "max_samples": Meaning("prompts in all"),
    "bf16": Meaning("precision", read=_bf16),
    "seed": Meaning("seed"),
    "vllm_tensor_parallel_size": Meaning("tensor parallelism of the engine"),
    "vllm_num_engines": Meaning("engines"),
    "vllm_gpu_memory_utilization": Meaning("memory of the engine"),
    "enforce_eager": Meaning("eager"),
    "zero_stage": Meaning("sharding"),
}
MEANINGS: Mapping[str, Meaning] = {**_NEW, **_OLD}
# Options that affect no number, such as where results go and how often they are logged; the flat names of 0.5 to 0.9
# too.
ASIDE = (
    *WITHOUT_EFFECT,
    "save_path", "save_steps", "save_hf_ckpt", "ckpt_path", "max_ckpt_num", "max_ckpt_mem", "logging_steps",
    "use_wandb", "wandb_", "use_tensorboard", "eval_steps",
)  # fmt: skip

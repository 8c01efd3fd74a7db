"""verl's settings in the terms of `shared_meanings`. Source: verl 0.9.1 (config/ppo_trainer.yaml)."""

from __future__ import annotations

from collections.abc import Mapping

from harness.frameworks.shared_meanings import ENGINE, Meaning, times
from harness.frameworks.verl.traps import ACTOR, ROLLOUT

MEANINGS: Mapping[str, Meaning] = {
    f"{ROLLOUT}.name": Meaning(ENGINE, "vllm"),
    "data.train_batch_size": Meaning("prompts a step", 1024),
    f"{ROLLOUT}.n": Meaning("samples a prompt", 1),
    # It counts prompts; each has `rollout.n` samples (workers/config/actor.py).
    f"{ACTOR}.ppo_mini_batch_size": Meaning("samples an update", 256, times((f"{ROLLOUT}.n", 1))),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": Meaning("samples a micro-batch"),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": Meaning("samples a scoring batch"),
    f"{ACTOR}.ppo_epochs": Meaning("passes over a step", 1),
    "trainer.total_epochs": Meaning("steps or epochs", 30),
    "trainer.total_training_steps": Meaning("steps or epochs"),
    "trainer.resume_mode": Meaning("beginning", "auto"),
    "trainer.resume_from_path": Meaning("beginning"),
    "data.max_prompt_length": Meaning("prompt length", 512),
    "data.max_response_length": Meaning("response length", 512),
    f"{ROLLOUT}.max_model_len": Meaning("context"),
    f"{ROLLOUT}.temperature": Meaning("temperature", 1.0),
    f"{ROLLOUT}.top_p": Meaning("top-p", 1),
    f"{ROLLOUT}.top_k": Meaning("top-k", -1),
    f"{ROLLOUT}.repetition_penalty": Meaning("repetition penalty", 1.0),
    f"{ACTOR}.optim.lr": Meaning("learning rate of the actor", 1e-6),
    "critic.optim.lr": Meaning("learning rate of the critic", 1e-5),
    "algorithm.kl_ctrl.kl_coef": Meaning("KL coefficient", 0.001),
    f"{ACTOR}.clip_ratio": Meaning("clip", 0.2),
    f"{ACTOR}.entropy_coeff": Meaning("entropy coefficient", 0),
    "algorithm.gamma": Meaning("gamma", 1.0),
    "algorithm.lam": Meaning("lambda", 1.0),
    "algorithm.adv_estimator": Meaning("estimator", "gae"),
    "actor_rollout_ref.model.path": Meaning("policy"),
    "critic.model.path": Meaning("critic"),
    "reward_model.model.path": Meaning("reward model"),
    "data.train_files": Meaning("prompts"),
    "data.seed": Meaning("seed"),
    f"{ROLLOUT}.seed": Meaning("seed of the engine", 0),
    f"{ROLLOUT}.dtype": Meaning("precision of the engine", "bfloat16"),
    f"{ROLLOUT}.tensor_model_parallel_size": Meaning("tensor parallelism of the engine", 2),
    f"{ROLLOUT}.gpu_memory_utilization": Meaning("memory of the engine"),
    f"{ROLLOUT}.enforce_eager": Meaning("eager"),
}

"""TRL's GRPO settings in the terms of `shared_meanings`. Source: TRL 1.16.0 (trainer/grpo_config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks.launcher import NODES, PROCESSES
from harness.frameworks.settings import Settings
from harness.frameworks.shared_meanings import ENGINE, Meaning, times


def _engine(value: Any, settings: Settings) -> str:
    return "vllm" if str(value).lower() in ("true", "1", "yes") else "transformers"


def _prompts(value: Any, settings: Settings) -> int | None:
    """The number of prompts: samples of one generation, divided by the samples of each prompt."""
    samples = times(("gradient_accumulation_steps", 1), (PROCESSES, 1), (NODES, 1))(value, settings)
    group = None if settings.why_unknown("num_generations") else settings.number("num_generations", 8)
    stated = any(settings.get(name) is not None for name in ("steps_per_generation", "generation_batch_size"))
    return None if samples is None or not group or stated else samples // group


def _off(value: Any, settings: Settings) -> Any:
    return -1 if value in (0, None) else value


MEANINGS: Mapping[str, Meaning] = {
    "use_vllm": Meaning(ENGINE, False, _engine),
    "per_device_train_batch_size": Meaning("prompts a step", 8, _prompts),
    "num_generations": Meaning("samples a prompt", 8),
    "gradient_accumulation_steps": Meaning("samples an update", 1, lambda value, settings: times(
        ("per_device_train_batch_size", 8), (PROCESSES, 1), (NODES, 1))(value, settings)),
    "num_iterations": Meaning("passes over a step", 1),
    "num_train_epochs": Meaning("steps or epochs", 3.0),
    "max_steps": Meaning("steps or epochs"),
    "max_completion_length": Meaning("response length", 512),
    "max_prompt_length": Meaning("prompt length"),
    "vllm_max_model_length": Meaning("context"),
    "temperature": Meaning("temperature", 1.0),
    "top_p": Meaning("top-p", 1.0),
    "top_k": Meaning("top-k", 0, _off),
    "min_p": Meaning("min-p"),
    "repetition_penalty": Meaning("repetition penalty", 1.0),
    "learning_rate": Meaning("learning rate of the actor", 1e-6),
    "beta": Meaning("KL coefficient", 0.0),
    "epsilon": Meaning("clip", 0.2),
    "model_name_or_path": Meaning("policy"),
    "dataset_name": Meaning("prompts"),
    "seed": Meaning("seed", 42),
    "resume_from_checkpoint": Meaning("beginning"),
    "vllm_tensor_parallel_size": Meaning("tensor parallelism of the engine", 1),
    "vllm_gpu_memory_utilization": Meaning("memory of the engine", 0.3),
}  # fmt: skip

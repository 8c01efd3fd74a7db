"""Models of a scenario: the built-in ones, made from a seed, and any Hugging Face directory."""

from scenarios.models.builtin import build, build_reward
from scenarios.models.load import (
    ModelError,
    load_policy,
    load_reward,
    load_tokenizer,
    load_value,
    policy_path,
    reward_path,
)

__all__ = [
    "ModelError",
    "build",
    "build_reward",
    "load_policy",
    "load_reward",
    "load_tokenizer",
    "load_value",
    "policy_path",
    "reward_path",
]

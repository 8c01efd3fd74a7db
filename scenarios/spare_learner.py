"""A learner's process before its role is known: everything is imported, nothing is made."""

from __future__ import annotations


class Spare:
    """Imports what `scenarios.stage` and the roles of PPO need for a model like the one in `policy`, which takes
    seconds.
    """

    def __init__(self, policy: str) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        import scenarios.ppo.roles
        import scenarios.stage  # noqa: F401

        AutoModelForCausalLM._model_mapping[type(AutoConfig.from_pretrained(policy))]  # imports the model's module

    def ready(self) -> None:
        """Answer once everything is imported."""

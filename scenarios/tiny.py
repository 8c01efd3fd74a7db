"""What the built-in models are, for code that makes no model itself. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scenarios.settings import BUILTIN

CONTEXT = 256  # tokens
POLICY = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 256,
}  # fmt: skip
REWARD = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """Another architecture of the built-in policy.

    model_type: as Transformers calls it. settings: of its configuration, beside the sizes of the built-in policy.
    rows: of the vocabulary, beyond the tokenizer's. without: beginnings of the built-in policy's tensor names, and of
    plants, that have nothing to act on in it.
    """

    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    rows: int = 0
    without: tuple[str, ...] = ()

    @property
    def configuration(self) -> dict[str, Any]:
        """What its configuration says, apart from the vocabulary."""
        sizes = {**POLICY, "head_dim": 32, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False}
        if self.model_type == "gpt2":
            sizes = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": CONTEXT}
        return {**sizes, **self.settings}


TIED, MLP = ("lm_head.",), tuple(f"model.layers.{layer}.mlp." for layer in range(POLICY["num_hidden_layers"]))
# What engines and trainers handle apart, and what public reports of mismatches are about.
ARCHITECTURES = {
    "tied": Architecture("qwen2", {"tie_word_embeddings": True}, without=TIED),
    "windows": Architecture(
        "gemma3_text",
        {
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 32,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        without=TIED,
    ),
    "soft-caps": Architecture(
        "gemma2",
        {
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",  # which published checkpoints name as well, and SGLang reads
            "query_pre_attn_scalar": 32,
            "final_logit_softcapping": 8.0,
            "attn_logit_softcapping": None,  # SGLang's attention for CPUs has none: see docs/measurements
            "sliding_window": 64,
        },
        without=TIED,
    ),
    "experts": Architecture(
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": False},
        without=MLP,
    ),
    "learned-positions": Architecture(
        "gpt2",
        {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        without=("model.", "lm_head.", "rotary", "rebased"),
    ),
    "scaled-rotary": Architecture(
        "llama",
        {
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "odd-sizes": Architecture("qwen3", {"max_position_embeddings": 509}, rows=37),
}
PREFIX = BUILTIN.removesuffix("tiny")
BUILTIN_POLICIES = (BUILTIN, *(PREFIX + name for name in ARCHITECTURES))

OPTIONS = {"model.path": "--model ", "model.reward": "--set model.reward="}  # how a command line gives each model
ANY_MODEL = f"{BUILTIN}   # or the directory of a Hugging Face model"


def builtin_models(key: str) -> tuple[str, ...]:
    """The built-in models that a setting may name: `model.path` of the policy, or `model.reward`."""
    return BUILTIN_POLICIES if key == "model.path" else (BUILTIN,)


def no_such_model(key: str) -> str:
    """What is wrong with another name of that form."""
    return f"no such built-in model; there is {' or '.join(map(repr, builtin_models(key)))}"


def configuration(path: str) -> dict[str, Any] | None:
    """What the configuration of a built-in policy says of sizes; None for a path that is no built-in policy's."""
    if path == BUILTIN:
        return {**POLICY, "max_position_embeddings": CONTEXT}
    architecture = ARCHITECTURES.get(path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None
    return None if architecture is None else architecture.configuration

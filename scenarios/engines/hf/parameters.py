"""The embedded engine's parameters. Its sampling arguments have the names of Transformers' generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scenarios.engines.native import Native, ids, seed_up_to, top_k

if TYPE_CHECKING:
    from scenarios.settings import Mode, Sampling

ENGINE = {
    "dtype": Native("dtype", "auto"),
    "seed": Native("seed", rejects=seed_up_to(2**63 - 1)),  # a recording's whole numbers are signed, of 64 bits
    "max_model_len": Native("max_model_len"),
    "max_num_seqs": Native("max_num_seqs"),
    "generation_config": Native("generation_config", True, lambda source, _: source != "none"),
}

SAMPLING = {
    "top_k": Native("top_k", -1, top_k),
    "max_tokens": Native("max_new_tokens", 20),
    "min_tokens": Native("min_new_tokens", 0),
    "stop_token_ids": Native("stop_token_ids", (), ids, write=list),
}


def engine(requested: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the embedded engine."""
    names = ("dtype", "seed", "max_model_len", "max_num_seqs")
    return {name: requested[name] for name in names} | {"generation_config": "none"}


def refusal(s: Sampling, mode: Mode, ours: bool) -> str:
    """Return why the embedded engine cannot sample this, under any mapping; empty where it can."""
    if mode == "native" and s.repetition_penalty != 1.0:
        return "the embedded Transformers engine has no repetition penalty"
    return ""

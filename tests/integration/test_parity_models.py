"""Models other than the built-in one, dense and a mixture of experts: weights synced and proven on the real engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from harness import run_parity
from probes.format import Run
from reports.model import Verdict
from scenarios import models

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]

SIZE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "intermediate_size": 128, "max_position_embeddings": 512}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def made(kind: str, path: Path, built_in: dict[str, str], **changes: Any) -> str:
    """A random model of that architecture with the built-in tokenizer, as a Hugging Face directory."""
    tokenizer = models.load_tokenizer(built_in["policy"])
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), tie_word_embeddings=False, **SIZE, **ends, **changes)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config).float()
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def proven(verdict: Verdict, side: str) -> list[float]:
    """The largest difference of each proof of a weight sync, in nats."""
    return [event["proof_max_delta"] for event in Run(verdict.paths["run"] + f"/{side}").events(kind="sync")]


@pytest.mark.night
@pytest.mark.parametrize(
    ("baseline", "candidate", "kind", "changes"),
    [("hf", "vllm", "llama", {}), ("vllm", "sglang", "qwen3_moe", EXPERTS)],
)
def test_a_model_of_another_architecture_is_the_same_run_on_both_engines(
    baseline: str, candidate: str, kind: str, changes: dict[str, Any], built_in: dict[str, str], tmp_path: Path
) -> None:
    model = made(kind, tmp_path / kind, built_in, **changes)
    verdict = run_parity(
        baseline, candidate, overrides=[f"model.path={model}"], steps=2, native=False, out=tmp_path / "run"
    )
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    for side in ("baseline", "candidate"):
        assert len(proven(verdict, side)) == 3 and max(proven(verdict, side)) < 1e-4


@pytest.mark.night
def test_an_engine_that_cannot_start_is_told_in_its_own_last_words(built_in: dict[str, str], tmp_path: Path) -> None:
    model = made("gemma2", tmp_path / "gemma2", built_in, query_pre_attn_scalar=32)
    verdict = run_parity(
        "hf", "sglang", overrides=[f"model.path={model}"], rollout_only=True, native=False, out=tmp_path / "run"
    )
    assert verdict.verdict == "INCONCLUSIVE"
    assert "'Gemma2Config' object has no attribute 'hidden_act'" in verdict.account

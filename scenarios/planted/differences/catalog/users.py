"""A comparison that a user once made, with everything in it that was not equal."""

from __future__ import annotations

from pathlib import Path

from scenarios.planted.differences.catalog.sleep import ASLEEP
from scenarios.planted.differences.fault import Fault

FILE = Path(__file__).parents[1] / "users_mapping.py"

FAULTS = (
    Fault(
        "users-mapping",
        "a user's own mapping, text for ids, and another train batch: each told apart from the others",
        pair=("vllm", "sglang"),
        scenario=("sampling.min_tokens=8",),
        settings=("ppo.train_batch_size=8", "ppo.micro_batch_size=8"),
        engine={"text_samples": "all"},
        mapping={"file": str(FILE)},
        causes=("TOKENIZATION(double BOS)", "SAMPLING_PARAM(min_tokens)"),
        party=("candidate", "mapping"),
        findings=("CONFIG(enforce_eager)", "CONFIG(graph_padding)"),
        confounders=("ppo.train_batch_size",),
        told=dict.fromkeys(("CONFIG(enforce_eager)", "CONFIG(graph_padding)"), "none measured"),
    ),
    Fault(
        "users-mapping-colocated",
        "the same mapping, with vLLM's share of the memory copied, where engines sleep while the learner trains",
        pair=("vllm", "sglang"),
        scenario=("sampling.min_tokens=8", *ASLEEP),
        mapping={"file": str(FILE), "edits": {"engine": {"mem_fraction_static": 0.9}}},
        causes=("SAMPLING_PARAM(min_tokens)",),
        party="mapping",
        findings=("CONFIG(enforce_eager)", "CONFIG(graph_padding)", "CONFIG(memory_fraction)", "cache hit rate"),
    ),
)

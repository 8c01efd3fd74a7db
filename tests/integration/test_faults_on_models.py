"""A planted fault runs on the model that it names, whatever ran before it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness import config
from harness.planted.differences.fault_runs import outcomes
from probes.format import Run
from scenarios.planted.differences.catalog import named

TENSOR_OF = {"": "model.layers.0.self_attn.q_proj.bias", "builtin:learned-positions": "transformer.wpe.weight"}


@pytest.mark.night
def test_a_fault_runs_on_the_model_that_it_names(tmp_path: Path) -> None:
    """By the tensors that were sent: the model of the suite has biases of its queries, GPT-2 a table of positions."""
    faults = [dataclasses.replace(named("control"), model=model) for model in TENSOR_OF]
    scenario = config.load("ppo-tiny", steps=1)
    for outcome in outcomes("hf", "hf", faults, scenario=scenario, out=tmp_path):
        assert outcome.verdict is not None and outcome.verdict.verdict == "EQUIVALENT", outcome.error
        sent = next(Run(tmp_path / outcome.fault.folder / "candidate").events(kind="weights"))["digests"]
        assert {tensor for tensor in TENSOR_OF.values() if tensor in sent} == {TENSOR_OF[outcome.fault.model]}

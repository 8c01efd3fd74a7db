"""The planted faults of parity: what each changes, in the candidate only, through a public seam.

A fault is plain data: settings of the candidate, a wrapper around its engine, or tensors left out of a weight sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    name: str = ""
    summary: str = ""
    settings: tuple[str, ...] = ()  # section.key=value, candidate only
    wrap: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of scenarios.faults.engine.FaultyEngine
    omit_tensors: Mapping[int, tuple[str, ...]] = field(
        default_factory=dict
    )  # weight version -> tensors left out of that sync
    expected: str = "DIVERGENT"  # the right verdict
    cause: str = ""  # the right cause, empty where none may be named


FAULTS = (
    Fault("temperature", "temperature 0.9 for 1.0", settings=("sampling.temperature=0.9",), cause="SAMPLING_PARAM"),
    Fault(
        "text-prompt",
        "one prompt is sent as text, so the tokenizer adds its BOS again",
        wrap={"text_samples": [5]},
        cause="TOKENIZATION",
    ),
    Fault(
        "stale-tensor",
        "one tensor is left out of the third weight sync and of none other",
        omit_tensors={3: ("model.layers.0.mlp.down_proj.weight",)},
        cause="STALE_WEIGHTS",
    ),
    Fault("shifted-logprobs", "log-probabilities are reported one position late", wrap={"shift": 1}, cause="ALIGNMENT"),
    Fault(
        "noisy-candidate", "1e-2 nats of noise on every log-probability", wrap={"noise": 1e-2}, cause="candidate-itself"
    ),
    Fault("engine-seed", "another engine seed", settings=("engine.seed=1234",), expected="EQUIVALENT"),
    Fault(
        "train-batch-halved",
        "the learner's batch is halved",
        settings=("ppo.train_batch_size=8", "ppo.micro_batch_size=8"),
        expected="CONFOUNDED",
    ),
)


def named(name: str) -> Fault:
    """The fault of that name; raises ValueError with the names there are."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise ValueError(f"there is no fault {name!r}; there are: {', '.join(f.name for f in FAULTS)}")

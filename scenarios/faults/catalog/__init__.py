"""The planted faults of parity and their controls: one module a family, what is true of each stated beside it."""

from __future__ import annotations

from scenarios.faults.catalog import (
    combined,
    configuration,
    controls,
    logprobs,
    native,
    prompts,
    responses,
    sampling,
    users,
    weights,
)
from scenarios.faults.fault import Fault, matches

__all__ = ["FAULTS", "Fault", "matches", "named"]

FAULTS: tuple[Fault, ...] = (
    *prompts.FAULTS,
    *responses.FAULTS,
    *logprobs.FAULTS,
    *sampling.FAULTS,
    *weights.FAULTS,
    *configuration.FAULTS,
    *combined.FAULTS,
    *users.FAULTS,
    *native.FAULTS,
    *controls.FAULTS,
)


def named(name: str) -> Fault:
    """The fault of that name; raises ValueError with the names there are."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise ValueError(f"there is no fault {name!r}; there are: {', '.join(f.name for f in FAULTS)}")

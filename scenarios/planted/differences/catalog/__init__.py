"""The planted faults of parity and their controls: one module per family, with the expected verdict of each fault."""

from __future__ import annotations

import difflib
from dataclasses import replace

from scenarios.planted.differences.catalog import (
    combined,
    configuration,
    controls,
    engines,
    lifted,
    logprobs,
    memory,
    native,
    prompts,
    ranks,
    responses,
    sampling,
    sleep,
    users,
    weights,
)
from scenarios.planted.differences.fault import Fault, matches

__all__ = ["FAMILIES", "FAULTS", "Fault", "family", "matches", "named"]

FAMILIES: dict[str, tuple[Fault, ...]] = {
    "prompts": prompts.FAULTS,
    "responses": responses.FAULTS,
    "log-probabilities": logprobs.FAULTS,
    "sampling": sampling.FAULTS,
    "weights": weights.FAULTS,
    "configuration": configuration.FAULTS,
    "combined": combined.FAULTS,
    "a user's mapping": users.FAULTS,
    "one of several engines": engines.FAULTS,
    "ranks": ranks.FAULTS,
    "sleep and wake": sleep.FAULTS,
    "memory": memory.FAULTS,
    "native": native.FAULTS,
    "half precision": lifted.FAULTS,
    "controls": controls.FAULTS,
}
FAULTS: tuple[Fault, ...] = tuple(fault for faults in FAMILIES.values() for fault in faults)


def family(fault: Fault) -> str:
    """Return the family of a fault of the catalogue, whatever its dtype and policy; "your own" for another."""
    of_the_suite = replace(fault, model="")
    return next(
        (
            name
            for name, faults in FAMILIES.items()
            for listed in faults
            if of_the_suite in (listed, listed.at("bfloat16"))
        ),
        "your own",
    )


def named(name: str) -> Fault:
    """Return the fault of that name. Raises ValueError for an unknown name."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    near = difflib.get_close_matches(name, [fault.name for fault in FAULTS])
    raise ValueError(f"there is no fault {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))

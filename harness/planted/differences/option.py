"""The option `--fault` of `harness parity`: one planted fault in an otherwise ordinary comparison."""

from __future__ import annotations

from harness.errors import BadInput
from scenarios.planted.differences.catalog import Fault, named


def fault_of_a_run(name: str) -> Fault:
    """Return the fault of that name.

    Raises BadInput for an unknown fault, and for one that cannot be planted in a whole run.
    """
    try:
        fault = named(name)
    except ValueError as error:
        raise BadInput(str(error), fix="harness faults list --suite parity") from error
    if fault.native:
        raise BadInput(
            f"{name} has settings of the native stage alone, which a whole run does not take",
            fix=f"harness faults run --suite parity {name}",
        )
    return fault

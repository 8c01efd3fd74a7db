"""Dumps of TorchComms' recorder (TORCHCOMM_FR_DUMP_TEMP_FILE): torch's form, but all communicators share one count.

The form is that of hooks/fr/FlightRecorder.cpp in meta-pytorch/torchcomms; it was not run here. `collective_seq_id`
counts every operation of the process, sends and receives too. So operations get the number that torch would give them:
their place among the collectives of their communicator. That needs the ring's first operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.triage.flight.flight import FlightError

# Operations that not every rank of the communicator runs.
_OF_FEW = frozenset({"send", "recv", "batch_op_issue"})
# Columns of `decode`.
_RECORD, _GROUP, _SEQ, _NAME = 0, 1, 2, 4


def wrote(columns: Sequence[Sequence[Any]]) -> bool:
    """Whether TorchComms wrote these operations: its communicators have their backend as description."""
    if not columns:
        return False
    group, name = columns[_GROUP][0], columns[_NAME][0]
    if not (isinstance(group, list | tuple) and len(group) == 2 and isinstance(name, str)):
        return False
    return bool(group[1]) and group[1] == name.partition(":")[0]


def renumbered(
    columns: Sequence[Sequence[Any]], frames: Sequence[Any] | None, name: str
) -> tuple[list[Sequence[Any]], Sequence[Any] | None]:
    """The columns of the collectives, numbered in each communicator from 1, and their frames.

    Raises FlightError where the ring has lost its first operations, unless it has one communicator and no sends.
    """
    operations = [str(operation).rpartition(":")[2] for operation in columns[_NAME]]
    rows = [row for row, operation in enumerate(operations) if operation not in _OF_FEW]
    communicators = {tuple(pair) for pair in columns[_GROUP]}
    first = columns[_RECORD][0]
    if first and (len(communicators) > 1 or len(rows) < len(operations)):
        raise FlightError(
            f"{name}: its first {first:,} operations are overwritten, so the others have no number in a communicator",
            fix="set TORCHCOMM_FR_BUFFER_SIZE to more operations (2000 is the default) and dump again",
        )
    if not rows:
        return [], None
    kept = [[column[row] for row in rows] for column in columns]
    counts: Counter[tuple[Any, ...]] = Counter()
    for at, pair in enumerate(kept[_GROUP]):
        counts[tuple(pair)] += 1
        kept[_SEQ][at] = first + counts[tuple(pair)]
    return list(kept), None if frames is None else [frames[row] for row in rows]

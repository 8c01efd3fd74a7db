"""Tensors that a sync left out, and those that arrived as something else."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily, Rival, Seen

_HELD = (Seen.HELD_OTHERWISE, Seen.NOT_SENT, Seen.ARRIVED_OTHERWISE)
_SENT_AGAIN = "the tensor is sent again"
STALE_WEIGHTS = CauseFamily(
    "STALE_WEIGHTS",
    fix="send the named tensors in every weight sync, and generate only after it has ended",
    rivals=(
        Rival("WEIGHTS", (Seen.NOT_SENT, Seen.REFUSED, Seen.OLDER_HELD, Seen.OLDER_AGREES)),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED, Seen.OLDER_AGREES)),
    ),
    premise=True,
    cured_by=_SENT_AGAIN,
)
WEIGHTS = CauseFamily(
    "WEIGHTS",
    fix="check how the weight sync maps the named tensor: name, shard, order of rows, dtype",
    rivals=(
        Rival("STALE_WEIGHTS", (Seen.NEVER_LEARNERS, Seen.ARRIVED_OTHERWISE, Seen.CHANGED, Seen.REARRANGED)),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED)),
    ),
    premise=True,
    cured_by=_SENT_AGAIN,
)

FAMILIES = (STALE_WEIGHTS, WEIGHTS)

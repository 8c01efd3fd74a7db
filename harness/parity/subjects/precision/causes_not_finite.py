"""The cause NUMERIC_FATAL: log-probabilities that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.causes.family import CauseFamily, of_each_side
from harness.parity.causes.proof import recorded
from harness.parity.facts.divergence import ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, restricted, when
from reports.model import Cause
from reports.text import counted


@of_each_side
def numeric(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find samples with log-probabilities that are NaN or infinite, and whether the engine calls their end a stop."""
    items = e.found(Kind.NOT_FINITE.of(side.name))
    if not len(items):
        return
    affected = np.unique(items, axis=0)
    stopped = _stopped_at_nan(e, side, affected)
    summary = f"the engine reports log-probabilities that are not finite {when(e, affected[:, 0])}"
    if stopped:
        summary += ", and says that samples stopped there"
    yield Explanation(
        Cause.of(
            NUMERIC_FATAL.key(),
            side.name,
            summary,
            counted(len(affected), "sample") + (f", {stopped} of which end as “stop” with it" if stopped else ""),
            {"samples": affected[:50].tolist(), "stopped": stopped},
            restricted(
                e,
                keys(ROLLOUT, side.name),
                affected,
                "leave out the samples with log-probabilities that are NaN or infinite",
            ),
        ),
        # An engine that agrees with itself wherever its numbers are finite is not noisy as well.
        (*keys(ROLLOUT, side.name), *(() if side.floor.noisy(e.of_engines) else (Kind.FLOOR.of(side.name),))),
        among(affected),
    )


def _stopped_at_nan(e: Evidence, side: Side, affected: np.ndarray) -> int:
    count = 0
    for step in np.unique(affected[:, 0]).tolist():
        table = side.recording.table("rollout", step)
        if table is None or table.finish is None or (logprob := table.rows("logprob")) is None:
            continue
        rows = np.flatnonzero(np.isin(table.sample, affected[affected[:, 0] == step, 1]) & (logprob.lengths > 0))
        last = logprob.values[logprob.offsets[1:][rows] - 1]
        count += int(np.count_nonzero(~np.isfinite(last) & (table.finish[rows] == "stop")))
    return count


NUMERIC_FATAL = CauseFamily(
    "NUMERIC_FATAL",
    meaning="the engine reports log-probabilities that are NaN or infinite",
    fix="find the first value that is not a number: try float32, or another attention backend",
    alone="the number itself is not finite",
    proof=recorded("no sample without such a number differs"),
)

FAMILIES = (NUMERIC_FATAL,)

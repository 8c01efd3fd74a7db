"""Whether one run is clean by itself, so that its engine need not be kept for the bench.

A clean engine agrees with its learner within the tolerance, saw the prompts that it was sent, was given the parameters
that were asked for, and ended every sample for a reason that can be checked. All of its syncs are proven.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.parity.gather import gather
from harness.recordings.library import Library
from harness.recordings.records.values import equal_values
from harness.recordings.store import Recording


def clean(run: Path, *, cap: float | None = None, library: Library | None = None) -> bool:
    """Whether nothing recorded in `run` speaks against its engine. False where that cannot be determined."""
    recording = (library or Library()).open(run)
    e = gather(recording, recording, native=False, cap=cap)
    if e.first or not recording.complete:
        return False
    proven = e.baseline.sync
    if proven.unproven or proven.without_digests or proven.unsynced:
        return False
    return _as_asked(recording) and all(_ended(recording, step) for step in recording.steps("rollout"))


def _as_asked(recording: Recording) -> bool:
    """Whether every engine recorded that it was given each sampling parameter of the scenario."""
    sampling, requests = recording.records.settings.sampling, recording.records.sampling
    if not sampling or not requests:
        return False
    for request in requests:
        received = request.received
        if not received or not all(equal_values(received.get(name), value) for name, value in sampling.items()):
            return False
    return True


def _ended(recording: Recording, step: int) -> bool:
    """Whether samples cut at the limit have its length, and the others end with a token that stops, after
    min_tokens.
    """
    table = recording.table("rollout", step)
    if table is None or table.finish is None or (output := table.rows("output")) is None:
        return False
    ends: set[int] = set()
    for info in recording.records.engines:
        ends.update(info.resolved.end_ids or ())
    sampling = recording.records.settings.sampling
    limit, least = sampling.max_tokens, np.fmax(sampling.min_tokens, 0.0)
    cut = np.array([str(reason) == "length" for reason in table.finish])
    unexplained_reasons = set(map(str, table.finish)) - {"length", "stop"}
    if not ends or unexplained_reasons or (output.lengths[cut] != limit).any():
        return False
    stopped = np.flatnonzero(~cut)
    last = output.values[output.offsets[stopped] + output.lengths[stopped] - 1]
    return bool(np.isin(last, sorted(ends)).all() and (output.lengths[stopped] > least).all())

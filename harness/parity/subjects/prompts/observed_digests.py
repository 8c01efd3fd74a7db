"""The digests of a step's prompts, and whether those of a recording are of the prompts that it rolled out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from harness.parity.facts.align import Match, equal_rows
from harness.recordings.store import Recording
from harness.recordings.tables import Rows
from probes import weights


def prompt_digests(prompts: Rows, rows: np.ndarray) -> Iterator[str]:
    """Yield the digest of these rows as our trainer makes it, then as the adapters of other frameworks do.

    Both are specified in docs/reference/format.md.
    """
    parts = {"tokens": prompts.joined_at(rows).astype(np.int32), "lengths": prompts.lengths[rows].astype(np.int32)}
    yield weights.combine(weights.digests(parts))
    plain = repr([prompts.row(row).tolist() for row in rows.tolist()]).encode()
    yield hashlib.blake2b(plain, digest_size=16).hexdigest()


def equal_in_rollouts(baseline: Recording, candidate: Recording, step: int) -> bool:
    """Whether both runs rolled out the same prompts, and the data of one of them has their digest.

    Where the data of the other has another digest, that digest is of no prompt that was rolled out.
    """
    first, second = (run.table("rollout", step) for run in (baseline, candidate))
    rows = [table.rows("prompt") if table is not None else None for table in (first, second)]
    if first is None or second is None or rows[0] is None or rows[1] is None:
        return False
    match = Match.of(first.sample, second.sample)
    if len(match.only_a) or len(match.only_b) or len(match.repeated):
        return False
    return bool(equal_rows(rows[0], match.a, rows[1], match.b).all()) and (
        _has_digest(baseline, step) or _has_digest(candidate, step)
    )


def _has_digest(run: Recording, step: int) -> bool:
    table = run.table("rollout", step)
    rows = table.rows("prompt") if table is not None else None
    batches = [batch for batch in run.records.prompts if batch.step == step]
    if table is None or rows is None or not batches:
        return False
    places = {sample: row for row, sample in enumerate(table.sample.tolist())}
    return all(
        batch.samples is not None
        and all(sample in places for sample in batch.samples)
        and batch.digest
        in tuple(prompt_digests(rows, np.array([places[sample] for sample in batch.samples], np.int64)))
        for batch in batches
    )

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
    if first is None or second is None:
        return False
    first_prompts, second_prompts = first.rows("prompt"), second.rows("prompt")
    if first_prompts is None or second_prompts is None:
        return False
    match = Match.of(first.sample, second.sample)
    if len(match.only_a) or len(match.only_b) or len(match.repeated):
        return False
    equal = bool(equal_rows(first_prompts, match.a, second_prompts, match.b).all())
    return equal and (_has_digest(baseline, step) or _has_digest(candidate, step))


def _has_digest(run: Recording, step: int) -> bool:
    """Whether every batch of the step's data has the digest of the prompts that were rolled out."""
    table = run.table("rollout", step)
    batches = [batch for batch in run.records.prompts if batch.step == step]
    if table is None or not batches or (prompts := table.rows("prompt")) is None:
        return False
    for batch in batches:
        if batch.digest is None or batch.samples is None or not table.row_by_sample.keys() >= set(batch.samples):
            return False
        rows = np.array([table.row_by_sample[sample] for sample in batch.samples], np.int64)
        if batch.digest not in prompt_digests(prompts, rows):
            return False
    return True

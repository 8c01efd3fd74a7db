"""Equal samples that are said to have ended for different reasons: which reason does the sample itself contradict?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from harness.parity.causes.ends import STOP
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Reason
from harness.parity.facts.explanation import Explained, Explanation, among, keys_of, when
from harness.parity.facts.parameters import sampling_given
from harness.parity.rules.ends import end_ids
from harness.recordings.tables import number
from reports.model import Cause, Proof


def reasons(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """STOP(finish reason): `length` below the limit at an end token, or `stop` at the limit at none."""
    open_ = set(keys_of(so_far.left(Kind.FINISH.of())).tolist())
    items = [one for one in e.reasons if int(keys_of(np.array([[one.step, one.sample]]))[0]) in open_]
    for index, side in enumerate(e.sides):
        limit = int(number(sampling_given(side, e.mode).get("max_tokens"), 0))
        ends = end_ids(e, side)
        found = [
            one
            for one in items
            if _contradicted(one, index, ends, limit) and not _contradicted(one, 1 - index, ends, limit)
        ]
        if not found:
            continue
        (said, count), *_ = Counter(one.finish[index] for one in found).most_common()
        # What says that of samples which end otherwise is not believed where their end does not tell.
        silent = [one for one in items if one.finish[index] == said and not _contradicted(one, 1 - index, ends, limit)]
        steps = np.array(sorted({one.step for one in found}))
        cause = Cause.of(
            STOP.key("finish reason"),
            side.name,
            f"the {side.name} says {said!r} of samples that ended otherwise, {when(e, steps)}",
            f"{count} of {len(found)} say {said!r}; they end "
            + ("at an end token, below the limit" if said == "length" else f"at the limit of {limit}, at no end token"),
            {"samples": len(found), "said": said, "end_ids": sorted(ends), "limit": limit},
            [Proof("the reason is read from the sample's own end", len(found), 0, "samples")],
        )
        yield Explanation(cause, (Kind.FINISH.of(),), among({(one.step, one.sample) for one in [*found, *silent]}))


def _contradicted(one: Reason, index: int, ends: set[int], limit: int) -> bool:
    if not limit:
        return False
    if one.finish[index] == "length":
        return one.last in ends and one.length < limit
    return one.finish[index] == "stop" and one.last not in ends and one.length >= limit

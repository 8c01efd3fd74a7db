"""Answers of a role's ranks against those of the other run: is it one rank's samples alone that differ?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.parity.facts.align import Match, equal_rows
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.engines.observed import LEAST_OTHERS
from harness.parity.subjects.ranks.observed import ANSWERS
from harness.recordings.tables import Table
from reports.text import counted

FROZEN = ("reference", "reward")  # what they answer depends on no update


@dataclass(frozen=True)
class OddRank:
    """`side`: where it is at fault; empty where nothing tells."""

    side: str
    role: str
    rank: int
    steps: tuple[int, ...]
    text: str


def odd_rank(e: Evidence) -> Iterator[OddRank]:
    """The first role of which one rank's samples differ and no other's, in the order in which they are answered."""
    if e.confounded("everything", "prompts", "experience") is not None:
        return
    parted = e.learners.parted
    for role, (_, name) in ANSWERS.items():
        steps = [step for step in e.steps if role in FROZEN or parted is None or step <= parted]
        asked, apart, where = Counter[int](), Counter[int](), set[int]()
        for step in steps:
            shares = [side.ranks.shares.get((step, role), {}) for side in e.sides]
            by_rank = shares[0] or shares[1]
            differing = _differing(e, step, name)
            if len(by_rank) < 2 or differing is None or (all(shares) and shares[0].keys() != shares[1].keys()):
                continue
            for rank, share in by_rank.items():
                asked[rank] += len(share.samples)
                apart[rank] += len(differing.intersection(share.samples))
                where |= {step} if differing.intersection(share.samples) else set()
        odd = [rank for rank in asked if apart[rank]]
        if len(odd) == 1 and asked.total() - asked[odd[0]] >= LEAST_OTHERS:
            (rank,) = odd
            text = (
                f"{name} differs in {apart[rank]:,} of {counted(asked[rank], 'sample')} that rank {rank} of the {role} "
            )
            text += f"answered for, and in none of {asked.total() - asked[rank]:,} of the other ranks"
            yield OddRank(_side(e, rank) if role == "reference" else "", role, rank, tuple(sorted(where)), text)
            return
        if odd:
            return  # it differs everywhere: what follows from it does too


def _tables(e: Evidence, step: int) -> list[Table | None]:
    return [side.recording.table("experience", step) for side in e.sides]


def _differing(e: Evidence, step: int, name: str) -> set[int] | None:
    """Samples of the same tokens of which this column differs, to the last bit; None where it cannot be compared."""
    one, two = _tables(e, step)
    if one is None or two is None:
        return None
    match = Match.of(one.sample, two.sample)
    tokens, columns = [one.rows("tokens"), two.rows("tokens")], [one.rows(name), two.rows(name)]
    flat = [one.flat(name), two.flat(name)]
    if tokens[0] is None or tokens[1] is None:
        return None
    alike = equal_rows(tokens[0], match.a, tokens[1], match.b)
    if columns[0] is not None and columns[1] is not None:
        same = equal_rows(columns[0], match.a, columns[1], match.b)
    elif flat[0] is not None and flat[1] is not None:
        same = flat[0][match.a] == flat[1][match.b]
    else:
        return None
    return {int(sample) for sample in match.sample[alike & ~np.asarray(same)]}


def _side(e: Evidence, rank: int) -> str:
    """The run whose reference is not its own first policy on the samples of that rank, and is on the others."""
    odd = []
    for side in e.sides:
        shares, table = side.ranks.shares.get((0, "reference"), {}), side.recording.table("experience", 0)
        reference, actor = (table.rows(name) if table else None for name in ("reference_logprob", "actor_logprob"))
        if table is None or reference is None or actor is None:
            return ""
        every = np.arange(len(table.sample))
        alike = equal_rows(reference, every, actor, every)
        others = {one for other, share in shares.items() if other != rank for one in share.samples}
        known = np.isin(table.sample, sorted(others))
        if not alike[known].all():
            return ""
        odd += [side.name] if not alike[~known].all() else []
    return odd[0] if len(odd) == 1 else ""

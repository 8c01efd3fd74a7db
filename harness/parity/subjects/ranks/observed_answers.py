"""The answers of a role's ranks against the other run's: whether the samples of one rank alone differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from harness.parity.facts.align import Match, equal_rows
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.engines.observed import LEAST_OTHERS
from harness.parity.subjects.ranks.observed import ANSWERS
from harness.recordings.tables import Table
from reports.text import part_of

FROZEN = ("reference", "reward")  # their answers depend on no update


@dataclass(frozen=True)
class OddRank:
    """A rank whose answers alone differ. `side`: the run at fault; "" where nothing shows which."""

    side: str
    role: str
    rank: int
    steps: tuple[int, ...]
    text: str


def odd_rank(e: Evidence) -> Iterator[OddRank]:
    """Yield the first role in which the samples of one rank differ and no others, in the order in which roles
    answer.
    """
    if e.confounded("everything", "prompts", "experience") is not None:
        return
    parted = e.learners.parted
    for role, (_, name) in ANSWERS.items():
        # Once the learners part, the actor and the critic answer with other weights, on every rank.
        steps = [step for step in e.steps if role in FROZEN or parted is None or step <= parted]
        counted_answers = _count_answers(e, role, name, steps)
        sizes, apart = counted_answers.sizes, counted_answers.apart
        only_rank = next(iter(apart)) if len(apart) == 1 else None
        if only_rank is not None and sizes.total() - sizes[only_rank] >= LEAST_OTHERS:
            of_rank = part_of(apart[only_rank], sizes[only_rank], "sample")
            text = f"{name} differs in {of_rank} that rank {only_rank} of the {role} "
            text += f"answered for, and in none of {sizes.total() - sizes[only_rank]:,} of the other ranks"
            side = _side(e, only_rank) if role == "reference" else ""
            yield OddRank(side, role, only_rank, tuple(sorted(counted_answers.steps)), text)
        if apart:
            return  # later roles use these answers, so they differ as well


@dataclass
class _Answers:
    """Answers of one role, by rank: `sizes` all of them, `apart` those that differ, in `steps`."""

    sizes: Counter[int] = field(default_factory=Counter)
    apart: Counter[int] = field(default_factory=Counter)
    steps: set[int] = field(default_factory=set)


def _count_answers(e: Evidence, role: str, name: str, steps: list[int]) -> _Answers:
    """Count the samples whose answer differs, over the steps in which both runs split the batch alike."""
    answers = _Answers()
    for step in steps:
        shares = [side.ranks.shares.get((step, role), {}) for side in e.sides]
        # Where one run did not record who answered, the other's ranks stand for both.
        by_rank = shares[0] or shares[1]
        other_ranks = all(shares) and shares[0].keys() != shares[1].keys()
        differing = _differing(e, step, name)
        if len(by_rank) < 2 or differing is None or other_ranks:
            continue
        for rank, share in by_rank.items():
            answers.sizes[rank] += len(share.samples)
            if of_rank := differing.intersection(share.samples):
                answers.apart[rank] += len(of_rank)
                answers.steps.add(step)
    return answers


def _differing(e: Evidence, step: int, name: str) -> set[int] | None:
    """Return samples with equal tokens whose values in this column differ in any bit; None where it cannot be
    compared.
    """
    baseline, candidate = (side.recording.table("experience", step) for side in e.sides)
    if baseline is None or candidate is None:
        return None
    match = Match.of(baseline.sample, candidate.sample)
    tokens_equal = _equal(baseline, candidate, match, "tokens")
    values_equal = _equal(baseline, candidate, match, name)
    if tokens_equal is None or values_equal is None:
        return None
    return {int(sample) for sample in match.sample[tokens_equal & ~values_equal]}


def _equal(baseline: Table, candidate: Table, match: Match, name: str) -> np.ndarray | None:
    """Return for each matched sample whether both have the same values in a column; None where one has no such column.

    A column has one value for each token of a sample, or one for each sample, such as a reward.
    """
    rows = baseline.rows(name), candidate.rows(name)
    if rows[0] is not None and rows[1] is not None:
        return equal_rows(rows[0], match.a, rows[1], match.b)
    flat = baseline.flat(name), candidate.flat(name)
    if flat[0] is not None and flat[1] is not None:
        return np.asarray(flat[0][match.a] == flat[1][match.b])
    return None


def _side(e: Evidence, rank: int) -> str:
    """Return the run at fault.

    Before the first update the reference model equals the policy. At fault is the run where they differ on this rank's
    samples, and agree on all others. Returns "" where that is not exactly one run.
    """
    faulty_sides = []
    for side in e.sides:
        shares, table = side.ranks.shares.get((0, "reference"), {}), side.recording.table("experience", 0)
        if table is None:
            return ""
        recorded = table.together("reference_logprob", "actor_logprob")
        if recorded is None:
            return ""
        all_rows = np.arange(len(table.sample))
        rows_equal = equal_rows(recorded[0], all_rows, recorded[1], all_rows)
        samples_elsewhere: set[int] = set()
        for answering_rank, share in shares.items():
            if answering_rank != rank:
                samples_elsewhere.update(share.samples)
        in_other_ranks = np.isin(table.sample, sorted(samples_elsewhere))
        # A difference on samples of other ranks is no fault of this one alone: then nothing is told.
        if not rows_equal[in_other_ranks].all():
            return ""
        if not rows_equal[~in_other_ranks].all():
            faulty_sides.append(side.name)
    return faulty_sides[0] if len(faulty_sides) == 1 else ""

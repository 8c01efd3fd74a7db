"""Which of a run's engines drew each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from harness.parity.facts.comparison import RecordedSide
from harness.parity.facts.evidence import Evidence, Side

# Samples that other engines, or other ranks, must have handled without any difference, before one is named. If half of
# them differed, that none of 16 does would have a chance of 1 in 65,536.
LEAST_OTHERS = 16


def engines(side: RecordedSide) -> int:
    """Return how many engines drew, or had to draw, the samples of a side.

    Only our own runs can have several. In a framework's job it is 1, since its ranks are those of its trainer.
    """
    if side.recording.records.manifest.framework:
        return 1
    return max(1 + max(side.recording.ranks("rollout"), default=0), engines_asked_for(side))


def engines_asked_for(side: RecordedSide) -> int:
    """Return how many engines the scenario asks for; 0 where it does not say."""
    return max(side.recording.records.settings.engine.engines or 0, 0)


def numbered(side: RecordedSide) -> list[int]:
    """Return the numbers of the engines that recorded something, and the first that the scenario asks for and did
    not. A run.json may ask for any number.
    """
    recorded = {start.rank for start in side.recording.records.starts if start.role == "rollout"}
    absent = (number for number in range(engines_asked_for(side)) if number not in recorded)
    return sorted(recorded.union(islice(absent, 1)))


def drawn(side: RecordedSide, steps: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return (step, sample) -> the engine that drew it. Behind a router, only samples with a recorded answer are
    included.
    """
    recorded_by = rows(side, steps)
    if not routed(side):
        return recorded_by
    by = {sample: engines[0] for (sample, _), engines in sorted(answered(side).items(), reverse=True)}
    return {at: by[at[1]] for at in recorded_by if at[1] in by}


def rows(side: RecordedSide, steps: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return (step, sample) of every response -> the engine that recorded it."""
    tables = [(step, side.recording.table("rollout", step)) for step in steps]
    return {
        (step, int(sample)): int(rank)
        for step, table in tables
        if table is not None
        for sample, rank in zip(table.sample, table.rank, strict=True)
    }


def routed(side: RecordedSide) -> bool:
    """Whether a router chose the engine for each sample."""
    return bool(side.recording.records.settings.engine.router)


def answered(side: RecordedSide) -> dict[tuple[int, int], list[int]]:
    """Return (sample, offset) of every request of a router -> the engines that answered it."""
    engines_by_request: dict[tuple[int, int], list[int]] = {}
    for request in side.recording.records.routed_requests:
        if request.sample is not None and request.offset is not None:
            engines_by_request.setdefault((request.sample, request.offset), []).append(request.engine_number)
    return engines_by_request


def differing(e: Evidence, side: Side) -> Counter[int]:
    """Return engine -> count of its samples that differ in any way, between the runs or from the learner."""
    by = drawn(side, e.steps)
    apart = {(int(step), int(sample)) for kind in e.items for step, sample in e.found(kind).tolist()}
    return Counter(by[sample_key] for sample_key in apart if sample_key in by)


def suspect(e: Evidence | None) -> int:
    """Return the engine to examine: the one with most differing samples, on the first side with several engines."""
    side = _several(e) if e is not None else None
    if e is None or side is None:
        return 0
    return max(differing(e, side).items(), key=lambda item: (item[1], -item[0]), default=(0, 0))[0]


def drawn_by_suspect(e: Evidence) -> set[tuple[int, int]] | None:
    """Return (step, sample) of what that engine drew; None where each side has one engine."""
    side, engine = _several(e), suspect(e)
    if side is None:
        return None
    return {at for at, drawing_engine in drawn(side, e.steps).items() if drawing_engine == engine}


def _several(e: Evidence) -> Side | None:
    return next((side for side in e.sides if engines(side) > 1), None)

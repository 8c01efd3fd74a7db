"""Which of several engines of a run drew each sample."""

from __future__ import annotations

from collections import Counter

from harness.parity.facts.evidence import Evidence, Side

# Samples that other engines, or other ranks, must have answered for, all of them equal, before one is named: that none
# of 16 differs where half would is chance once in 65,536 times.
LEAST_OTHERS = 16


def engines(side: Side) -> int:
    """How many engines drew, or had to draw, the samples of one of our own runs; 1 for a framework's, whose ranks are
    its trainers'."""
    if side.recording.records.manifest.framework:
        return 1
    return max(1 + max(side.recording.ranks("rollout"), default=0), asked(side))


def asked(side: Side) -> int:
    """How many its scenario asks for; 0 where it does not say."""
    return max(side.recording.records.settings.engine.engines or 0, 0)


def drawn(side: Side, steps: list[int]) -> dict[tuple[int, int], int]:
    """(step, sample) -> the engine that drew it; behind a router, of those whose engine said that it did."""
    recorded_by = rows(side, steps)
    if not routed(side):
        return recorded_by
    by = {sample: engines[0] for (sample, _), engines in sorted(answered(side).items(), reverse=True)}
    return {at: by[at[1]] for at in recorded_by if at[1] in by}


def rows(side: Side, steps: list[int]) -> dict[tuple[int, int], int]:
    """(step, sample) of every response -> the engine that recorded it."""
    tables = [(step, side.recording.table("rollout", step)) for step in steps]
    return {
        (step, int(sample)): int(rank)
        for step, table in tables
        if table is not None
        for sample, rank in zip(table.sample, table.rank, strict=True)
    }


def routed(side: Side) -> bool:
    """Whether a router chose which engine draws a sample."""
    return bool(side.recording.records.settings.engine.router)


def answered(side: Side) -> dict[tuple[int, int], list[int]]:
    """(sample, offset) of every request of a router -> the engines that answered it."""
    engines_by_request: dict[tuple[int, int], list[int]] = {}
    for request in side.recording.records.routed_requests:
        if request.sample is not None and request.offset is not None:
            engines_by_request.setdefault((request.sample, request.offset), []).append(request.engine_number)
    return engines_by_request


def differing(e: Evidence, side: Side) -> Counter[int]:
    """Engine -> samples of it that differ between the runs, or from the learner, in whatever way."""
    by = drawn(side, e.steps)
    apart = {(int(step), int(sample)) for kind in e.items for step, sample in e.found(kind).tolist()}
    return Counter(by[sample_key] for sample_key in apart if sample_key in by)


def suspect(e: Evidence | None) -> int:
    """The engine to look for a cause on: of the first side with several the one with most samples that differ."""
    side = _several(e) if e is not None else None
    if e is None or side is None:
        return 0
    return max(differing(e, side).items(), key=lambda item: (item[1], -item[0]), default=(0, 0))[0]


def drawn_by_suspect(e: Evidence) -> set[tuple[int, int]] | None:
    """(step, sample) of what that engine drew; None where each side has one engine."""
    side, engine = _several(e), suspect(e)
    return (
        None
        if side is None
        else {at for at, drawing_engine in drawn(side, e.steps).items() if drawing_engine == engine}
    )


def _several(e: Evidence) -> Side | None:
    return next((side for side in e.sides if engines(side) > 1), None)

"""Batches of the learner's passes (forward passes, updates): whether both runs made the same of the same experience."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.parity.facts.evidence import Evidence, Side
from probes.format import mapping, number

PASSES = ("_forward", "_minibatch")  # suffixes of the names of their phases
FEW = 20_000  # lines that are parsed at most: a run of a million steps has one for each of its micro-batches
Shape = dict[str, Any]


@dataclass(frozen=True)
class Passes:
    """The comparison of all recorded shapes.

    `equal`: how many both runs recorded, where all are equal; else 0. `other`: the first that differ: step, phase,
    shapes of both runs.
    """

    equal: int = 0
    other: tuple[int, str, list[Shape], list[Shape]] | None = None


def other_passes(e: Evidence, steps: set[int]) -> Passes:
    """Compare what the passes of these steps were given: micro-batches and their padding, in any order.

    Lines are compared by a hash, so that few must be parsed. Where more than `FEW` differ (each may name another
    device), nothing is returned.
    """
    hashes_by_side = [side.recording.content_hashes("shapes") for side in e.sides]
    unique_hashes, count = np.unique(np.concatenate(hashes_by_side), return_inverse=True)
    sign = np.concatenate(
        [np.full(len(hashes), weight) for hashes, weight in zip(hashes_by_side, (1, -1), strict=True)]
    )
    # A line that both runs have equally often cancels out, whatever its place among the others.
    unequal_hashes = unique_hashes[np.bincount(count, weights=sign, minlength=len(unique_hashes)) != 0]
    if not len(unequal_hashes):
        return Passes(equal=len(hashes_by_side[0]))
    masks = [np.isin(hashes, unequal_hashes) for hashes in hashes_by_side]
    if max(int(mask.sum()) for mask in masks) > FEW:
        return Passes()
    baseline_shapes, candidate_shapes = (
        _by_phase(side, mask, steps) for side, mask in zip(e.sides, masks, strict=True)
    )
    for step, phase in sorted(baseline_shapes.keys() | candidate_shapes.keys()):
        shape_lists = baseline_shapes.get((step, phase), []), candidate_shapes.get((step, phase), [])
        if shape_lists[0] != shape_lists[1] and not _cut_short(e, shape_lists):
            return Passes(other=(step, phase, *shape_lists))
    return Passes()


def _cut_short(e: Evidence, shape_lists: tuple[list[Shape], list[Shape]]) -> bool:
    """Whether one side lacks only passes, and its recording was cut short: they may have been cut off."""
    counts = [Counter(map(repr, shapes)) for shapes in shape_lists]
    sides = zip(e.sides, counts, counts[::-1], strict=True)
    # A subtraction of counters keeps what is left: a side that has nothing of its own only lacks passes.
    return any(side.recording.incomplete and not own_counts - peer_counts for side, own_counts, peer_counts in sides)


def _by_phase(side: Side, mask: np.ndarray, steps: set[int]) -> dict[tuple[int, str], list[Shape]]:
    shapes_by_phase: dict[tuple[int, str], list[Shape]] = {}
    for event in _parsed(side, mask):
        if event.get("step") in steps and str(event.get("phase")).endswith(PASSES):
            shapes_by_phase.setdefault((event["step"], str(event["phase"])), []).append(shape_of(event))
    return {key: sorted(shapes, key=repr) for key, shapes in shapes_by_phase.items()}


def _parsed(side: Side, mask: np.ndarray) -> Iterator[dict[str, Any]]:
    for (journal, line), wanted in zip(side.recording.lines("shapes"), mask, strict=True):
        event = side.recording.parsed(journal, line) if wanted else None
        if event is not None:
            yield event


def shape_of(event: dict[str, Any]) -> Shape:
    """Return shape and dtype of each tensor of a `shapes` event, without its device, and the sizes in tokens."""
    tensors = mapping(event.get("tensors"))
    return {key: value[:2] if isinstance(value, list) else value for key, value in tensors.items()} | sizes_of(event)


def sizes_of(event: dict[str, Any]) -> dict[str, float]:
    """Return a `shapes` event's padded and real tokens, longest sample in tokens and number of samples; 0 where
    missing.
    """
    return {key: number(event.get(key), 0) for key in ("padded_tokens", "real_tokens", "longest", "samples")}

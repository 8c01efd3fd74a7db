"""A cause with the divergences that it explains. Whatever no cause covers stays open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.parity.facts.divergence import ROLLOUT, DivergenceKey, Kind, keys
from harness.parity.facts.evidence import Evidence
from probes.plugins import PluginError
from reports.model import Cause, Proof
from reports.text import part_of

Where = Callable[[np.ndarray], np.ndarray]  # (step, sample) rows -> mask
_SAMPLES = 1 << 40  # sample numbers are below it: step * _SAMPLES + sample is one integer for both


@dataclass(frozen=True)
class Explanation:
    """A cause, with which divergences it explains.

    `covers(key, items)`: a mask of the (step, sample) divergences that it explains. `not_explained`: key -> those that
    it cannot explain, although `where` selects them.
    """

    cause: Cause
    kinds: tuple[DivergenceKey, ...]
    where: Callable[[np.ndarray], np.ndarray] = field(default=lambda items: np.ones(len(items), bool))
    partial: bool = False  # removes most of a difference and leaves the rest open: named, but covers nothing
    not_explained: Mapping[DivergenceKey, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)
    also: tuple[Explanation, ...] = ()  # the same cause, as another stage shows it

    def covers(self, key: DivergenceKey, items: np.ndarray) -> np.ndarray:
        covered = self._covers(key, items)
        for stage in self.also:
            covered = covered | stage.covers(key, items)
        return covered

    def _covers(self, key: DivergenceKey, items: np.ndarray) -> np.ndarray:
        if key not in self.kinds or self.partial:
            return np.zeros(len(items), bool)
        if key.kind is Kind.FLOOR:
            return np.ones(len(items), bool)  # of an engine, whatever the step
        covered = self.where(items)
        return covered & ~self.not_explained[key](items) if key in self.not_explained else covered


def scored_otherwise(e: Evidence, side: str) -> tuple[DivergenceKey, ...]:
    """Return the floor of a side as a key, where the engine disagrees with itself only between drawing and scoring.

    A fault in what it is sent for a draw, or in what it reports about one, shows there and in no other variant.
    """
    floor = e.side(side).floor
    beyond = {name for name, figures in floor.variants.items() if figures["max"] > e.of_engines.cap}
    drawn = not floor.implausible_flips(e.of_engines.cap, e.tolerance.temperature)
    return (Kind.FLOOR.of(side),) if beyond <= {"prefill"} and drawn and not floor.not_finite else ()


def keys_of(items: np.ndarray) -> np.ndarray:
    """Return (step, sample) rows as one integer each."""
    items = np.asarray(items, np.int64).reshape(-1, 2)
    return items[:, 0] * _SAMPLES + items[:, 1]


def among(affected: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Select these (step, sample) rows."""
    keys = np.unique(keys_of(np.array(sorted(affected), np.int64) if isinstance(affected, set) else affected))
    return lambda items: np.isin(keys_of(items), keys)


def and_runs(affected: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Select these rows, and everything without a sample from their first step on: a learner was trained on them."""
    member = among(affected)
    first = int(affected[:, 0].min()) if len(affected) else 0
    return lambda items: member(items) | ((items[:, 1] < 0) & (items[:, 0] >= first))


def and_native(affected: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Select these rows, and the native stage, which has no step."""
    member = among(affected)
    return lambda items: member(items) | (items[:, 0] < 0)


def in_steps(steps: Iterable[int]) -> Callable[[np.ndarray], np.ndarray]:
    """Select everything of these steps, and what belongs to no step."""
    chosen = np.array(sorted(steps), np.int64)
    return lambda items: np.isin(items[:, 0], chosen) | (items[:, 0] < 0)


def from_step(step: int) -> Callable[[np.ndarray], np.ndarray]:
    """Select everything from this step on, and what belongs to no step."""
    return lambda items: (items[:, 0] >= step) | (items[:, 0] < 0)


def when(e: Evidence, steps: Iterable[int]) -> str:
    """Return in words the affected ones of the compared steps: "in every step", "from step 3 on", "in 3 of 8 steps"."""
    affected_steps = sorted({int(step) for step in steps})
    compared = e.judged_steps
    if set(affected_steps) - set(compared):  # an engine and its own learner are compared in every step
        compared = sorted({*e.steps, *affected_steps})
    if not affected_steps or affected_steps == compared:
        return "in every step"
    if len(affected_steps) > 1 and affected_steps == [step for step in compared if step >= affected_steps[0]]:
        return f"from step {affected_steps[0]} on"
    if len(affected_steps) == 1:
        return f"in step {affected_steps[0]}"
    return f"in {part_of(len(affected_steps), len(compared), 'step')}, the first is {affected_steps[0]}"


@dataclass
class Explained:
    """The causes that rules have named so far, in order. Rules read it, and `harness.parity.explain` adds to it.

    `failed`: rules of other packages that raised, and so explained nothing.
    """

    evidence: Evidence
    explanations: list[Explanation] = field(default_factory=list)
    failed: list[PluginError] = field(default_factory=list)

    def left(self, key: DivergenceKey) -> np.ndarray:
        """Return (step, sample) of the divergences of a kind that no cause named so far explains."""
        items = self.evidence.found(key)
        for explanation in self.explanations:
            items = items[~explanation.covers(key, items)]
        return items

    def open_samples(self, *kinds: DivergenceKey) -> set[tuple[int, int]]:
        """Return (step, sample) of the divergences of these kinds that no cause named so far explains."""
        return {(step, sample) for kind in kinds for step, sample in self.left(kind).tolist()}


def restricted(e: Evidence, kinds: tuple[DivergenceKey, ...], affected: np.ndarray, what: str) -> list[Proof]:
    """Return the proof of leaving samples out: how many differ in these kinds, with and without the affected ones.

    Returns [] where leaving them out removes nothing.
    """
    items_by_kind = [items for kind in kinds if len(items := e.found(kind))]
    if not items_by_kind or not len(affected):
        return []
    differing = np.unique(np.concatenate([keys_of(items[items[:, 1] >= 0]) for items in items_by_kind]))
    remaining = np.setdiff1d(differing, keys_of(affected))
    return [Proof(what, len(differing), len(remaining), "samples")] if len(remaining) < len(differing) else []


def without_steps(e: Evidence, side: str, steps: set[int], what: str) -> list[Proof]:
    """Return the proof of leaving out what a side rolled out in some steps.

    Returns [] where the last step is among them: any fault that begins with the first of them, and stays, would
    disappear too.
    """
    if not e.steps or e.steps[-1] in steps:
        return []
    kinds = keys(ROLLOUT, side)
    affected = [items[np.isin(items[:, 0], sorted(steps))] for kind in kinds if len(items := e.found(kind))]
    return restricted(e, kinds, np.concatenate(affected), what) if affected else []

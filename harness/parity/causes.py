"""Causes: what the rules explain of the divergences, and UNEXPLAINED with its narrowest place for what is left over.

Interventions that need a live engine (flush, restart, swap one parameter back) are not made here.
"""

from __future__ import annotations

import numpy as np

from harness.parity import rereadings, rules
from harness.parity.evidence import Evidence
from reports.model import Cause

# In the order in which causes are named.
RULES = (
    rules.stale_weights,
    rules.prompts,
    rules.sampling_parameters,
    rereadings.alignment,
    rereadings.scaled,
    rereadings.stale_cache,
    rereadings.permuted,
    rereadings.ends,
    rules.numeric,
    rules.collisions,
    rules.noisy,
)
# What follows from other tokens: everything that the trainer makes of them.
_DOWNSTREAM = {"experience", "reward", "learner", "trained:candidate"}


def find(e: Evidence, kinds: list[str]) -> list[Cause]:
    """The causes of the divergences of these kinds; [] when there are none."""
    present = [kind for kind in kinds if kind in e.first]
    if not present:
        return []
    explanations = [
        one for rule in RULES for one in rule(e) if any(one.covers(kind, e.found(kind)).any() for kind in present)
    ]
    left = {}
    for kind in present:
        items = e.found(kind)
        open_ = np.ones(len(items), bool)
        for explanation in explanations:
            open_ &= ~explanation.covers(kind, items)
        if open_.any():
            left[kind] = items[open_]
    if not e.guided and left:  # tokens that differ change everything that is made of them
        left = {kind: items for kind, items in left.items() if kind not in _DOWNSTREAM} or (
            {} if explanations else left
        )
    causes = [one.cause for one in explanations]
    return [*causes, _unexplained(e, left)] if left else causes


def _unexplained(e: Evidence, left: dict[str, np.ndarray]) -> Cause:
    kinds = sorted(left, key=lambda kind: e.first[kind][0])
    first = kinds[0]
    place = e.first[first][1]
    steps, samples = len(np.unique(left[first][:, 0])), len(np.unique(left[first], axis=0))
    summary = f"{_named(first)} from step {int(left[first][:, 0].min())} on: {samples} samples in {steps} steps"
    summary += "; nothing recorded explains it"
    also = f"; also {', '.join(_named(kind) for kind in kinds[1:])}" if len(kinds) > 1 else ""
    weights = e.weights.equal(place.step, place.step, place.step) if place.step >= 0 else None
    evidence = f"narrowest place: step {place.step}, {place.phase}, sample {place.sample}, position {place.position}, "
    evidence += f"{place.field}{also}"
    evidence += {
        True: "; the learners' weights are equal there",
        False: "; the learners' weights differ there",
        None: "",
    }[weights]
    return Cause(
        "UNEXPLAINED",
        _party(e, first),
        summary,
        evidence,
        {"kinds": {kind: len(items) for kind, items in left.items()}},
    )


def _named(kind: str) -> str:
    name, _, side = kind.partition(":")
    words = {
        "flip": "other tokens",
        "logprob": "other log-probabilities",
        "learner": "another learner",
        "floor": "noise",
        "length": "other lengths",
        "finish": "other finish reasons",
        "choice": "tokens against the learner's choice",
        "native": "another distribution",
    }
    if name == "learner" and side:
        return f"the {side}'s engine away from its learner"
    return words.get(name, name) + (f" in the {side}" if side else "")


def _party(e: Evidence, kind: str) -> str:
    """Which side moved: the learner's opinion where there is one."""
    if ":" in kind:
        return kind.split(":")[1]
    if kind in _DOWNSTREAM:
        return "trainer"
    moved = [side.name for side in e.sides if f"learner:{side.name}" in e.first or f"choice:{side.name}" in e.first]
    if len(moved) == 1:
        return moved[0]
    if kind == "flip" and not moved:
        beyond = e.counts.get("flips_beyond_margin", 0)
        negative = e.counts.get("flips where the learner sides with the candidate", 0)
        return "candidate" if 2 * negative < beyond else "baseline"
    return "unknown"

"""Causes: what the rules explain of the divergences, and UNEXPLAINED with its narrowest place for what is left over.

Interventions that need a live engine (flush, restart, swap one parameter back) are not made here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.parity.facts.evidence import Evidence, Key
from harness.parity.facts.explanation import Explanation, left, when
from harness.parity.lifted import remark
from harness.parity.rivals import told_apart
from harness.parity.rules import (
    ends,
    itself,
    lifted,
    mapping,
    native,
    order,
    prompts,
    readings,
    reasons,
    restrictions,
    retokenized,
    shapes,
    weights,
)
from reports.model import Cause, Place
from reports.text import counted

# In the order in which causes are named: what a record says, then what a re-reading removes, then what is left.
RULES = (
    weights.stale_weights,
    weights.altered_weights,
    weights.one_update_behind,
    prompts.prompts,
    mapping.sampling_parameters,
    mapping.most_tokens,
    mapping.data_type,
    order.permuted,
    retokenized.retokenized,
    order.collisions,
    readings.alignment,
    readings.scaled,
    restrictions.numeric,
    restrictions.vocabulary,
    restrictions.stale_cache,
    readings.mixed_version,
    readings.semantics,
    ends.min_tokens,
    ends.ends,
    reasons.reasons,
    shapes.shapes,
    native.prompts,
    native.ends,
    native.samplers,
    native.meanings,
    native.seeds,
    itself.noisy,
    lifted.logic,
    lifted.arithmetic,
)
# What follows from other tokens: everything that the trainer makes of them.
_DOWNSTREAM = {"experience", "reward", "learner", "loss", "trained:candidate"}


def find(e: Evidence, kinds: list[str]) -> list[Cause]:
    """The causes of the divergences of these kinds; [] when there are none."""
    explanations, open_ = explain(e, kinds)
    causes = [told_apart(one.cause) for one in explanations]
    return [*causes, unexplained(e, open_)] if open_ else causes


def explain(e: Evidence, kinds: list[str]) -> tuple[list[Explanation], dict[str, np.ndarray]]:
    """(what rules explain, kind -> (step, sample) of what is left). Rules see what earlier ones left open."""
    present = [kind for kind in kinds if kind in e.first]
    e.explained = []
    for rule in RULES if present else ():
        for one in rule(e):
            if one.partial or any(one.covers(kind, e.found(kind)).any() for kind in present):
                _add(e.explained, replace(one, cause=mapping.party(e, one.cause)))
    return e.explained, remaining(e, present)


def _add(explained: list[Explanation], one: Explanation) -> None:
    """A cause that an earlier stage of the run shows too is named once, with the proofs of both."""
    cause, stage = one.cause, one.cause.details.get("stage")
    for at, known in enumerate(explained):
        same = (known.cause.name, known.cause.party) == (cause.name, cause.party) and cause.name != "UNEXPLAINED"
        if same and stage and known.cause.details.get("stage") != stage:
            proofs = [*known.cause.proofs, *cause.proofs]
            explained[at] = replace(known, cause=replace(known.cause, proofs=proofs), also=(*known.also, one))
            return
    explained.append(one)


def remaining(e: Evidence, kinds: list[str]) -> dict[str, np.ndarray]:
    """Kind -> (step, sample) of the divergences that the causes named so far leave open."""
    found = {kind: items for kind in kinds if len(items := left(e, kind))}
    if not e.guided and found:  # tokens that differ change everything that is made of them
        rest = {kind: items for kind, items in found.items() if kind not in _DOWNSTREAM}
        return rest or ({} if e.explained else found)
    return found


def unexplained(e: Evidence, open_: dict[str, np.ndarray]) -> Cause:
    """What no rule explains, with the narrowest place of it."""
    places = {kind: _first_left(e, kind, items) for kind, items in open_.items()}
    kinds = sorted(open_, key=lambda kind: places[kind][0])
    first = kinds[0]
    place = places[first][1]
    items = np.unique(open_[first], axis=0)
    of_samples = bool((items[:, 1] >= 0).all())  # -1: of none, as a weight sync
    found = counted(len(items), "sample" if of_samples else "place")
    summary = f"{named(first)} {when(e, open_[first][:, 0])}: {found}; nothing recorded explains it"
    also = f"; also {', '.join(named(kind) for kind in kinds[1:])}" if len(kinds) > 1 else ""
    weights = e.weights.equal(place.step, place.step, place.step) if place.step >= 0 else None
    numbered = (("step", place.step), ("sample", place.sample), ("position", place.position))
    where = [f"{what} {number}" for what, number in numbered if number >= 0]  # -1: it has none
    evidence = f"narrowest place: {', '.join([*where[:1], place.phase, *where[1:], place.field])}{also}"
    evidence += {
        True: "; the learners' weights are equal there",
        False: "; the learners' weights differ there",
        None: "",
    }[weights]
    suspected = [text for side in e.sides if (text := restrictions.untried_cache(e, side))]
    evidence = "; ".join(filter(None, [evidence, *suspected, remark(e)]))
    return Cause(
        "UNEXPLAINED",
        _party(e, first),
        summary,
        evidence,
        {"kinds": {kind: len(items) for kind, items in open_.items()}},
    )


def _first_left(e: Evidence, kind: str, items: np.ndarray) -> tuple[Key, Place]:
    """The earliest place of a kind among these (step, sample); of a sample other than the step's first one, no more
    than which it is."""
    step = int(items[:, 0].min())
    samples = items[items[:, 0] == step, 1]
    key, place = e.places[kind].get(step) or e.first[kind]
    if place.sample in samples:
        return key, place
    sample = int(samples.min())
    return (key[0], key[1], sample, -1), replace(
        place, sample=sample, position=-1, baseline=None, candidate=None, margin=None, context=""
    )


def named(kind: str) -> str:
    """A kind of divergence in words."""
    name, _, side = kind.partition(":")
    words = {
        "flip": "other tokens",
        "logprob": "other log-probabilities",
        "learner": "another learner",
        "loss": "other losses",
        "floor": "noise",
        "length": "other lengths",
        "finish": "other finish reasons",
        "choice": "tokens against the learner's choice",
        "native": "another distribution",
        "drift": "a systematic difference of log-probabilities",
        "trainer drift": "a learner away from what float32 makes of its weights",
        "behind": "weights before the last update",
        "lifted": "other results in float32",
        "native prompt": "other prompts in the native stage",
    }
    if name == "learner" and side:
        return f"the {side}'s engine away from its learner"
    return words.get(name, name) + (f" in the {side}" if side else "")


def _party(e: Evidence, kind: str) -> str:
    """Which side moved: the learner's opinion where there is one."""
    if ":" in kind:
        return kind.split(":")[1]
    if kind in _DOWNSTREAM or kind == "trainer drift":
        return "trainer"
    own = ("learner", "choice", "drift")
    moved = [side.name for side in e.sides if any(f"{one}:{side.name}" in e.first for one in own)]
    if len(moved) == 1:
        return moved[0]
    if kind == "flip" and not moved:
        beyond = e.counts.get("flips_beyond_margin", 0)
        negative = e.counts.get("flips where the learner sides with the candidate", 0)
        return "candidate" if 2 * negative < beyond else "baseline"
    return "unknown"

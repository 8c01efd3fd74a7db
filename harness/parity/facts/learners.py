"""Learner against learner: in a guided run both make the same updates, bit for bit, for the whole run."""

from __future__ import annotations

import math
from typing import Any

from harness.parity.facts.confounders import CUTS
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.gaps import BATCH, CRITIC, LOSSES, NORMS
from harness.recordings.store import Recording
from probes.format import mapping, number
from reports.model import Place

# Equal updates have equal losses; where a framework sums those of its micro-batches in another order, this much apart.
SAME_LOSS = 1e-6  # relative; a loss of normalised advantages cancels to nearly nothing, so this is absolute as well:
NO_LOSS = 1e-7  # as said above
# A step records the mean norm over its updates, of which all but the first have other weights by then. Measured over
# two updates of a loss that was divided by two: the norms were halved but for 2e-6 (actor) and 2e-4 (critic) of them.
SAME_NORM = 1e-2
# Which digest parts first says where the runs parted.
_DIGESTS = (("batch", "experience"), ("actor", "train"), ("critic", "train"))


def learners(e: Evidence) -> None:
    """Compare `learner` digests step by step, up to the first update that differs; what follows differs because of
    it.
    """
    one, two = e.weights.updates
    if not e.weights.comparable:
        made = (f"those of the {side.name} were made by {side.recording.hashed_by}" for side in e.sides)
        e.missing.append(f"digests were not compared: {', '.join(made)}")
    e.learners.updates = {"baseline": sorted(one), "candidate": sorted(two)}
    compared = []
    for step in sorted(set(one) & set(two)):
        pairs: dict[str, tuple[Any, Any]] = {name: (one[step].get(name), two[step].get(name)) for name, _ in _DIGESTS}
        if None in pairs["actor"]:
            continue  # the weights themselves: without their digest the update was not compared
        for name, what in (("batch", BATCH), ("critic", CRITIC)):
            e.note_recorded(what, step, *(value is not None for value in pairs[name]))
        wrong = [
            (name, phase) for name, phase in _DIGESTS if None not in pairs[name] and pairs[name][0] != pairs[name][1]
        ]
        if not wrong:
            compared.append(step)
            continue
        e.learners.equal = compared
        e.learners.parted = step
        confounder = e.confounded("everything", "prompts", "experience", "train", step=step)
        e.learners.scaled = _scaled(e, step) if wrong[0][0] != "batch" and _only_cut(e) else None
        if confounder is not None and e.learners.scaled is None:
            e.learners.confounded = confounder.finding.summary
        elif not e.guided and _trained_apart(e, step):
            e.learners.followed = step
        elif _reordered(e, step):
            e.learners.reordered = step
        else:
            name, phase = wrong[0]
            names = ", ".join(name for name, _ in wrong)
            context = f"{names} differ after the update of step {step}; before it the learners were equal"
            e.diverges(
                Kind.LEARNER.of(), [], Place(step, phase, 0, -1, -1, f"{name} digest", *pairs[name], context=context)
            )
        return
    e.learners.equal = compared
    _losses(e, compared)


def _losses(e: Evidence, steps: list[int]) -> None:
    """Losses of equal updates are equal numbers, and numbers."""
    told = [
        {event.get("step"): mapping(event.get("metrics")) for event in side.recording.all("step")} for side in e.sides
    ]
    for step in steps:
        for name in LOSSES:
            values = [metrics.get(step, {}).get(name) for metrics in told]
            if None in values:  # the weights agree without it
                e.note_recorded(name, step, *(value is not None for value in values))
                continue
            one, two = map(number, values)
            e.note_recorded(name, step, math.isfinite(one), math.isfinite(two))
            if not (math.isfinite(one) and math.isfinite(two)):
                e.odd_columns.add(name)
            allowed = max(NO_LOSS, SAME_LOSS * max(abs(one), abs(two)))
            if math.isfinite(one) != math.isfinite(two) or abs(one - two) > allowed:
                context = "of an update that left both learners bit-identical"
                e.diverges(Kind.LOSS.of(), [], Place(step, "train", 0, -1, -1, name, one, two, context=context))
            elif one != two and math.isfinite(one):
                e.learners.losses_differ.setdefault(name, step)


def _only_cut(e: Evidence) -> bool:
    """Do the runs have the same to learn from, however they cut it into ranks and micro-batches?"""
    return all(one.finding.name in CUTS for one in e.confounders)


def _scaled(e: Evidence, step: int) -> tuple[str, float, float, float] | None:
    """A norm of the gradients of equal weights on an equal batch that is as many times the other run's as there are
    ranks; the norm of one sum, however many ranks make it. None where none is."""
    factors = {times for side in e.sides for times in (side.ranks.world, 1 / side.ranks.world) if times != 1}
    told = [[one for one in side.recording.all("step") if one.get("step") == step] for side in e.sides]
    for name in NORMS if all(told) else ():
        one, two = (number(mapping(events[0].get("metrics")).get(name)) for events in told)
        for factor in sorted(factors):
            if one > 0 and abs(two / (one * factor) - 1) <= SAME_NORM:
                return name, one, two, factor
    return None


def _trained_apart(e: Evidence, step: int) -> bool:
    """In a free run: did the samples themselves differ, in this step or before? Then the update had to. Samples of the
    engines' own samplers do."""
    if e.mode == "native" and not e.seeded:
        return True
    return bool([one for one in e.experience.other_tokens if one <= step])


def _reordered(e: Evidence, step: int) -> bool:
    """Did the learners take the samples in another order, in this step or before? Frameworks take them as engines
    finish them, and a sum in another order rounds otherwise. Only recordings that say their order are asked."""
    for each in range(step + 1):
        one, two = (_order(side.recording, each) for side in e.sides)
        if one is not None and two is not None and one != two:
            return True
    return False


def _order(recording: Recording, step: int) -> Any:
    for kind, name in (("experience", "order"), ("rollout", "arrival")):
        table = recording.table(kind, step) if step in recording.steps(kind) else None
        if table is not None and table.fields.get(name):
            return table.fields[name]
    return None

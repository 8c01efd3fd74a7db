"""The cause PADDING: a learner whose log-probabilities depend on the pads that its batch puts around a sample.

Only samples that a batch pads differ. Which of the two computes them otherwise follows from the engine: one that never
pads has no pads to read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.causes.family import CauseFamily, Rival, Seen
from harness.parity.causes.proof import supported
from harness.parity.facts.divergence import Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, when
from harness.parity.facts.odd_one import TRAINER, odd_one
from harness.parity.subjects.learner.causes import SCORED, scored_wrongly
from harness.parity.subjects.log_probabilities.observed_properties import PADDED
from harness.parity.subjects.log_probabilities.observed_readings import Readings
from harness.parity.subjects.log_probabilities.observed_separations import Separation
from reports.model import Cause
from scenarios.engines import registry


def padded(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find a learner that only samples which a batch pads separate from its engine.

    Where the engines themselves differ there, `BATCH` and the other causes of an engine say more.
    """
    separated = [(side, lead) for side in e.sides if (lead := _separated(e, side, so_far)) is not None]
    for side, lead in separated[:1]:
        affected = np.unique(np.concatenate([e.found(Kind.ENGINE.of(each.name)) for each, _ in separated]), axis=0)
        party = odd_one(e, side.name, among(affected))
        if party == side.name:
            continue
        if not any(_pads(each) for each in e.sides):
            party = TRAINER
        cause = Cause.of(
            PADDING.key(),
            party,
            f"{'the learner reads' if party == TRAINER else 'engine or learner read'} the pads of a batch "
            + when(e, affected[:, 0]),
            lead.in_words(),
            {"samples": len(affected), "steps": np.unique(affected[:, 0]).tolist()},
            observed=[Seen.PADS_ALONE] * _pads_alone(e.log_probabilities.readings[Kind.ENGINE.of(side.name)]),
        )
        scored = (key for each, _ in separated for key in keys(SCORED, each.name))
        yield scored_wrongly(e, cause, (*scored, Kind.TRAINER_DRIFT.of()), affected)


def _separated(e: Evidence, side: Side, so_far: Explained) -> Separation | None:
    """Return the separation of a side's differences by pads, if it is the clearest and no cause explains any."""
    kind = Kind.ENGINE.of(side.name)
    lead = next(iter(e.log_probabilities.separations.get(kind, ())), None)
    if lead is None or lead.name != PADDED or not lead.exact or not lead.having_differing:
        return None
    return lead if len(so_far.left(kind)) == len(e.found(kind)) else None


def _pads(side: Side) -> bool:
    """Whether an engine may put pads around a sample. An engine that is not registered may."""
    backend, _, _ = (side.recording.records.manifest.backend or "").partition("@")
    spec = registry.find(backend)
    return spec is None or spec.pads


def _pads_alone(readings: Readings) -> bool:
    """Whether prompts of one length differ in every step that pads them and agree in every step that does not."""
    length, step, differs = readings["prompt"], readings["step"], readings["beyond"] > 0
    if (length < 0).any():
        return False
    longest = np.zeros(int(step.max(initial=0)) + 1, np.int64)
    np.maximum.at(longest, step, length)
    pads = length < longest[step]
    # Only lengths that occur with and without padding tell it from the length.
    lengths = np.intersect1d(length[pads], length[~pads])
    return bool(len(lengths) and (differs == pads)[np.isin(length, lengths)].all())


PADDING = CauseFamily(
    "PADDING",
    meaning="what is computed for a sample depends on the pads that its batch puts around it",
    fix="give the forward pass the attention mask and position ids of each row: positions count from its first real "
    "token, and pads are masked",
    rivals=(Rival("a fault that depends on the length of a prompt", (Seen.PADS_ALONE,)),),
    proof=supported("exactly the samples that a batch pads differ; nothing is computed without pads"),
)

FAMILIES = (PADDING,)

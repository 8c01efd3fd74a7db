"""Faults that one side's own records show, as divergences of the run."""

from __future__ import annotations

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.engines.observed_lifecycle import lifecycle
from harness.parity.subjects.learner.observed_roles import role_faults
from harness.parity.subjects.ranks.observed_faults import rank_faults
from reports.model import place_of_step


def note_own_faults(e: EvidenceBuilder) -> None:
    """Note wrong calls of sleeping engines, and faults of the learner's ranks."""
    for side in e.sides:
        side.rank_faults = (*rank_faults(side.ranks), *role_faults(side.ranks))
        versions = {step: version for version, steps in side.versions.items() for step in steps}
        side.lifecycle = lifecycle(side.recording, versions)
        for fault in side.rank_faults:
            rank, values = next(iter(fault.ranks), 0), side.paired(str(fault.what), None)
            place = place_of_step(
                step=fault.steps[0],
                phase="train",
                rank=rank,
                field="ranks",
                **values,
                context=fault.text,
            )
            e.note_divergence(Kind.RANKS.of(side.name), [], place)
        missteps = side.lifecycle.missteps if side.lifecycle is not None else ()
        for misstep in missteps:
            text = f"engine {misstep.engine} of the {side.name} {misstep.what.words}"
            place = place_of_step(
                step=misstep.step,
                phase="sync",
                rank=misstep.engine,
                field="sleep and wake",
                **side.paired(str(misstep.what), None),
                context=text,
            )
            e.note_divergence(Kind.LIFECYCLE.of(side.name), [], place)

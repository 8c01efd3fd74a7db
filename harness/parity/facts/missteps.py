"""Engines that were used in their sleep, as divergences of the run."""

from __future__ import annotations

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from reports.model import Place


def missteps(e: Evidence) -> None:
    """Note each side's missteps."""
    for side in e.sides:
        for one in side.lifecycle.missteps if side.lifecycle is not None else ():
            text = f"engine {one.engine} of the {side.name} {one.what.words}"
            place = Place(
                one.step, "sync", one.engine, -1, -1, "sleep and wake", *side.paired(str(one.what), None), context=text
            )
            e.diverges(Kind.LIFECYCLE.of(side.name), [], place)

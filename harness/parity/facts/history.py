"""What a recording shows of the time before a fault: a cause that tells a history needs it."""

from __future__ import annotations

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side


def later_steps(e: Evidence, name: str) -> list[int]:
    """Return the steps of a side that were drawn with other weights than its first one."""
    version_by_step = _version_by_step(e.side(name))
    if not version_by_step:
        return []
    first = version_by_step[min(version_by_step)]
    return sorted(step for step, version in version_by_step.items() if version != first)


def _version_by_step(side: Side) -> dict[int, int | None]:
    """Return step -> the weight version that it was drawn with."""
    return {step: version for version, steps in side.versions.items() for step in steps}


def right_before(e: Evidence, name: str) -> bool:
    """Whether a side's engine agreed with its learner until a recorded sync, and no longer after it.

    A fault from the first start on shows with the first weight version already.
    """
    side = e.side(name)
    wrong = {int(step) for kind in (Kind.ENGINE, Kind.CHOICE) for step in e.found(kind.of(name))[:, 0]}
    version_by_step = _version_by_step(side)
    compared = [step for step in e.steps if step in version_by_step and step not in side.no_experience]
    first = min(wrong.intersection(compared), default=None)
    if first is None:
        return False
    return any(version_by_step[step] != version_by_step[first] for step in compared if step < first)

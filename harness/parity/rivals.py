"""What tells a cause apart from its rivals (`CauseFamily.rivals`): without that it is not proven.

Where no observation that was made excludes a rival, it is listed with the cause, and neither is proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from harness.parity.causes.family import Rival
from harness.parity.causes.registry import family
from reports.model import Cause


def noted(cause: Cause, seen: Iterable[str]) -> Cause:
    """The cause with further observations."""
    return dataclasses.replace(cause, observed=tuple(dict.fromkeys((*cause.observed, *seen))))


def open_rivals(cause: Cause) -> list[Rival]:
    """The rivals of a cause that none of its observations excludes."""
    return [one for one in family(cause.key).rivals if not {*cause.observed} & {*one.excluded_by}]


def told_apart(cause: Cause) -> Cause:
    """The cause with what to do about it and its rivals in `details`, each with what excludes it; without its proofs
    where one is not excluded, and the evidence then says which and what was not observed."""
    known = family(cause.key)
    cause = dataclasses.replace(cause, fix=known.fix)
    if not known.rivals:
        return cause
    rivals: list[dict[str, Any]] = [
        {
            "cause": one.cause,
            "excluded": next((str(seen) for seen in one.excluded_by if seen in cause.observed), ""),
            "would exclude it": [str(seen) for seen in one.excluded_by],
        }
        for one in known.rivals
    ]
    before = cause.details.get("rivals")  # it was said of fewer observations
    evidence = f"; {cause.evidence}" if cause.evidence else ""
    evidence = evidence.replace(_told(before), "") if before else evidence
    left = open_rivals(cause)
    said = _told(rivals) if left or cause.proofs else ""
    return dataclasses.replace(
        cause,
        details={**cause.details, "rivals": rivals},
        proofs=[] if left else cause.proofs,
        evidence=(evidence + said).removeprefix("; "),
    )


def _told(rivals: list[dict[str, Any]]) -> str:
    """What is said of them behind the evidence."""
    if left := [one["cause"] for one in rivals if not one["excluded"]]:
        return f"; not told apart from {' and '.join(left)}, which would look the same"
    return "; " + "; ".join(dict.fromkeys(f"not {one['cause']}: {one['excluded']}" for one in rivals))

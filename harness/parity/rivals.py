"""What tells a cause apart from its rivals (`harness.parity.families`): without that it is not proven.

Where no observation that was made excludes a rival, it is listed with the cause, and neither is proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from harness.parity.families import Rival, Seen, family
from reports.model import Cause


def noted(cause: Cause, seen: Iterable[Seen]) -> Cause:
    """The cause with further observations."""
    known = [*cause.details.get("observed", []), *(str(one) for one in seen)]
    return cause if not known else dataclasses.replace(
        cause, details={**cause.details, "observed": list(dict.fromkeys(known))}
    )  # fmt: skip


def open_rivals(cause: Cause) -> list[Rival]:
    """The rivals of a cause that none of its observations excludes."""
    observed = set(cause.details.get("observed", []))
    return [one for one in family(cause.name).rivals if not observed & {str(seen) for seen in one.excluded_by}]


def told_apart(cause: Cause) -> Cause:
    """The cause with its rivals in `details`, each with what excludes it; without its proofs where one is not excluded,
    and the evidence then says which and what was not observed."""
    known = family(cause.name).rivals
    if not known:
        return cause
    observed = set(cause.details.get("observed", []))
    rivals: list[dict[str, Any]] = [
        {
            "cause": one.cause,
            "excluded": next((str(seen) for seen in one.excluded_by if str(seen) in observed), ""),
            "would exclude it": [str(seen) for seen in one.excluded_by],
        }
        for one in known
    ]
    before = cause.details.get("rivals")  # it was said of fewer observations
    evidence = f"; {cause.evidence}" if cause.evidence else ""
    evidence = evidence.replace(_told(before), "") if before else evidence
    left = any(not one["excluded"] for one in rivals)
    said = _told(rivals) if left or cause.proofs else ""
    return dataclasses.replace(
        cause,
        details={**cause.details, "rivals": rivals},
        proofs=[] if left else cause.proofs,
        evidence=(evidence + said).removeprefix("; "),
    )


def kind(cause: Cause) -> str:
    return cause.name.partition("(")[0]


def _told(rivals: list[dict[str, Any]]) -> str:
    """What is said of them behind the evidence."""
    if left := [one["cause"] for one in rivals if not one["excluded"]]:
        return f"; not told apart from {' and '.join(left)}, which would look the same"
    return "; " + "; ".join(dict.fromkeys(f"not {one['cause']}: {one['excluded']}" for one in rivals))

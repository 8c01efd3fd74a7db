"""What a verdict quotes from files is bounded, and says how much more there is."""

from __future__ import annotations

import dataclasses
import json

import pytest

from reports.model import Check, Finding, Parity, Verdict
from reports.quoting import LETTERS, MOST, bounded

MANY = 30_000
SOUND = Verdict("parity", "EQUIVALENT", 0, "1 of 1 tokens equal", missing=["one line"], coverage={"replaced": ["a"]})


def parity(**changes: object) -> Parity:
    return Parity(None, {}, [Check("tokens", "ruled out", "equal")], [], {}, **changes)  # type: ignore[arg-type]


def test_a_verdict_within_the_bounds_is_the_same_object() -> None:
    assert bounded(SOUND) is SOUND
    steps = dataclasses.replace(SOUND, parity=parity(series={"step": [float(n) for n in range(MANY)]}))
    assert bounded(steps) is steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"missing": [f"line {n}" for n in range(MANY)]},
        {"coverage": {"replaced": [f"part {n}" for n in range(MANY)]}},
        {"coverage": {f"key {n}": n for n in range(MANY)}},
        {"findings": [Finding(f"parameter {n}", "differs") for n in range(MANY)]},
        {"findings": [Finding("package", "differs", details={f"p{n}": {"baseline": "1"} for n in range(MANY)})]},
        {"confounders": [Finding("key", "x" * 1_000_000)]},
        {"reason": "x" * 1_000_000},
    ],
)
def test_what_is_cut_says_how_much_more_there_is(changes: dict[str, object]) -> None:
    verdict = bounded(dataclasses.replace(SOUND, **changes))  # type: ignore[arg-type]
    text = json.dumps(verdict.to_dict())
    assert len(text) < 200_000
    assert (
        ("parity" in changes) or f"and {MANY - MOST:,} more" in text or f"and {1_000_000 - LETTERS:,} letters" in text
    )
    assert Verdict.from_dict(json.loads(verdict.to_json())) is not None

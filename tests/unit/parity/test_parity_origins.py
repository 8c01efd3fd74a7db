"""An engine that differs from itself because of a cause that is named says so, and is no second difference."""

from __future__ import annotations

import pytest

from harness.parity.verdict import judge
from tests.golden import table
from tests.golden.judging import TESTS, unpacked

pytestmark = pytest.mark.slow


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("row", "side", "origin"),
    [
        ("planted-text-prompts-float32", "candidate", "TOKENIZATION(double BOS)"),
        ("planted-order-float32", "candidate", "ORDER"),
        ("config-dtype-float32", "candidate", "CONFIG(dtype)"),
        ("noisy-candidate-float32", "candidate", None),
        ("noisy-baseline-float32", "baseline", None),
    ],
)
def test_an_engine_against_itself_names_the_cause_that_it_follows_from(row: str, side: str, origin: str | None) -> None:
    with unpacked(TESTS / table.read()[row]["input"]) as folder:
        verdict = judge(folder / "baseline", folder / "candidate", native=False)
    assert verdict.parity is not None
    [check] = [check for check in verdict.parity.checks if check.name == f"{side}-itself"]
    assert check.state == "confirmed" and check.details.get("follows from") == origin
    causes = {cause.name: cause for cause in verdict.causes}
    assert origin is None or ("which is proven" in check.evidence) is causes[origin].proven
    assert origin is not None or f"{side}-itself" in causes

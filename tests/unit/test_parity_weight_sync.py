"""Weight sync: nothing is ruled out of tensors of which nobody says that they arrived."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import TENSORS, check, pair, put


@pytest.mark.parametrize(
    ("sides", "versions", "said"),
    [
        (("received",), (2,), True),  # the trainer knows that the engine gave no digest of it
        (("received",), (), False),  # of no version did it ever
        (("received", "learner"), (2,), False),  # nor did the learner, but the sync sent all
    ],
)
def test_tensors_of_which_nothing_says_that_they_arrived(
    tmp_path: Path, sides: tuple[str, ...], versions: tuple[int, ...], said: bool
) -> None:
    baseline, candidate = pair()
    for source in sides:
        for event in candidate.events("weights", source=source):
            if not versions or event["version"] in versions:
                del event["digests"][TENSORS[0]]
    for event in candidate.events("sync", version=2):
        event["unreported"] = [TENSORS[0]] if said else []
    verdict = put(tmp_path, baseline, candidate)
    sync = check(verdict, "weight-sync")
    assert (verdict.verdict, sync.state) == ("INCONCLUSIVE", "not tested"), verdict.reason
    first = versions[0] if versions else 0
    assert f"nothing says that 1 of {len(TENSORS)} tensors of weight version {first} arrived" in sync.evidence


def test_how_many_arrived_is_counted_where_they_arrived(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        for event in run.events("sync"):
            event["tensors"] = "inf"  # no number that anything can be held against
    sync = check(put(tmp_path, baseline, candidate), "weight-sync")
    assert sync.state == "ruled out" and f"{len(TENSORS)} tensors arrived each time" in sync.evidence

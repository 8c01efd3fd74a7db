"""Weight sync: nothing is ruled out of tensors of which nobody says that they arrived."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from recordings import TENSORS, Log, Recording, check, digest, pair, put


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


def second_engine(run: Recording) -> Log:
    """Another engine that receives every version as the first does; its log stands before the first one's."""
    first = run.logs["rollout"]
    log = Log("rollout", first.pid - 50)
    log.events = [(kind, copy.deepcopy(fields)) for kind, fields in first.events if kind in ("open", "weights")]
    log.events[0][1]["pid"] = log.pid
    run.logs = {"another": log, **run.logs}
    return log


@pytest.mark.parametrize("stale", [-1, 0, 1])
def test_each_of_several_engines_received_the_learners_weights(tmp_path: Path, stale: int) -> None:
    baseline, candidate = pair()
    second_engine(baseline)
    engines = [second_engine(candidate), candidate.logs["rollout"]]
    for kind, fields in engines[stale].events if stale >= 0 else ():
        if kind == "weights" and fields["version"] >= 1:
            fields["digests"] = {name: digest(name, 0, "older") for name in fields["digests"]}
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, "weight-sync").state == ("ruled out" if stale < 0 else "confirmed")
    assert verdict.verdict == ("EQUIVALENT" if stale < 0 else "DIVERGENT")


def test_an_engine_of_several_that_says_nothing_of_a_version_rules_nothing_out(tmp_path: Path) -> None:
    baseline, candidate = pair()
    second_engine(baseline)
    log = second_engine(candidate)
    log.events = [one for one in log.events if not (one[0] == "weights" and one[1]["version"] == 2)]
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, check(verdict, "weight-sync").state) == ("INCONCLUSIVE", "not tested")

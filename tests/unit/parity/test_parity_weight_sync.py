"""Weight sync: nothing is ruled out of tensors of which nobody says that they arrived."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
from framework_recordings import job
from recordings import TENSORS, Log, Recording, check, digest, pair, put, scenario

from harness.parity.audit import audit
from harness.parity.verdict import judge

pytestmark = pytest.mark.slow


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
    assert (
        f"nothing says that 1 of {len(TENSORS)} tensors ({TENSORS[0]}) of weight version {first} arrived"
        in sync.evidence
    )


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


@pytest.mark.parametrize(("again", "cause"), [(True, "STALE_WEIGHTS"), (False, "WEIGHTS")])
def test_what_arrives_with_its_older_values_is_stale(tmp_path: Path, again: bool, cause: str) -> None:
    baseline, candidate = pair()
    events = {event["version"]: event for event in candidate.events("weights", source="received")}
    older = events[0]["digests"] if again else {name: digest(name, 0, "another") for name in TENSORS}
    events[1]["digests"] = dict(older)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert {(item.key.family, item.party) for item in verdict.causes} == {(cause, "candidate")}


@pytest.mark.parametrize("copied", [True, False])
def test_a_run_beside_itself_is_no_comparison_and_its_audit_says_what_is_wrong(tmp_path: Path, copied: bool) -> None:
    run, _ = pair()
    for event in run.events("weights", source="received"):
        if event["version"] >= 1:
            event["digests"] = {name: digest(name, 0, "older") for name in event["digests"]}
    path = run.write(tmp_path / "run")
    verdict = judge(path, shutil.copytree(path, tmp_path / "copy") if copied else path)
    assert verdict.verdict == "INCONCLUSIVE" and verdict.parity is None
    alone = audit(path)
    assert (alone.verdict, check(alone, "weight-sync").state) == ("UNSOUND", "confirmed")


def test_an_engine_of_several_that_says_nothing_of_a_version_rules_nothing_out(tmp_path: Path) -> None:
    baseline, candidate = pair()
    second_engine(baseline)
    log = second_engine(candidate)
    log.events = [one for one in log.events if not (one[0] == "weights" and one[1]["version"] == 2)]
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, check(verdict, "weight-sync").state) == ("INCONCLUSIVE", "not tested")


# --- what a full sync sends -------------------------------------------------------------------------------------------


def only(first: int, *runs: Recording) -> None:
    """Of so many tensors any process of these runs says that they were sent or arrived."""
    for run in runs:
        for event in run.events("weights"):
            event["digests"] = {name: event["digests"][name] for name in TENSORS[:first]}
        for event in run.events("learner"):
            event.pop("actor")
        for event in run.events("sync"):
            event["tensors"] = first
        run.made = {}


@pytest.mark.parametrize("train", [True, False])
def test_tensors_that_the_learner_names_and_no_sync_carries_are_named(tmp_path: Path, train: bool) -> None:
    runs = pair(plan=scenario(train=train), native=False)
    only(6, *runs)
    verdict = put(tmp_path, *runs)
    sync = check(verdict, "weight-sync")
    assert (verdict.verdict, sync.state) == ("INCONCLUSIVE", "not tested"), verdict.reason
    assert f"nothing says that 2 of 8 tensors ({', '.join(sorted(TENSORS[6:]))}) of weight version 0" in sync.evidence


@pytest.mark.parametrize("gone", ["the list", "the actor's journal"])
def test_a_run_whose_learner_names_no_tensors_is_not_tested(tmp_path: Path, gone: str) -> None:
    runs = pair(plan=scenario(train=False), native=False)
    for run in runs:
        if gone == "the list":
            run.drop("model")
        else:
            del run.logs["actor"]
    verdict = put(tmp_path, *runs)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert "the learner's tensors are not named" in check(verdict, "weight-sync").evidence


def test_a_list_that_lacks_what_was_sent_is_no_whole_one(tmp_path: Path) -> None:
    runs = pair()
    for event in runs[1].events("model"):
        event["tensors"] = TENSORS[:3]
    assert "5 tensors" in check(put(tmp_path, *runs), "weight-sync").evidence


@pytest.mark.parametrize(("tensors", "state"), [(1, "not tested"), (2, "ruled out"), (8, "ruled out")])
def test_a_framework_names_no_tensors_and_that_is_said(tmp_path: Path, tensors: int, state: str) -> None:
    runs = job("baseline"), job("candidate")
    only(tensors, *runs)
    sync = check(put(tmp_path, *runs), "weight-sync")
    assert sync.state == state
    assert state == "not tested" or "so that others were sent is not known" in sync.evidence


@pytest.mark.by_day(4)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("side", ["baseline", "candidate"])
@pytest.mark.parametrize(("workers", "said"), [({}, "the"), ({"rank": 1}, "rank 1 of the"),
                                               ({"engine": 1, "rank": 0}, "engine 1, rank 0 of the")])  # fmt: skip
def test_a_worker_that_does_not_load_what_arrived_is_named(
    tmp_path: Path, side: str, kept: bool, workers: dict[str, int], said: str
) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        for event in run.events("sync"):
            event |= {"loaded": len(TENSORS), "misloaded": []}
    run = baseline if side == "baseline" else candidate
    for event in run.events("sync", version=1):
        event["misloaded"] = [{"name": TENSORS[0], "kept": kept, "rank": None, "engine": None} | workers]
    verdict = put(tmp_path, baseline, candidate)
    (cause,) = verdict.causes
    assert (verdict.verdict, cause.name) == ("DIVERGENT", f"{'STALE_WEIGHTS' if kept else 'WEIGHTS'}({TENSORS[0]})")
    assert (cause.party, check(verdict, "weight-sync").state) == (side, "confirmed")
    assert cause.summary.startswith(f"{said} {side}'s engine was sent {TENSORS[0]} with weight version 1")


def test_how_many_were_read_back_is_said(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        for event in run.events("sync"):
            event |= {"loaded": 3 if event["version"] == 2 else len(TENSORS), "misloaded": []}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT" and "3 read back" in check(verdict, "weight-sync").evidence

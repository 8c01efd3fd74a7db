"""The facts of a suite of planted faults, from what `harness faults run --format json` prints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.nightly.judge import Past, judge
from harness.nightly.observation import Observation, observed, of_suite
from harness.planted.differences import outcome as differences
from harness.planted.differences import tables as difference_tables
from harness.planted.hangs import hang_outcome as hangs
from harness.planted.hangs import tables as hang_tables
from reports.model import EXIT_CODES, Check, Parity, Verdict
from scenarios.planted.differences.catalog import FAULTS
from scenarios.planted.hangs.catalog import HANGS

CONTROL = next(one for one in FAULTS if one.control and one.expected == "EQUIVALENT" and not one.findings)
FAULT = next(one for one in FAULTS if not one.control)
HEALTHY = next(one for one in HANGS if one.verdict == "HEALTHY")
HANG = next(one for one in HANGS if not one.control)


def printed(value: dict[str, Any]) -> Observation:
    """As a night reads it: from the text that the command printed."""
    return of_suite(json.loads(json.dumps(value)), Path("recording"), seconds=3.0)


def parity(*rows: differences.Outcome) -> Observation:
    return printed(difference_tables.as_json(rows, differences.score(rows)))


def hang(*rows: hangs.Outcome) -> Observation:
    return printed(hang_tables.as_json(list(rows), hangs.score(rows), 5.0))


def quiet(verdict: str = "EQUIVALENT") -> differences.Outcome:
    return differences.Outcome(CONTROL, Verdict("parity", verdict, EXIT_CODES[verdict], "a reason"))


def test_a_suite_in_which_all_is_found_passed() -> None:
    for seen, name in ((parity(quiet()), CONTROL.name), (hang(hangs.Outcome(HEALTHY, None)), HEALTHY.name)):
        assert (seen.verdict, seen.exit_code, seen.causes) == ("PASSED", 0, ())
        assert seen.facts.checks == {name: "ruled out"} and seen.tested == {name}
        assert seen.seconds == 3.0 and seen.recording == "recording" and "1" in seen.reason


def test_each_fault_that_was_missed_is_a_cause() -> None:
    lost = differences.Outcome(FAULT, None, error="the engine died")
    for seen, name in ((parity(quiet(), lost), FAULT.name), (hang(hangs.Outcome(HANG, None)), HANG.name)):
        assert (seen.verdict, seen.exit_code, seen.causes) == ("FAILED", 1, (f"fault {name}",))
        assert seen.facts.checks[name] == "confirmed"


def test_a_false_alarm_fails_the_suite() -> None:
    seen = parity(quiet("DIVERGENT"))
    assert (seen.verdict, seen.exit_code, seen.causes) == ("FAILED", 1, (f"fault {CONTROL.name}",))


def test_a_suite_that_ran_nothing_failed() -> None:
    assert [(one.verdict, one.exit_code) for one in (parity(), hang())] == [("FAILED", 1)] * 2


def test_a_fault_that_is_missed_tonight_and_one_that_no_longer_runs_are_new_problems() -> None:
    before = [Past(parity(quiet()))]
    tonight = judge(parity(quiet("DIVERGENT")), before)
    assert {one.subject for one in tonight.new} == {"FAILED", f"fault {CONTROL.name}"}
    fewer = judge(hang(), [Past(hang(hangs.Outcome(HEALTHY, None)))])
    assert ("fewer", "checks") in {one.key for one in fewer.new}


@pytest.mark.parametrize(("drawn", "count"), [([256, 255], 511), (["nan", 256], math.nan), (256, 256)])
def test_native_samples_of_both_sides_are_counted_together(drawn: Any, count: float, tmp_path: Path) -> None:
    verdict = Verdict("parity", "EQUIVALENT", 0, "a reason", coverage={"native_samples": drawn})
    assert observed(verdict, tmp_path).metrics == pytest.approx({"native_samples": count}, nan_ok=True)


def test_a_night_that_drew_on_counts_the_native_samples_of_its_first_draw(tmp_path: Path) -> None:
    looks = [{"samples": [1024, 1024]}, {"samples": [1280, 1279]}]
    body = Parity(None, {}, [Check("native", "ruled out", "equal", details={"looks": looks})], [])
    verdict = Verdict("parity", "EQUIVALENT", 0, "", coverage={"native_samples": [1280, 1279]}, parity=body)
    assert observed(verdict, tmp_path).metrics["native_samples"] == 2048


def test_how_far_the_engines_own_samplers_are_apart_is_a_metric(tmp_path: Path) -> None:
    quantities = {"surprisal": {"difference": -0.02}, "length": {"difference": "nan"}}
    native = Check("native", "ruled out", "equal", details={"quantities": quantities})
    body = Parity(None, {}, [native], [])
    seen = observed(Verdict("parity", "EQUIVALENT", 0, "a reason", parity=body), tmp_path).metrics
    assert seen["native: surprisal"] == 0.02 and math.isnan(seen["native: length"]) and "native: finish" not in seen

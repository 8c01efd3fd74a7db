"""What is written is read back the same; a file of another version, or one edited by hand, is refused in a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import reports_examples as examples
from hypothesis import given
from hypothesis import strategies as st

from harness import cli
from reports import codec
from reports.doctor_model import Hazard, Passed, Report, Unchecked
from reports.model import Cause, Proof, Verdict

text, places = st.text(max_size=9), st.lists(st.text(max_size=5), max_size=3).map(tuple)
severities = st.sampled_from(["error", "warning", "info"])
reports = st.builds(
    Report,
    st.lists(st.builds(Hazard, text, severities, text, places, text, text, text), max_size=3).map(tuple),
    st.lists(st.builds(Passed, text, places, text), max_size=2).map(tuple),
    st.lists(st.builds(Unchecked, text, places, text, text), max_size=2).map(tuple),
    places,
    st.floats(allow_nan=False),
    st.booleans(),
)


@pytest.mark.slow
@given(reports)
def test_any_report_of_the_doctor_round_trips(report: Report) -> None:
    stored = report.to_json()
    assert Report.from_dict(json.loads(stored)).to_json() == stored


def test_a_read_only_mapping_is_written_as_a_dictionary() -> None:
    assert codec.builtins({"details": MappingProxyType({"1": (2, 3)})}) == {"details": {"1": [2, 3]}}


def test_numbers_that_json_lacks_come_back_as_numbers() -> None:
    proof = Proof("x", math.nan, math.inf, seconds=-math.inf)
    verdict = Verdict("parity", "DIVERGENT", 1, "", causes=[Cause("ORDER", "candidate", "", proofs=[proof])])
    (again,) = Verdict.from_dict(json.loads(verdict.to_json())).causes[0].proofs
    assert math.isnan(again.before) and (again.after, again.seconds) == (math.inf, -math.inf)


def edited(**changes: Any) -> dict[str, Any]:
    return {**examples.stale_tensor().to_dict(), **changes}


PARITY = examples.stale_tensor().to_dict()["parity"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "this is no verdict: it has no schema_version"),
        ({}, "this is no verdict: it has no schema_version"),
        (edited(schema_version=2), "verdict schema 2 is not 1"),
        (edited(exit_code="1"), "Expected `int`, got `str` - at `$.exit_code`"),
        (edited(kind="parties"), "Invalid enum value 'parties' - at `$.kind`"),
        (edited(verdct="EQUIVALENT"), "there is no field verdict.verdct"),
        (edited(causes=[{"name": "ORDER"}]), "missing required field `party` - at `$.causes[0]`"),
        (edited(parity={**PARITY, "chekcs": []}), "there is no field verdict.parity.chekcs"),
        (edited(parity={**PARITY, "series": {"a": [True]}}), "Expected a number, got True"),
    ],
)
def test_another_version_and_an_edited_file_are_refused(
    data: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError) as refused:
        Verdict.from_dict(data)
    assert words in str(refused.value)
    (tmp_path / "verdict.json").write_text(json.dumps(data))
    assert cli.main(["report", str(tmp_path)]) == 2
    line, fix = capsys.readouterr().err.splitlines()
    assert words.removeprefix("this is no verdict: ") in line and fix.startswith("  fix: ")
    assert ("is no verdict of this version" in line) is ("schema_version" in data)

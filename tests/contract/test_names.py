"""`harness explain` knows every word with which an answer begins, and every name in it. What answers are made in a test
is checked as well, by the fixture of tests/conftest.py."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import pytest

from harness import glossary
from harness.errors import BadInput
from harness.mapping import judge as mapping
from harness.parity.checks.registry import checks
from reports import bisect_model, nightly_model
from reports.doctor_model import SEVERITIES, VERDICTS, Hazard, Report
from reports.model import CHECK_STATES, HANGS, RESERVED, SUSPICIONS, CheckState, Reservation, Reserved
from reports.sections.answer import TONES

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "verdicts.json").read_text("utf-8"))
TITLES = {
    " ".join(filter(None, (row["verdict"], hang, HANGS[hang].name if hang else "")))
    for row in ROWS.values()
    for hang in [row.get("hang", "")]
}


@pytest.mark.parametrize(
    ("words", "meanings"),
    [
        (bisect_model.Status, bisect_model.STATUSES),
        (bisect_model.Call, bisect_model.CALLS),
        (nightly_model.Status, nightly_model.STATUSES),
        (CheckState, CHECK_STATES),
        (Reserved, RESERVED),
        (mapping.Kind, mapping.KINDS),
    ],
)
def test_every_word_of_a_type_has_a_meaning(words: object, meanings: dict[str, object]) -> None:
    assert {*typing.get_args(words)} == {*meanings}
    for word in meanings if meanings is not RESERVED else ():
        assert glossary.find(word)


def test_every_verdict_of_the_doctor_is_explained() -> None:
    verdicts = set()
    for compared in (False, True):
        for severity in (None, *SEVERITIES):
            hazards = (Hazard("file-limit", severity, "", ("this shell",), "", ""),) if severity else ()
            verdicts.add(Report(hazards, (), (), ("this shell",), 0.0, compared=compared).verdict)
    assert verdicts == {*VERDICTS} and all(map(glossary.find, verdicts))


@pytest.mark.slow
def test_every_title_is_explained() -> None:
    assert len(TITLES) > 20
    for title in (*TITLES, *TONES, *(hang.name for hang in HANGS.values())):
        assert glossary.find(title) == glossary.find(f"{title} (exit code 1): rank 1 (pid 7) has not come")


@pytest.mark.parametrize("kind", RESERVED)
def test_every_reservation_is_explained_behind_its_verdict(kind: Reserved) -> None:
    for count in (1, 2):
        words = Reservation(kind, ["name"] * count).words
        entries = glossary.find(f"EQUIVALENT, but {words} (and 3 more reservations) (exit code 0): 9 of 9 tokens equal")
        assert [entry.kind for entry in entries] == ["verdict", "reservation", "reservation"]


def test_every_check_is_explained_with_its_number_and_mark() -> None:
    names = [check.name for check in checks()]
    assert {*SUSPICIONS.values()} <= {*names}
    for name in (*names, *(f"\u2717 {number} {name}" for number, name in SUSPICIONS.items())):
        assert "check" in {entry.kind for entry in glossary.find(name)}, name


@pytest.mark.parametrize("text", ["HUNG K99", "K2 orders", "EQUIVALENT, but 2 surprises", "but so", "12 12", ""])
def test_a_text_with_a_word_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        glossary.find(text)

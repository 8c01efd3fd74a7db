"""Every state that a check may have is shown by every renderer, and only one that settled something passes."""

from __future__ import annotations

from typing import get_args
from xml.etree import ElementTree

import pytest

from reports.model import OPEN, Check, CheckState
from reports.renderers.html import STATES as TONES
from reports.renderers.junit import _check_case
from reports.sections.parity import MARKS, tally
from reports.sections.terminal.parity import STATES

EVERY: tuple[CheckState, ...] = get_args(CheckState)


def test_every_state_has_a_mark_of_its_own() -> None:
    assert set(TONES) == set(MARKS) == set(STATES) == set(EVERY) > set(OPEN)
    assert len(set(MARKS.values())) == len(EVERY)
    assert {state: STATES[state][0] for state in EVERY} == MARKS


@pytest.mark.parametrize("state", EVERY)
def test_only_what_was_ruled_out_is_a_case_that_passed(state: CheckState) -> None:
    suite = ElementTree.Element("testsuite")
    _check_case(suite, "checks", Check("native", state, "what it rests on"))
    [case] = suite
    assert (case.find("skipped") is not None) == (state in OPEN)
    assert (case.find("failure") is not None) == (state == "confirmed")


def test_states_are_counted_by_name() -> None:
    checks = [Check(state, state, "") for state in EVERY]
    assert tally(checks) == "1 confirmed, 1 undecided, 1 not tested, 1 ruled out"

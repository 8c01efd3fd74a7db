"""The fuzzer: files of all kinds, changed in every way that a stranger or a broken disk may change them.

A command that reads them must answer within its limits of memory and time, with a sentence and a documented exit code,
and must not pass a recording whose checksums do not fit. A failing test prints the case, and how to run it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest
from hostile_cases import Case, fault
from hostile_changes import FILES, OPERATIONS, STRUCTURAL, VALUES, Change
from hostile_inputs import INPUTS
from hostile_server import Server
from hypothesis import given, settings
from hypothesis import strategies as st

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
BATCH = 20 if NIGHT else 2  # cases; 200 take about a minute of processor time
# Processor time of all inputs of a night. Each has the same share of it, whatever the ones before it cost.
NIGHT_S = float(os.environ.get("TEST_FUZZ_SECONDS", 1_080 if NIGHT else 0))

CHANGES = st.builds(
    Change,
    file=st.integers(0, 40),
    path=st.integers(0, 200),
    nth=st.integers(0, 1000),
    operation=st.sampled_from([*VALUES]) | st.sampled_from([*STRUCTURAL]) | st.sampled_from([*FILES]),
)


def cases(name: str) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        input=st.just(name),
        command=st.integers(0, len(INPUTS[name].commands) - 1),
        sealed=st.booleans(),
        changes=st.lists(CHANGES, min_size=1, max_size=3).map(tuple),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
def test_changed_files_are_answered(name: str, server: Server) -> None:
    numbers = count()

    @settings(max_examples=BATCH, deadline=None)
    @given(case=cases(name))
    def answered(case: Case) -> None:
        next(numbers)
        wrong = fault(case, server)
        assert not wrong, f"{wrong}\nagain: python tests/support/hostile_cases.py '{case}'"

    end_s = server.seconds + NIGHT_S / len(INPUTS)
    answered()
    while server.seconds < end_s:
        answered()
    print(f"{name}: {next(numbers)} cases")


@pytest.mark.by_day(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
def test_unchanged_files_are_answered(name: str, server: Server) -> None:
    for number in range(len(INPUTS[name].commands)):
        assert not fault(Case(name, number, False, ()), server)


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "run-shown 3 sealed 2.22.651.wrap 0.190.679.million 11.48.833.as-text",
    "pair-framework 0 sealed 36.68.437.unwrap 30.154.745.file-rename 3.104.144.object-empty",
    "pair-framework 0 sealed 18.0.481.file-object 9.72.328.reverse",
    "verdict 13 raw 28.178.231.list-long 37.107.473.negate",
])  # fmt: skip
def test_what_a_night_found_is_answered(text: str, server: Server) -> None:
    """A journal that names a list, or an object, as the run.json that it began with; a frame whose number type holds
    four numbers, or none that the format has; a verdict with an exit code of its own.
    """
    assert not fault(Case.parse(text), server)


def test_a_case_is_its_text() -> None:
    case = Case("pair", 1, True, (Change(3, 17, 0, OPERATIONS[0]), Change(0, 0, 2, "file-pipe")))
    assert Case.parse(str(case)) == case

"""Cases after public reports, run with real engines: what is planted acts, and the verdict is the golden table's.

By day tests/unit/planted/test_public_cases.py holds the patches to the code, and the golden table their recordings.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cases.parity import run
from tests.golden import table

pytestmark = [pytest.mark.slow, pytest.mark.night, pytest.mark.engines]
CASES = run.cases()
ROWS = table.read()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> run.Bench:
    return run.Bench(tmp_path_factory.mktemp("public-cases"))


@pytest.mark.parametrize("name", CASES)
def test_a_case_acts_and_ends_as_its_row_says(name: str, bench: run.Bench) -> None:
    case = CASES[name]
    if "audit" in case and not Path(os.environ.get("TRL_PYTHON", "")).is_file():
        pytest.skip("TRL_PYTHON names no interpreter with TRL")
    scored = run.scored(name, case, bench)
    assert scored["acted"], scored
    if (row := ROWS.get(f"case-{name}")) is not None:
        causes = {(cause["cause"], cause["party"]) for cause in row.get("causes", ())}
        assert (scored["verdict"], {(cause, party) for cause, party, _ in scored["causes"]}) == (row["verdict"], causes)

"""What is said of every kept recording, dump and evidence directory is what the table says.

After a change on purpose: `python -m tests.golden.update`, and commit the table with the change.
"""

from __future__ import annotations

import pytest

from tests.golden import table
from tests.golden.judging import TESTS, judged

ROWS = table.read()
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_is_as_the_table_says(name: str) -> None:
    assert judged(ROWS[name]) == table.expected(ROWS[name])


def test_every_kept_input_has_a_row() -> None:
    kept = {str(path.relative_to(TESTS)) for path in (TESTS / "golden" / "inputs").iterdir()}
    assert kept <= {row["input"] for row in ROWS.values()}


def test_every_family_of_causes_has_a_row() -> None:
    from harness.parity.causes.registry import families

    named = {cause["cause"].partition("(")[0] for row in ROWS.values() for cause in row.get("causes", ())}
    assert named >= set(families())


def test_every_kind_of_hang_has_a_row() -> None:
    from reports.model import HANGS

    assert {row.get("hang") for row in ROWS.values()} >= set(HANGS) - {"K11"}  # the doctor finds that one


def test_the_inputs_are_small() -> None:
    assert sum(path.stat().st_size for path in (TESTS / "golden" / "inputs").iterdir()) <= 15 << 20

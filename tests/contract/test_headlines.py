"""The first line of every kept verdict is a headline: at most 20 words, one fact."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from headlines import too_long

from reports.headline import MOST
from reports.model import HANGS, TRIAGE_VERDICTS, Verdict

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "verdicts.json").read_text("utf-8"))
NO_HANG = {"K11"}  # a check of the doctor finds it before the run


def _faults(verdict: str, reason: str) -> list[str]:
    """What keeps a first line from being a headline."""
    words = len(f"{verdict} {reason}".split())
    faults = [f"{words} words"] if words > MOST else []
    return faults + (["several facts"] if re.search(r";.*;|[.!?] [A-Z]|\n", reason) else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_verdict_begins_with_one_fact_of_20_words(name: str) -> None:
    assert not _faults(ROWS[name]["verdict"], ROWS[name]["reason"])


def test_the_kept_verdicts_have_every_kind_of_hang() -> None:
    assert {row["hang"] for row in ROWS.values() if row.get("hang")} == {*HANGS} - NO_HANG


@pytest.mark.parametrize(
    "reason",
    [
        " ".join(["word"] * 21),
        "rank 1 failed; rank 2 waits; rank 3 waits as well",
        "rank 1 failed. The others wait for it",
    ],
)
def test_a_longer_line_or_a_second_fact_is_seen(reason: str) -> None:
    assert _faults("HUNG", reason)


@pytest.mark.parametrize("verdict", TRIAGE_VERDICTS)
def test_the_verdict_counts_as_a_word(verdict: str) -> None:
    reason = " ".join(["word"] * MOST)
    assert _faults(verdict, reason) and too_long([Verdict("triage", verdict, 0, reason)])

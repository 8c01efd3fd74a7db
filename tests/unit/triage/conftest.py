"""Every headline that a test of this room has the judge write is short: it is read on a phone, at night. And what may
be refused, a stack of C, is never advised before what always works."""

from __future__ import annotations

import pytest

from harness.triage import judge
from harness.triage.rules import Case, Ruling

WORDS = 20


@pytest.fixture(autouse=True)
def _short_headlines(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = judge._ask

    def checked(case: Case) -> Ruling:
        ruling = ask(case)
        assert len(ruling.reason.split()) <= WORDS, ruling.reason
        return ruling

    monkeypatch.setattr(judge, "_ask", checked)


@pytest.fixture(autouse=True)
def _simple_steps_first(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = judge._steps

    def checked(case: Case, ruling: Ruling, afterwards: str) -> list[str]:
        advice = steps(case, ruling, afterwards)
        native = ["--native" in step for step in advice]
        assert native == sorted(native), advice
        return advice

    monkeypatch.setattr(judge, "_steps", checked)

"""The verdict that `harness watch` prints while the command runs: its exit code is the one that the watch will have."""

from __future__ import annotations

import dataclasses
import json

import pytest

import reports
from harness.commands.watch import _with_code_of_watch
from harness.exit_codes import STALLED
from harness.triage.watch.watched_command import OnStall
from reports.model import Triage, Verdict

HUNG = Verdict("triage", "HUNG", 1, "rank 1 has ended", triage=Triage("K4", [], [], [], [], [], []))


@pytest.mark.parametrize("format", ["text", "md"])
@pytest.mark.parametrize(("on_stall", "code"), [("end", STALLED), ("exit", STALLED), ("report", None)])
def test_the_code_is_that_of_the_watch_or_none_while_the_command_decides_it(
    on_stall: OnStall, code: int | None, format: str
) -> None:
    shown = reports.render(_with_code_of_watch(HUNG, on_stall, format), format)
    assert [word for word in ("exit code 1)", "exit code -1") if word in shown] == []
    assert (f"exit code {STALLED}" in shown) is (code is not None)
    assert "exit code 1)" in reports.render(HUNG, format), "of harness triage, whose own code it is"


def test_formats_for_programs_keep_the_code_that_their_schema_binds_to_the_verdict() -> None:
    assert json.loads(reports.render(_with_code_of_watch(HUNG, "end", "json"), "json"))["exit_code"] == 1
    assert Verdict.from_dict(dataclasses.replace(HUNG).to_dict()).exit_code == 1

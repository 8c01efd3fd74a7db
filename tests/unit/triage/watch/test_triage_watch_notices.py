"""A command that gets each verdict: it reads it, and one that fails or hangs holds nothing up."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest

from harness.triage.watch.notices import MAX_WAITING, Notices
from reports.model import Verdict

VERDICT = Verdict("triage", "HUNG", 1, "rank 1 sleeps")


def test_the_command_reads_each_verdict_in_order(tmp_path: Path) -> None:
    lines: list[str] = []
    notices = Notices(f"cat >> {shlex.quote(str(tmp_path / 'got'))}; echo >> {shlex.quote(str(tmp_path / 'got'))}",
                      lines.append)  # fmt: skip
    notices.put(VERDICT)
    notices.put(Verdict("triage", "SLOW", 0, "rank 1 is slow"))
    notices.close(60.0)
    text = (tmp_path / "got").read_text()
    decoder, at, verdicts = json.JSONDecoder(), 0, []
    while at < len(text.rstrip()):
        verdict, at = decoder.raw_decode(text, at)
        verdicts.append(verdict["verdict"])
        at += len(text[at:]) - len(text[at:].lstrip())
    assert verdicts == ["HUNG", "SLOW"] and not lines


@pytest.mark.parametrize(
    ("command", "words"), [("exit 3", "exit code 3"), ("/no/such/program", "exit code 127"), ("sleep 999", "killed")]
)
def test_a_command_that_fails_or_hangs_is_told(command: str, words: str) -> None:
    lines: list[str] = []
    notices = Notices(command, lines.append, limit_s=0.3)
    notices.put(VERDICT)
    notices.close(60.0)
    assert len(lines) == 1 and words in lines[0]


def test_a_hanging_command_holds_nothing_up(tmp_path: Path) -> None:
    lines: list[str] = []
    notices = Notices("sleep 999", lines.append, limit_s=5.0)
    began = time.thread_time()
    for _ in range(MAX_WAITING + 5):
        notices.put(VERDICT)
    notices.close(0.0)
    assert time.thread_time() - began < 1.0 and any("does not get this one" in line for line in lines)

"""A command that gets each verdict: it reads it, and one that fails or hangs holds nothing up."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from waiting import until

from harness.triage.watch.notices import CLOSING_S, MAX_WAITING, Notices
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


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo no route to host >&2; exit 3", "exit code 3: no route to host"),
        ("echo first >&2; echo 'cannot log in with HF_TOKEN=hf_abcdefghijklmnop12345678' >&2; exit 1", "cannot log in"),
        ("seq 100000 >&2; exit 3", ": 100000"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 3", "exit code 3"),
        pytest.param("sleep 9 & echo left >&2; exit 3", ": left", marks=pytest.mark.slow),
    ],
)
def test_a_command_that_fails_is_told_with_its_last_words(command: str, words: str) -> None:
    lines: list[str] = []
    notices = Notices(command, lines.append)
    notices.put(VERDICT)
    notices.close(60.0)
    assert len(lines) == 1 and words in lines[0] and len(lines[0]) < 400
    assert "abcdefghij" not in lines[0] and "xxx" not in lines[0]


def test_the_end_of_a_watch_waits_for_a_command(tmp_path: Path) -> None:
    lines: list[str] = []
    notices = Notices(f"sleep 0.2; cat > {shlex.quote(str(tmp_path / 'got'))}", lines.append)
    notices.put(VERDICT)
    notices.close(60.0)
    assert (tmp_path / "got").stat().st_size and not lines


def test_a_command_that_the_end_of_a_watch_kills_is_told() -> None:
    lines: list[str] = []
    notices = Notices("sleep 999", lines.append)
    notices.put(VERDICT)
    notices.close(0.2)
    assert len(lines) == 1 and "was killed" in lines[0]


def test_the_end_of_a_watch_waits_a_few_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a command may run, and whatever waits for it."""
    lines: list[str] = []
    waited: list[float] = []
    notices = Notices("sleep 999", lines.append, limit_s=900.0)
    for _ in range(MAX_WAITING):
        notices.put(VERDICT)
    until(lambda: notices._hook is not None)
    monkeypatch.setattr(notices._thread, "join", waited.append)
    notices.close()
    assert len(waited) == 2 and max(waited) <= CLOSING_S <= 5.0
    assert any(f"did not get {MAX_WAITING - 1} verdicts" in line for line in lines)
    assert any("was killed" in line for line in lines)


def test_a_hanging_command_holds_nothing_up(tmp_path: Path) -> None:
    lines: list[str] = []
    notices = Notices("sleep 999", lines.append, limit_s=5.0)
    began = time.thread_time()
    for _ in range(MAX_WAITING + 5):
        notices.put(VERDICT)
    notices.close(0.0)
    assert time.thread_time() - began < 1.0 and any("does not get this one" in line for line in lines)


def test_a_command_that_hung_on_an_early_verdict_gets_the_last(tmp_path: Path) -> None:
    """Of three verdicts the first hangs, the second is lost and told, and the third, of the job's end, arrives."""
    lines: list[str] = []
    got = shlex.quote(str(tmp_path / "got"))
    hangs_once = f"test -e {got}.first || {{ touch {got}.first; sleep 999; }}"
    notices = Notices(f"cat > {got}.part; {hangs_once}; mv {got}.part {got}", lines.append)
    for verdict in ("INSUFFICIENT", "SLOW", "HUNG"):
        notices.put(Verdict("triage", verdict, 1, "rank 1 sleeps"))
    until((tmp_path / "got.first").exists)
    notices.close(3.0)
    assert json.loads((tmp_path / "got").read_text())["verdict"] == "HUNG"
    assert len(lines) == 2 and "was killed" in lines[0] and "did not get 1 verdict" in lines[1]

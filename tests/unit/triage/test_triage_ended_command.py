"""The directory of a watch whose command has ended is read again: what the watch knew of the end decides."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bundle.packing import pack
from harness.errors import BadInput
from harness.triage import directory, judge
from harness.triage.collect import endings
from harness.triage.evidence import Beat, EndedBy, Evidence, Peak, Process, Sample
from harness.triage.judge import READ_LOG, since_ended
from harness.triage.run import triage
from harness.triage.watch import Watchdog
from harness.triage.watch.guard import Guard
from harness.triage.watch.watched_command import claimed
from reports.model import Triage, Verdict


def ended(folder: Path, code: int | None, host: str = "node1", *, stall_s: float = 0.0, signum: int = 0) -> Path:
    """The directory of a watch whose command ended with `code`, or goes on; with evidence of a stall before that.
    `signum`: asked the watch to end it."""
    made, claim = claimed(folder, ["./job"])
    claim.release()
    dog = Watchdog(made, (os.getpid(),), 10.0)
    if stall_s:
        looks = Sample(0.0, "S"), Sample(1.5, "S")
        member = Process(host=host, pid=2**22 + 1, command="job", samples=looks, notes=("not a Python process",))
        directory.write(Evidence("", "watch", "now", stall_s, (member,)), made / "evidence" / "20260101-000000")
    if code is not None:
        dog.over(code)
    dog.asked = (signum, time.monotonic_ns()) if signum else None
    dog.close()
    return made


@pytest.mark.parametrize(("code", "expected"), [(0, "HEALTHY"), (3, "INSUFFICIENT"), (None, "INSUFFICIENT")])
@pytest.mark.slow
def test_a_command_that_left_no_record_ended_as_its_watch_saw(tmp_path: Path, code: int | None, expected: str) -> None:
    verdict = triage([str(ended(tmp_path / "watch", code))])
    assert verdict.verdict == expected
    assert (f"exit code {code}" in verdict.reason) is (code is not None)


@pytest.mark.parametrize(("code", "expected"), [(0, "SLOW"), (3, "INSUFFICIENT"), (None, "INSUFFICIENT")])
@pytest.mark.slow
def test_a_standstill_before_a_good_end_was_no_hang(tmp_path: Path, code: int | None, expected: str) -> None:
    watch = ended(tmp_path / "watch", code, stall_s=12.0)
    zipped = tmp_path / "job.zip"
    pack([watch], zipped)
    for word in (watch, watch / "evidence", watch / "evidence" / "20260101-000000", zipped):
        verdict = triage([str(word)])
        assert verdict.verdict == expected, word
        assert code != 0 or (verdict.triage is not None and verdict.triage.next == [])


@pytest.mark.parametrize(("second", "expected"), [(0, "SLOW"), (1, "INSUFFICIENT"), (None, "INSUFFICIENT")])
def test_a_job_of_several_nodes_ended_well_where_each_command_did(
    tmp_path: Path, second: int | None, expected: str
) -> None:
    nodes = [ended(tmp_path / f"node{i}", code, f"node{i}", stall_s=12.0) for i, code in enumerate((0, second))]
    assert triage([str(node) for node in nodes]).verdict == expected


@pytest.mark.parametrize("beat", [b"", b"[", b"{}", b'{"exit_code": "0"}', b'{"exit_code": 1e9}', b"[" * 4000])
@pytest.mark.slow
def test_a_damaged_beat_of_the_watch_says_nothing_of_the_end(tmp_path: Path, beat: bytes) -> None:
    watch = ended(tmp_path / "watch", 0)
    (watch / "watchdog.json").write_bytes(beat)
    assert triage([str(watch)]).verdict == "INSUFFICIENT"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stall_s", [0.0, 12.0])
@pytest.mark.slow
def test_who_ended_a_command_is_told(tmp_path: Path, signum: int, stall_s: float) -> None:
    verdict = triage([str(ended(tmp_path / "watch", 128 + signum, stall_s=stall_s, signum=signum))])
    assert verdict.verdict == "INSUFFICIENT"
    assert any(signal.Signals(signum).name in line for line in [verdict.reason, *verdict.evidence])
    assert not any("log" in step for step in verdict.triage.next)


@pytest.mark.parametrize(
    "beat", [b'{"exit_code": 1, "signal": "2"}', b'{"exit_code": 1, "signal": 99, "signal_t_ns": 1}']
)
def test_a_damaged_signal_ended_nothing(tmp_path: Path, beat: bytes) -> None:
    watch = ended(tmp_path / "watch", 1)
    (watch / "watchdog.json").write_bytes(beat)
    assert "exit code 1" in triage([str(watch)]).reason


BODY = Triage("K7", [], [], [], [], [], next=["py-spy top"])
SLOW = Verdict("triage", "SLOW", 0, "rank 1 is slow", figures={"stall_seconds": 5.0}, triage=BODY)


@pytest.mark.parametrize(
    ("code", "ended_by", "expected"),
    [
        (0, None, ("SLOW", "K7", [])),
        (1, None, ("INSUFFICIENT", "", [READ_LOG])),
        (130, EndedBy(2), ("INSUFFICIENT", "", [])),
    ],
)
def test_what_was_slow_before_a_failure_is_not_the_answer(
    code: int, ended_by: EndedBy | None, expected: tuple[str, str, list[str]]
) -> None:
    evidence = Evidence("", "watch", "now", 5.0, command_exit_code=code, ended_by=ended_by)
    verdict = since_ended(SLOW, evidence)
    assert (verdict.verdict, verdict.triage.hang, verdict.triage.next) == expected
    assert SLOW.reason not in verdict.reason and any(SLOW.reason in line for line in verdict.evidence)


@pytest.mark.parametrize("code", [0, 1])
def test_a_hang_stays_the_answer_when_its_command_has_ended(code: int) -> None:
    hung = replace(SLOW, verdict="HUNG", reason="rank 1 sleeps", triage=replace(BODY, hang="K4"))
    evidence = Evidence("", "watch", "now", 5.0, command_exit_code=code)
    assert since_ended(hung, evidence) == replace(hung, evidence=[f"the job has ended since, with exit code {code}"])


def gone(pid: int, age_s: float, error: str = "", *, rank: int) -> Process:
    beat = Beat(count=3, age_s=age_s, progress_age_s=age_s, period_s=1.0, ended=bool(error))
    return Process(
        host="h", pid=pid, ppid=1, command="job", rank=rank, world_size=2, samples=(Sample(0.0, "gone"),), beat=beat,
        error=error, error_age_s=age_s if error else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ([gone(1, 4.9, "KeyboardInterrupt:", rank=0), gone(2, 4.8, rank=1)], ""),
        ([gone(1, 30.0, "ValueError: x", rank=0), gone(2, 4.8, "KeyboardInterrupt:", rank=1)], "rank 0"),
        ([gone(1, 30.0, rank=0), gone(2, 4.8, "KeyboardInterrupt:", rank=1)], "rank 0"),
    ],
)
def test_only_ends_after_the_signal_are_answers_to_it(ends: list[Process], blamed: str) -> None:
    evidence = Evidence("", "directory", "now", 0.0, tuple(ends), ended_by=EndedBy(2, 5.0), command_exit_code=130)
    verdict = judge.triage(evidence)
    assert verdict.verdict == "INSUFFICIENT"
    assert ("SIGINT" in verdict.reason) is (not blamed) and blamed in verdict.reason


def test_the_last_words_of_a_failed_job_are_the_answer_where_it_stood_still_before(tmp_path: Path) -> None:
    host = socket.gethostname()
    watch = ended(tmp_path / "watch", 3, host, stall_s=12.0)
    peak = Peak(host=host, pid=2**22 + 1, name="rank 0", peak_bytes=1, rank=0, exit_code=7)
    endings.write(watch, [peak])
    verdict = triage([str(watch)])
    assert verdict.verdict == "INSUFFICIENT" and "exit code 7" in verdict.reason
    assert not any("no evidence" in line for line in verdict.evidence)


def test_a_guard_says_how_its_runs_ended(tmp_path: Path) -> None:
    with pytest.raises(BadInput), Guard(tmp_path, 60.0) as guard:
        guard._dog.retention.keep(tmp_path / "evidence" / "x", SLOW, subject="", displayed=True)
        raise BadInput("wrong")
    assert json.loads((tmp_path / "watchdog.json").read_text())["exit_code"] == BadInput.exit_code

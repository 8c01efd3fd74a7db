"""The directory of a watch whose command has ended is read again: what the watch knew of the end decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.bundle.packing import pack
from harness.triage import directory
from harness.triage.evidence import Evidence, Process, Sample
from harness.triage.run import triage
from harness.triage.watch import Watchdog
from harness.triage.watch.watched_command import claimed


def ended(folder: Path, code: int | None, host: str = "node1", *, stall_s: float = 0.0) -> Path:
    """The directory of a watch whose command ended with `code`, or goes on; with evidence of a stall before that."""
    made, claim = claimed(folder, ["./job"])
    claim.release()
    dog = Watchdog(made, (os.getpid(),), 10.0)
    if stall_s:
        looks = Sample(0.0, "S"), Sample(1.5, "S")
        member = Process(host=host, pid=2**22 + 1, command="job", samples=looks, notes=("not a Python process",))
        directory.write(Evidence("", "watch", "now", stall_s, (member,)), made / "evidence" / "20260101-000000")
    if code is not None:
        dog.over(code)
    dog.close()
    return made


@pytest.mark.parametrize(("code", "expected"), [(0, "HEALTHY"), (3, "INSUFFICIENT"), (None, "INSUFFICIENT")])
def test_a_command_that_left_no_record_ended_as_its_watch_saw(tmp_path: Path, code: int | None, expected: str) -> None:
    verdict = triage([str(ended(tmp_path / "watch", code))])
    assert verdict.verdict == expected
    assert (f"exit code {code}" in verdict.reason) is (code is not None)


@pytest.mark.parametrize(("code", "expected"), [(0, "SLOW"), (3, "INSUFFICIENT"), (None, "INSUFFICIENT")])
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
def test_a_damaged_beat_of_the_watch_says_nothing_of_the_end(tmp_path: Path, beat: bytes) -> None:
    watch = ended(tmp_path / "watch", 0)
    (watch / "watchdog.json").write_bytes(beat)
    assert triage([str(watch)]).verdict == "INSUFFICIENT"

"""Lines of the kernel's log beside torchrun's table: a pid names a process of one host, and only for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.pasted import evidence
from harness.triage.run import triage
from reports.model import Verdict

ROW = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : {at}
  host      : {host}
  rank      : {rank} (local_rank: 2)
  exitcode  : {code} (pid: 4107)
  error_file: <N/A>
  traceback : Signal received by PID 4107
============================================================
"""
KILL = "Memory cgroup out of memory: Killed process 4107 (python3) total-vm:90123456kB, anon-rss:61234567kB"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4107, name=python3, GPU has fallen off the bus."
SYSLOG = "Nov 30 10:02:09 {host} kernel: {words}"


def row(host: str = "nodea", rank: int = 2, code: int = -9, at: str = "2026-11-30_10:02:11") -> str:
    return ROW.format(host=host, rank=rank, code=code, at=at)


def judged(folder: Path, **texts: str) -> Verdict:
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text + "\n")
    verdict = triage([str(folder / f"{name}.log") for name in texts])
    assert verdict.verdict == "INSUFFICIENT"
    return verdict


@pytest.mark.parametrize(
    "form",
    [
        "Nov 30 10:02:09 {host} kernel: [98123.100100] {words}",
        "Nov 30 10:02:09 {host} kernel: {words}",
        "2026-11-30T10:02:09.123456+00:00 {host} kernel: [98123.1] {words}",
        "2026-11-30T10:02:09+0000 {host} kernel: {words}",
    ],
)
@pytest.mark.parametrize(("words", "what"), [(KILL, "by the kernel for memory"), (XID, "a GPU error")])
@pytest.mark.parametrize(
    ("logged", "its", "is_same"),
    [
        ("nodea", "nodea", True),
        ("nodea", "nodea.cluster.local", True),  # torchrun writes the full name
        ("nodea", "localhost", True),  # which names no host, and one process alone has the pid
        ("nodea", "10.0.0.7", True),
        ("nodeb", "nodea", False),
        ("nodeb", "nodea.cluster.local", False),
        ("node", "nodea", False),
    ],
)
def test_a_line_of_the_kernel_explains_a_death_on_its_own_host_only(
    tmp_path: Path, form: str, words: str, what: str, logged: str, its: str, is_same: bool
) -> None:
    verdict = judged(tmp_path, run=row(its), kern=form.format(host=logged, words=words))
    assert (what in verdict.reason) is is_same and "rank 2" in verdict.reason


def test_of_two_hosts_with_one_pid_the_line_explains_that_of_its_host(tmp_path: Path) -> None:
    tables = {"a": row("nodea", 2), "b": row("nodeb", 6)}
    verdict = judged(tmp_path, **tables, kern=SYSLOG.format(host="nodeb", words=KILL))
    assert "rank 6 on nodeb was killed by the kernel" in verdict.reason
    assert any(line.startswith("after it rank 2") for line in verdict.evidence)
    # The control: a line without a host is of neither.
    assert "by the kernel" not in judged(tmp_path, **tables, kern=f"[98123.1] {KILL}").reason


def test_lines_of_two_hosts_explain_no_death_on_a_host_without_a_name(tmp_path: Path) -> None:
    lines = "\n".join(SYSLOG.format(host=host, words=KILL) for host in ("nodea", "nodeb"))
    assert "by the kernel" not in judged(tmp_path, run=row("localhost"), kern=lines).reason


@pytest.mark.parametrize(
    ("stamp", "ended", "is_near"),
    [
        ("Nov 30 10:02:09 nodea kernel:", "2026-11-30_10:02:11", True),
        ("Nov 29 21:02:09 nodea kernel:", "2026-11-30_10:02:11", True),  # of another time zone
        ("Nov 26 08:00:00 nodea kernel:", "2026-11-30_10:02:11", False),
        ("2026-11-26T08:00:00.1+00:00 nodea kernel:", "2026-11-30_10:02:11", False),
        ("[Thu Nov 26 08:00:00 2026]", "2026-11-30_10:02:11", False),
        ("[Mon Nov 30 10:02:09 2026]", "2026-11-30_10:02:11", True),
        ("Dec 31 23:59:59 nodea kernel:", "2027-01-01_00:00:01", True),
        ("Feb 28 23:59:59 nodea kernel:", "2027-03-01_00:00:01", True),
        ("[98123.100100]", "2026-11-30_10:02:11", True),  # seconds since the start of the host: no date to compare
    ],
)
def test_a_line_of_the_kernel_days_from_a_death_explains_nothing(
    tmp_path: Path, stamp: str, ended: str, is_near: bool
) -> None:
    verdict = judged(tmp_path, run=row(code=-6, at=ended), kern=f"{stamp} {XID}")
    assert ("a GPU error" in verdict.reason) is is_near and "rank 2" in verdict.reason


def test_the_host_and_the_time_of_a_line_of_the_kernel_are_read(tmp_path: Path) -> None:
    (tmp_path / "kern.log").write_text(SYSLOG.format(host="nodeb", words=KILL) + "\n")
    read = evidence([str(tmp_path / "kern.log")])
    assert read is not None
    [error] = read.errors
    assert (error.host, error.pid, error.at) == ("nodeb", 4107, (11, 30, 36129.0))

"""Two live processes with a connection between them, looked at by the pid of the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.triage.run import triage

PROGRAM = """
import os, socket, time
ours, its = socket.socketpair()
if os.fork() == 0:
    ours.close()
    print("ready", flush=True)
    its.recv(1)
    os._exit(0)
its.close()
{}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("waits", "verdict"),
    [
        pytest.param("ours.recv(1)", "HUNG", id="for each other"),
        pytest.param("ours.settimeout(3600); ours.recv(1)", "INSUFFICIENT", id="one of them for a time"),
        pytest.param("while True: time.sleep(300)", "HEALTHY", id="one of them for work"),
    ],
)
def test_two_that_read_from_one_connection_are_no_pass(tmp_path: Path, waits: str, verdict: str) -> None:
    (tmp_path / "job.py").write_text(PROGRAM.format(waits))
    job = subprocess.Popen([sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert job.stdout is not None and job.stdout.readline()
        its = triage([str(job.pid)], str(tmp_path / "evidence"), longer_s=0)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    assert its.verdict == verdict and its.triage is not None and not its.triage.culprits, its.reason
    assert len(its.triage.cycle) == (2 if verdict == "HUNG" else 0)

"""A look that does not decide is followed by a longer one, which tells what moved and makes no healthy job HUNG."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.triage.run import triage
from reports.model import Verdict

WAITS = """
import threading, time
threading.Thread(target=time.sleep, args=(9999,), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""
WORKS_AT_TIMES = """
import threading, time
answer = threading.Event()
def work():
    while not answer.is_set():
        time.sleep(4)
        end = time.monotonic() + 2.5
        while time.monotonic() < end: sum(range(1000))
threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
answer.wait()
"""


def looked(text: str, folder: Path, longer_s: float) -> tuple[Verdict, list[str]]:
    lines: list[str] = []
    program = folder / "job.py"
    program.write_text(text)
    job = subprocess.Popen([sys.executable, str(program)], stdout=-1, start_new_session=True)
    try:
        assert job.stdout is not None and job.stdout.readline()
        return triage([str(job.pid)], str(folder / "evidence"), tell=lines.append, longer_s=longer_s), lines
    finally:
        job.kill()
        job.communicate()


def test_a_look_that_does_not_decide_is_followed_by_a_longer_one(tmp_path: Path) -> None:
    verdict, lines = looked(WAITS, tmp_path, 4.0)
    assert verdict.verdict == "INSUFFICIENT" and ["4 s more" in line for line in lines] == [True]
    assert any("stood at the same place" in line for line in verdict.evidence)


def test_without_a_longer_look_nothing_of_it_is_told(tmp_path: Path) -> None:
    verdict, lines = looked(WAITS, tmp_path, 0.0)
    assert verdict.verdict == "INSUFFICIENT" and not lines and not any("stood at" in line for line in verdict.evidence)


@pytest.mark.slow
def test_work_that_comes_at_times_is_no_hang(tmp_path: Path) -> None:
    verdict, _ = looked(WORKS_AT_TIMES, tmp_path, 7.0)
    assert verdict.verdict != "HUNG"

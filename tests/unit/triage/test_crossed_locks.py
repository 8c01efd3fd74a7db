"""Two threads of one process that wait for each other's locks are in the headline, whoever else waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.run import triage

PROGRAM = """import threading

a, b = threading.Lock(), threading.Lock()


def one():
    with a:
        with b:
            work()


def two():
    with b:
        with a:
            work()


def work():
    pass
"""
DUMP = """Process 4711: python {program}
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    one ({program}:{first})
    <module> ({program}:20)
Thread 4712 (idle): "Thread-1 (two)"
    two ({program}:{second})
    run (threading.py:982)
"""


@pytest.mark.parametrize(
    ("first", "second", "crossed"),
    [
        pytest.param(8, 14, True, id="each waits for the other's lock"),
        pytest.param(7, 14, False, id="the first has no lock yet"),
        pytest.param(9, 14, False, id="the first works within both"),
        pytest.param(8, 19, False, id="the other has gone on"),
    ],
)
def test_crossed_locks_are_in_the_headline(tmp_path: Path, first: int, second: int, crossed: bool) -> None:
    program = tmp_path / "deadlock.py"
    program.write_text(PROGRAM)
    (tmp_path / "dump.txt").write_text(DUMP.format(program=program, first=first, second=second))
    verdict = triage([str(tmp_path / "dump.txt")])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert ("deadlock.py:8 and deadlock.py:14" in verdict.reason) is crossed
    assert ("locks" in verdict.triage.next[0]) is crossed

"""Threads of a pasted process that stand in the user's code beside its main thread are told, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.run import triage

MAIN = 'Thread 11473 (idle): "MainThread"\n    train (abba.py:15)\n    <module> (abba.py:18)\n'
THREAD = "    Thread.run (threading.py:982)\n    Thread._bootstrap (threading.py:1002)\n"
LOGGER = 'Thread 11477 ({}): "logger"\n{}    logger (abba.py:9)\n' + THREAD
IN_LOCK = "    acquire (threading.py:327)\n"
CONSUMER = (
    'Thread 11478 (idle): "consumer"\n    wait (threading.py:327)\n    get (queue.py:171)\n    take (job.py:3)\n'
    + THREAD
)


def judged(folder: Path, *threads: str) -> tuple[str, list[str]]:
    """The headline, and the lines of evidence about the thread `logger`."""
    (folder / "x.txt").write_text("Process 11473: python abba.py\n\n" + "".join(threads))
    verdict = triage([str(folder / "x.txt")])
    assert verdict.verdict == "INSUFFICIENT"
    assert not any("consumer" in line for line in verdict.evidence)
    return verdict.reason, [line for line in verdict.evidence if "logger" in line]


@pytest.mark.parametrize("inner", ["", IN_LOCK], ids=["lock-of-C", "lock-of-threading"])
def test_every_thread_that_may_wait_for_a_lock_is_told(tmp_path: Path, inner: str) -> None:
    headline, lines = judged(tmp_path, MAIN, LOGGER.format("idle", inner), CONSUMER)
    assert "abba.py:15" in headline and "abba.py:9" in headline
    assert len(lines) == 1 and "abba.py:9" in lines[0]


def test_a_thread_that_computes_is_not_told(tmp_path: Path) -> None:
    assert judged(tmp_path, MAIN, LOGGER.format("active", ""))[1] == []
    assert judged(tmp_path, MAIN.replace("idle", "active"), LOGGER.format("idle", ""))[1] == []

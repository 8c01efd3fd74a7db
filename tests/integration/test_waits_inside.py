"""A main thread that waits inside its process: the verdict says for which thread, and where that one stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.triage.run import triage
from reports.model import Verdict

HEAD = """
import threading, time
from concurrent.futures import ThreadPoolExecutor, wait
lock, second, taken = threading.Lock(), threading.Lock(), threading.Event()
def save():
    with lock:
        taken.set()
        threading.Event().wait()
def cross():
    with lock:
        taken.set()
        with second:
            pass
def part():
    taken.set()
    threading.Event().wait()
def start(work):
    thread = threading.Thread(target=work, name="saver", daemon=True)
    thread.start()
    taken.wait()
    print("ready", flush=True)
    return thread
"""
TOLD = {
    "a join": ("start(save).join()", ["joins a thread", "thread saver at job.py:8 in save"]),
    "a lock": ("start(save)\nwith lock: pass", ["waits for lock, which thread saver keeps", "job.py:8 in save"]),
    "two locks": (
        "with second:\n    start(cross)\n    with lock: pass",
        ["waits for lock, which thread saver keeps", "waits for second, which thread MainThread keeps", "each waits"],
    ),
    "a future": (
        "pool = ThreadPoolExecutor(3, 'reward')\npool.submit(int).result(); future = pool.submit(part)\ntaken.wait()\n"
        "print('ready', flush=True)\nfuture.result()",
        ["waits for a future", "1 of ", "thread reward_0 at job.py:16 in part"],
    ),
    "a future of a pool whose threads wait for futures": (
        "pool = ThreadPoolExecutor(1, 'reward')\ndef nested():\n    taken.set()\n    pool.submit(part).result()\n"
        "future = pool.submit(nested)\ntaken.wait()\nprint('ready', flush=True)\nfuture.result()",
        ["waits for a future", "1 of 1 threads of its pools work, 1 of these wait for futures as well"],
    ),
}
NOT_TOLD = {
    "a lock that no thread keeps by its text": "lock.acquire(); print('ready', flush=True)\n"
    "threading.Thread(target=time.sleep, args=(9999,), daemon=True).start()\nlock.acquire()",
    "a lock of another name": "start(save)\nthird = threading.Lock(); third.acquire()\nwith third: pass",
}


def judged(text: str, folder: Path) -> Verdict:
    (folder / "job.py").write_text(HEAD + text)
    job = subprocess.Popen([sys.executable, str(folder / "job.py")], stdout=-1, start_new_session=True)
    try:
        assert job.stdout is not None and job.stdout.readline()
        return triage([str(job.pid)], str(folder / "evidence"), longer_s=0)
    finally:
        job.kill()
        job.communicate()


@pytest.mark.parametrize(("text", "words"), TOLD.values(), ids=list(TOLD))
def test_the_thread_that_is_waited_for_is_told(tmp_path: Path, text: str, words: list[str]) -> None:
    verdict = judged(text, tmp_path)
    assert verdict.verdict == "HUNG", verdict.reason
    assert [all(word in line for word in words) for line in verdict.evidence].count(True) == 1, verdict.evidence


@pytest.mark.parametrize("text", NOT_TOLD.values(), ids=list(NOT_TOLD))
def test_no_thread_is_told_that_the_text_does_not_show(tmp_path: Path, text: str) -> None:
    assert not any("keeps" in line for line in judged(text, tmp_path).evidence)

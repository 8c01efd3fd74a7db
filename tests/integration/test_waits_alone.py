"""Programs of one process or a small family that stand still for ever, and those that look like them and go on.

What nobody can end, by the evidence, is HUNG with its place. What somebody who was not seen may still end is never
HEALTHY. `harness triage PID` looks at each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.triage.run import triage
from reports.model import Verdict

HEAD = """
import multiprocessing, os, queue, signal, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
lock, fork = threading.Lock(), multiprocessing.get_context("fork")
def ready(): print("ready", flush=True)
def keep():
    with lock: time.sleep(1)
def load(*queues):
    with lock:
        for its in queues: its.put(1)
def held():
    threading.Thread(target=keep).start()
    while not lock.locked(): time.sleep(0.01)
def forever(): threading.Event().wait()
def taken_twice():
    with lock: again()
def again():
    with lock: pass
def run(text): subprocess.run([sys.executable, "-c", text], check=True)
"""
HANGS = {
    "a lock that its only thread takes twice": ("ready()\ntaken_twice()", "K6", "in again"),
    "a lock that is acquired twice": ("ready()\nlock.acquire()\nlock.acquire()", "K4", "in <module>"),
    "joined workers with a copied lock": (
        "held()\nworkers = [fork.Process(target=load) for _ in range(2)]\nfor its in workers: its.start()\nready()\n"
        "for its in workers: its.join()", "K4", "in load"),
    "workers with a copied lock, and a queue": (
        "held()\nitems = fork.Queue()\nfor _ in range(2): fork.Process(target=load, args=(items,)).start()\nready()\n"
        "items.get()", "K4", "in load"),
    "os.fork with a copied lock": (
        "held()\npids = []\nfor _ in range(2):\n    pids.append(os.fork())\n    if not pids[-1]: load(); os._exit(0)\n"
        "ready()\nfor pid in pids: os.waitpid(pid, 0)", "K4", "in load"),
    "a pool with a copied lock": ("held()\nwith fork.Pool(2) as pool:\n    ready()\n    pool.map(load, range(9))",
                                  "K4", "in load"),
    "an executor with a copied lock": (
        "held()\nwith ProcessPoolExecutor(2, mp_context=fork) as pool:\n    ready()\n    list(pool.map(load, range(9)))",
        "K4", "in load"),
    "a child whose event nobody sets": (
        "its = fork.Process(target=forever)\nits.start()\nready()\nits.join()", "K4", "in forever"),
    "children whose events nobody sets": (
        "text = 'import threading\\nthreading.Semaphore(0).acquire()'\n"
        "children = [subprocess.Popen([sys.executable, '-c', text]) for _ in range(2)]\ntime.sleep(1)\nready()\n"
        "for child in children: child.wait()", "K4", "<string>:2 in <module>"),
}  # fmt: skip
"""Program, kind of hang, and the end of the culprits' place."""


def judged(text: str, folder: Path, child: bool = False) -> Verdict:
    (folder / "job.py").write_text(HEAD + text)
    job = subprocess.Popen([sys.executable, "job.py"], cwd=folder, stdout=-1, start_new_session=True)
    try:
        assert job.stdout is not None and job.stdout.readline()
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        return triage([children[0] if child else str(job.pid)], str(folder / "evidence"))
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


@pytest.mark.parametrize("how", HANGS)
def test_a_wait_that_nobody_can_end_is_named_with_its_place(tmp_path: Path, how: str) -> None:
    text, hang, place = HANGS[how]
    verdict = judged(text, tmp_path)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", hang), verdict.reason
    assert verdict.triage.culprits and all(its.frame.endswith(place) for its in verdict.triage.culprits)

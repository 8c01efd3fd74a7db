"""Ranks of a gloo job, one of which waits inside its own process: what it waits for is told, with what keeps it.

Planted beside each is a rank that only looks so: somebody may still end its wait.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from harness.triage.rules.pauses import FRESH_S
from harness.triage.run import triage
from reports.model import Verdict

HEAD = """
import multiprocessing, os, queue, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist
lock, never, ready = threading.Lock(), threading.Event(), threading.Event()
batches, later = queue.Queue(), queue.Queue()
shared = multiprocessing.get_context("fork").Lock()
def keep():
    with lock:
        ready.set()
        never.wait()
def work():
    with lock:
        ready.set()
        time.sleep(3000)
def save():
    with lock:
        return 1
def load():
    batches.put(1)
    raise ValueError("corrupt shard")
def late():
    time.sleep(3000)
    later.put(1)
def die():
    with shared:
        os.kill(os.getpid(), signal.SIGKILL)
def beside(target):
    thread = threading.Thread(target=target, name=target.__name__)
    thread.daemon = True
    thread.start()
    return thread
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
print("ready", flush=True)
if rank == 1:
"""
TAIL = """
dist.all_reduce(torch.ones(3))
"""
STANDS = {
    "a lock": ("beside(keep); ready.wait()\nwith lock: pass", ["for lock", "thread keep keeps"]),
    "a result": ("pool = ThreadPoolExecutor()\nwith lock: pool.submit(save).result()", ["keeps lock", "needs at"]),
    "a thread": ("with lock: beside(save).join()", ["joins thread save", "keeps lock", "needs at"]),
    "a queue": (
        "threading.Thread(target=load, name='loader').start()\nbatches.get(); batches.get()",
        ["batches.get()", "load", "no thread runs it"],
    ),
    "a lock of a killed child": (
        "child = multiprocessing.get_context('fork').Process(target=die)\nchild.start(); child.join()\n"
        "with shared: pass",
        ["for shared", "nobody can release"],
    ),
}
MAY_GO_ON = {
    "a lock whose keeper sleeps": "beside(work); ready.wait()\nwith lock: pass",
    "a queue that is filled later": "beside(late)\nlater.get()",
}


def judged(text: str, folder: Path) -> Verdict:
    body = "".join(f"    {line}\n" for line in text.splitlines())
    (folder / "job.py").write_text(HEAD + body + TAIL)
    ranks = []
    for rank in range(2):
        with (folder / f"rank{rank}.log").open("w") as log:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "job.py", str(folder / "meet")],
                    env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
                    cwd=folder, stdout=-1, stderr=log, start_new_session=True,
                )
            )  # fmt: skip
    try:
        for process in ranks:
            assert process.stdout is not None and process.stdout.readline()
        verdicts: list[Verdict] = []

        def decided() -> bool:
            out = folder / f"evidence{len(verdicts)}"
            verdicts.append(triage([str(process.pid) for process in ranks], str(out), longer_s=FRESH_S))
            body = verdicts[-1].triage
            return verdicts[-1].verdict == "HUNG" or (body is not None and bool(verdicts[-1].missing) and any(
                line.startswith("who ends") for line in verdicts[-1].missing))  # fmt: skip

        until(decided, what=lambda: verdicts[-1].reason)
        return verdicts[-1]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def of(cases: dict[str, object], by_day: str) -> list[object]:
    return [pytest.param(case, id=name, marks=() if name == by_day else pytest.mark.night)
            for name, case in cases.items()]  # fmt: skip


@pytest.mark.parametrize("case", of(STANDS, by_day="a result"))  # type: ignore[arg-type]
def test_what_keeps_a_rank_is_told(tmp_path: Path, case: tuple[str, list[str]]) -> None:
    text, words = case
    verdict = judged(text, tmp_path)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4"), verdict.reason
    assert [party.rank for party in verdict.triage.culprits] == [1]
    assert all(word in verdict.reason for word in words), verdict.reason
    assert "job.py:" in verdict.reason and "py-spy" not in verdict.triage.next[0]


@pytest.mark.parametrize("text", of(MAY_GO_ON, by_day="a lock whose keeper sleeps"))  # type: ignore[arg-type]
def test_a_rank_that_may_go_on_is_not_named(tmp_path: Path, text: str) -> None:
    verdict = judged(text, tmp_path)
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits

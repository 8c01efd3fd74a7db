"""A lock of multiprocessing: who can still release it, and what is told where nobody can."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triage_evidence import evidence, process
from waiting import until

from harness.triage import judge
from harness.triage.collect import futexes, shared_locks
from harness.triage.evidence import Frame, Process, Sample, SharedLock
from reports.model import Verdict

PATH, SYNCHRONIZE = "/dev/shm/sem.mp-1 (deleted)", "/usr/lib/python3.11/multiprocessing/synchronize.py"
PARENT, FIRST, SECOND, BESIDE = 70, 71, 72, 73
ALL = (PARENT, FIRST, SECOND)


def looks(its: Process, **fields: object) -> Process:
    changed = tuple(dataclasses.replace(look, **fields) for look in its.samples)  # type: ignore[arg-type]
    return dataclasses.replace(its, samples=changed)


def waiter(pid: int, *, within: str = "__enter__", sharers: tuple[int, ...] = ALL, **lock: object) -> Process:
    its = process(pid, "process", "main", ppid=PARENT)
    main = dataclasses.replace(
        its.samples[0].threads[0], frames=(Frame(within, SYNCHRONIZE, 95), Frame("work", "/job/train.py", 7))
    )
    shared = SharedLock(PATH, sharers, **lock)  # type: ignore[arg-type]
    its = looks(its, threads=(main,), in_shared_lock=True, main_switches=7, wchan="futex_do_wait")
    return dataclasses.replace(its, shared_lock=shared)


def parent(**fields: object) -> Process:
    return looks(process(PARENT, "process", "main:5 communicate"), **{"wchan": "do_wait", **fields})


def judged(*processes: Process) -> Verdict:
    return judge.triage(evidence(*processes, source="live", stall_s=0.0))


def test_a_lock_for_which_all_wait_who_could_release_it_is_a_hang() -> None:
    verdict = judged(parent(), waiter(FIRST), waiter(SECOND))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4"), verdict.reason
    assert [(party.pid, party.frame) for party in verdict.triage.culprits] == [
        (FIRST, "train.py:7 in work"), (SECOND, "train.py:7 in work"),
    ]  # fmt: skip


def test_a_sibling_that_was_killed_is_told() -> None:
    died = dataclasses.replace(process(BESIDE, "process"), ppid=PARENT, exit_code=-9, samples=(Sample(0.0, "Z"),))
    verdict = judged(parent(), waiter(FIRST), waiter(SECOND), died)
    assert verdict.verdict == "HUNG" and any("SIGKILL" in line for line in (verdict.reason, *verdict.evidence))


@pytest.mark.parametrize(("path", "verdict"), [("/dev/shm/sem.mine", "INSUFFICIENT"), (PATH, "HUNG")])
def test_a_lock_that_has_a_name_may_be_released_by_whoever_opens_it(path: str, verdict: str) -> None:
    waiters = (
        dataclasses.replace(each, shared_lock=dataclasses.replace(each.shared_lock, path=path))  # type: ignore[type-var]
        for each in (waiter(FIRST), waiter(SECOND))
    )
    assert judged(parent(), *waiters).verdict == verdict


NAMED = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
semaphore = libc.sem_open(sys.argv[1].encode(), 0o100, 0o600, 0)
if sys.argv[2] == "unlinked":
    libc.sem_unlink(sys.argv[1].encode())
libc.sem_wait(ctypes.c_void_p(semaphore))
"""


@pytest.mark.parametrize("kept", ["named", "unlinked"])
def test_the_name_of_a_semaphore_is_found_by_its_file(kept: str) -> None:
    name = f"/rlhf-harness-test-{os.getpid()}"
    child = subprocess.Popen([sys.executable, "-S", "-c", NAMED, name, kept])
    try:
        until(lambda: futexes.in_shared_lock(child.pid))
        path = shared_locks.look({child.pid: child.pid})[child.pid].path
        assert (path == f"/dev/shm/sem.{name[1:]}") is (kept == "named")
        assert path.endswith(" (deleted)") is (kept == "unlinked")
    finally:
        child.kill()
        child.wait()
        Path(f"/dev/shm/sem.{name[1:]}").unlink(missing_ok=True)


SLEEPS = looks(dataclasses.replace(process(BESIDE, "process", "main:9"), ppid=PARENT), wchan="hrtimer_nanosleep")


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param((parent(), waiter(FIRST), waiter(SECOND, sharers=(*ALL, 99))), id="a sharer unseen"),
        pytest.param((parent(), waiter(FIRST, running=(FIRST,)), waiter(SECOND, running=(FIRST,))), id="a side thread"),
        pytest.param((parent(), waiter(FIRST, running=(PARENT,))), id="a thread of the parent"),
        pytest.param((parent(), waiter(FIRST), SLEEPS), id="a parent that may wait for another child"),
        pytest.param((looks(process(PARENT, "process", "main:5"), wchan="hrtimer_nanosleep"), waiter(FIRST)),
                     id="a holder that sleeps"),
        pytest.param((parent(), looks(waiter(FIRST), timed=True)), id="a time limit"),
        pytest.param((parent(), looks(waiter(FIRST), handles=("SIGUSR1",))), id="the handler of a signal"),
        pytest.param((waiter(FIRST, within="wait", sharers=(FIRST,)),), id="an event that a signal may precede"),
    ],
)  # fmt: skip
def test_a_lock_that_somebody_may_release_blames_nobody(processes: tuple[Process, ...]) -> None:
    verdict = judged(*processes)
    assert verdict.verdict != "HUNG", verdict.reason


@pytest.mark.slow
def test_the_processes_that_can_release_a_lock_are_those_that_have_it_mapped() -> None:
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    lock.acquire()
    children = [context.Process(target=lock.acquire) for _ in range(2)]
    for child in children:
        child.start()
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        pids = [child.pid or 0 for child in children]
        while not all(map(futexes.in_shared_lock, pids)):
            pass
        locks = shared_locks.look({pid: pid for pid in (*pids, stranger.pid)})
        assert set(locks) == set(pids) and stranger.pid not in locks[pids[0]].sharers
        assert {*pids} < set(locks[pids[0]].sharers)
    finally:
        for child in children:
            child.kill()
            child.join()
        stranger.communicate(b"\n")

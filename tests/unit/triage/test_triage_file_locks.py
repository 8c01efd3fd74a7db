"""Locks of files: the kernel's list is read, and a wait for one is said with whoever holds it."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triage_evidence import compared, evidence, frames, group, rank
from waiting import until

from harness.triage.collect import locks
from harness.triage.evidence import FileLock, Frame, Process
from harness.triage.judge import triage
from reports.model import Verdict

HOLDER = FileLock("host", "/data/cache.lock", 77, "python -S prepare.py")
LOOP = "def acquire(lock):\n    while not lock.tried():\n        time.sleep(1)\n"
WAITS = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


@pytest.mark.slow
def test_who_holds_a_lock_and_who_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"

    def mine() -> list[FileLock]:
        return [lock for lock in locks.look("h") if lock.path == str(path)]

    with open(path, "w") as file:
        assert not mine()
        fcntl.flock(file, fcntl.LOCK_EX)
        waiter = subprocess.Popen([sys.executable, "-S", "-c", WAITS, str(path)])
        try:
            until(lambda: mine()[0].waiters == (waiter.pid,))
            [lock] = mine()
        finally:
            waiter.kill()
            waiter.wait()
    assert lock.pid == os.getpid() and lock.command and not mine()


def polling(folder: Path, package: str) -> Process:
    """Rank 1 sleeps in a loop of a package, below a line of the user's."""
    file = folder / "lib" / "site-packages" / package / "api.py"
    file.parent.mkdir(parents=True)
    file.write_text(LOOP)
    stack = (Frame("acquire", str(file), 3), *frames("main:40"))
    subject = rank(1, "main", world=2, wchan="hrtimer_nanosleep")
    looks = (dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=stack),))
             for look in subject.samples)  # fmt: skip
    return dataclasses.replace(subject, samples=tuple(looks))


def judged(subject: Process, *file_locks: FileLock) -> Verdict:
    host = dict.fromkeys(["host"], subject.host)
    waiting = rank(0, "main:10 step:42 all_reduce", world=2)
    return triage(
        evidence(waiting, subject, locks=tuple(dataclasses.replace(lock, **host) for lock in file_locks)),
        compared(group("0", {0: (6, "all_reduce"), 1: 5})),
    )


@pytest.mark.parametrize(("package", "named"), [("filelock", True), ("requests", False)])
def test_a_loop_that_tries_to_lock_a_file_names_the_locks(tmp_path: Path, package: str, named: bool) -> None:
    verdict = judged(polling(tmp_path, package), HOLDER)
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits  # type: ignore[union-attr]
    assert ("/data/cache.lock is locked by 77 (python -S prepare.py)" in verdict.evidence) is named


def test_its_own_lock_is_not_what_it_waits_for(tmp_path: Path) -> None:
    subject = polling(tmp_path, "filelock")
    assert not judged(subject, dataclasses.replace(HOLDER, pid=subject.pid)).evidence


@pytest.mark.parametrize("waits", [True, False])
def test_a_rank_that_waits_for_a_lock_in_the_kernel_says_whose(waits: bool) -> None:
    subject = rank(1, "main:5 build", world=2)
    verdict = judged(subject, dataclasses.replace(HOLDER, waiters=(subject.pid,) if waits else ()))
    [culprit] = verdict.triage.culprits  # type: ignore[union-attr]
    assert verdict.triage.hang == "K4" and culprit.rank == 1  # type: ignore[union-attr]
    assert ("/data/cache.lock, which 77 (python -S prepare.py) holds" in culprit.why) is waits


@pytest.mark.parametrize(("works", "verdict"), [(False, "INSUFFICIENT"), (True, "HEALTHY")])
def test_without_recorders_who_waits_for_a_lock_is_said(works: bool, verdict: str) -> None:
    holder = rank(2, "main:5 build", "main:9 load" if works else None, world=3)
    waiter = rank(1, "main:5 build", world=3)
    lock = FileLock(waiter.host, "/data/cache.lock", holder.pid, "python prepare.py", (waiter.pid,))
    seen = evidence(
        rank(0, "main:10 step:42 all_reduce", world=3), waiter, holder, source="live", stall_s=0.0, locks=(lock,)
    )
    looked = triage(seen, None)
    assert looked.verdict == verdict
    assert ("for the lock of a file" in looked.reason) is not works

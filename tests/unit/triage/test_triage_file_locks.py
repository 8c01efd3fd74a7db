"""Locks of files: the kernel's list is read, and a wait for one is said with whoever holds it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import compared, evidence, frames, group, process, rank
from waiting import until

from harness.triage.collect import locks, proc
from harness.triage.evidence import FileLock, Frame, Process, Thread
from harness.triage.judge import triage
from reports.model import Verdict
from reports.sections.answer import of

HOLDER = FileLock("host", "/data/cache.lock", 77, "python -S prepare.py")
LOOP = "def acquire(lock):\n    while not lock.tried():\n        time.sleep(1)\n"
WAITS = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


@pytest.mark.slow
def test_who_holds_a_lock_and_who_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"

    def mine() -> list[FileLock]:
        return [lock for lock in locks.look("h", (os.getpid(),), 0.0) if lock.path == str(path)]

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


MANY = """
import fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
for _ in range(3):
    if not os.fork():
        fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)
os.wait()
"""


@pytest.mark.slow
def test_each_of_several_that_wait_for_a_lock_is_listed(tmp_path: Path) -> None:
    """The kernel sets in the line of each that waits behind another."""
    path = tmp_path / "cache.lock"
    with running(MANY, str(path)) as holder:
        until(lambda: (lock := concerning(path, holder.pid, window_s=0.0)) is not None and len(lock.waiters) == 3)


# A lock of an open file description (F_OFD_SETLK, F_OFD_SETLKW), for which the kernel's list has no process.
DESCRIBED = """
import fcntl, os, struct, sys, time
file = open(sys.argv[1], "w")
fcntl.fcntl(file, int(sys.argv[2]), struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
for _ in range(int(sys.argv[3])):
    os.fork()
time.sleep(60)
"""
TAKES, WAITS_FOR = "37", "38"


@pytest.mark.slow
@pytest.mark.parametrize("children", ["0", "1"])
def test_a_lock_that_the_kernel_s_list_names_nobody_for(tmp_path: Path, children: str) -> None:
    """The descriptors say it: of its holder, also where a child has inherited it, and of who waits."""
    path = tmp_path / "cache.lock"
    with running(DESCRIBED, str(path), TAKES, children) as holder:
        until(lambda: any(row.path == str(path) for row in locks._rows()))
        with running(DESCRIBED, str(path), WAITS_FOR, "0") as waiter:
            until(lambda: any(row.path == str(path) and row.waiters for row in locks._rows()))
            lock = concerning(path, waiter.pid, window_s=0.0)
    assert lock is not None and (lock.pid, lock.waiters) == (holder.pid, (waiter.pid,))


def test_of_several_that_share_a_lock_and_have_no_common_parent_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_everybody", lambda: [7, 8, 9])
    monkeypatch.setattr(locks, "_locked_path", lambda pid, inode: "/data/cache.lock" if pid in (7, 8) else "")
    for table, named in (({7: 1, 8: 1, 9: 1}, 0), ({7: 8, 8: 1, 9: 1}, 8)):
        monkeypatch.setattr(proc, "parents", lambda table=table: table)
        assert locks._holder(-1, "8:1:5") == (named, "/data/cache.lock")


def test_who_waits_for_such_a_lock_is_named_only_if_the_kernel_counts_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_everybody", lambda: [7, 8, 9])
    monkeypatch.setattr(locks, "_sleeps_in_lock", lambda pid: pid in (7, 8))
    monkeypatch.setattr(locks, "_awaited", lambda pid, inode: "/data/cache.lock")
    assert locks._unnamed((-1, -1), "8:1:5", {9}) == [7, 8]
    assert locks._unnamed((-1,), "8:1:5", {9}) == []
    assert locks._unnamed((-1,), "8:1:5", {8}) == [7]
    assert locks._unnamed((12,), "8:1:5", {9}) == []


HOLDS = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); "
TRIES = "import sys, time\nwhile True: open(sys.argv[1]).close(); time.sleep(0.01)"


@contextlib.contextmanager
def running(text: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", text, *arguments], start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def concerning(path: Path, *pids: int, window_s: float = 0.4) -> FileLock | None:
    """The lock of a file, if it concerns the processes of a job."""
    return next((lock for lock in locks.look("h", pids or (os.getpid(),), window_s) if lock.path == str(path)), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "idle"),
    [("time.sleep(3000)", True), ("exec('while 1: pass')", False), ("exec('while 1: time.sleep(0.01)')", False)],
)
def test_a_holder_beside_the_job_is_looked_at_where_somebody_tries(tmp_path: Path, does: str, idle: bool) -> None:
    path = tmp_path / "cache.lock"
    path.touch()
    with running(HOLDS + does, str(path)) as holder:
        until(lambda: concerning(path, holder.pid, window_s=0.0))
        assert concerning(path) is None, "it concerns nobody of the job"
        works, looks = "pass" in does, []

        def shows_it() -> bool:
            """One look in which a busy machine lets the holder work, if it does."""
            looks.append(concerning(path))
            lock = looks[-1]
            return lock is not None and lock.tries >= 2 and lock.idle is idle and bool(lock.works) is works

        with running(TRIES, str(path)):
            until(shows_it)
    (lock,) = looks[-1:]
    assert lock is not None and lock.pid == holder.pid and not lock.waiters and not lock.abandoned


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "idle"), [(100, False), (3000, True)])
def test_a_holder_that_wakes_up_soon_is_not_idle(tmp_path: Path, seconds: int, idle: bool) -> None:
    path = tmp_path / "cache.lock"
    path.touch()
    with running(f"{HOLDS}time.sleep({seconds})", str(path)) as holder, running(TRIES, str(path)):
        until(lambda: (lock := concerning(path)) is not None and lock.tries >= 2 and lock.idle is idle)
        lock = concerning(path)
    assert lock is not None and (lock.pid, lock.idle) == (holder.pid, idle)


@pytest.mark.slow
def test_a_lock_that_a_child_inherited_is_that_child_s(tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    path.touch()
    forks = "import os; pid = os.fork(); pid and os._exit(0); time.sleep(3000)"
    with running(HOLDS + forks, str(path)) as parent:
        parent.wait()
        [heir] = [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if proc.arguments(pid)[-1:] == (str(path),)
        ]
        lock = concerning(path, heir)
    assert lock is not None and lock.pid == heir


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


def test_a_rank_that_stands_beside_a_lock_is_absent() -> None:
    verdict = judged(rank(1, "main:5 build", world=2), HOLDER)
    [culprit] = verdict.triage.culprits  # type: ignore[union-attr]
    assert verdict.triage.hang == "K4" and culprit.rank == 1  # type: ignore[union-attr]
    assert "77 (python -S prepare.py)" not in culprit.why


@pytest.mark.parametrize("left_over", [True, False])
def test_a_rank_that_waits_for_a_lock_in_the_kernel_hangs_only_where_nobody_will_release_it(left_over: bool) -> None:
    subject = rank(1, "main:5 build", world=2)
    lock = LEFT_OVER if left_over else HOLDER
    verdict = judged(subject, dataclasses.replace(lock, waiters=(subject.pid,), tries=0))
    culprits = [culprit.rank for culprit in verdict.triage.culprits]  # type: ignore[union-attr]
    assert (verdict.verdict, culprits) == (("HUNG", [1]) if left_over else ("INSUFFICIENT", []))
    assert "/data/cache.lock is locked by 77 (python -S prepare.py)" in verdict.evidence


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
    assert ("cache.lock" in looked.reason) is not works


@pytest.mark.parametrize("own", [True, False])
def test_a_holder_of_the_job_is_nothing_that_an_earlier_job_left(own: bool) -> None:
    holder = process(77, "process", "main:5 build")
    waiter = process(78, "process", "main:9 build", ppid=77)
    lock = dataclasses.replace(HOLDER, host=waiter.host, waiters=(waiter.pid,))
    seen = evidence(waiter, *([holder] if own else []), source="live", stall_s=0.0, locks=(lock,))
    verdict = triage(seen, None)
    assert "cache.lock" in verdict.reason and verdict.triage is not None
    assert any("earlier job" in step for step in verdict.triage.next) is not own


LEFT_OVER = dataclasses.replace(HOLDER, tries=20, idle=True, abandoned=True, spent_s=0.02)


def test_a_lock_that_a_process_left_over_holds_hangs_whoever_tries_to_take_it(tmp_path: Path) -> None:
    verdict = judged(polling(tmp_path, "filelock"), LEFT_OVER)
    assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4")  # type: ignore[union-attr]
    assert [culprit.rank for culprit in verdict.triage.culprits] == [1]  # type: ignore[union-attr]
    assert "cache.lock" in verdict.reason and "77" in verdict.reason
    assert verdict.triage.next[0].startswith("kill 77 ")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"works": "1.40 s of CPU", "idle": False}, "SLOW"),
        ({"idle": False}, "INSUFFICIENT"),  # it wakes up, or has connections
        ({"abandoned": False}, "INSUFFICIENT"),  # somebody waits for its end
        ({"spent_s": 3.0}, "INSUFFICIENT"),  # it has built something, and may pause
        ({"tries": 1}, "INSUFFICIENT"),
        ({"tries": -1}, "INSUFFICIENT"),
        ({"pid": 0}, "INSUFFICIENT"),  # a process of another container
    ],
)
def test_a_lock_that_may_be_released_is_no_hang(tmp_path: Path, changes: dict[str, Any], verdict: str) -> None:
    pid_unseen = {"idle": False, "abandoned": False} if changes.get("pid") == 0 else {}
    answer = judged(polling(tmp_path, "filelock"), dataclasses.replace(LEFT_OVER, **{**changes, **pid_unseen}))
    assert answer.verdict == verdict and not answer.triage.culprits, answer.reason  # type: ignore[union-attr]


def test_of_several_locks_that_somebody_tries_to_take_none_is_chosen(tmp_path: Path) -> None:
    verdict = judged(polling(tmp_path, "filelock"), LEFT_OVER, dataclasses.replace(LEFT_OVER, path="/data/b.lock"))
    assert verdict.verdict == "INSUFFICIENT" and len(verdict.evidence) == 2


@pytest.mark.parametrize(
    ("stack", "verdict"), [("main:10 step:42 all_reduce", "HUNG"), ("main:9 build", "INSUFFICIENT")]
)
def test_a_rank_that_keeps_a_lock_in_a_collective_and_one_that_tries_to_take_it_wait_in_a_ring(
    tmp_path: Path, stack: str, verdict: str
) -> None:
    poller, holder = polling(tmp_path, "filelock"), rank(0, stack, world=2)
    lock = FileLock(holder.host, "/data/cache.lock", holder.pid, "python train.py", tries=20)
    pending = {0: (6, "all_reduce"), 1: 5} if verdict == "HUNG" else {0: 5, 1: 5}
    answer = triage(evidence(holder, poller, locks=(lock,)), compared(group("0", pending)))  # type: ignore[arg-type]
    assert answer.verdict == verdict and not answer.triage.culprits, answer.reason  # type: ignore[union-attr]
    assert bool(answer.triage.cycle) is (verdict == "HUNG")  # type: ignore[union-attr]
    if verdict == "HUNG":  # with its title, as it is printed
        assert len(f"{of(answer).title} {answer.reason}".split()) <= 20


def test_a_lock_whose_holder_in_the_job_works_is_slow(tmp_path: Path) -> None:
    poller, holder = polling(tmp_path, "filelock"), rank(0, "main:9 build:1", "main:9 build:7 pack", world=2, cpu_s=1.4)
    lock = FileLock(holder.host, "/data/cache.lock", holder.pid, "python train.py", tries=20)
    assert triage(evidence(holder, poller, locks=(lock,)), None).verdict == "SLOW"


def ring(first: Process, second: Process, **changes: Any) -> tuple[Verdict, tuple[str, ...]]:
    """Two processes of which each waits for the lock that the other one holds; the verdict, and their keys."""
    holds = dataclasses.replace(HOLDER, host=first.host)
    mine = dataclasses.replace(holds, path="/data/one.lock", pid=first.pid, waiters=(second.pid,))
    other = dataclasses.replace(holds, path="/data/two.lock", pid=second.pid, waiters=(first.pid,), **changes)
    members = [first] if changes else [first, second]
    return triage(evidence(*members, locks=(mine, other)), None), (first.key, second.key)


def stands(one: Process, **fields: Any) -> Process:
    """The process as it waits for the lock of a file in the kernel, at both looks."""
    fields = {"wchan": "locks_lock_inode_wait", **fields}
    return dataclasses.replace(one, samples=tuple(dataclasses.replace(look, **fields) for look in one.samples))


def beside(one: Process) -> Process:
    """The process with a thread that runs code of the user's."""
    worker = Thread("worker", 9, frames("work:3"), main=False)
    return dataclasses.replace(one, samples=tuple(dataclasses.replace(look, threads=(*look.threads, worker))
                                                  for look in one.samples))  # fmt: skip


FIRST, SECOND = process(77, "process", "main:5 build"), process(78, "process", "main:9 build")


def test_a_ring_of_locks_names_each_holder_and_each_file() -> None:
    verdict, keys = ring(stands(FIRST), stands(SECOND))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K6")
    assert set(verdict.triage.cycle) == set(keys) and not verdict.triage.culprits
    assert [("/data/one.lock" in line, "/data/two.lock" in line) for line in verdict.evidence] == [(1, 0), (0, 1)]


@pytest.mark.parametrize(
    ("second", "changes", "hung"),
    [
        (stands(SECOND, wchan="hrtimer_nanosleep"), {}, False),  # the kernel's list and its looks are of two moments
        (stands(SECOND, handles=("SIGALRM",)), {}, False),
        (beside(stands(SECOND)), {}, False),
        (stands(SECOND), {"idle": True}, True),  # of another job, and it did not wake up
        (stands(SECOND), {"idle": False}, False),
    ],
)
def test_a_ring_of_locks_hangs_only_where_nobody_in_it_goes_on(
    second: Process, changes: dict[str, Any], hung: bool
) -> None:
    verdict, _ = ring(stands(FIRST), second, **changes)
    assert (verdict.verdict == "HUNG") is hung, verdict.reason


def test_a_process_that_waits_for_its_own_lock_is_named() -> None:
    lock = dataclasses.replace(HOLDER, host=FIRST.host, waiters=(FIRST.pid,))
    verdict = triage(evidence(stands(FIRST), locks=(lock,)), None)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K6")
    assert [culprit.key for culprit in verdict.triage.culprits] == [FIRST.key]

"""A rule about `multiprocessing.Pool`: a process waits for a result that none of its workers will bring."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from harness.triage.echoes import OUT_OF_MEMORY
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.graph import Subject
from harness.triage.graph.sockets import main_frames
from harness.triage.places import plain
from harness.triage.rules.ruling import Case, Ruling

_POOL = re.compile(r"/multiprocessing/pool\.py$")
# What stands between `worker` and the pipe of its tasks; anything else is a task.
_TAKES = re.compile(r"/multiprocessing/(queues|connection|synchronize)\.py$")
_WAITS = frozenset({"wait", "next"})  # of a result, and of `imap`


def lost(case: Case) -> Ruling | None:
    """K4: a process waits without a limit for a result of its pool, and no task is under way: each worker waits for
    one, and the pool's own threads have none to hand out. A worker that was killed took its task along, and the pool
    put another one in its place."""
    waiters = [subject for subject in case.live() if not subject.progress and _awaits_nothing(case, subject)]
    if not waiters:
        return None
    pids = {waiter.process.pid for waiter in waiters}
    dead = {
        subject.key: subject.state()
        for subject in case.graph.subjects.values()
        if subject.ended and subject.process.ppid in pids and subject.process.exit_code
    }
    codes = {subject.process.exit_code for subject in map(case.subject, dead)}
    return Ruling(
        "HUNG",
        f"{case.names(waiter.key for waiter in waiters)} waits for a result of its pool, whose workers are idle",
        "K4",
        dead,
        place=waiters[0].frame,
        waiting={waiter.key: f"a result of its pool, {waiter.frame}" for waiter in waiters},
        missing=() if dead else ("which worker of the pool ended with its task: the pool put another in its place",),
        next=(
            *([OUT_OF_MEMORY] if -signal.SIGKILL in codes else []),
            "use concurrent.futures.ProcessPoolExecutor, which raises when a worker dies: multiprocessing.Pool keeps "
            "neither the exit code nor the signal of one",
            "read what the job printed before the wait: a worker that ends by an error of its own writes it there",
        ),
    )


def _awaits_nothing(case: Case, subject: Subject) -> bool:
    process = subject.process
    if len(process.samples) < 2 or any(look.timed for look in process.samples):
        return False
    threads = process.threads
    handlers = {plain(frame.function): thread for thread in threads for frame in thread.frames if _of_pool(frame)}
    tasks, results = handlers.get("_handle_tasks"), handlers.get("_handle_results")
    waits = (
        _in_pool(main_frames(threads), _WAITS)
        and tasks is not None
        and results is not None
        and plain(tasks.frames[0].function) in ("_handle_tasks", "get")  # of its queue of tasks, which C may read
        and plain(results.frames[0].function) == "_recv"
    )
    if not waits:  # the search for workers costs most, in a job of a thousand processes
        return False
    workers = [peer for peer in case.live() if _is_worker_of(process, peer.process)]
    return bool(workers) and not any(peer.progress or not _idle(peer.process) for peer in workers)


def _is_worker_of(parent: Process, process: Process) -> bool:
    return (process.host, process.ppid) == (parent.host, parent.pid) and bool(process.samples)


def _idle(worker: Process) -> bool:
    """Whether a thread of a process is that of a pool's worker, and waits for a task at every look."""
    return all(any(map(_takes, look.threads)) for look in worker.samples)


def _takes(thread: Thread) -> bool:
    inner = [at for at, frame in enumerate(thread.frames) if _of_pool(frame) and plain(frame.function) == "worker"]
    return bool(inner) and inner[0] > 0 and all(_TAKES.search(frame.file) for frame in thread.frames[: inner[0]])


def _in_pool(frames: Sequence[Frame], functions: frozenset[str]) -> bool:
    return any(_of_pool(frame) and plain(frame.function) in functions for frame in frames)


def _of_pool(frame: Frame) -> bool:
    return bool(_POOL.search(frame.file))

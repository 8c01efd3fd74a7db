"""What the kernel says of a wait decides: locks copied by fork and full pipes hang, their look-alikes do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from harness.triage.collect import Scope, channels, collect, futexes, proc
from harness.triage.judge import triage
from reports.model import Verdict

FORK = """
import multiprocessing as mp, os, sys, threading, time
lock = threading.Lock()
def keep():
    with lock:
        time.sleep(3000)
def write():
    with lock:
        pass
def compute():
    while True:
        sum(range(1000))
def shared(token):
    token.acquire()
def threaded():
    threading.Thread(target=time.sleep, args=(3000,), daemon=True).start()
    lock.acquire()
def limited():
    lock.acquire(timeout=3000)
def start(work, *args):
    child = mp.get_context("fork").Process(target=work, args=args)
    child.start()
    child.join()
"""
KEEPS = "threading.Thread(target=keep, daemon=True).start()\nwhile not lock.locked(): time.sleep(0.01)\n"
HANGS_BY_FORK = {
    "a lock that a thread of the parent keeps": KEEPS + "start(write)",
    "a lock that the parent's main thread keeps": "lock.acquire()\nstart(write)",
    "os.fork": KEEPS + "pid = os.fork()\nif pid == 0: write()\nelse: os.waitpid(pid, 0)",
}
NO_COPIED_LOCK = {
    "a child that computes": KEEPS + "start(compute)",
    "a lock that the parent can release": "token = mp.Lock(); token.acquire()\nstart(shared, token)",
    "a lock that another thread of the child may release": KEEPS + "start(threaded)",
    "a lock with a time limit": KEEPS + "start(limited)",
}
PIPES = """
import subprocess, sys, threading, time
TALKS = "import sys\\nfor line in sys.stdin:\\n    print('x' * 300000, file=sys.{0}, flush=True); print(1, flush=True)"
ECHOES = "import sys\\nfor line in sys.stdin:\\n    print(line, flush=True)"
def tool(text, shell=False, **ends):
    command = [sys.executable, "-S", "-c", text]
    command = ["sh", "-c", '"$@"; true', "sh", *command] if shell else command
    return subprocess.Popen(command, stdin=-1, stdout=-1, text=True, **ends)
def ask(it):
    it.stdin.write("question\\n"); it.stdin.flush()
    it.stdout.readline()
def read_slowly(end):
    while end.read(1):
        time.sleep(0.02)
"""
UNREAD = {
    "stderr": "ask(tool(TALKS.format('stderr'), stderr=-1))",
    "stderr, below a shell": "ask(tool(TALKS.format('stderr'), shell=True, stderr=-1))",
    "stdout": "it = tool(TALKS.format('stdout'))\nit.stdin.write('q\\n'); it.stdin.close()\nit.wait()",
    "both ends": "it = tool(ECHOES)\nfor _ in range(100000): it.stdin.write('x' * 3000 + '\\n')",
}
READ = {
    "slowly, in a loop": "it = tool(TALKS.format('stderr'), stderr=-1)\nit.stdin.write('q\\n'); it.stdin.flush()\n"
    "read_slowly(it.stderr)",
    "by a thread, while the tool is asked": "it = tool(TALKS.format('stderr'), stderr=-1)\n"
    "threading.Thread(target=read_slowly, args=(it.stderr,), daemon=True).start()\nask(it)",
}
Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program in a process group of its own, which is killed when the test ends."""
    running: list[subprocess.Popen[bytes]] = []

    def run(text: str) -> subprocess.Popen[bytes]:
        (tmp_path / "job.py").write_text(text)
        process = subprocess.Popen([sys.executable, str(tmp_path / "job.py")], start_new_session=True)
        running.append(process)
        return process

    yield run
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def below(process: subprocess.Popen[bytes]) -> int:
    """The pid of the child of a process; 0 before it has one."""
    return next((pid for pid, parent in proc.parents().items() if parent == process.pid), 0)


def looked(process: subprocess.Popen[bytes], out: Path) -> Verdict:
    seen = collect(Scope((process.pid,), ray_address=""), out=out, gap_s=0.5, native=False, deadline_s=40.0)
    return triage(seen)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("how", HANGS_BY_FORK)
def test_a_lock_that_was_copied_by_fork_names_the_child(start: Start, tmp_path: Path, how: str) -> None:
    job = start(FORK + HANGS_BY_FORK[how])
    until(lambda: below(job) and futexes.locked_threads(below(job), futexes.switches(below(job))) == 1)
    verdict = looked(job, tmp_path / "out")
    assert verdict.verdict == "HUNG" and verdict.triage is not None, verdict.reason
    [culprit] = verdict.triage.culprits
    assert culprit.pid == below(job) and "fork" in culprit.why and "lock" in culprit.why
    assert culprit.frame.endswith("in write")
    thread_keeps = "stands inside `with lock` at job.py:6 in keep"
    assert (thread_keeps in culprit.why) is ("keep" in HANGS_BY_FORK[how])


@pytest.mark.by_day(2)
@pytest.mark.parametrize("how", NO_COPIED_LOCK)
def test_no_lock_copied_by_fork_is_claimed_of_its_look_alikes(start: Start, tmp_path: Path, how: str) -> None:
    job = start(FORK + NO_COPIED_LOCK[how])
    until(lambda: below(job) and (proc.look(below(job)).wchan.startswith("futex") or "computes" in how))
    verdict = looked(job, tmp_path / "out")
    assert "fork" not in verdict.reason
    assert "computes" not in how or verdict.verdict != "HUNG"


@pytest.mark.by_day(2)
@pytest.mark.parametrize("what", UNREAD)
def test_who_waits_for_a_tool_and_does_not_read_its_full_pipe_is_named(start: Start, tmp_path: Path, what: str) -> None:
    job = start(PIPES + UNREAD[what])
    # Nobody reads what the tool writes, so that its wait lasts. The program's own full pipe is emptied until then.
    until(lambda: any(channels.writing(pid).link for pid in proc.descendants((job.pid,), proc.parents())[1:]))
    until(lambda: what != "both ends" or channels.writing(job.pid).link)
    verdict = looked(job, tmp_path / "out")
    assert verdict.verdict == "HUNG" and verdict.triage is not None and verdict.triage.hang == "K6", verdict.reason
    assert [culprit.pid for culprit in verdict.triage.culprits] == [job.pid]
    assert ("stdout" if what == "both ends" else what.partition(",")[0]) in verdict.reason


@pytest.mark.by_day(1)
@pytest.mark.parametrize("how", READ)
def test_a_full_pipe_that_is_read_is_no_hang(start: Start, tmp_path: Path, how: str) -> None:
    job = start(PIPES + READ[how])
    until(lambda: below(job) and channels.writing(below(job)).link)
    assert looked(job, tmp_path / "out").verdict != "HUNG"


TWO_LOCKS = """
import threading
class Engine:
    def __init__(self):
        self.cache, self.weights, self.both = threading.Lock(), threading.Lock(), threading.Barrier(2)
    def reload(self):
        with self.weights:
            self.both.wait()
            with self.cache: pass
    def serve(self):
        with self.cache:
            self.both.wait()
            with self.weights: pass
engine = Engine()
"""
WORKERS = """
import queue, threading
items, done = queue.Queue(), threading.Event()
def work():
    while True: items.get()
for _ in range(2): threading.Thread(target=work, daemon=True).start()
"""
IN_ALL_THREADS = {
    "each other's locks": (TWO_LOCKS + "threading.Thread(target=engine.reload).start(); engine.serve()", "HUNG"),
    "an item that nobody puts": (WORKERS + "items.get()", "HUNG"),
    "a service until its signal": (WORKERS + "done.wait()", "INSUFFICIENT"),
    "a wait with a limit": (WORKERS + "done.wait(600)", "INSUFFICIENT"),
}


@pytest.mark.by_day(1)
@pytest.mark.parametrize("how", IN_ALL_THREADS)
def test_a_process_whose_threads_all_wait_for_each_other_hangs(start: Start, tmp_path: Path, how: str) -> None:
    text, expected = IN_ALL_THREADS[how]
    job = start(text)
    count = 2 if "locks" in how else 3
    until(lambda: futexes.locked_threads(job.pid, futexes.switches(job.pid)) == (0 if "limit" in how else count))
    until(lambda: proc.look(job.pid).wchan.startswith("futex"))
    verdict = looked(job, tmp_path / "out")
    assert verdict.verdict == expected and verdict.triage is not None, verdict.reason
    assert [party.pid for party in verdict.triage.culprits] == ([job.pid] if expected == "HUNG" else [])


def test_the_thread_of_a_heartbeat_releases_no_lock(start: Start) -> None:
    job = start(FORK + NO_COPIED_LOCK["a lock that another thread of the child may release"])
    until(lambda: below(job) and len(os.listdir(f"/proc/{below(job)}/task")) == 2)
    child = below(job)
    [beat] = {int(tid) for tid in os.listdir(f"/proc/{child}/task")} - {child}
    until(lambda: futexes.locked_threads(child, futexes.switches(child), beat) == 1)
    assert not futexes.locked_threads(child, futexes.switches(child))

"""A lock copied by fork and a full pipe, by what the kernel said of them: who is named, and in which words."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import compared, evidence, group, process, rank

from harness.triage import lock_text, source
from harness.triage.collect import channels, futexes, proc, stacks
from harness.triage.collect.proc import OTHER_USER
from harness.triage.evidence import Frame, OpenSpan, PipeReader, Process, Thread
from harness.triage.judge import triage
from reports.model import Verdict

WAIT = "main:10 step:42 all_reduce"


def looks(process: Process, **fields: object) -> Process:
    return dataclasses.replace(
        process,
        samples=tuple(dataclasses.replace(look, **fields) for look in process.samples),  # type: ignore[arg-type]
    )


def judged(*processes: Process) -> Verdict:
    verdict = triage(evidence(rank(0, WAIT, world=2), *processes), compared(group("0", {0: (6, "all_reduce"), 1: 5})))
    assert verdict.triage is not None
    return verdict


def forked(
    *, joins: bool = True, limit: bool = False, switches: tuple[int, int] = (7, 7), signals: tuple[str, ...] = ()
) -> Verdict:
    parent = looks(rank(1, "main:5 communicate" if joins else "main:5 think", world=2), timed=limit)
    child = process(200, "process", "main:9 write:3", ppid=parent.pid, forked=True)
    child = looks(child, locked_alone=True, handles=signals)
    ends = zip(child.samples, switches, strict=True)
    samples = tuple(dataclasses.replace(look, main_switches=count) for look, count in ends)
    return judged(parent, dataclasses.replace(child, samples=samples))


def test_a_child_with_a_copied_lock_is_named_and_not_its_parent() -> None:
    verdict = forked()
    [culprit] = verdict.triage.culprits  # type: ignore[union-attr]
    assert culprit.pid == 200 and "rank 1 forked it" in culprit.why and verdict.verdict == "HUNG"


@pytest.mark.parametrize(("signals", "expected"), [((), "HUNG"), (("SIGTERM",), "INSUFFICIENT")])
def test_a_server_that_waits_to_be_notified_has_no_copied_lock(signals: tuple[str, ...], expected: str) -> None:
    asks = rank(1, "main score getresponse", world=2, peers=("127.0.0.1:8000",))
    server = process(200, "process", "main serve", ppid=asks.pid, forked=True, listening=("127.0.0.1:8000",))
    wait = Frame("wait", "/usr/lib/python3.11/threading.py", 327)
    [main] = server.samples[-1].threads
    threads = (dataclasses.replace(main, frames=(wait, *main.frames)),)
    verdict = judged(asks, looks(server, threads=threads, locked_alone=True, main_switches=7, handles=signals))
    assert verdict.triage is not None and verdict.verdict == expected
    assert "copied" not in verdict.reason and not any("spawn" in step for step in verdict.triage.next)


@pytest.mark.parametrize("more", [{"joins": False}, {"limit": True}, {"switches": (7, 9)}, {"signals": ("SIGUSR1",)}])
def test_a_child_for_which_nobody_waits_without_a_limit_explains_nothing(more: dict[str, bool]) -> None:
    assert "fork" not in forked(**more).reason  # type: ignore[arg-type]


RETRIES = """
def asks(items):
    while True:
        try: item = items.get(timeout=2)
        except Empty: continue
        if item is None: return

def tells(items):
    while True:
        try: item = items.get(timeout=2)
        except Empty: log.info("none yet")

def fills(items):
    while True:
        try: item = items.get(timeout=2)
        except Empty: items.put(look())
        if item is None: return

def works(items):
    while True:
        try: item = items.get(timeout=2)
        except Empty: pass
        items.put(look())

def stops(items, done):
    while not done.wait(2): pass

def counts(items):
    for _ in range(9):
        try: item = items.get(timeout=2)
        except Empty: continue

def twice():
    with lock:
        again()

def again():
    with lock:
        pass

lock = threading.Lock()
"""
HEADS = [line.partition("(")[0] for line in RETRIES.splitlines()]
LINES = {head.removeprefix("def "): at for at, head in enumerate(HEADS, 1) if head.startswith("def ")}


def in_queue(function: str, file: Path, *, limit: int = 2) -> tuple[Frame, ...]:
    inner = (Frame("wait", "/usr/lib/python3.11/threading.py", 331), Frame("get", "/usr/lib/python3.11/queue.py", 180))
    return (*inner, Frame(function, str(file), LINES[function] + limit))


@pytest.mark.parametrize(
    ("function", "line", "nothing"),
    [("asks", 2, True), ("tells", 2, True), ("fills", 2, False), ("works", 2, False), ("stops", 1, True),
     ("counts", 2, False)],
)  # fmt: skip
def test_the_text_says_whether_a_loop_only_begins_a_wait_anew(
    tmp_path: Path, function: str, line: int, nothing: bool
) -> None:
    (tmp_path / "job.py").write_text(RETRIES)
    assert source.begins_anew(Frame(function, str(tmp_path / "job.py"), LINES[function] + line)) is nothing


def alone(file: Path, function: str, **fields: object) -> Verdict:
    """What is said of a program of one process that asks a queue again and again."""
    file.write_text(RETRIES)
    program = process(200, "process", "main")
    [main] = program.samples[-1].threads
    main = dataclasses.replace(main, frames=in_queue(function, file))
    return triage(evidence(looks(program, **{"threads": (main,), "timed": True, "alone": True, **fields})))


@pytest.mark.parametrize(("function", "fields", "verdict"), [
    ("asks", {}, "HUNG"), ("asks", {"alone": False}, "INSUFFICIENT"),
    ("asks", {"handles": ("SIGTERM",)}, "INSUFFICIENT"), ("fills", {}, "INSUFFICIENT"),
])  # fmt: skip
def test_a_queue_that_the_only_thread_asks_for_ever_is_filled_by_nobody(
    tmp_path: Path, function: str, fields: dict[str, object], verdict: str
) -> None:
    """The controls: another thread, the handler of a signal, and a loop that fills the queue itself."""
    its = alone(tmp_path / "job.py", function, **fields)
    assert its.verdict == verdict, its.reason


@pytest.mark.parametrize(("outer", "hang"), [("twice", "K6"), ("asks", "K4")])
def test_a_lock_that_the_only_thread_takes_twice_is_a_cycle_where_the_text_says_so(
    tmp_path: Path, outer: str, hang: str
) -> None:
    file = tmp_path / "job.py"
    file.write_text(RETRIES)
    stack = (Frame("again", str(file), LINES["again"] + 1), Frame(outer, str(file), LINES[outer] + 2))
    program = process(200, "process", "main")
    main = dataclasses.replace(program.samples[-1].threads[0], frames=stack)
    verdict = triage(evidence(looks(program, threads=(main,), locked_alone=True, main_switches=7)))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", hang)
    assert [culprit.frame for culprit in verdict.triage.culprits] == [f"job.py:{LINES['again'] + 1} in again"]


@pytest.mark.parametrize(("fields", "verdict"), [
    ({}, "HUNG"), ({"timed": True}, "INSUFFICIENT"), ({"handles": ("SIGUSR1",)}, "INSUFFICIENT"),
    ({"reading": "socket:[8]"}, "INSUFFICIENT"),
])  # fmt: skip
def test_workers_with_a_copied_lock_whose_items_their_parent_waits_for(
    tmp_path: Path, fields: dict[str, object], verdict: str
) -> None:
    """The controls: a parent that gives up, one with the handler of a signal, and one that anybody may send to."""
    reads = {"reading": "pipe:[8]", "wchan": "pipe_read", **fields}
    parent = looks(process(70, "process", "main:5 pipe.recv", fed=True), **reads)
    worker = looks(process(200, "process", "main:9 load:3", ppid=70, forked=True), locked_alone=True, main_switches=7,
                   wchan="futex_do_wait")  # fmt: skip
    its = triage(evidence(parent, worker, dataclasses.replace(worker, pid=201)))
    assert its.triage is not None and its.verdict == verdict, its.reason
    assert {culprit.pid for culprit in its.triage.culprits} == ({200, 201} if verdict == "HUNG" else set())


CACHE = """def upload():
    with lock:
        send()

def get(self, key):
    with self.lock:
        return self.make(key)

def write():
    with lock:
        count()

def begin():
    lock.acquire()
"""


def locked_child(tmp_path: Path, *lines: tuple[str, int], parents_thread: int = 0) -> Verdict:
    """A forked child with this stack, whose parent joins it and has another thread at that line."""
    (file := tmp_path / "job.py").write_text(CACHE)
    stack = tuple(Frame(function, str(file), line) for function, line in lines)
    child = process(200, "process", "main", ppid=70, forked=True)
    child = looks(
        child, threads=(dataclasses.replace(child.samples[-1].threads[0], frames=stack),), locked_alone=True,
        main_switches=7,
    )  # fmt: skip
    parent = looks(process(70, "process", "main:5 join"), wchan="do_wait")
    if parents_thread:
        [main] = parent.samples[-1].threads
        other = Thread("Thread-1", 71, (Frame("upload", str(file), parents_thread),))
        parent = looks(parent, threads=(main, other))
    return triage(evidence(parent, child))


@pytest.mark.parametrize(
    ("stack", "parents_thread", "is_copied"),
    [
        pytest.param([("write", 10)], 3, True, id="a thread of the parent keeps it"),
        pytest.param([("write", 10)], 0, False, id="the parent has one thread"),
        pytest.param([("begin", 14)], 0, False, id="it was not given back"),
        pytest.param([("get", 6), ("get", 7)], 3, False, id="taken again inside of its own with"),
    ],
)
def test_a_lock_was_copied_by_fork_only_where_the_parent_keeps_it(
    tmp_path: Path, stack: list[tuple[str, int]], parents_thread: int, is_copied: bool
) -> None:
    verdict = locked_child(tmp_path, *stack, parents_thread=parents_thread)
    assert verdict.triage is not None and verdict.verdict == "HUNG"
    assert [culprit.pid for culprit in verdict.triage.culprits] == [200]
    assert ("copied by fork" in verdict.reason) is is_copied
    assert ("spawn" in verdict.triage.next[0]) is is_copied


WAITPID = "def main():\n  while {}:\n    time.sleep(1)\n"


@pytest.mark.parametrize(
    ("text", "fields", "verdict"),
    [
        pytest.param(WAITPID.format("os.waitpid(pid, os.WNOHANG) == (0, 0)"), {"timed": True}, "HUNG", id="asks again"),
        pytest.param(
            WAITPID.format("time.time() < end and p.poll() is None"), {"timed": True}, "INSUFFICIENT", id="for a time"
        ),
        pytest.param("", {"reading": "pipe:[8]", "reads_for_ever": True}, "HUNG", id="reads what it writes"),
        pytest.param("", {"reading": "pipe:[8]"}, "INSUFFICIENT", id="reads for a time"),
        pytest.param("", {}, "INSUFFICIENT", id="goes on without it"),
    ],
)
def test_a_child_of_fork_with_a_copied_lock_is_never_a_pass(
    tmp_path: Path, text: str, fields: dict[str, object], verdict: str
) -> None:
    (file := tmp_path / "job.py").write_text(text)
    parent = process(70, "process", "main:3 think", writers=(200,), fed=True)
    [main] = parent.samples[-1].threads
    if text:
        main = dataclasses.replace(main, frames=(Frame("main", str(file), 3),))
    child = looks(process(200, "process", "main:9 load:3", ppid=70, forked=True), locked_alone=True, main_switches=7)
    its = triage(evidence(looks(parent, threads=(main,), **fields), child, source="live", stall_s=0.0))
    assert its.verdict == verdict and "for a lock" in its.reason and "200" in its.reason, its.reason
    assert its.triage is not None and {each.pid for each in its.triage.culprits} == (
        {200} if verdict == "HUNG" else set()
    )


@pytest.mark.parametrize(("beside", "verdict"), [("", "INSUFFICIENT"), ("main:4 think", "HEALTHY")])
def test_who_waits_to_open_a_named_pipe_is_told_where_all_others_wait_for_it(beside: str, verdict: str) -> None:
    """The control: a process beside it that does something else, and may open the pipe."""
    shell = looks(process(70, "shell"), wchan="do_wait")
    cat = looks(process(71, "process", ppid=70, command="cat /tmp/fifo"), wchan="wait_for_partner", opens="/tmp/fifo")
    its = triage(evidence(shell, cat, *([process(72, "process", beside, ppid=70)] if beside else ())))
    assert its.verdict == verdict and ("/tmp/fifo" in its.reason) is (verdict == "INSUFFICIENT")


def test_a_stopped_process_beside_who_opens_a_named_pipe_may_be_who_opens_it() -> None:
    reader = looks(rank(1, "main:4 load", world=1), wchan="wait_for_partner", opens="/tmp/fifo")
    child = looks(process(200, "tool", ppid=reader.pid), state="T", wchan="do_signal_stop")
    its = triage(evidence(reader, child))
    assert its.verdict == "INSUFFICIENT" and "/tmp/fifo" in its.reason
    assert its.triage is not None and any("kill -CONT 200" in advice for advice in its.triage.next)


@pytest.mark.parametrize(
    ("stream", "stack", "fields", "says"),
    [
        ("stderr", "main ask:7", {"writer": 200}, "stderr"),
        ("stdout", "main wait communicate", {}, "stdout"),
        ("", "main wait communicate", {}, "full pipe"),
        ("stdout", "main ask:7", {"reader": 200}, "writes to"),
    ],
)
def test_the_pipe_that_is_not_read_is_named(stream: str, stack: str, fields: dict[str, int], says: str) -> None:
    parent = looks(
        rank(1, stack, world=2, fed="writer" in fields, **fields),
        reading="pipe:[8]",
        writing="pipe:[9]" if "reader" in fields else "",
        wchan="pipe_read" if "writer" in fields else "",
    )
    child = looks(process(200, "tool", "main log:3", ppid=parent.pid, reader=101), writing="pipe:[7]", writes_to=stream)
    verdict = judged(parent, child)
    assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K6")  # type: ignore[union-attr]
    assert {culprit.rank for culprit in verdict.triage.culprits} == {1} and says in verdict.reason  # type: ignore[union-attr]


def native(pid: int, parent: int, role: str = "process", **fields: object) -> Process:
    """A program without a Python stack."""
    return looks(process(pid, role, "main", ppid=parent, reader=70 if "writing" in fields else 0), threads=(), **fields)


@pytest.mark.parametrize("below_shell", [True, False])
@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        pytest.param({"writing": "pipe:[7]", "writes_to": "stdout", "wchan": "anon_pipe_write"}, "HUNG", id="full"),
        pytest.param({"wchan": "hrtimer_nanosleep"}, "INSUFFICIENT", id="sleeps"),
        pytest.param({"wchan": "ep_poll"}, "INSUFFICIENT", id="polls"),
    ],
)
def test_a_native_program_that_fills_a_pipe_waits_for_its_parent(
    fields: dict[str, object], verdict: str, below_shell: bool
) -> None:
    """`Popen("tool | ...", shell=True, stdout=PIPE).wait()`, with a tool that is no Python program."""
    parent = process(70, "process", "main")
    [main] = parent.samples[-1].threads
    wait = Frame("Popen._try_wait", "/usr/lib/python3.11/subprocess.py", 2010)
    parent = looks(parent, threads=(dataclasses.replace(main, frames=(wait, *main.frames)),), wchan="do_wait")
    tool = native(200, 199 if below_shell else 70, **fields)
    shells = [native(199, 70, "shell", wchan="do_wait")] if below_shell else []
    its = triage(evidence(parent, *shells, tool))
    assert its.triage is not None and its.verdict == verdict, its.reason
    assert {culprit.pid for culprit in its.triage.culprits} == ({70} if verdict == "HUNG" else set())


def test_two_processes_that_write_to_each_other_are_a_cycle_of_which_neither_is_named() -> None:
    parent = looks(rank(1, "main:5 send", world=2, reader=200), writing="socket:[8]", wchan="sock_alloc_send_pskb")
    child = looks(process(200, "tool", "main:9 send", ppid=parent.pid, reader=parent.pid), writing="socket:[7]")
    its = judged(parent, child)
    assert its.triage is not None and (its.verdict, its.triage.hang) == ("HUNG", "K6")
    assert not its.triage.culprits and set(its.triage.cycle) == {parent.key, child.key}


def test_a_parent_that_reads_the_full_pipe_itself_is_not_named() -> None:
    parent = looks(rank(1, "main ask:7", world=2, writer=200), reading="pipe:[7]")
    child = looks(process(200, "tool", "main log:3", ppid=parent.pid, reader=101), writing="pipe:[7]")
    assert judged(parent, child).triage.hang != "K6"  # type: ignore[union-attr]


CATCHES = "    try:\n        {}p.wait(timeout=5)\n{}    except TimeoutExpired:\n        {}\n"
WAITS = "def main():\n  p = Popen()\n  while True:\n"
WAITING = {
    WAITS + CATCHES.format("", "        break\n", "print('waits')"): True,
    WAITS + CATCHES.format("return ", "", "pass"): True,
    WAITS.replace("True", "p.poll() is None") + CATCHES.format("", "", "log.info('waits')"): True,
    WAITS + CATCHES.format("", "        break\n", "p.kill()"): False,
    WAITS + CATCHES.format("", "        break\n", "p.communicate()"): False,
    WAITS + CATCHES.format("", "        break\n", "drain(p)"): False,
    WAITS + CATCHES.format("", "        break\n", "raise"): False,
    WAITS + CATCHES.format("", "        break\n", "if time.time() > end: break"): False,
    WAITS + CATCHES.format("", "        break\n", "tries += 1") + "    if tries > 3: return\n": False,
    WAITS.replace("True", "time.time() < end") + CATCHES.format("", "", "pass"): False,
    WAITS + "    p.wait(timeout=5)\n": False,  # its error leaves the loop
    WAITS.replace("while True", "for _ in range(3)") + CATCHES.format("", "        break\n", "pass"): False,
}


@pytest.mark.parametrize("text", WAITING)
def test_a_wait_with_a_limit_that_begins_again_for_ever_is_none_with_a_limit(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "job.py").write_text(text)
    line = next(at for at, line in enumerate(text.splitlines(), 1) if "p.wait" in line)
    frames = (Frame("wait", "/usr/lib/python3.11/subprocess.py", 1264), Frame("main", str(file), line))
    parent = looks(
        rank(1, "main wait communicate", world=2), timed=True, threads=(Thread("MainThread", 7, frames, main=True),)
    )
    child = looks(
        process(200, "tool", "main log:3", ppid=parent.pid, reader=101), writing="pipe:[7]", writes_to="stdout"
    )
    verdict = judged(parent, child)
    assert (verdict.triage.hang == "K6") is WAITING[text], verdict.reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("while p.is_alive():\n    p.join(5)\n", True),
        ("while True:\n    p.join(5)\n    if not p.is_alive():\n        break\n", True),
        ("while True:\n    p.join(5)\n    if p.is_alive():\n        break\n", False),
        ("while p.is_alive():\n    p.join(5)\n    answers.get()\n", False),
        ("p.join(5)\n", False),
    ],
)
def test_a_join_with_a_limit_raises_no_error(text: str, again: bool, tmp_path: Path) -> None:
    (file := tmp_path / "job.py").write_text(text)
    line = next(at for at, line in enumerate(text.splitlines(), 1) if "p.join" in line)
    assert source.waits_again(Frame("<module>", str(file), line), raises=False) is again


def full(*readers: PipeReader, **more: Any) -> Verdict:
    writer = looks(process(100, "tool", "main log:3", readers=readers), writing="pipe:[7]", wchan="pipe_write")
    return triage(evidence(writer, source="live", stall_s=0.0, **more), None)


def test_who_can_read_a_full_pipe_is_told_with_what_it_does() -> None:
    """As of `job | (sleep 990; cat)`: the shell has the pipe of the program for whose end it waits."""
    shell = PipeReader(200, "(sleep 990; cat)", "do_wait", None, (201,))
    verdict = full(shell, PipeReader(201, "sleep 990", "hrtimer_nanosleep", 980.4))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert "201" in verdict.reason and "200" not in verdict.reason
    [line] = [line for line in verdict.evidence if "201" in line]
    assert "980 s" in line and "200" in line and "sleep 990" in line
    assert " -p 201 " in verdict.triage.next[0]


def test_nobody_is_told_where_nobody_reads_a_full_pipe() -> None:
    verdict = full()
    assert verdict.verdict == "INSUFFICIENT" and not any(
        "can read" in line for line in [verdict.reason, *verdict.evidence]
    )


def test_the_thread_that_stands_in_the_lock_is_told(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(
        "def keep():\n    with a.lock:\n        x()\ndef take():\n    a.lock.acquire()\ndef free():\n    x()\n"
    )
    assert lock_text.lock_of(Frame("keep", str(file), 2)) == lock_text.lock_of(Frame("take", str(file), 5)) == "a.lock"
    assert lock_text.lock_of(Frame("keep", str(file), 3)) == lock_text.lock_of(Frame("free", str(file), 7)) == ""
    assert lock_text.keeps_lock(Frame("keep", str(file), 3), "a.lock")
    assert not lock_text.keeps_lock(Frame("keep", str(file), 2), "a.lock")
    assert not lock_text.keeps_lock(Frame("keep", str(file), 3), "b.lock")


def test_stacks_of_another_user_are_not_a_matter_of_ptrace() -> None:
    notes = (f"its environment cannot be read: {OTHER_USER}", stacks.not_permitted())
    theirs = rank(0, "", world=1, rank=None, beat=None, notes=notes)
    verdict = triage(evidence(theirs, source="live", stall_s=0.0))
    assert verdict.verdict == "INSUFFICIENT" and "another user" in verdict.reason
    assert verdict.triage is not None and verdict.triage.next[0].startswith(f"sudo harness triage {theirs.pid} ")


def test_threads_of_another_pid_namespace_are_those_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tid, inside in ((70, 1), (71, 9)):
        (tmp_path / "70" / "task" / str(tid)).mkdir(parents=True)
        (tmp_path / "70" / "task" / str(tid) / "status").write_text(f"Name:\tpython\nNSpid:\t{tid}\t{inside}\n")
    monkeypatch.setattr(proc, "PROC", tmp_path)
    dumped = [{"thread_name": None, "os_thread_id": tid, "frames": []} for tid in (1, 9)]
    assert [(thread.tid, thread.main) for thread in stacks.parse(dumped, 70, proc.outer_tids(70))] == [
        (70, True), (71, False),
    ]  # fmt: skip
    for tid, state in ((70, "S"), (71, "R")):  # py-spy calls both active: it does not find their ids here
        (tmp_path / "70" / "task" / str(tid) / "stat").write_text(f"{tid} (python) {state} 1")
    called_active = [{**thread, "active": True} for thread in dumped]
    assert [t.active for t in stacks.parse(called_active, 70, proc.outer_tids(70))] == [False, True]
    (tmp_path / "70" / "task" / "70" / "status").write_text("NSpid:\t70\n")
    assert 70 not in proc.outer_tids(70).values()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("rpc_wait_bit_killable", "an NFS server"),
        ("nfs4_wait_clnt_recover", "an NFS server"),
        ("request_wait_answer", "a FUSE file system"),
        ("flock_lock_inode_wait", "the lock of a file"),
        ("pipe_write", "a full pipe"),
        ("io_schedule", "a disk"),
        ("something_else", ""),
    ],
)
def test_a_sleep_in_the_kernel_is_said_in_words(function: str, says: str) -> None:
    verdict = judged(rank(1, "main:9 save:3", world=2, state="D", wchan=function))
    assert verdict.triage is not None and verdict.triage.hang == "K9" and function in verdict.reason
    assert ("waits for" in verdict.reason) is bool(says) and says in verdict.reason


ENDLESS, LIMITED, SHARED = "202 0x1 0x189 0x0 0x0", "202 0x1 0x189 0x0 0x7f", "202 0x1 0x109 0x0 0x0"


@pytest.mark.parametrize(
    ("call", "threads", "locked"),
    [
        (ENDLESS, {}, 1),
        ("202 0x1 0x80 0x0 0x0", {}, 1),
        (SHARED, {}, 0),  # between processes, as locks of multiprocessing are
        (LIMITED, {}, 0),
        ("202 0x1 0x81 0x0 0x0", {}, 0),  # it wakes others
        ("0 0x1 0x189 0x0 0x0", {}, 0),
        (ENDLESS, {"72": ("python", LIMITED)}, 1),  # its heartbeat
        (ENDLESS, {"71": ("pt_workerserver", "7 0x1 0x1 0x64 0x0")}, 1),
        (ENDLESS, {"71": ("python", ENDLESS)}, 2),
        (ENDLESS, {"71": ("python", ENDLESS), "73": ("OpenBLAS", ENDLESS), "72": ("python", LIMITED)}, 3),
        (ENDLESS, {"71": ("python", LIMITED)}, 0),
        (ENDLESS, {"71": ("python", "running")}, 0),
    ],
)
def test_only_locks_of_its_own_memory_in_all_threads_prove_that_nothing_wakes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, threads: dict[str, tuple[str, str]], locked: int
) -> None:
    listed(tmp_path, monkeypatch, {"70": ("python", call), **threads})
    assert futexes.locked_threads(70, futexes.switches(70), beat=72) == locked


def test_threads_that_take_turns_are_not_all_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits when it is looked at, and one of them has run in between."""
    listed(tmp_path, monkeypatch, {"70": ("python", ENDLESS), "71": ("python", ENDLESS)})
    counts = iter(range(9))
    monkeypatch.setattr(futexes, "switches", lambda pid: {70: 5, 71: next(counts)})
    assert futexes.locked_threads(70, futexes.switches(70)) == 0


def listed(proc_folder: Path, monkeypatch: pytest.MonkeyPatch, threads: dict[str, tuple[str, str]]) -> None:
    """Processes in a /proc of our own: thread id -> its name and its call."""
    monkeypatch.setattr(futexes, "_FUTEX", "202")
    for module in (channels, futexes):
        monkeypatch.setattr(module, "PROC", proc_folder)
    for tid, (name, call) in threads.items():
        task = proc_folder / "70" / "task" / tid
        task.mkdir(parents=True)
        (task / "comm").write_text(f"{name}\n")
        (task / "syscall").write_text(f"{call} 0x0 0x0 0x7f 0x7f")
        (task / "status").write_text("Name:\tpython\nvoluntary_ctxt_switches:\t7\n")


POLLS = """
import mmap, sys, time
files = [open(name, "r+b") for name in sys.argv[1:]]
maps = [mmap.mmap(file.fileno(), 4096) for file in files]
for its in maps: its[0] = 0
print(flush=True)
while not maps[1][0]: time.sleep(0.001)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this kernel marks no pages")
def test_the_shared_memory_that_a_process_polls_is_told_from_what_it_only_has_mapped() -> None:
    names = [f"/dev/shm/harness-test-{os.getpid()}-{number}" for number in range(3)]
    for name in names:
        Path(name).write_bytes(bytes(4096))
    child = subprocess.Popen([sys.executable, "-c", POLLS, *names], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        assert proc.shared_memory(child.pid) == set(names)
        assert proc.touched_memory(child.pid, names, 0.3) == (names[1],)
        assert proc.touched_memory(child.pid, names[:1], 0.0) == ()
    finally:
        child.kill()
        child.wait()
        for name in names:
            Path(name).unlink()


def test_what_a_process_that_is_gone_touches_is_not_known() -> None:
    assert proc.touched_memory(2**22, ["/dev/shm/x"], 0.0) == ()


def test_a_program_without_a_python_stack_for_whose_end_a_rank_waits_is_told() -> None:
    waits = rank(
        0, "main init_process_group", world=2, spans=(OpenSpan("init_process_group", 30.0, {"world_size": 2}),)
    )
    parent = looks(rank(1, "main:5 communicate", world=2), wchan="do_wait")
    child = looks(process(200, "tool", ppid=parent.pid, command="aws s3 cp a b"), threads=(), wchan="hrtimer_nanosleep")
    its = judged(waits, parent, child)
    assert its.verdict == "INSUFFICIENT" and "rank 1 waits for the end of" in its.reason
    assert any("aws s3 cp a b" in line for line in its.evidence)


def test_the_threads_and_children_beside_a_wait_for_an_item_are_told() -> None:
    waits = looks(process(50, "process", "main:6 queue.get"), wchan="futex_do_wait")
    [main] = waits.samples[-1].threads
    worker = Thread("loader", 7, (Frame("load", "/job/train.py", 4),), wchan="futex_do_wait")
    child = looks(process(60, "tool", "main:9 f", ppid=50), wchan="futex_do_wait")
    its = triage(evidence(looks(waits, threads=(main, worker)), child, source="live", stall_s=0.0))
    assert its.verdict == "INSUFFICIENT"
    assert any("thread loader stands at train.py:4" in line for line in its.evidence)
    assert any("its child tool" in line for line in its.evidence)


@pytest.mark.parametrize(("line", "made"), [(6, True), (10, False), (12, False)])
def test_a_lock_that_its_own_function_makes_is_no_copy(tmp_path: Path, line: int, made: bool) -> None:
    program = tmp_path / "write.py"
    program.write_text(
        "import threading\nlock = threading.Lock()\ndef own():\n    its = threading.Lock()\n    its.acquire()\n"
        "    its.acquire()\n\ndef shared():\n    other = 1\n    lock.acquire()\n\nlock.acquire()\n"
    )
    function = {6: "own", 10: "shared", 12: "<module>"}[line]
    assert lock_text.makes_lock(Frame(function, str(program), line)) is made


@pytest.mark.parametrize(
    ("line", "wchan", "writer", "asked"),
    [
        ('answer = input("overwrite? ")', "anon_pipe_read", 0, True),
        ('answer = input("overwrite? ")', "n_tty_read", 0, True),
        ('answer = input("overwrite? ")', "anon_pipe_read", 100, False),  # rank 0 can write it
        ('answer = input("overwrite? ")', "futex_do_wait", 0, False),
        ("answer = stream.readline()", "anon_pipe_read", 0, False),
    ],
)
def test_a_rank_that_asks_a_person_is_told_with_its_call(
    tmp_path: Path, line: str, wchan: str, writer: int, asked: bool
) -> None:
    program = tmp_path / "job.py"
    program.write_text(f"def main():\n    {line}\n")
    one = rank(1, "main:5 work", world=2, writer=writer)
    frames = (Frame("main", str(program), 2),)
    looks_now = [
        dataclasses.replace(look, wchan=wchan, threads=(dataclasses.replace(look.threads[0], frames=frames),))
        for look in one.samples
    ]
    verdict = judged(dataclasses.replace(one, samples=tuple(looks_now)))
    assert (verdict.verdict == "INSUFFICIENT" and "input() at job.py:2" in verdict.reason) is asked


def test_a_connection_that_nobody_accepts_is_told_with_who_listens() -> None:
    listens = rank(0, WAIT, world=2, listening=("127.0.0.1:9000",))
    asks = looks(rank(1, "main:5 work", world=2, asked=("127.0.0.1:9000",)), wchan="wait_woken")
    verdict = triage(evidence(listens, asks), compared(group("0", {0: (6, "all_reduce"), 1: 5})))
    assert "a connection to 127.0.0.1:9000, which rank 0 has not accepted" in verdict.account


@pytest.mark.parametrize("gil", [True, False])
def test_a_native_call_that_keeps_the_interpreter_lock_is_told(gil: bool) -> None:
    verdict = judged(looks(rank(1, "main:5 work", world=2, gil=gil), wchan="__do_sys_pause"))
    assert "it waits for a signal" in verdict.account
    assert ("keeps the interpreter lock" in verdict.account) is gil

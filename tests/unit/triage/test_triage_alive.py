"""Ranks and servers that are not seen to come, and that somebody may still bring: nobody is named. With controls."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import compared, evidence, frames, group, process, rank

from harness.triage import source
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.judge import triage
from reports.model import Verdict

PROGRAM = """
def pause():
    time.sleep(42)

def long_pause():
    time.sleep(3600)

def kept():
    while True:
        time.sleep(1)

def waits():
    lock.acquire()

def releases():
    look()
    lock.release()

def reads():
    return open(path).read()

def answers():
    while True:
        connection.recv(100)
        time.sleep(delay)
        connection.sendall(score)

def judges():
    while True:
        connection.recv(100)
        done.wait(delay)
        connection.sendall(score)

def takes():
    while True:
        if done.wait(delay):
            connection.sendall(score)
"""
LINES = {"pause": 3, "long_pause": 6, "kept": 10, "waits": 13, "releases": 16, "reads": 20, "answers": 25, "judges": 31,
         "takes": 36}  # fmt: skip
WAIT = "main:10 step:42 broadcast"
POOL = Frame("run", "/usr/lib/python3.11/concurrent/futures/thread.py", 58)
ANYIO = Frame("WorkerThread.run", "/venv/lib/python3.11/site-packages/anyio/_backends/_asyncio.py", 1124)
HANDLER = Frame("process_request_thread", "/usr/lib/python3.11/socketserver.py", 691)
SERVES = Frame("serve_forever", "/usr/lib/python3.11/socketserver.py", 235)
JOIN = Frame("_wait_for_tstate_lock", "/usr/lib/python3.11/threading.py", 1139)
SLEEP = "hrtimer_nanosleep"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def at(file: str, function: str) -> tuple[Frame, ...]:
    return (Frame(function, file, LINES[function]),)


def standing(subject: Process, stack: tuple[Frame, ...], wchan: str, *beside: Thread) -> Process:
    """A process with this stack of its main thread at both looks, and the same threads beside it."""
    looks = tuple(
        dataclasses.replace(
            look, wchan=wchan, threads=(dataclasses.replace(look.threads[0], frames=stack, wchan=wchan), *beside)
        )
        for look in subject.samples
    )
    return dataclasses.replace(subject, samples=looks)


def judged(late: Process, *more: Process) -> Verdict:
    comparison = compared(group("0", {0: (17, "broadcast"), 1: 16}))
    return triage(evidence(rank(0, WAIT, world=2), late, *more), comparison)


def culprits(verdict: Verdict) -> set[int | None]:
    assert verdict.triage is not None
    return {party.rank for party in verdict.triage.culprits}


@pytest.mark.parametrize(
    ("function", "named"), [("pause", False), ("long_pause", True), ("kept", True), ("answers", False)]
)
def test_a_sleep_that_ends_by_itself_blames_nobody(file: str, function: str, named: bool) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, function), SLEEP))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


@pytest.mark.parametrize("function", ["pause", "answers", "absent"])
@pytest.mark.parametrize(("left_s", "named"), [(40.0, False), (1e8, True)])
def test_the_kernel_says_when_a_sleep_ends(file: str, function: str, left_s: float, named: bool) -> None:
    late = standing(rank(1, "main", world=2), (Frame(function, file, LINES.get(function, 1)),), SLEEP)
    looks = tuple(dataclasses.replace(look, timed=True, sleeps_s=left_s) for look in late.samples)
    verdict = judged(dataclasses.replace(late, samples=looks))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


@pytest.mark.parametrize(("timed", "left_s", "named"), [(True, None, False), (False, None, True), (True, 1e8, True)])
def test_a_sleep_in_compiled_code_is_one_at_each_look(
    file: str, timed: bool, left_s: float | None, named: bool
) -> None:
    """`sleep(72)` of the C library: only the native stack, which is taken last, names it. Once py-spy has stopped its
    process it goes on as restart_syscall(2), whose arguments tell a limit and no length."""
    late = standing(rank(1, "main", world=2), at(file, "waits"), SLEEP if timed else "futex_do_wait")
    looks = [dataclasses.replace(look, timed=timed) for look in late.samples]
    looks[0] = dataclasses.replace(looks[0], sleeps_s=left_s)
    main = looks[-1].threads[0]
    below = (Frame("clock_nanosleep", "libc.so.6", 0), Frame("nanosleep", "libc.so.6", 0))
    native = (dataclasses.replace(main, frames=(*below, *main.frames), native=True),)
    verdict = judged(dataclasses.replace(late, samples=tuple(looks), native=native))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


@pytest.mark.parametrize("left_s", [41.0, None])
def test_a_read_of_a_timer_is_a_sleep(file: str, left_s: float | None) -> None:
    """No frame says so: the kernel's own word is enough. A timer that is not set may be set by whoever shares it."""
    late = standing(rank(1, "main", world=2), at(file, "waits"), "timerfd_read")
    looks = tuple(dataclasses.replace(look, timed=left_s is not None, sleeps_s=left_s) for look in late.samples)
    verdict = judged(dataclasses.replace(late, samples=looks))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", set())


def test_a_server_that_sleeps_before_it_answers_is_not_blamed(file: str) -> None:
    asks = rank(0, "main score getresponse", world=1, peers=("127.0.0.1:8000",))
    server = process(70, "judge", "main", listening=("127.0.0.1:8000",))
    verdicts = [triage(evidence(asks, standing(server, at(file, function), SLEEP))) for function in ("answers", "kept")]
    assert [verdict.verdict for verdict in verdicts] == ["INSUFFICIENT", "HUNG"]


@pytest.mark.parametrize(("function", "named"), [("judges", False), ("takes", True), ("absent", False)])
def test_a_server_whose_wait_ends_before_it_answers_is_not_blamed(file: str, function: str, named: bool) -> None:
    """The control: one that waits again unless something has come."""
    asks = rank(0, "main score getresponse", world=1, peers=("127.0.0.1:8000",))
    server = process(70, "judge", "main", listening=("127.0.0.1:8000",))
    server = standing(server, (Frame(function, file, LINES.get(function, 1)),), "futex_do_wait")
    looks = tuple(dataclasses.replace(look, timed=True) for look in server.samples)
    verdict = triage(evidence(asks, dataclasses.replace(server, samples=looks)))
    assert verdict.verdict == ("HUNG" if named else "INSUFFICIENT")


@pytest.mark.parametrize(("text", "seconds"), [
    ("42", 42.0), ("60 * 60", 3600.0), ("10**6", 1e6), ("1 + 0.5", 1.5), ("delay", None), ("9**9**9", None),
])  # fmt: skip
def test_how_long_a_line_sleeps(tmp_path: Path, text: str, seconds: float | None) -> None:
    path = tmp_path / "sleeps.py"
    path.write_text(f"import time\ndef f(delay):\n    time.sleep({text})\n")
    assert source.slept_s(Frame("f", str(path), 3)) == seconds


@pytest.mark.parametrize(("thread", "named"), [
    (Thread("feeder", 7, (), wchan=SLEEP), False), (Thread("feeder", 7, (), active=True), False),
    (Thread("feeder", 7, (), wchan="futex_do_wait"), True),
])  # fmt: skip
def test_a_thread_that_lives_may_release_the_lock(file: str, thread: Thread, named: bool) -> None:
    """The control: a thread that itself waits for a lock."""
    beside = dataclasses.replace(thread, frames=at(file, "releases"))
    verdict = judged(standing(rank(1, "main", world=2), at(file, "waits"), "futex_do_wait", beside))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


def in_threading(function: str, text: str) -> Frame:
    """The frame of this Python's own threads at the last line of a function that has this text."""
    lines, first = inspect.getsourcelines(getattr(threading, function.split(".")[0]).__dict__[function.split(".")[1]])
    return Frame(function, threading.__file__, first + max(at for at, line in enumerate(lines) if text in line))


@pytest.mark.parametrize("wchan", ["sock_alloc_send_pskb", "unix_stream_read_generic"])
def test_a_thread_that_sends_to_a_socket_or_reads_from_it_may_release_the_lock(file: str, wchan: str) -> None:
    beside = Thread("uploader", 7, at(file, "releases"), wchan=wchan)
    verdict = judged(standing(rank(1, "main", world=2), at(file, "waits"), "futex_do_wait", beside))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", set())


@pytest.mark.parametrize(("acquire", "named"), [("acquire(True, timeout)", False), ("acquire()", True)])
def test_a_thread_that_waits_with_a_time_limit_may_release_the_lock(file: str, acquire: str, named: bool) -> None:
    """The control: one that waits without a limit for another thread."""
    inner = (in_threading("Condition.wait", acquire), in_threading("Event.wait", "wait(timeout)"))
    beside = Thread("feeder", 7, (*inner, *at(file, "releases")), wchan="futex_do_wait")
    verdict = judged(standing(rank(1, "main", world=2), at(file, "waits"), "futex_do_wait", beside))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


@pytest.mark.parametrize(("run", "named"), [(("Timer.run", "finished.wait"), False), (("Thread.run", "_target"), True)])
def test_a_timer_may_release_the_lock(file: str, run: tuple[str, str], named: bool) -> None:
    """The control: a thread that was started with the wait of an event."""
    inner = (in_threading("Condition.wait", "acquire(True, timeout)"), in_threading("Event.wait", "wait(timeout)"))
    beside = Thread("Thread-1", 7, (*inner, in_threading(*run)), wchan="futex_do_wait")
    verdict = judged(standing(rank(1, "main", world=2), at(file, "waits"), "futex_do_wait", beside))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


def with_handlers(subject: Process, *signals: str) -> Process:
    looks = tuple(dataclasses.replace(look, handles=signals) for look in subject.samples)
    return dataclasses.replace(subject, samples=looks)


@pytest.mark.parametrize(("signals", "notified", "named"), [
    (("SIGALRM",), False, False), (("SIGTERM",), True, False), (("SIGTERM",), False, True), ((), True, True),
])  # fmt: skip
def test_the_handler_of_a_signal_may_end_a_wait(
    file: str, signals: tuple[str, ...], notified: bool, named: bool
) -> None:
    """The control: every server handles SIGTERM, which ends it, so that counts only for who waits to be notified."""
    inner = (in_threading("Condition.wait", "acquire()"),) if notified else ()
    late = standing(rank(1, "main", world=2), (*inner, *at(file, "waits")), "futex_do_wait")
    verdict = judged(with_handlers(late, *signals))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


@pytest.mark.parametrize(("inside", "named"), [(True, False), (False, True)])
def test_a_program_whose_output_a_rank_collects_may_end(file: str, inside: bool, named: bool) -> None:
    """The control: the same child of a rank that waits for a lock."""
    collects = Frame("Popen._communicate", "/usr/lib/python3.11/subprocess.py", 2115)
    select = Frame("_PollLikeSelector.select", "/usr/lib/python3.11/selectors.py", 415)
    stack = (select, collects, *at(file, "waits")) if inside else at(file, "waits")
    late = standing(rank(1, "main", world=2), stack, "poll_schedule_timeout" if inside else "futex_do_wait")
    child = process(300, "shell", ppid=late.pid)
    child = dataclasses.replace(
        child, samples=tuple(dataclasses.replace(look, threads=(), wchan="do_wait") for look in child.samples)
    )
    verdict = judged(late, child)
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


@pytest.mark.parametrize(("function", "hang"), [("releases", ""), ("kept", "K2")])
def test_a_thread_that_goes_on_may_come_to_the_collective_of_another_group(file: str, function: str, hang: str) -> None:
    """An asynchronous save, say. The control: a thread that only ticks for ever."""
    saves = Thread("saver", 7, at(file, function), wchan=SLEEP)
    ranks = [standing(rank(0, WAIT, world=2), at(file, "waits"), "", saves), rank(1, WAIT, world=2)]
    crossed = compared(group("A", {0: (5, "all_reduce"), 1: 4}), group("B", {1: (3, "all_reduce"), 0: 2}))
    verdict = triage(evidence(*ranks), crossed)
    assert verdict.triage is not None and verdict.triage.hang == hang and not culprits(verdict)


@pytest.mark.parametrize(("wchan", "hang"), [(SLEEP, ""), ("futex_do_wait", "K6")])
def test_a_thread_that_will_send_breaks_a_cycle_of_calls(file: str, wchan: str, hang: str) -> None:
    """The parent joins a child which waits for its answer. The control: a thread that itself waits."""
    sends = Thread("sender", 7, at(file, "releases"), wchan=wchan)
    stack = (Frame("_try_wait", "/usr/lib/python3.11/subprocess.py", 2010), *frames("main:5"))
    parent = standing(process(70, "process", "main:5", listening=("127.0.0.1:8000",)), stack, "do_wait", sends)
    child = process(71, "process", "main score getresponse", ppid=70, peers=("127.0.0.1:8000",))
    verdict = triage(evidence(parent, child))
    assert verdict.triage is not None and verdict.triage.hang == hang


EPOCHS = """
def flat(steps):
    for step in steps:
        step()
    evaluate()

def nested(epochs, steps):
    for epoch in epochs:
        for step in steps:
            step()
        evaluate()
"""


@pytest.mark.parametrize(("function", "step", "evaluates", "kind"), [("flat", 4, 5, "K1"), ("nested", 10, 11, "K4")])
def test_a_loop_of_epochs_brings_back_who_left_its_steps(
    tmp_path: Path, function: str, step: int, evaluates: int, kind: str
) -> None:
    """Who stands there without an end is blamed for that, and not for the number of its steps."""
    path = tmp_path / "epochs.py"
    path.write_text(EPOCHS)
    collective = Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9)
    waiter = standing(rank(0, WAIT, world=2), (collective, Frame(function, str(path), step)), "futex_do_wait")
    late = standing(rank(1, "main", world=2), (Frame(function, str(path), evaluates),), "futex_do_wait")
    verdict = triage(evidence(waiter, late), compared(group("0", {0: (17, "all_reduce"), 1: 16})))
    assert verdict.verdict == "HUNG" and verdict.triage is not None and verdict.triage.hang == kind


def test_a_lock_that_no_thread_can_release_is_named(file: str) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, "waits"), "futex_do_wait"))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", {1})


@pytest.mark.parametrize(("inner", "thread"), [
    ((JOIN,), (Frame("look", "/job/train.py", 4),)), ((), (Frame("look", "/job/train.py", 4), POOL)),
])  # fmt: skip
def test_a_joined_thread_or_a_task_of_a_pool_that_sleeps(
    file: str, inner: tuple[Frame, ...], thread: tuple[Frame, ...]
) -> None:
    beside = Thread("Thread-1", 7, thread, wchan=SLEEP)
    verdict = judged(standing(rank(1, "main", world=2), (*inner, *at(file, "waits")), "futex_do_wait", beside))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", set())


@pytest.mark.parametrize("wchan", [
    "wait_for_partner", "do_sigtimedwait.isra.0", "pipe_read", "inet_csk_accept", "__skb_wait_for_more_packets",
])  # fmt: skip
def test_a_wait_for_a_writer_a_connection_or_a_signal(file: str, wchan: str) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, "reads"), wchan))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", set())


def test_a_wait_for_one_request_of_anybody(file: str) -> None:
    server = Frame("BaseServer.handle_request", "/usr/lib/python3.11/socketserver.py", 292)
    select = Frame("PollSelector.select", "/usr/lib/python3.11/selectors.py", 415)
    verdict = judged(standing(rank(1, "main", world=2), (select, server, *at(file, "waits")), "poll_schedule_timeout"))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", set())


@pytest.mark.parametrize(("wakers", "named"), [(None, False), ((70,), False), ((), True)])
def test_a_poll_that_something_may_end(file: str, wakers: tuple[int, ...] | None, named: bool) -> None:
    """What is polled may be a timer, a signal or a file of which the kernel does not say who writes it."""
    late = standing(rank(1, "main", world=2), at(file, "waits"), "ep_poll")
    verdict = judged(dataclasses.replace(late, wakers=wakers))
    assert (verdict.verdict, culprits(verdict)) == (("HUNG", {1}) if named else ("INSUFFICIENT", set()))


@pytest.mark.parametrize("wchan", ["fanotify_read", "do_msgsnd", "read_events", "a_function_of_a_later_kernel"])
def test_a_wait_of_which_no_list_says_for_whom_it_is(file: str, wchan: str) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, "waits"), wchan))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", set())


def test_a_child_that_polls_for_a_pool(file: str) -> None:
    late = standing(rank(1, "main", world=2), (*frames("lock.wait"), *at(file, "waits")), "futex_do_wait")
    child = standing(process(200, "process", "main", ppid=late.pid), at(file, "pause"), SLEEP)
    assert culprits(judged(late, child)) == set() and judged(late, child).verdict == "INSUFFICIENT"
    idle = standing(child, frames("main queue.get"), "futex_do_wait")
    assert culprits(judged(late, idle)) == {1}, "the control: a child that waits for orders"


def serving(*threads: Thread, frame: Frame = SERVES, **look: Any) -> Verdict:
    """What is said of a rank that asks a server, whose main thread waits for the next request."""
    asks = rank(0, "main score getresponse", world=1, peers=("127.0.0.1:8000",))
    server = process(70, "judge", "main select", listening=("127.0.0.1:8000",))
    stack = (*frames("select"), frame, Frame("main", "/job/judge.py", 9))
    return triage(evidence(asks, standing(server, stack, "do_epoll_wait", *threads)), None)


def test_a_server_whose_handler_computes_is_at_work() -> None:
    for handler in (ANYIO, HANDLER, POOL):
        frames_ = (Frame("score", "/job/judge.py", 4), handler)
        asks = rank(0, "main score getresponse", world=1, peers=("127.0.0.1:8000",))
        server = process(70, "judge", "main select", listening=("127.0.0.1:8000",))
        stack = (*frames("select"), SERVES, Frame("main", "/job/judge.py", 9))
        first, last = standing(server, stack, "do_epoll_wait").samples
        looks = tuple(
            dataclasses.replace(look, threads=(*look.threads, Thread("worker", 7, frames_, active=True, cpu_s=cpu_s)))
            for look, cpu_s in ((first, 1.0), (last, 2.0))
        )
        verdict = triage(evidence(asks, dataclasses.replace(server, samples=looks)), None)
        assert verdict.verdict in ("SLOW", "HEALTHY"), (handler, verdict.reason)


@pytest.mark.parametrize("handler", [ANYIO, HANDLER])
def test_a_server_whose_handler_sleeps_is_not_blamed(handler: Frame) -> None:
    thread = Thread("worker", 7, (Frame("score", "/job/judge.py", 4), handler), wchan=SLEEP)
    verdict = serving(thread)
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", set())


def test_a_server_without_a_handler_does_not_answer() -> None:
    assert serving().verdict == "HUNG", "the control: nothing in it works on the request"


def test_a_thread_that_keeps_the_interpreter_from_its_end_may_end() -> None:
    exits = Frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590)
    uploader = Thread("uploader", 2, (Frame("Thread.run", "/usr/lib/python3.11/threading.py", 982),), wchan=SLEEP)
    parent = process(90, "process", "main:40 collect _try_wait")
    late = dataclasses.replace(standing(rank(0, "main", world=2), (exits,), "futex_do_wait", uploader), ppid=90)
    assert triage(evidence(parent, late)).verdict != "HUNG"
    alone = dataclasses.replace(standing(rank(0, "main", world=2), (exits,), "futex_do_wait"), ppid=90)
    assert triage(evidence(parent, alone)).verdict == "HUNG"

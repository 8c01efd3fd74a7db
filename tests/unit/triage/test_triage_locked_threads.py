"""A process of which every thread waits for another one, as the kernel says: what is told, and of whom."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import evidence, process

from harness.triage import judge, lock_text
from harness.triage.evidence import Evidence, Frame, Process, Thread
from harness.triage.rules import threads

PROGRAM = """import threading


class Engine:
    def reload(self):
        self.weights.acquire()
        try:
            self.update()
        finally:
            self.weights.release()

    def update(self):
        self.cache.acquire()
        self.cache.release()

    def serve(self):
        with self.cache:
            self.read()

    def read(self):
        with self.weights:
            pass

    def take(self):
        with self.full:
            self.full.wait()

    def rest(self):
        threading.Event().wait()

    def work(self):
        while True:
            self.items.get()

    def move(self, one, other):
        with one.lock:
            with other.lock:
                pass
"""
FUTURES = "/usr/lib/python3.11/concurrent/futures/"
THREADING, QUEUE = "/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/queue.py"
NOTIFIED = (Frame("Condition.wait", THREADING, 327),)
# By the name of a thread's innermost function: its user's lines, innermost first, and what it calls there.
STACKS: dict[str, tuple[tuple[Frame, ...], tuple[tuple[str, int], ...]]] = {
    "reload": ((), (("update", 13), ("reload", 8))),
    "serve": ((), (("read", 21), ("serve", 18))),
    "take": (NOTIFIED, (("take", 26),)),
    "rest": ((*NOTIFIED, Frame("Event.wait", THREADING, 629)), (("rest", 29),)),
    "work": ((*NOTIFIED, Frame("Queue.get", QUEUE, 171)), (("work", 33),)),
    "move": ((), (("move", 37),)),
    "nest": ((*NOTIFIED, Frame("Future.result", FUTURES + "_base.py", 451)), (("work", 33),)),
    "meet": (
        (*NOTIFIED, Frame("Condition.wait_for", THREADING, 358), Frame("Barrier._wait", THREADING, 728)),
        (("work", 33),),
    ),
    "join": ((Frame("_wait_for_tstate_lock", THREADING, 1169),), (("rest", 29),)),
    "over": ((Frame("_wait_for_tstate_lock", THREADING, 1169), Frame("_shutdown", THREADING, 1590)), ()),
}


def thread(folder: Path, does: str, tid: int, *, main: bool = False) -> Thread:
    program = folder / "engine.py"
    program.write_text(PROGRAM)
    calls, lines = STACKS[does]
    stack = (*calls, *(Frame(f"Engine.{function}", str(program), line) for function, line in lines))
    stack += (Frame("_WorkItem.run", f"{FUTURES}thread.py", 58),) if does == "nest" and not main else ()
    return Thread("MainThread" if main else f"T{tid}", tid, stack, main=main, wchan="futex_do_wait")


def job(folder: Path, main: str, *others: str, locked: bool = True, **look: object) -> Process:
    program = process(100, "process", "main")
    threads = (
        thread(folder, main, 100, main=True),
        *(thread(folder, does, 101 + at) for at, does in enumerate(others)),
    )
    fields = {"threads": threads, "locked_together": locked, "main_switches": 7, "wchan": "futex_do_wait", **look}
    samples = tuple(dataclasses.replace(sample, **fields) for sample in program.samples)  # type: ignore[arg-type]
    return dataclasses.replace(program, samples=samples)


def live(*processes: Process) -> Evidence:
    return evidence(*processes, source="live", stall_s=0.0)


@pytest.mark.parametrize(
    ("threads", "hang", "place", "advice"),
    [
        pytest.param(
            ("join", "reload", "serve"), "K6", "engine.py:13 in update", "same order", id="each other's locks"
        ),
        pytest.param(("serve", "reload"), "K6", "engine.py:21 in read", "same order", id="the main thread among them"),
        pytest.param(("join", "move", "move"), "K6", "engine.py:37 in move", "same order", id="locks without names"),
        pytest.param(("join", "take", "work"), "K4", "engine.py:26 in take", "notification", id="a missed notify"),
        pytest.param(("take", "work"), "K4", "engine.py:26 in take", "notification", id="the main thread missed it"),
        pytest.param(("nest", "nest"), "K4", "engine.py:33 in work", "engine.py:33", id="a task that waits"),
        pytest.param(("join", "meet", "meet"), "K4", "engine.py:33 in work", "engine.py:33", id="a party of a barrier"),
        pytest.param(("over", "work"), "K4", "engine.py:33 in work", "end mark", id="kept alive at its end"),
    ],
)
def test_a_process_without_a_thread_that_can_go_on_hangs(
    tmp_path: Path, threads: tuple[str, ...], hang: str, place: str, advice: str
) -> None:
    verdict = judge.triage(live(job(tmp_path, *threads)))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", hang), verdict.reason
    assert [(party.pid, party.frame) for party in verdict.triage.culprits] == [(100, place)]
    assert advice in verdict.triage.next[0]


@pytest.mark.parametrize(
    ("threads", "changes"),
    [
        pytest.param(("join", "reload", "serve"), {"locked": False}, id="a thread that the kernel may wake"),
        pytest.param(("join", "take", "work"), {"locked": False}, id="the same without locks that are kept"),
        pytest.param(("join", "take", "work"), {"handles": ("SIGUSR1",)}, id="the handler of a signal"),
        pytest.param(("rest", "work", "work"), {}, id="a service that waits for its end"),
    ],
)
def test_a_process_that_something_may_wake_does_not_hang(
    tmp_path: Path, threads: tuple[str, ...], changes: dict[str, object]
) -> None:
    verdict = judge.triage(live(job(tmp_path, *threads, **changes)))  # type: ignore[arg-type]
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits


def test_a_service_whose_threads_wait_for_each_other_hangs_although_it_waits_for_a_signal(tmp_path: Path) -> None:
    verdict = judge.triage(live(job(tmp_path, "rest", "reload", "serve")))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K6")


def test_a_process_for_which_nobody_waits_is_not_named_beside_others(tmp_path: Path) -> None:
    beside = process(70, "process", "main:5 think", cpu_s=1.4)
    verdict = judge.triage(live(job(tmp_path, "join", "take", "work"), beside))
    assert verdict.verdict != "HUNG", verdict.reason


@pytest.mark.parametrize(("line", "kept"), [(6, ()), (8, ("self.weights",)), (10, ())])
def test_a_lock_is_kept_until_a_finally_releases_it(tmp_path: Path, line: int, kept: tuple[str, ...]) -> None:
    program = tmp_path / "engine.py"
    program.write_text(PROGRAM)
    assert lock_text.locks_kept(Frame("Engine.reload", str(program), line)) == kept


@pytest.mark.parametrize(("wchan", "places"), [("hrtimer_nanosleep", [3]), ("futex_do_wait", [])])
def test_a_thread_past_a_with_of_one_line_keeps_its_lock(tmp_path: Path, wchan: str, places: list[int]) -> None:
    program = tmp_path / "writer.py"
    program.write_text("def writer():\n    while True:\n        with lock: time.sleep(9)\nlock.acquire()\n")
    stands = Frame("writer", str(program), 3)
    beside = Thread("writer", 7, (stands,), wchan=wchan)
    kept = threads.keepers([beside], Frame("<module>", str(program), 4), "lock")
    assert [frame.line for _, frame in kept] == places

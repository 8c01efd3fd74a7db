"""Two threads of one process that wait for each other's locks are in the headline, whoever else waits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import evidence, process, rank

from harness.triage import judge, lock_text
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.run import triage

PROGRAM = """import threading

a, b = threading.Lock(), threading.Lock()


def one():
    with a:
        with b:
            work()


def two():
    with b:
        with a:
            work()


def work():
    pass
"""
DUMP = """Process 4711: python {program}
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    one ({program}:{first})
    <module> ({program}:20)
Thread 4712 (idle): "Thread-1 (two)"
    two ({program}:{second})
    run (threading.py:982)
"""


@pytest.mark.parametrize(
    ("first", "second", "crossed"),
    [
        pytest.param(8, 14, True, id="each waits for the other's lock"),
        pytest.param(7, 14, False, id="the first has no lock yet"),
        pytest.param(9, 14, False, id="the first works within both"),
        pytest.param(8, 19, False, id="the other has gone on"),
    ],
)
def test_crossed_locks_are_in_the_headline(tmp_path: Path, first: int, second: int, crossed: bool) -> None:
    program = tmp_path / "deadlock.py"
    program.write_text(PROGRAM)
    (tmp_path / "dump.txt").write_text(DUMP.format(program=program, first=first, second=second))
    verdict = triage([str(tmp_path / "dump.txt")])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert ("deadlock.py:8 and deadlock.py:14" in verdict.reason) is crossed
    assert ("locks" in verdict.triage.next[0]) is crossed


LOCKS = "a, b = threading.Lock(), threading.Lock()"


def deadlocked(
    folder: Path, *changes: tuple[str, str], main: str = "main:20 thread.join", third: str = "", second_at: int = 14
) -> Process:
    """A process whose threads stand at lines 8 and 14 of PROGRAM; at the second look the other one at `second_at`."""
    program, text = folder / "deadlock.py", PROGRAM
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    program.write_text(text)
    one = process(100, "process", main)
    looks = []
    for look, line in zip(one.samples, (14, second_at), strict=True):
        places = [("one", 8), ("two", line), *([(third, 19)] if third else [])]
        beside = [Thread(f"T{at}", 70 + at, (Frame(function, str(program), at_line),), wchan="futex_do_wait")
                  for at, (function, at_line) in enumerate(places)]  # fmt: skip
        looks.append(dataclasses.replace(look, threads=(*look.threads, *beside)))
    return dataclasses.replace(one, samples=tuple(looks))


ATTRIBUTES = (("with a", "with self.a"), ("with b", "with self.b"))  # which may be of two objects
GATE = LOCKS + "\ngate = threading.Lock()"


def test_threads_that_keep_what_each_other_needs_hang(tmp_path: Path) -> None:
    verdict = judge.triage(evidence(deadlocked(tmp_path)))
    assert verdict.verdict == "HUNG" and verdict.triage is not None
    assert [party.pid for party in verdict.triage.culprits] == [100]
    assert "deadlock.py:8 and deadlock.py:14" in verdict.reason and "locks" in verdict.triage.next[0]
    assert verdict.triage.hang == "K6"


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({"changes": ATTRIBUTES}, id="locks of two objects may have one name"),
        pytest.param({"changes": ((LOCKS, f"{LOCKS}\na = threading.Lock()"),)}, id="a name that is bound again"),
        pytest.param({"changes": (("def work():", "def work(a=None):"),)}, id="a name that is a parameter as well"),
        pytest.param({"changes": (("    pass", "    a.release()"),)}, id="somebody else releases it"),
        pytest.param({"changes": (("        with b:\n", "        if b.acquire(timeout=9):\n"),)}, id="a time limit"),
        pytest.param({"changes": ((LOCKS, "a, b = Slots(), Slots()"),)}, id="another class"),
        pytest.param({"second_at": 15}, id="one of them went on"),
        pytest.param({"third": "work"}, id="a thread that may go on"),
        pytest.param({"main": "main:20 serve_forever select"}, id="a server that takes requests"),
    ],
)
def test_threads_that_may_go_on_do_not_hang(tmp_path: Path, job: dict[str, object]) -> None:
    changes = job.pop("changes", ())
    verdict = judge.triage(evidence(deadlocked(tmp_path, *changes, **job)))  # type: ignore[misc, arg-type]
    assert verdict.verdict != "HUNG" and verdict.triage is not None and not verdict.triage.culprits, verdict.reason


@pytest.mark.parametrize(
    ("take", "ends"),
    [
        ("if b.acquire():", False),
        ("if b.acquire(timeout=-1):", False),
        ("while not b.acquire(timeout=9):", False),
        ("if b.acquire(timeout=9):", True),
        ("if b.acquire(True, limit):", True),
        ("if b.acquire(blocking=False):", True),
    ],
)
def test_a_wait_that_ends_by_itself_makes_no_ring_of_threads(tmp_path: Path, take: str, ends: bool) -> None:
    verdict = judge.triage(evidence(deadlocked(tmp_path, ("with b:\n            work", f"{take}\n            work"))))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert ("deadlock.py:8 and deadlock.py:14" in verdict.reason) is not ends, verdict.reason
    assert any("same order" in step for step in verdict.triage.next) is not ends


def test_threads_behind_one_gate_are_not_in_both_locks_at_once(tmp_path: Path) -> None:
    """Two looks at threads that take turns may show both inside, a moment apart."""
    gated = PROGRAM.replace(LOCKS, GATE).replace("    with a:\n        with b", "    with gate, a:\n        with b")
    gated = gated.replace("    with b:\n        with a", "    with gate, b:\n        with a")
    gated = gated.replace("import threading\n\n", "import threading\n")  # the same lines
    verdict = judge.triage(evidence(deadlocked(tmp_path, (PROGRAM, gated))))
    assert verdict.verdict != "HUNG", verdict.reason


HANDLER = """import threading

lock = threading.Lock()


def handler(*_):
    with lock:
        flush()


def main():
    with lock:
        step()
    other()
"""


def interrupted(folder: Path, *changes: tuple[str, str], outer: int = 13, last_outer: int = 13) -> Process:
    """A rank whose handler of a signal stands at line 7 of HANDLER, above line `outer` of its main function."""
    program, text = folder / "job.py", HANDLER
    for old, new in changes:
        text = text.replace(old, new)
    program.write_text(text)
    one = rank(1, "main:5 work", world=2)
    looks = []
    for look, line in zip(one.samples, (outer, last_outer), strict=True):
        frames = (Frame("handler", str(program), 7), Frame("main", str(program), line))
        [main] = look.threads
        looks.append(
            dataclasses.replace(look, wchan="futex_do_wait", handles=("SIGUSR1",),
                                threads=(dataclasses.replace(main, frames=frames, wchan="futex_do_wait"),))
        )  # fmt: skip
    return dataclasses.replace(one, samples=tuple(looks))


@pytest.mark.parametrize(
    ("changes", "outer", "last_outer", "hung"),
    [
        pytest.param((), 13, 13, True, id="within its own with"),
        pytest.param((("threading.Lock()", "threading.RLock()"),), 13, 13, False, id="a reentrant lock"),
        pytest.param((), 14, 14, False, id="after its with"),
        pytest.param((), 13, 14, False, id="it came out of its with between the looks"),
        pytest.param((("    step()", "    lock.release()"),), 13, 13, False, id="somebody releases it"),
    ],
)
def test_a_thread_that_takes_its_own_lock_again_waits_for_itself(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], outer: int, last_outer: int, hung: bool
) -> None:
    stuck = interrupted(tmp_path, *changes, outer=outer, last_outer=last_outer)
    verdict = judge.triage(evidence(rank(0, "main:9 step:42 all_reduce", world=2), stuck))
    assert verdict.triage is not None
    named = [(party.rank, verdict.triage.hang) for party in verdict.triage.culprits]
    assert (named == [(1, "K4")]) is hung and (not hung or "job.py:13" in verdict.triage.culprits[0].why)


def test_a_lock_on_one_line_with_its_body_is_not_kept_by_who_takes_it(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("import threading\nlock = threading.Lock()\n\n\ndef work():\n    with lock: pass\n")
    frame = Frame("work", str(program), 6)
    assert lock_text.sole_locks_taken(frame) == {"lock"} and not lock_text.sole_locks_kept(frame, takes=True)
    assert lock_text.sole_locks_kept(frame) == {"lock"}  # where it calls something, it is inside
    waits = interrupted(tmp_path)
    looks = [
        dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=(frame,)),))
        for look in waits.samples
    ]
    verdict = judge.triage(
        evidence(rank(0, "main:9 step:42 all_reduce", world=2), dataclasses.replace(waits, samples=tuple(looks)))
    )
    assert "itself" not in verdict.account

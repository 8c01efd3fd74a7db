"""A thread that runs an event loop and waits for a result: is it this loop that has to make it?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import evidence, process

from harness.triage import judge
from harness.triage.evidence import Frame, Thread
from harness.triage.loop_text import Loop, awaited_loop
from reports.model import Verdict

PROGRAM = """import asyncio
BACKGROUND = asyncio.new_event_loop()

async def named():
    loop = asyncio.get_running_loop()
    future = asyncio.run_coroutine_threadsafe(fetch(), loop)
    return future.result()

async def at_once():
    return asyncio.run_coroutine_threadsafe(fetch(), asyncio.get_running_loop()).result()

def call(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, loop=BACKGROUND).result()

async def limited():
    return asyncio.run_coroutine_threadsafe(fetch(), asyncio.get_running_loop()).result(60)

async def of_a_pool(pool):
    return pool.submit(fetch).result()

async def of_another(loop):
    return asyncio.run_coroutine_threadsafe(fetch(), loop).result()

async def of_two(other):
    loop = asyncio.get_running_loop()
    if other:
        loop = other
    return asyncio.run_coroutine_threadsafe(fetch(), loop).result()

async def in_a_thread():
    loop = asyncio.get_running_loop()
    def wait():
        return asyncio.run_coroutine_threadsafe(fetch(), loop).result()
    return await asyncio.to_thread(wait)
"""
LINES = {"named": 7, "at_once": 10, "call": 13, "limited": 16, "of_a_pool": 19, "of_another": 22, "of_two": 28,
         "wait": 33}  # fmt: skip
LIBRARY = "/usr/lib/python3.11/"
RUNS = Frame("_run_once", f"{LIBRARY}asyncio/base_events.py", 1936)
WORKS = Frame("run", f"{LIBRARY}concurrent/futures/thread.py", 58)
RESULT = (Frame("wait", f"{LIBRARY}threading.py", 327), Frame("result", f"{LIBRARY}concurrent/futures/_base.py", 451))
SLEEPS = Thread("sleeper", 9, (Frame("named", "", 5), WORKS), wchan="hrtimer_nanosleep")


def line(folder: Path, function: str) -> Frame:
    (folder / "job.py").write_text(PROGRAM)
    return Frame(function, str(folder / "job.py"), LINES[function])


@pytest.mark.parametrize(
    ("function", "loop"),
    [
        ("named", Loop.OWN),
        ("at_once", Loop.OWN),
        ("call", Loop.MADE_HERE),
        *((each, Loop.UNKNOWN) for each in ("limited", "of_a_pool", "of_another", "of_two", "wait")),
    ],
)
def test_the_text_says_which_loop_makes_a_result(tmp_path: Path, function: str, loop: Loop) -> None:
    assert awaited_loop(line(tmp_path, function)) is loop


def judged(folder: Path, function: str, *beside: Thread, under: Frame = RUNS, **look: object) -> Verdict:
    main = Thread("MainThread", 100, (*RESULT, line(folder, function), under), main=True, wchan="futex_do_wait")
    program = process(100, "process", "main")
    fields = {"threads": (main, *beside), "main_switches": 7, "wchan": "futex_do_wait", **look}
    looks = tuple(dataclasses.replace(sample, **fields) for sample in program.samples)  # type: ignore[arg-type]
    return judge.triage(evidence(dataclasses.replace(program, samples=looks), source="live", stall_s=0.0))


@pytest.mark.parametrize("function", ["named", "at_once", "call"])
def test_a_thread_that_waits_for_its_own_loop_hangs(tmp_path: Path, function: str) -> None:
    verdict = judged(tmp_path, function)
    place = f"job.py:{LINES[function]} in {function}"
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K6"), verdict.reason
    assert [party.frame for party in verdict.triage.culprits] == [place]
    assert place in verdict.triage.next[0]


def test_a_thread_beside_does_not_serve_the_loop_of_another_thread(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "named", SLEEPS)
    assert verdict.verdict == "HUNG" and verdict.triage is not None and verdict.triage.hang == "K6"


@pytest.mark.parametrize(
    ("function", "beside", "under"),
    [
        pytest.param("limited", (), RUNS, id="a time limit"),
        pytest.param("of_a_pool", (SLEEPS,), RUNS, id="a future of a pool whose thread sleeps"),
        pytest.param("of_another", (), RUNS, id="a loop that nothing names"),
        pytest.param("of_two", (), RUNS, id="a name for two loops"),
        pytest.param("call", (Thread("loop", 9, (RUNS,)),), RUNS, id="a loop in another thread"),
        pytest.param("call", (SLEEPS,), RUNS, id="a thread that may still start the loop"),
        pytest.param("named", (), WORKS, id="a thread that runs no loop"),
    ],
)
def test_a_wait_for_another_loop_is_no_such_hang(
    tmp_path: Path, function: str, beside: tuple[Thread, ...], under: Frame
) -> None:
    verdict = judged(tmp_path, function, *beside, under=under)
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits


def test_the_only_thread_of_a_program_that_waits_for_a_result_hangs(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "of_another", locked_alone=True)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4"), verdict.reason


@pytest.mark.parametrize("inside", ["main", "beside"])
def test_a_loop_in_a_side_thread_counts_where_somebody_waits_for_the_thread(tmp_path: Path, inside: str) -> None:
    joins = (Frame("_wait_for_tstate_lock", f"{LIBRARY}threading.py", 1169), line(tmp_path, "call"))
    idle = (Frame("accept", f"{LIBRARY}socket.py", 294), line(tmp_path, "call"))
    main = Thread("MainThread", 100, joins if inside == "main" else idle, main=True, wchan="futex_do_wait")
    stands = Thread("loop", 101, (*RESULT, line(tmp_path, "named"), RUNS), wchan="futex_do_wait")
    program = process(100, "process", "main")
    looks = tuple(dataclasses.replace(sample, threads=(main, stands)) for sample in program.samples)
    verdict = judge.triage(evidence(dataclasses.replace(program, samples=looks), source="live", stall_s=0.0))
    assert (verdict.verdict == "HUNG") is (inside == "main"), verdict.reason

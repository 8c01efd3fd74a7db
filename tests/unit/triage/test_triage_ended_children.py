"""A launcher collects its children one after another: one that has ended is not what it waits for."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from triage_evidence import compared, evidence, frames, group, process, rank
from waiting import until

from harness.triage.collect import Scope, conduct, proc
from harness.triage.evidence import Beat, Frame, Group, Journal, Process, Thread
from harness.triage.judge import triage
from reports.model import Verdict

DRIVER, COLLECTS = 90, "main:40 collect _try_wait"


def driver() -> Process:
    return process(DRIVER, "process", COLLECTS)


def child(pid: int, stack: str = "", *, code: int | None = None, **more: object) -> Process:
    """A process without a rank that the driver started; with `code` it has ended, and was not collected yet."""
    one = process(pid, "process", stack, gone=code is not None, ppid=DRIVER, exit_code=code, **more)
    return one if code is None else dataclasses.replace(one, beat=None)


def ended_in_order(number: int, *, groups: bool = True, left: bool = True, world: int = 3) -> Process:
    """A rank that is done: it closed its recording, and destroyed its groups if it `left` them."""
    made = (Group("0", tuple(range(world)), "gloo", "", world),) if groups else ()
    journal = Journal("j", 9, 30.0, groups=made, closed=True)
    one = rank(number, gone=True, world=world, ppid=DRIVER, exit_code=0, journal=journal)
    return dataclasses.replace(one, beat=Beat(9, 30.0, 30.0, sequences={} if left else {"0": 9}, ended=True))


def named(verdict: Verdict) -> list[str]:
    assert verdict.triage is not None
    return sorted(one.key for one in verdict.triage.culprits)


def test_a_helper_that_is_done_does_not_hide_who_has_not_come() -> None:
    """Data was prepared by a child that ended before the ranks began, or the first half of a daemon was."""
    ranks = [rank(n, "main:10 step:42 all_reduce", world=3, ppid=DRIVER) for n in (1, 2)]
    late = rank(0, "main:10 step:44 wait_for_reply", world=3, ppid=DRIVER)
    at = compared(group("0", {0: 16, 1: (17, "all_reduce"), 2: (17, "all_reduce")}))
    found = triage(evidence(driver(), child(95, code=0), late, *ranks), at)
    assert found.verdict == "HUNG" and named(found) == ["node0:100"], found.reason


@pytest.mark.parametrize(("wchan", "culprits"), [("do_wait", ["node0:96"]), ("", ["node0:95"])])
def test_a_failed_helper_is_not_what_a_driver_waits_for_in_the_kernel(wchan: str, culprits: list[str]) -> None:
    """wait(2) returns as soon as the child is over for which it waits. The control: the kernel function is not seen."""
    parent = process(DRIVER, "process", COLLECTS, wchan=wchan)
    helper = process(95, "shell", "", state="Z", ppid=DRIVER, exit_code=124)
    assert named(triage(evidence(parent, helper, child(96, "main:7 lock")))) == culprits


@pytest.mark.parametrize("work", [{"cpu_s": 1.2}, {"io_bytes": 900_000}])
def test_a_job_whose_last_stage_goes_on_is_not_hung(work: dict[str, float]) -> None:
    """Two shards are converted, and the third takes its time."""
    some = [child(95, code=0), child(96, code=0), child(97, "main convert", **work)]
    found = triage(evidence(driver(), *some))
    assert found.verdict in ("SLOW", "HEALTHY") and not named(found), found.reason


def test_a_tool_that_failed_does_not_hang_a_parent_whose_other_child_works() -> None:
    """Its error was dealt with, or the parent would not go on to the next one."""
    parent = rank(0, "main:40 collect _try_wait", world=2)
    failed = process(95, "process", gone=True, ppid=100, error="RuntimeError: no score", error_age_s=600.0)
    peer = rank(1, "main:10 step:42 all_reduce", world=2)
    found = triage(evidence(parent, peer, failed, process(96, "process", "main convert", ppid=100, cpu_s=1.2)))
    assert found.verdict == "SLOW" and not named(found), found.reason


def test_a_child_that_failed_is_still_told() -> None:
    some = [child(95, code=-9), child(96, "main wait_for_answer lock.wait")]
    found = triage(evidence(driver(), *some))
    assert found.verdict == "HUNG" and named(found) == ["node0:95"], found.reason


@pytest.mark.parametrize("stack", ["main merge lock.wait", "main upload select", "main upload"])
def test_a_rank_that_goes_on_alone_does_not_wait_for_those_that_left_the_group(stack: str) -> None:
    made = Journal("j", 9, 30.0, groups=(Group("0", (0, 1, 2), "gloo", "", 3),))
    alone = rank(0, stack, world=3, ppid=DRIVER, journal=made)
    found = triage(evidence(process(DRIVER, "launcher", COLLECTS), alone, ended_in_order(1), ended_in_order(2)))
    assert found.verdict != "HUNG" and not named(found), found.reason


@pytest.mark.parametrize("outermost", ["<module>", "_bootstrap Process.run", "_bootstrap run"])
def test_a_rank_that_ended_inside_its_group_is_missed(outermost: str) -> None:
    """Its shard was shorter: it ends in order, and its group is still there. The others run, or were forked."""
    made = Journal("j", 9, 30.0, groups=(Group("0", (0, 1, 2), "gloo", "", 3),))
    rest = [rank(n, f"{outermost} main gather_results lock.wait", world=3, ppid=DRIVER, journal=made) for n in (0, 1)]
    found = triage(evidence(driver(), *rest, ended_in_order(2, left=False)))
    assert found.verdict == "HUNG" and named(found) == ["node0:102"], found.reason


@pytest.mark.parametrize("stack", ["", "upload lock.wait", "finish select"])
def test_a_rank_whose_program_is_over_misses_nobody_who_ended_in_order(stack: str) -> None:
    """At the end of the interpreter functions of `atexit` run; the groups were not destroyed."""
    made = Journal("j", 9, 30.0, groups=(Group("0", (0, 1, 2), "gloo", "", 3),))
    exits = rank(0, stack, world=3, ppid=DRIVER, journal=made)
    found = triage(evidence(driver(), exits, *(ended_in_order(number, left=False) for number in (1, 2))))
    assert found.verdict != "HUNG" and not named(found), found.reason


@pytest.mark.parametrize("left", [True, False])
def test_a_rank_that_is_done_and_owes_its_peers_a_key_is_missed(left: bool) -> None:
    made = Journal("j", 9, 30.0, groups=(Group("0", (0, 1, 2), "gloo", "", 3),))
    rest = [rank(n, "main rendezvous", world=3, ppid=DRIVER, journal=made) for n in (0, 1)]
    found = triage(evidence(driver(), *rest, ended_in_order(2, left=left)))
    assert found.verdict == "HUNG" and named(found) == ["node0:102"], found.reason


def test_of_several_children_that_live_nothing_says_whose_end_is_awaited() -> None:
    """A monitor without an end stands below the program that started the ranks, and waits for nobody."""
    parent = process(5, "process", "main communicate")
    ranks = [dataclasses.replace(rank(n, "main select", world=2), ppid=5) for n in range(2)]
    monitor = dataclasses.replace(process(9, "process", "main:3 report:9"), ppid=5)
    for below in ([monitor, *ranks], [monitor, dataclasses.replace(monitor, pid=10)]):
        found = triage(evidence(parent, *below))
        assert not found.triage.culprits, found.reason  # type: ignore[union-attr]
    alone = triage(evidence(parent, monitor))
    assert [party.pid for party in alone.triage.culprits] == [9]  # type: ignore[union-attr]
    ended = dataclasses.replace(ranks[0], exit_code=0)
    assert [party.pid for party in triage(evidence(parent, monitor, ended)).triage.culprits] == [9]  # type: ignore[union-attr]


READS = "main:30 consume:12 queue.get pipe.recv"


def reader(*threads: str, own_pipe: bool = True) -> Process:
    """A rank that reads a queue of processes, with threads beside the main one."""
    one = rank(0, READS, world=2, own_pipe=own_pipe)
    beside = tuple(Thread(f"T{at}", 70 + at, frames(stack)) for at, stack in enumerate(threads))
    looks = tuple(dataclasses.replace(look, threads=(*look.threads, *beside)) for look in one.samples)
    return dataclasses.replace(one, samples=looks)


def writer(pid: int, code: int | None = None) -> Process:
    one = process(pid, "process", "main:50 produce:60 lock.wait", gone=code is not None, ppid=100, exit_code=code)
    return one if code is None else dataclasses.replace(one, beat=None)


@pytest.mark.parametrize("code", [1, -9, 0])
def test_a_queue_whose_only_writer_ended_is_that_ones_fault(code: int) -> None:
    peer = rank(1, "main:10 step:42 all_reduce", world=2)
    at = compared(group("0", {0: 4, 1: (5, "all_reduce")}))
    for source, stall_s in (("watch", 30.0), ("live", 0.0)):
        alone = triage(
            evidence(dataclasses.replace(reader(), rank=None), writer(200, code), source=source, stall_s=stall_s)
        )
        found = triage(evidence(reader(), peer, writer(200, code), source=source, stall_s=stall_s), at)
        for verdict in (alone, found):
            assert (verdict.verdict, named(verdict)) == ("HUNG", ["node0:200"]), verdict.account
            assert "node0:100" in {party.key for party in verdict.triage.victims}  # type: ignore[union-attr]


def test_who_reads_from_an_ended_writer_is_told_with_its_place() -> None:
    verdict = triage(evidence(dataclasses.replace(reader(), rank=None), writer(200, 3)))
    assert verdict.triage is not None and "train.py:12" in verdict.reason and "exit code 3" in verdict.reason
    assert "train.py:12" in verdict.triage.place and "train.py:12" in verdict.triage.next[-1]


def test_no_reader_is_told_of_a_writer_for_which_others_wait_elsewhere() -> None:
    verdict = triage(evidence(driver(), child(95, code=3)))
    assert "writes" not in verdict.reason


def test_a_queue_that_somebody_may_still_fill_blames_no_writer_that_ended() -> None:
    """A thread of the process itself, another child that is alive, or nobody knows who; and helpers that are done."""
    threads = reader("run:80 produce:90 lock.wait")
    for others in (
        (threads, writer(200, 1)),
        (reader(own_pipe=False), writer(200, 1), writer(201)),
        (reader(own_pipe=False), writer(200, 1)),
        (reader(), writer(200, 0), writer(201, 0)),
        (dataclasses.replace(reader(), samples=rank(0, "main:30 pump:12").samples), writer(200, 1)),  # a pipe to itself
    ):
        found = triage(evidence(*others))
        assert not {"node0:200", "node0:201"} & {*named(found)}, found.account


@pytest.mark.parametrize(("one", "verdict"), [
    (reader(), "HUNG"),
    (reader(own_pipe=False), "INSUFFICIENT"),
    (reader("run:80 produce:90 lock.wait"), "INSUFFICIENT"),
])  # fmt: skip
def test_a_queue_whose_writers_ended_unseen_names_nobody(one: Process, verdict: str) -> None:
    peer = rank(1, "main:10 step:42 all_reduce", world=2)
    at = compared(group("0", {0: 4, 1: (5, "all_reduce")}))
    found = triage(evidence(one, peer), at)
    if verdict == "HUNG":
        assert (found.verdict, named(found)) == ("HUNG", []) and found.missing
        assert {party.rank for party in found.triage.victims} == {0, 1}  # type: ignore[union-attr]
    assert "no process is left" not in found.reason or verdict == "HUNG"


@pytest.mark.parametrize(("call", "verdict"), [("accept", "INSUFFICIENT"), ("stands", "HUNG")])
def test_an_idle_server_whose_end_alone_is_waited_for_is_not_dead(call: str, verdict: str) -> None:
    """A launcher waits for the end of an engine that it started, and the engine for a connection."""
    found = triage(evidence(driver(), child(200, f"main:30 engine:28 {call}")), None)
    assert found.verdict == verdict, found.account
    assert named(found) == ([] if verdict == "INSUFFICIENT" else ["node0:200"])


PROGRAM = """import os

def read_all(stream):
    return os.read(stream, 9)

def pump():
    compute()
"""


def own_code(folder: Path, line: int, function: str, more: str = "") -> Process:
    """A process whose own code stands at a line of a file, and that alone can write to the pipe that it reads."""
    file = folder / "job.py"
    file.write_text(PROGRAM + more)
    one = process(100, "process", f"{function}:{line}", own_pipe=True)
    looks = tuple(
        dataclasses.replace(look, threads=(dataclasses.replace(
            look.threads[0], frames=(Frame(function, str(file), line),)),))
        for look in one.samples
    )  # fmt: skip
    return dataclasses.replace(one, samples=looks)


@pytest.mark.parametrize(
    ("line", "function", "more", "children", "culprits"),
    [
        (4, "read_all", "", [writer(200, 3)], ["node0:200"]),
        (4, "read_all", "", [writer(200, 0)], ["node0:100"]),  # a fork whose parent keeps the end that it writes to
        (4, "read_all", "", [writer(200, 0), writer(201, 0)], ["node0:100"]),
        (4, "read_all", "", [], []),
        (7, "pump", "", [writer(200, 3)], []),
        (4, "read_all", "import signal\nsignal.signal(17, print)\n", [writer(200, 3)], []),  # a signal writes
    ],
)
def test_a_read_of_a_pipe_whose_writer_failed_is_that_ones_fault_and_else_its_readers(
    tmp_path: Path, line: int, function: str, more: str, children: list[Process], culprits: list[str]
) -> None:
    """The parent still holds the end of the pipe that it gave to its child."""
    verdict = triage(evidence(own_code(tmp_path, line, function, more), *children))
    assert named(verdict) == culprits and (verdict.verdict == "HUNG") is bool(culprits), verdict.account


def test_a_thread_that_may_write_to_a_pipe_of_its_own_process_is_asked(tmp_path: Path) -> None:
    """`os.write` is no call by whose name a thread hands something on."""
    reader = own_code(tmp_path, 4, "read_all")
    later = Thread("later", 77, (Frame("write_later", str(tmp_path / "job.py"), 9),), wchan="hrtimer_nanosleep")
    looks = tuple(
        dataclasses.replace(look, threads=(*look.threads, later), wchan="anon_pipe_read") for look in reader.samples
    )
    peer = rank(1, "main:10 step:42 all_reduce", world=2)
    verdicts = [
        triage(evidence(dataclasses.replace(reader, rank=0, samples=samples), peer))
        for samples in (looks, tuple(dataclasses.replace(look, threads=look.threads[:1]) for look in looks))
    ]
    assert [verdict.verdict for verdict in verdicts] == ["INSUFFICIENT", "HUNG"]


RESULTS = "pool._handle_results pipe._recv"


def pool_of(*, tasks: str = "pool._handle_tasks", results: str = RESULTS, timed: bool = False) -> Process:
    one = process(100, "process", "main:11 pool.get pool.wait lock.wait")
    beside = tuple(Thread(f"T{at}", 70 + at, frames(stack)) for at, stack in enumerate((tasks, results)))
    looks = tuple(dataclasses.replace(look, timed=timed, threads=(*look.threads, *beside)) for look in one.samples)
    return dataclasses.replace(one, samples=looks)


WORKER = "main:9 pool.worker "


@pytest.mark.parametrize(
    ("parent", "second", "hung"),
    [
        (pool_of(), WORKER + "queues.get pipe._recv", True),
        (pool_of(), WORKER + "main:3 lock.wait", False),  # the one that took its place works on the task
        (pool_of(timed=True), WORKER + "queues.get pipe._recv", False),
        (pool_of(tasks="pool._handle_tasks main:4 load"), WORKER + "queues.get pipe._recv", False),
        (pool_of(results="pool._handle_results main:4 done"), WORKER + "queues.get pipe._recv", False),
    ],
)
@pytest.mark.parametrize("code", [-9, 1, None])
def test_a_pool_whose_worker_took_a_task_along_brings_no_result(
    parent: Process, second: str, hung: bool, code: int | None
) -> None:
    first = process(200, "process", WORKER + "queues.get sem.__enter__", ppid=100)
    dead = [process(300, "process", gone=True, ppid=100, exit_code=code)] if code else []
    found = triage(evidence(parent, first, process(201, "process", second, ppid=100), *dead))
    assert (found.verdict == "HUNG" and "node0:100" in {party.key for party in found.triage.victims}) is hung  # type: ignore[union-attr]
    assert not hung or named(found) == [f"node0:{each.pid}" for each in dead], found.account
    if hung:  # the kernel's log tells of nothing but a kill
        assert found.triage and any("dmesg" in step for step in found.triage.next) is (code == -9)


CHILD = """import multiprocessing, os
a, b = multiprocessing.Pipe()
if not os.fork():
    os._exit(1)
a.{read}
"""


@pytest.mark.slow
@pytest.mark.parametrize("read", ["recv()", "poll(60)"])
def test_a_connection_whose_other_end_died_is_told_from_one_that_is_read_with_a_limit(
    tmp_path: Path, read: str
) -> None:
    """A connection of multiprocessing is a pair of sockets: the parent still holds both."""
    (tmp_path / "job.py").write_text(CHILD.format(read=read))
    with subprocess.Popen([sys.executable, str(tmp_path / "job.py")]) as job:
        try:
            until(lambda: "unix" in proc.wchan(job.pid, job.pid) or "poll" in proc.wchan(job.pid, job.pid))
            taken = conduct.collect(Scope((job.pid,), ray_address=""), out=tmp_path / "out", native=False, nodes=False)
        finally:
            job.kill()
    [its] = [each for each in taken.processes if each.pid == job.pid]
    assert its.own_pipe and {look.reads_for_ever for look in its.samples} == {read == "recv()"}
    culprits = {taken.processes[-1].key} if read == "recv()" else set()
    assert {*named(triage(taken))} == culprits


def test_a_stopped_process_beside_one_that_stands_is_named_with_the_command_that_lets_it_go_on() -> None:
    parent = process(70, "process", "main:21 pipe.recv")
    child = process(71, "process", "main:9 send", ppid=70)
    stopped = dataclasses.replace(child, samples=tuple(dataclasses.replace(look, state="T") for look in child.samples))
    verdict = triage(evidence(parent, stopped), None)
    assert verdict.verdict == "INSUFFICIENT" and "71" in verdict.reason and verdict.triage is not None
    assert any(step.startswith("kill -CONT 71") for step in verdict.triage.next)


def test_a_rank_that_failed_is_not_why_a_launcher_waits_that_sleeps_in_the_kernel() -> None:
    """The others sleep, and then end well: a rank was optional, or its loss was caught."""
    launcher = process(DRIVER, "process", COLLECTS, wchan="do_wait")
    failed = dataclasses.replace(
        rank(1, "", state="Z", world=3, ppid=DRIVER, exit_code=1, error="RuntimeError: no address"), beat=None
    )
    sleepers = [rank(n, "main:5 train sleep", world=3, ppid=DRIVER, wchan="hrtimer_nanosleep") for n in (0, 2)]
    verdict = triage(evidence(launcher, failed, *sleepers))
    assert verdict.verdict != "HUNG" and not named(verdict)
    assert verdict.verdict != "INSUFFICIENT" or "rank 1 ended with exit code 1" in verdict.reason


def test_the_child_for_which_the_kernel_says_a_launcher_waits_is_its_target() -> None:
    launcher = process(DRIVER, "process", COLLECTS, wchan="do_wait")
    looks = tuple(dataclasses.replace(look, awaited_child=97) for look in launcher.samples)
    children = [child(pid, "main:7 lock") for pid in (96, 97)]
    verdict = triage(evidence(dataclasses.replace(launcher, samples=looks), *children))
    assert named(verdict) == ["node0:97"]

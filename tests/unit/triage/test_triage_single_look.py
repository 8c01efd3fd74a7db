"""A single look at a live job, without the history of a stall: who works is no victim, and a job in which one process
waits for another one that works is healthy. Slow is what others have waited for for long."""

from __future__ import annotations

import dataclasses

from triage_evidence import HOST, evidence, process

from harness.triage.evidence import Evidence, Process, RayTask
from harness.triage.judge import triage

RAY = "main:10 remote:65 ray.get"
IDLE = "main_loop"
READY = "main:10 start:89 select"


def child(pid: int, parent: int, stack: str = "", **more: object) -> Process:
    return dataclasses.replace(process(pid, "process", stack, **more), ppid=parent)


def look(*processes: Process, tasks: tuple[RayTask, ...] = ()) -> Evidence:
    seen = tuple(dataclasses.replace(one, beat=None) for one in processes)
    return evidence(*seen, source="live", stall_s=0.0, ray_tasks=tasks)


def asked(caller: int, pid: int, age_s: float) -> RayTask:
    return RayTask(f"{caller}-{pid}", "Host.call", "RUNNING", age_s, pid=pid, caller_pid=caller)


def test_whose_stack_moves_waits_for_nobody() -> None:
    """The caller goes from one call to the next; the actor that had answered is idle."""
    moving = process(200, "Host", "main:10 work:20 score:30", "main:10 work:24 remote:65 ray.get")
    found = triage(
        look(
            process(100, "driver", RAY), moving, process(300, "Host", IDLE),
            tasks=(asked(100, 200, 40.0), asked(200, 300, 30.0)),
        )
    )  # fmt: skip
    assert found.verdict == "HEALTHY" and not found.triage.culprits
    assert [wait.target for wait in found.triage.waits] == [f"{HOST}:200"]


def test_an_idle_actor_left_no_loop_where_nobody_is_in_a_collective() -> None:
    """A call that is old, and an actor that does not run it: it does not answer (K4), which is no trip count (K1)."""
    found = triage(look(process(100, "driver", RAY), process(300, "Host", IDLE), tasks=(asked(100, 300, 60.0),)))
    assert (found.verdict, found.triage.hang) == ("HUNG", "K4")


def test_a_young_call_beside_an_old_one_proves_nothing() -> None:
    """The age of another wait does not make this one old."""
    found = triage(
        look(
            process(100, "driver", RAY), process(200, "Host", RAY), process(300, "Host", IDLE),
            tasks=(asked(100, 200, 40.0), asked(200, 300, 1.0)),
        )
    )  # fmt: skip
    assert found.verdict != "HUNG" and not found.triage.culprits


def test_an_engine_that_is_closed_on_purpose() -> None:
    """Its front reads on, so nobody waits for the scheduler that has ended."""
    front = process(200, "Host", "main:10 close:40 getresponse", "main:10 load:50 getresponse")
    ended = dataclasses.replace(child(300, 200, gone=True), role="scheduler", engine="sglang")
    found = triage(look(process(100, "driver", RAY), front, ended, tasks=(asked(100, 200, 40.0),)))
    assert found.verdict == "HEALTHY" and not found.triage.culprits


def test_whoever_waits_in_select_for_a_child_that_works_is_healthy() -> None:
    """An engine that starts: its front polls the scheduler's pipe, and the scheduler loads."""
    for ready in (READY, "main:10 start:89 pipe.recv", "main:10 start:89 pipe.poll select"):
        working = look(
            process(100, "driver", RAY), process(200, "Host", ready), child(300, 200, cpu_s=1.4),
            tasks=(asked(100, 200, 40.0),),
        )  # fmt: skip
        found = triage(working)
        assert found.verdict == "HEALTHY" and not found.triage.culprits, ready
        resting = dataclasses.replace(working, processes=(*working.processes[:2], child(300, 200)))
        assert triage(resting).verdict == "HUNG", "nothing works: the front does not answer"


def test_an_idle_server_does_not_work_because_its_helper_does() -> None:
    server = process(200, "Host", "run_busy_loop main:10 select")
    found = triage(
        look(process(100, "driver", RAY), server, child(300, 200, cpu_s=1.4), tasks=(asked(100, 200, 40.0),))
    )
    assert found.verdict == "HUNG"


def test_a_parent_that_receives_from_a_child_that_works() -> None:
    found = triage(look(process(100, "process", "main:8 pipe.recv"), child(300, 100, cpu_s=1.0)))
    assert found.verdict == "HEALTHY"

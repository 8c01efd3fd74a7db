"""Tasks, actors and placement groups of Ray that wait for resources: a hang only if nothing can ever become free."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from triage_evidence import HOST, evidence, process

from harness.triage.evidence import Evidence, RayActor, RayGroup, RayNode, RayTask
from harness.triage.judge import triage
from reports.model import Verdict

CPU, GPU = (("CPU", 1.0),), (("GPU", 1.0),)
NODE = RayNode(HOST, True, total=(("CPU", 2.0),), free=())
GET, IDLE = "main generate ray.get", "main main_loop"


def request(caller: int, *, name: str = "compute_reward", age_s: float = 20.0, **more: Any) -> RayTask:
    fields = {"resources": CPU, "caller_pid": caller, "caller_host": HOST, **more}
    return RayTask(f"p{caller}{name}", name, "PENDING_NODE_ASSIGNMENT", age_s, **fields)


def runs(pid: int, caller: int, name: str = "Worker.generate") -> RayTask:
    return RayTask(f"r{pid}", name, "RUNNING", 30.0, HOST, pid, f"a{pid}", caller_pid=caller, caller_host=HOST)


def actors(*pids: int) -> tuple[RayActor, ...]:
    return tuple(RayActor(f"a{pid}", "Worker", "ALIVE", HOST, pid, resources=CPU) for pid in pids)


def deadlock(**changes: Any) -> Evidence:
    """Two actors hold both CPUs and wait for tasks that need one; the driver waits for the actors."""
    workers = [process(pid, "Worker", GET, title="ray::Worker.generate") for pid in (20, 30)]
    fields = {
        "source": "live", "stall_s": 0.0, "ray_nodes": (NODE,), "ray_fixed": True, "ray_actors": actors(20, 30),
        "ray_tasks": (runs(20, 10), runs(30, 10), request(20), request(30)),
    }  # fmt: skip
    return evidence(process(10, "driver", GET), *workers, **{**fields, **changes})


def judged(seen: Evidence) -> Verdict:
    verdict = triage(seen)
    assert verdict.triage is not None and not verdict.triage.culprits
    return verdict


def test_actors_that_hold_every_cpu_and_wait_for_tasks_that_need_one_hang() -> None:
    verdict = judged(deadlock())
    assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K14")  # type: ignore[union-attr]
    assert sum("holds 1 CPU" in line for line in verdict.evidence) == 2
    assert f"node {HOST}: 0 of 2 CPU free" in verdict.evidence


def idle_holders(**changes: Any) -> Evidence:
    workers = [process(pid, "Worker", IDLE, title="ray::Worker") for pid in (20, 30)]
    seen = deadlock(ray_tasks=(request(10),), **changes)
    return dataclasses.replace(seen, processes=(seen.processes[0], *workers))


def test_idle_actors_that_only_the_waiting_driver_could_end_hang() -> None:
    assert judged(idle_holders()).triage.hang == "K14"  # type: ignore[union-attr]


def holder(stack: str, last: str | None = None, **more: Any) -> Evidence:
    """As `idle_holders`, and one of them runs a task that does something else."""
    seen = idle_holders()
    working = process(20, "Worker", stack, last, title="ray::Worker.generate", **more)
    tasks = (runs(20, 40), request(10))
    return dataclasses.replace(seen, processes=(seen.processes[0], working, seen.processes[2]), ray_tasks=tasks)


@pytest.mark.parametrize(
    "seen",
    [
        holder("main_loop nap"),  # a task that sleeps and will end
        holder("main_loop train:1", "main_loop train:9 step", cpu_s=1.4),
        deadlock(ray_fixed=False),  # an autoscaler may add a node
        deadlock(ray_nodes=(dataclasses.replace(NODE, silent="refused"),)),
        deadlock(ray_nodes=(NODE, RayNode("far", True, total=CPU, free=CPU))),  # it is being placed
        deadlock(ray_tasks=(runs(20, 10), runs(30, 10), request(20, age_s=2.0), request(30, age_s=2.0))),
        deadlock(ray_actors=(*actors(20, 30), RayActor("far", "Worker", "ALIVE", "far", 7, resources=CPU))),
        deadlock(ray_tasks=(runs(20, 10), runs(30, 10), runs(50, 10), request(20), request(30))),
    ],
)
def test_what_may_become_free_is_no_hang(seen: Evidence) -> None:
    verdict = judged(seen)
    assert verdict.verdict != "HUNG", verdict.reason


def test_who_may_give_up_after_a_time_is_not_stuck() -> None:
    seen = deadlock()
    driver = process(10, "driver", "main generate ray.wait")
    assert judged(dataclasses.replace(seen, processes=(driver, *seen.processes[1:]))).verdict != "HUNG"


def gpu_actor(age_s: float, *, stall_s: float = 0.0, **changes: Any) -> Evidence:
    """The driver waits for a method of an actor that asks for a GPU; the cluster has none."""
    asked = request(10, name="Engine.__init__", age_s=age_s, resources=(*CPU, *GPU))
    free = dataclasses.replace(NODE, free=NODE.total)
    fields: dict[str, Any] = {"ray_nodes": (free,), "ray_fixed": True, "ray_tasks": (asked,), "threshold_s": 30.0}
    return evidence(process(10, "driver", GET), source="live", stall_s=stall_s, **{**fields, **changes})


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (gpu_actor(90.0, threshold_s=0.0), "HUNG"),
        (gpu_actor(30.0, stall_s=31.0), "HUNG"),
        (gpu_actor(15.0, threshold_s=0.0), "INSUFFICIENT"),  # nodes may still join
        (gpu_actor(90.0, ray_fixed=False), "INSUFFICIENT"),
        (gpu_actor(90.0, ray_nodes=(dataclasses.replace(NODE, alive=False),)), "INSUFFICIENT"),
    ],
)
def test_what_no_node_has_hangs_once_nodes_had_time_to_join(seen: Evidence, verdict: str) -> None:
    answer = judged(seen)
    assert answer.verdict == verdict, answer.reason
    assert (answer.triage.hang == "K14") is (verdict == "HUNG")  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 2])
def test_the_advice_gives_the_cluster_what_all_requests_ask_for(count: int) -> None:
    asked = request(10, name="Engine.__init__", age_s=90.0, resources=(*CPU, *GPU))
    verdict = judged(gpu_actor(90.0, threshold_s=0.0, ray_tasks=(asked,) * count))
    assert verdict.triage is not None
    assert any(f"ray.init(num_gpus={count})" in advice for advice in verdict.triage.next)


def test_a_placement_group_is_a_request_and_a_holder() -> None:
    small = RayGroup("g1", "rollout", "CREATED", (CPU, CPU), 40.0)
    large = RayGroup("g2", "", "PENDING", ((("CPU", 2.0),),), 30.0)
    seen = idle_holders(ray_groups=(small, large), ray_actors=())
    verdict = judged(dataclasses.replace(seen, ray_tasks=()))
    assert verdict.triage.hang == "K14" and any("holds 2 CPU" in line for line in verdict.evidence)  # type: ignore[union-attr]

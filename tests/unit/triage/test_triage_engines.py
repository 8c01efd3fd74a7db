"""A weight sync that an engine's worker does not take: the wait is followed through an asyncio actor to that worker."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from triage_evidence import evidence, process

from harness.triage.evidence import Evidence, RayTask
from harness.triage.judge import triage

ASLEEP = {"wchan": "hrtimer_nanosleep"}


def job(core: str, worker: str, **look: Any) -> Evidence:
    """OpenRLHF's processes: trainer -> policy -> asyncio actor of the engine -> its core -> the core's worker."""
    actor = process(30, "rollout", "main_loop")
    engine = dataclasses.replace(process(40, "VLLM_EngineCore", core), ppid=30, engine="vllm")
    last = dataclasses.replace(process(50, "VLLM_Worker", worker, **look), ppid=40, engine="vllm")
    tasks = [
        RayTask("1", "PolicyModelActor.broadcast_to_vllm", "RUNNING", 40.0, "", 20, "", caller_pid=10),
        RayTask("2", "RolloutRayActor.update_weight", "RUNNING", 40.0, "", 30, "", caller_pid=20),
    ]
    waiting = [process(10, "trainer", "fit ray.get"), process(20, "actor", "broadcast_to_vllm ray.get")]
    return evidence(*waiting, actor, engine, last, ray_tasks=tuple(tasks))


@pytest.mark.parametrize(
    ("look", "why"), [({"state": "T"}, "stopped (SIGSTOP)"), (ASLEEP, "does not answer: compute: update_weight")]
)
def test_the_worker_that_does_not_receive_is_named_and_the_chain_waits(look: dict[str, Any], why: str) -> None:
    core = "run_busy_loop get_response zmq.poll"
    verdict = triage(job(core, "worker_busy_loop update_weight hang:7", **look))
    assert verdict.triage is not None and verdict.verdict == "HUNG"
    [culprit] = verdict.triage.culprits
    assert (culprit.role, culprit.pid) == ("VLLM_Worker", 50) and culprit.why.startswith(why)
    assert {one.pid for one in verdict.triage.victims} == {10, 20, 30, 40}


def test_an_engine_that_is_idle_has_answered_and_its_actor_is_asked_instead() -> None:
    verdict = triage(job("run_busy_loop zmq.poll", "worker_busy_loop zmq.poll"))
    assert verdict.triage is not None
    assert not any(wait.waiter.endswith(":30") for wait in verdict.triage.waits)
    assert 50 not in {one.pid for one in verdict.triage.culprits}


@pytest.mark.parametrize("state", ["T", "R"])
def test_an_event_loop_that_is_run_until_a_stopped_engine_answers_is_its_victim(state: str) -> None:
    """Our own session: an event loop in its own code, which wakes now and then, and the engine's scheduler below it."""
    host = process(20, "rollout", "call mine:9")
    scheduler = dataclasses.replace(process(30, "rollout", "event_loop mine:7", state=state), ppid=20, engine="sglang")
    task = RayTask("1", "Host.call", "RUNNING", 40.0, "", 20, "", caller_pid=10)
    verdict = triage(evidence(process(10, "trainer", "result ray.get"), host, scheduler, ray_tasks=(task,)))
    assert verdict.triage is not None
    named = {one.pid for one in verdict.triage.culprits}
    assert named == {30} if state == "T" else 30 not in named

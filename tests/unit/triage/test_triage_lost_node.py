"""A node of a Ray cluster that is dead or does not answer: its host is named, nobody is blamed; and controls."""

from __future__ import annotations

import dataclasses

import pytest
from triage_evidence import compared, evidence, group, process, rank, wording

from harness.triage.evidence import Evidence, RayActor, RayNode, RayTask
from harness.triage.judge import triage

HERE = RayNode("hosta", True)
SILENT, DEAD = RayNode("hostb", True, "", "no answer in time"), RayNode("hostb", False, "health check failed")
DRIVER = process(10, "driver", "main ray_get")
TRAINER = rank(0, "main train all_reduce", world=2)
TASK = RayTask("t", "Engine.generate", "RUNNING", 40.0, "hostb", 77, "a", 10, caller_host="h")
AT = compared(group("0", {0: (9, "all_reduce")}, missing=[1]), world=2)


def cluster(*nodes: RayNode, tasks: tuple[RayTask, ...] = (TASK,), actors: tuple[RayActor, ...] = ()) -> Evidence:
    return evidence(DRIVER, TRAINER, ray_nodes=(HERE, *nodes), ray_tasks=tasks, ray_actors=actors)


@pytest.mark.parametrize(("node", "words"), [(SILENT, "did not answer (no answer in time)"), (DEAD, "is dead: health")])
@pytest.mark.parametrize("recorded", [True, False])
def test_the_lost_host_is_named_with_what_ran_there(node: RayNode, words: str, recorded: bool) -> None:
    verdict = triage(cluster(node), AT if recorded else None)
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    assert "a node of the Ray cluster is lost" in verdict.reason, verdict.reason
    assert f"hostb {words}" in wording(verdict) and "Engine.generate ran there" in wording(verdict)


@pytest.mark.parametrize(
    "actor",
    [
        RayActor("a", "Engine", "ALIVE", "hostb", 77),
        RayActor("a", "Engine", "DEAD", "hostb", 77, "The actor died because its node has died. Node Id: 3f"),
    ],
)
def test_an_actor_counts_as_well_as_a_task(actor: RayActor) -> None:
    assert "hostb" in triage(cluster(DEAD, actors=(actor,), tasks=()), AT).reason


@pytest.mark.parametrize("death", ["The actor is dead because it was killed by `ray.kill`.", "INTENDED_USER_EXIT", ""])
def test_an_actor_that_ended_before_its_node_does_not(death: str) -> None:
    actors = (RayActor("a", "Loader", "DEAD", "hostb", 77, death),)
    assert "is lost" not in triage(cluster(DEAD, actors=actors, tasks=()), AT).reason


@pytest.mark.parametrize(
    "sound",
    [
        cluster(RayNode("hostb", True)),  # it answered
        cluster(DEAD, RayNode("hostb", True)),  # it was started anew, and answered
        cluster(SILENT, tasks=()),  # nothing of the job runs there
        cluster(DEAD, tasks=(dataclasses.replace(TASK, state="FINISHED"),)),
    ],
)
def test_a_node_is_not_lost(sound: Evidence) -> None:
    assert "is lost" not in triage(sound, AT).reason


def test_a_head_that_takes_no_connection_is_named() -> None:
    lost = dataclasses.replace(cluster(), ray_nodes=(), ray_tasks=(), ray_lost="10.0.0.1:6379 (Connection refused)")
    for waiting in (lost, dataclasses.replace(lost, processes=(process(10, "driver", "main step"), rank(1, world=2)))):
        verdict = triage(waiting, None)
        assert verdict.verdict == "INSUFFICIENT" and "head of the Ray cluster is lost: 10.0.0.1" in verdict.reason
    asks_again = process(10, "driver", "main:5 first ray.get", "main:9 second ray.get")
    for stall_s in (0.0, 30.0):
        verdict = triage(dataclasses.replace(lost, processes=(asks_again,), stall_s=stall_s), None)
        assert verdict.verdict == "INSUFFICIENT" and "head of the Ray cluster is lost" in verdict.reason
    busy = dataclasses.replace(lost, processes=(process(10, "driver", "main train", "main other", cpu_s=1.2),))
    assert "is lost" not in triage(busy, None).reason


def test_a_culprit_that_was_seen_is_named_all_the_same() -> None:
    stopped = rank(1, "main train", world=2, state="T")
    both = compared(group("0", {0: (9, "all_reduce"), 1: 8}))
    verdict = triage(dataclasses.replace(cluster(SILENT), processes=(DRIVER, TRAINER, stopped)), both)
    assert verdict.verdict == "HUNG" and "rank 1: stopped" in verdict.reason, verdict.reason


def test_a_job_that_moves_is_not_held_up_by_a_node_that_answers_late() -> None:
    busy = process(10, "driver", "main train", "main other", cpu_s=1.2)
    assert "is lost" not in triage(evidence(busy, ray_nodes=(HERE, SILENT), ray_tasks=(TASK,)), None).reason

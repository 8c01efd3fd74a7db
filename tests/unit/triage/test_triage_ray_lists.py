"""What `ray list` and `ray status` print, pasted: who waits for a node, and that it proves no hang.

The lists below were formatted by Ray 2.60's own `format_list_api_output`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.triage import pasted
from harness.triage.run import triage
from reports.model import Verdict

HEAD = """
======== List: 2026-11-28 09:24:08.775262 ========
Stats:
------------------------------
Total: 3

Table:
------------------------------
"""
ACTORS_TABLE = (
    HEAD
    + """\
    ACTOR_ID                          CLASS_NAME     STATE               JOB_ID  NAME        NODE_ID    PID
 0  a0000000000000000000000000000000  RolloutWorker  ALIVE             01000000  first  000000000007    812
 1  a0000000000000000000000000000001  RolloutWorker  PENDING_CREATION  01000000                           0
 2  a0000000000000000000000000000002  RolloutWorker  PENDING_CREATION  01000000                           0
"""
)
TASKS_TABLE = (
    HEAD
    + """\
                                             TASK_ID    ATTEMPT_NUMBER  NAME          STATE                      JOB_ID
 0  000000000000000000000000000000000000000000000000                 0  Trainer.step  RUNNING                  01000000
 1  000000000000000000000000000000000000000000000001                 0  Trainer.step  PENDING_NODE_ASSIGNMENT  01000000
 2  000000000000000000000000000000000000000000000002                 0  Trainer.step  PENDING_NODE_ASSIGNMENT  01000000
"""
)
STATUS = """======== Autoscaler status: 2026-11-28 09:10:21.035674 ========
Resources
---------------------------------------------------------------
Total Usage:
 4.0/8.0 CPU

Total Demands:
{demands}
"""
DEMANDS = " {'GPU': 1.0}: 2+ pending tasks/actors\n {'CPU': 4.0} * 2 (PACK): 1+ pending placement groups"


def row(**fields: Any) -> dict[str, Any]:
    return {"job_id": "01000000", "required_resources": {"GPU": 1.0}, "node_id": None, "pid": 0, **fields}


ACTORS = [row(actor_id=f"a{n:031x}", class_name="RolloutWorker", name=None,
              state="PENDING_CREATION" if n else "ALIVE") for n in range(3)]  # fmt: skip
TASKS = [row(task_id=f"{n:048x}", name="Trainer.step", actor_id=None, worker_pid=None,
             state="PENDING_NODE_ASSIGNMENT" if n else "RUNNING") for n in range(3)]  # fmt: skip


def yaml(rows: list[dict[str, Any]]) -> str:
    def scalar(value: Any) -> str:
        return "null" if value is None else "\n        GPU: 1.0" if isinstance(value, dict) else str(value)

    items = ["\n    ".join(f"{key}: {scalar(value)}" for key, value in sorted_row(row)) for row in rows]
    return "---\n" + "".join(f"-   {item}\n" for item in items) + "...\n"


def sorted_row(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(fields.items(), key=lambda pair: not pair[0].endswith(("actor_id", "task_id")))


def judged(folder: Path, *contents: str) -> Verdict:
    for number, content in enumerate(contents):
        (folder / f"paste{number}").write_text(content)
    verdict = triage([str(folder)])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    return verdict


ASKED = " with 1 GPU"  # what a list in YAML and JSON says, with --detail


@pytest.mark.parametrize(("content", "asked"), [(ACTORS_TABLE, ""), (yaml(ACTORS), ASKED), (json.dumps(ACTORS), ASKED)])
def test_actors_that_have_no_node_are_counted(tmp_path: Path, content: str, asked: str) -> None:
    verdict = judged(tmp_path, content)
    assert verdict.reason == f"Ray: 2 RolloutWorker actors wait for a node{asked}"
    assert "1 actor ALIVE" in verdict.evidence


@pytest.mark.parametrize(("content", "asked"), [(TASKS_TABLE, ""), (yaml(TASKS), ASKED), (json.dumps(TASKS), ASKED)])
def test_tasks_that_have_no_node_are_counted(tmp_path: Path, content: str, asked: str) -> None:
    assert judged(tmp_path, content).reason == f"Ray: 2 Trainer.step tasks wait for a node{asked}"


NODE, WORKER, PARENT = "ab" * 28, "cd" * 28, "f" * 48
PLACED_TABLE = (
    "     TASK_ID    ATTEMPT_NUMBER  NAME  STATE  JOB_ID  ACTOR_ID  TYPE  FUNC_OR_CLASS_NAME  NODE_ID  WORKER_PID\n"
    f" 0  {0:048x}                 0  Trainer.step  PENDING_NODE_ASSIGNMENT  01000000              NORMAL_TASK  "
    f"Trainer.step          {PARENT}  {NODE}  {WORKER}           813\n"
    f" 1  {1:048x}                 0  Trainer.step  PENDING_NODE_ASSIGNMENT  01000000              NORMAL_TASK  "
    f"Trainer.step          {PARENT}\n"
    f" 2  {2:048x}                 0  Trainer.poll  PENDING_NODE_ASSIGNMENT  01000000  {'a' * 32}  ACTOR_TASK  "
    f"Trainer.poll          {PARENT}\n"
)
PLACED = [
    {**TASKS[1], "task_id": f"{0:048x}", "node_id": NODE, "worker_pid": 813, "type": "NORMAL_TASK"},
    {**TASKS[1], "type": "NORMAL_TASK"},
    {**TASKS[1], "task_id": f"{2:048x}", "name": "Trainer.poll", "actor_id": "a" * 32, "type": "ACTOR_TASK"},
]


@pytest.mark.parametrize("content", [PLACED_TABLE, yaml(PLACED), json.dumps(PLACED)])
def test_a_task_that_has_a_node_waits_for_none_and_a_call_waits_for_its_actor(tmp_path: Path, content: str) -> None:
    (tmp_path / "paste").write_text(content)
    evidence = pasted.evidence([str(tmp_path / "paste")])
    assert evidence is not None
    assert [(task.host, task.pid) for task in evidence.ray_tasks] == [(NODE[:12], 813), ("", 0), ("", 0)]
    assert [bool(task.actor_id) for task in evidence.ray_tasks] == [False, False, True]
    verdict = judged(tmp_path, content)
    assert verdict.reason.startswith("Ray: 1 Trainer.step task waits for a node")
    assert "1 Trainer.poll task waits for its actor" in verdict.evidence
    assert "1 Trainer.step task has a node, though the state is PENDING_NODE_ASSIGNMENT" in verdict.evidence


def test_an_actor_with_a_node_is_being_constructed(tmp_path: Path) -> None:
    verdict = judged(tmp_path, json.dumps([{**ACTORS[1], "node_id": NODE, "pid": 7}, ACTORS[2]]))
    assert verdict.reason == "Ray: 1 RolloutWorker actor waits for a node with 1 GPU"
    assert "1 RolloutWorker actor has a node, and the constructor has not returned" in verdict.evidence


def test_amounts_that_are_no_numbers_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "paste").write_text(yaml(TASKS).replace("GPU: 1.0", "GPU: 1.1.1"))
    evidence = pasted.evidence([str(tmp_path / "paste")])
    assert evidence is not None and {task.resources for task in evidence.ray_tasks} == {()}


def test_what_is_asked_for_stands_beside_who_asks(tmp_path: Path) -> None:
    verdict = judged(tmp_path, ACTORS_TABLE, STATUS.format(demands=DEMANDS))
    assert verdict.reason.startswith("Ray: 2 RolloutWorker") and "{'GPU': 1.0}" in "".join(verdict.evidence)


def test_all_demands_of_a_status_are_told(tmp_path: Path) -> None:
    verdict = judged(tmp_path, STATUS.format(demands=DEMANDS))
    assert "{'GPU': 1.0}" in verdict.reason and "(PACK)" in verdict.evidence[0]


def test_a_list_twice_counts_each_actor_once(tmp_path: Path) -> None:
    assert judged(tmp_path, ACTORS_TABLE, json.dumps(ACTORS)).reason.startswith("Ray: 2 ")


def test_actors_that_all_live_are_no_finding(tmp_path: Path) -> None:
    assert "no actor or task waits" in judged(tmp_path, json.dumps(ACTORS[:1])).reason


def test_stacks_beside_actors_that_all_live_decide(tmp_path: Path) -> None:
    stack = 'Process 812: python train.py\nThread 812 (idle): "MainThread"\n    step (train.py:7)\n'
    assert "train.py:7" in judged(tmp_path, json.dumps(ACTORS[:1]), stack).reason


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([{**ACTORS[1], "pid": 10**18}]),
        json.dumps([{**ACTORS[1], "state": 7}]),
        json.dumps([{**ACTORS[1], "class_name": "x" * 5_000}]),
        json.dumps(ACTORS)[:-30],
        '[{"actor_id": ' * 5_000,
        yaml([{**ACTORS[1], "state": None}]),
    ],
)
def test_lists_that_are_damaged_or_hostile_are_not_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "paste").write_text(content)
    evidence = pasted.evidence([str(tmp_path / "paste")])
    assert evidence is not None and (evidence.ray_actors, evidence.ray_tasks, evidence.ray_demands) == ((), (), ())
    assert triage([str(tmp_path / "paste")]).verdict == "INSUFFICIENT"


def test_an_impossible_pid_of_a_table_is_none(tmp_path: Path) -> None:
    (tmp_path / "paste").write_text(ACTORS_TABLE.replace("    812\n", " 9999999999\n"))
    evidence = pasted.evidence([str(tmp_path / "paste")])
    assert evidence is not None and [actor.pid for actor in evidence.ray_actors] == [0, 0, 0]

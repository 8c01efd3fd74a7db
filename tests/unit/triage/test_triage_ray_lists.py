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


# Formatted by Ray 2.60: a name with a space and a number, and columns of which some are empty.
STATES_TABLE = (
    HEAD
    + f"""\
                            ACTOR_ID  CLASS_NAME              STATE                   JOB_ID  NAME      NODE_ID\
{" " * 54}PID  RAY_NAMESPACE
 0  0000000000000000000000000000000a  RolloutWorker           ALIVE                 01000000  my 7      {NODE}\
    812  8f
 1  0000000000000000000000000000000b  RolloutWorker           PENDING_CREATION      01000000\
{" " * 77}8f
 2  0000000000000000000000000000000c  Trainer.<locals>.Inner  DEPENDENCIES_UNREADY  01000000  my 7  {" " * 60}  0  8f
"""
)
# Ids that somebody shortened, columns that are not aligned any more.
SHORT_TABLE = (
    HEAD
    + """\
    ACTOR_ID     CLASS_NAME     STATE               JOB_ID    NAME    NODE_ID    PID    RAY_NAMESPACE
 0  111111111  RolloutWorker  ALIVE    01000000          aaaa       812    default
 1  222222222  RolloutWorker  PENDING_CREATION    01000000          None       0      default
 2  333333333  Trainer.<locals>.Inner  DEPENDENCIES_UNREADY 01000000         None       0      default
"""
)
STATES = [
    {"actor_id": "a" * 32, "class_name": "RolloutWorker", "state": "ALIVE", "node_id": NODE, "pid": 812},
    {"actor_id": "b" * 32, "class_name": "RolloutWorker", "state": "PENDING_CREATION", "node_id": None, "pid": None},
    {"actor_id": "c" * 32, "class_name": "Trainer.<locals>.Inner", "state": "DEPENDENCIES_UNREADY", "pid": 0},
]


@pytest.mark.parametrize("content", [STATES_TABLE, SHORT_TABLE, json.dumps(STATES)])
def test_a_table_of_actors_says_what_the_json_of_them_says(tmp_path: Path, content: str) -> None:
    (tmp_path / "paste").write_text(content)
    evidence = pasted.evidence([str(tmp_path / "paste")])
    assert evidence is not None
    assert [(actor.name, actor.state, actor.pid) for actor in evidence.ray_actors] == [
        ("RolloutWorker", "ALIVE", 812),
        ("RolloutWorker", "PENDING_CREATION", 0),
        ("Trainer.<locals>.Inner", "DEPENDENCIES_UNREADY", 0),
    ]
    verdict = judged(tmp_path, content)
    assert verdict.reason.startswith("Ray: 1 RolloutWorker actor waits for a node")
    assert "1 Trainer.<locals>.Inner actor waits for arguments" in verdict.evidence


@pytest.mark.parametrize(
    "line",
    [
        " 0  111111111  RolloutWorker  alive    01000000          None       0      default",
        " 0  1111  RolloutWorker  PENDING_CREATION    01000000    None       0      default",
        " 0  111111111  RolloutWorker  PENDING_CREATION    job    None       0      default",
        "0 deadbeef1 at STAGE 12345678 of 9",
    ],
)
def test_a_line_like_a_row_of_actors_is_none(tmp_path: Path, line: str) -> None:
    """The look-alike."""
    (tmp_path / "paste").write_text(f"{HEAD}    ACTOR_ID    CLASS_NAME\n{line}\n")
    evidence = pasted.evidence([str(tmp_path / "paste")])
    assert evidence is None or evidence.ray_actors == ()


def test_amounts_that_are_no_numbers_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "paste").write_text(yaml(TASKS).replace("GPU: 1.0", "GPU: 1.1.1"))
    evidence = pasted.evidence([str(tmp_path / "paste")])
    assert evidence is not None and {task.resources for task in evidence.ray_tasks} == {()}


def test_what_is_asked_for_stands_beside_who_asks(tmp_path: Path) -> None:
    verdict = judged(tmp_path, ACTORS_TABLE, STATUS.format(demands=DEMANDS))
    assert "{'GPU': 1.0}" in verdict.reason and "2 RolloutWorker actors wait" in "".join(verdict.evidence)


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


USAGE = """======== Autoscaler status: 2026-11-28 09:10:21.035674 ========
Resources
---------------------------------------------------------------
Total Usage:
 8.0/8.0 CPU (4.0 used of 8.0 reserved in placement groups)
 {gpus}0B/10.00GiB memory

Total Demands:
{demands}
"""
BUNDLES = " {'CPU': 1.0} * 1, {'GPU': 1.0} * 4 (PACK): 1+ pending placement groups"


@pytest.mark.parametrize(
    ("gpus", "demands", "lacking"),
    [
        ("0.0/0.0 GPU\n ", " {'GPU': 1.0}: 2+ pending tasks/actors", "the cluster has no GPU"),
        ("", " {'GPU': 1.0}: 2+ pending tasks/actors", "the cluster has no GPU"),
        ("2.0/2.0 GPU\n ", BUNDLES, "the cluster has 2 GPU"),
        ("0.0/4.0 GPU\n ", BUNDLES, ""),
        ("4.0/4.0 GPU\n ", " {'GPU': 1.0}: 9+ pending tasks/actors", ""),  # nine requests of one each
    ],
)
def test_a_request_for_more_than_the_whole_cluster_has_is_told_so(
    tmp_path: Path, gpus: str, demands: str, lacking: str
) -> None:
    verdict = judged(tmp_path, USAGE.format(gpus=gpus, demands=demands))
    assert verdict.reason.startswith(
        f"Ray: {lacking}, and " if lacking else "Ray: 1+" if "PACK" in demands else "Ray: 9+"
    )


@pytest.mark.parametrize(("gpus", "in_use"), [("2.0/2.0 GPU\n ", True), ("1.0/2.0 GPU\n ", False)])
def test_what_is_in_use_is_told_beside_what_is_asked_for(tmp_path: Path, gpus: str, in_use: bool) -> None:
    verdict = judged(tmp_path, USAGE.format(gpus=gpus, demands=" {'GPU': 1.0}: 1+ pending tasks/actors"))
    assert ("2 of 2 GPU are in use" in f"{verdict.reason} {verdict.evidence}") is in_use


def test_amounts_of_single_nodes_are_no_totals(tmp_path: Path) -> None:
    status = STATUS.format(demands=" {'GPU': 1.0}: 2+ pending tasks/actors").replace(" 4.0/8.0 CPU", "")
    assert judged(tmp_path, f"{status}\nNode: ab\n Usage:\n  4.0/4.0 CPU\n").reason.startswith("Ray: 2+ pending")


NO_TYPE = (
    "(autoscaler +35s) Error: No available node types can fulfill resource request {'GPU': 1.0, 'CPU': 1.0}. Add "
    "suitable node types to this cluster to resolve this issue."
)
NO_TYPE_OF_GROUP = (
    "(autoscaler +35s) No available node types can fulfill placement group requests (detail=test): {'GPU': 8.0}*2. Add "
    "suitable node types to this cluster to resolve this issue."
)
NOT_NOW = (
    "(raylet) Warning: The following resource request cannot be scheduled right now: {'GPU': 1.0}. This is likely due "
    "to all cluster resources being claimed by actors."
)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (NO_TYPE, "no node type of the cluster has enough, and requests ask for {'GPU': 1.0, 'CPU': 1.0}"),
        (NO_TYPE_OF_GROUP, "no node type of the cluster has enough, and placement groups ask for {'GPU': 8.0}*2"),
        (NOT_NOW, "requests that cannot be scheduled now ask for {'GPU': 1.0}"),
    ],
)
def test_what_ray_writes_to_a_log_about_requests(tmp_path: Path, line: str, reason: str) -> None:
    assert judged(tmp_path, f"step 1\n{line}\n").reason == f"Ray: {reason}"


def test_a_request_that_a_log_goes_on_after_has_got_its_node(tmp_path: Path) -> None:
    steps = "\n".join(f"step {step}" for step in range(40))
    assert "Ray" not in judged(tmp_path, f"{NO_TYPE}\n{steps}\n").reason


def test_an_error_in_the_same_log_comes_before_a_warning(tmp_path: Path) -> None:
    error = "[rank1]: torch.OutOfMemoryError: CUDA out of memory."
    assert "rank 1" in judged(tmp_path, f"{NO_TYPE}\n{error}\n").reason


GROUPS_TABLE = (
    HEAD
    + """\
    PLACEMENT_GROUP_ID                    NAME       CREATOR_JOB_ID    STATE
 0  aa0000000000000000000000000001000000  trainer    01000000          {0}
 1  bb0000000000000000000000000001000000             01000000          CREATED
"""
)


def test_a_placement_group_that_is_pending_waits_for_its_bundles(tmp_path: Path) -> None:
    reason = judged(tmp_path, GROUPS_TABLE.format("PENDING")).reason
    assert reason == "Ray: 1 placement group (trainer) PENDING: not all bundles have a node"


def test_placement_groups_that_are_there_wait_for_nothing(tmp_path: Path) -> None:
    assert "no actor or task waits" in judged(tmp_path, GROUPS_TABLE.format("CREATED")).reason


def test_placement_groups_as_json(tmp_path: Path) -> None:
    groups = [{"placement_group_id": "ab" * 18, "name": "g", "state": "PENDING", "bundles": [{"unit_resources": {}}]}]
    assert "1 placement group (g) PENDING" in judged(tmp_path, json.dumps(groups)).reason

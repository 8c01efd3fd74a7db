"""`ray summary tasks` and `actors`, pasted. The tables were formatted by Ray 2.60's own `format_summary_output`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.triage.run import triage

TASKS = """
======== Tasks Summary: 2026-11-30 08:25:23.755624 ========
Stats:
------------------------------------
total_actor_scheduled: 3
total_actor_tasks: 4
total_tasks: 5


Table (group by func_name):
------------------------------------
    FUNC_OR_CLASS_NAME      STATE_COUNTS                TYPE
0   RolloutWorker.generate  PENDING_NODE_ASSIGNMENT: 2  ACTOR_TASK
                            RUNNING: 1
1   reward                  FINISHED: 96                NORMAL_TASK
                            PENDING_NODE_ASSIGNMENT: 3
2   RewardModel.__init__    PENDING_NODE_ASSIGNMENT: 1  ACTOR_CREATION_TASK
"""
ACTORS = """
======== Actors Summary: 2026-11-30 08:25:23.757013 ========
Stats:
------------------------------------
total_actors: 4


Table (group by class):
------------------------------------
    CLASS_NAME     STATE_COUNTS
0   RolloutWorker  ALIVE: 2
                   DEAD: 1
1   RewardModel    PENDING_CREATION: 1
"""
OF_TASKS = {
    "cluster": {
        "total_tasks": 1,
        "summary_by": "func_name",
        "summary": {
            "reward": {
                "func_or_class_name": "reward",
                "type": "NORMAL_TASK",
                "state_counts": {"PENDING_NODE_ASSIGNMENT": 3, "FINISHED": 96},
            }
        },
    }
}


@pytest.mark.parametrize(
    ("name", "text", "facts"),
    [
        pytest.param(
            "tasks.txt",
            TASKS,
            [
                "3 reward tasks wait for a node",
                "2 RolloutWorker.generate tasks wait for their actor",
                "1 RewardModel.__init__ task waits for a node",
                "96 tasks FINISHED",
                "6 tasks PENDING_NODE_ASSIGNMENT",
                "1 task RUNNING",
            ],
            id="tasks",
        ),
        pytest.param(
            "actors.txt",
            ACTORS,
            ["1 RewardModel actor waits for a node", "2 actors ALIVE", "1 actor DEAD", "1 actor PENDING_CREATION"],
            id="actors",
        ),
        pytest.param(
            "summary.json",
            json.dumps(OF_TASKS, indent=1),
            ["3 reward tasks wait for a node", "96 tasks FINISHED", "3 tasks PENDING_NODE_ASSIGNMENT"],
            id="JSON",
        ),
    ],
)
def test_a_summary_says_what_waits_and_proves_no_hang(tmp_path: Path, name: str, text: str, facts: list[str]) -> None:
    (tmp_path / name).write_text(text)
    verdict = triage([str(tmp_path / name)])
    assert verdict.verdict == "INSUFFICIENT"
    assert [verdict.reason.removeprefix("Ray: "), *verdict.evidence] == facts


@pytest.mark.parametrize("text", ["STATE_COUNTS are above", '{"state_counts": 3}', TASKS.replace(": 2", ": many")])
def test_what_is_no_summary_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "note.txt").write_text(f"step 1\n{text}\n")
    verdict = triage([str(tmp_path / "note.txt")])
    assert "2 RolloutWorker" not in verdict.reason and verdict.verdict == "INSUFFICIENT"

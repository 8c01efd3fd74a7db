"""Healthy jobs that stand still for a while are never called hung, and no watch ends them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "cases" / "hangs" / "healthy_waits.py"
BY_DAY = ("lock_of_a_child",)
AT_NIGHT = (
    "joined_thread", "server_computes", "judge_sleeps",
    "key_of_a_store", "event_with_a_limit", "one_sleep:epochs", "event_of_a_timer", "upload_to_a_unix_socket",
    "one_sleep", "mapped_in_threads", "as_they_complete", "released_lock", "pool_of_processes", "child_without_text",
    "output_of_a_child", "named_pipe", "waits_for_signals", "server_polls", "server_sleeps", "asks_again",
    "submitted_sleep", "submitted_child", "joined_call", "queue_with_a_limit", "select_with_a_limit",
    "one_sleep:most", "poll:epochs", "compute:epochs", "output_of_a_child:epochs", "queue_fed_after_an_event",
    "queue_fed_by_a_timer:epochs", "queue_fed_by_a_timer:most", "accepted_connection", "one_request",
    "gathered_sleeps",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("way", [*BY_DAY, *(pytest.param(way, marks=pytest.mark.night) for way in AT_NIGHT)])
def test_a_job_that_waits_and_goes_on_is_not_ended(way: str, tmp_path: Path) -> None:
    job = [sys.executable, str(PROGRAM), way, "20"]
    watch = [sys.executable, "-m", "harness.cli", "watch", "--stall", "6s", "--on-stall", "end", "--out", "watched"]
    ended = subprocess.run([*watch, "--", *job], cwd=tmp_path, capture_output=True, text=True, check=False)
    verdicts = [json.loads(path.read_text()) for path in tmp_path.rglob("verdict.json")]
    assert ended.returncode == 0, ended.stderr
    assert not [verdict["reason"] for verdict in verdicts if verdict["verdict"] == "HUNG"]

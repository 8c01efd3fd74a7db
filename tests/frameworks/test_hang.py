"""OpenRLHF's own PPO job, hung on purpose in its weight sync and watched: the engine is named, and not who waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from framework_jobs import LIMIT_S, finished, openrlhf_command

STALL_S = 30

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def watched(home: Path, plant: str) -> dict[str, Any]:
    """The verdict on the job with that plant, which the watch ended at its first stall."""
    folder = home / f"hang-{plant}"
    if not (folder / "verdict.json").exists():
        command = ["env", f"FRAMEWORKS_PLANT={plant}", *openrlhf_command(home, f"hang-{plant}-job")]
        words = ["watch", "--stall", f"{STALL_S}s", "--on-stall", "end", "--out", str(folder), "--", *command]
        code, said = finished(words)
        (home / f"hang-{plant}.log").write_text(said)
        assert code == 86, said[-4000:]
    found: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return found


@pytest.mark.parametrize(("plant", "why"), [("engine-stops", "stopped"), ("engine-sleeps", "does not answer")])
def test_the_engine_that_does_not_receive_is_named_and_not_who_waits_for_it(
    recordings: Path, plant: str, why: str
) -> None:
    verdict = watched(recordings, plant)
    body = verdict["triage"]
    [culprit] = body["culprits"]
    assert verdict["verdict"] == "HUNG" and (culprit["engine"], culprit["role"]) == ("vllm", "VLLM_Worker")
    assert "openrlhf_cpu.py" in culprit["frame"] and why in culprit["why"]
    assert {one["role"] for one in body["victims"]} == {"driver", "trainer", "actor", "rollout", "VLLM_EngineCore"}

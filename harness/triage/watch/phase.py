"""Which part of a step a run of ours is in: the open spans in the heartbeat of its trainer, at most a period old."""

from __future__ import annotations

import json
import os
from pathlib import Path

from probes.heartbeat import BEATS

# span of the trainer -> phase of a step
PHASES = {"rollout": "rollout", "experience": "experience", "advantages": "experience", "train": "train",
          "sync": "sync", "proof": "sync"}  # fmt: skip


def current(directory: Path, step: int) -> str:
    """The phase of `step` that the trainer is in; empty where its last beat says nothing of that step."""
    try:
        files = [entry.path for entry in os.scandir(directory / BEATS) if entry.name.endswith(".json")]
    except OSError:  # nobody beats yet
        return ""
    for file in files:
        try:
            beat = json.loads(Path(file).read_bytes())
            if beat["role"] != "trainer":
                continue
            for span in reversed(beat["open"]):  # innermost first
                if span["name"] in PHASES and span["fields"].get("step") == step:
                    return PHASES[span["name"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # being rewritten: the next look will do
            continue
    return ""

"""The phase of a step that one of our runs is in, by the open spans in its trainer's heartbeat, at most one period
old."""

from __future__ import annotations

import json
import os
from pathlib import Path

from probes.heartbeat import BEATS

# trainer span -> phase of a step
PHASES = {"rollout": "rollout", "experience": "experience", "advantages": "experience", "train": "train",
          "sync": "sync", "proof": "sync"}  # fmt: skip


def current(directory: Path, step: int) -> str:
    """The phase of `step` that the trainer is in; empty if its last beat says nothing about that step."""
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
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # being rewritten: the next look reads it
            continue
    return ""

"""Faults of recording: what is done to a recorded run afterwards. The only planted faults that edit a recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def damage(run: Path, spec: Mapping[str, Any]) -> None:
    """keep: the share of each file of rollout tokens that is left, 0 to 1; nothing is left of a recording without them.
    packages: other versions in the environment of every process but the engine's. Raises KeyError for another key."""
    for name, value in spec.items():
        DAMAGES[name](run, value)


def _torn(run: Path, keep: float) -> None:
    for file in sorted((run / "tokens").glob("*.bin")):
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * keep)])
    if not keep:
        for file in sorted((run / "events").glob("*.jsonl")):
            file.write_bytes(b"")


def _elsewhere(run: Path, packages: Mapping[str, str]) -> None:
    for file in sorted((run / "events").glob("*.jsonl")):
        if file.name.startswith("rollout"):
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            event = json.loads(line)
            if isinstance(event.get("packages"), dict):
                event["packages"].update(packages)
                lines[number] = json.dumps(event, separators=(",", ":"))
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


DAMAGES: dict[str, Callable[[Path, Any], None]] = {"keep": _torn, "packages": _elsewhere}

"""Faults of recording: damage a recorded run after it ended. No other planted fault edits a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probes.format import INDEX, seal
from probes.lines import decode_line, encode_events


def damage(run: Path, spec: Mapping[str, Any]) -> None:
    """Damage a recorded run. Raises KeyError for an unknown key of `spec`.

    keep: the share of each file of rollout tokens to keep, 0 to 1. With 0 the event files are emptied too.
    packages: versions to write into the environment of every process except the engine's.
    """
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
        events = [decode_line(line) for line in file.read_bytes().splitlines(keepends=True)]
        for event in events:
            if isinstance(event.get("packages"), dict):
                event["packages"].update(packages)
        file.write_bytes(encode_events(events))
    if (run / INDEX).is_file():
        seal(run)  # a learner with these packages would have written these files


DAMAGES: dict[str, Callable[[Path, Any], None]] = {"keep": _torn, "packages": _elsewhere}

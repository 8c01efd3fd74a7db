"""The versions that a run used, read from its recording: run.json and the beginning of its engine's journals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes import redaction
from probes.format import EVENTS, MANIFEST, decode_json, mapping
from reports import displayed_paths
from reports.sections.parity import Fact
from reports.text import clean

if TYPE_CHECKING:
    from reports.model import RunSummary

MOST_BYTES = 1 << 20  # most bytes of run.json, and of the beginning of a journal
FIRST_EVENTS = 8  # events of a journal that are read; the last `environment` event is among them


def of(run: RunSummary) -> list[Fact]:
    """Return engine, interpreter, packages, system, processor and GPUs, as far as they were recorded."""
    place = displayed_paths.of(run.path)
    manifest, recorded_env = _manifest(place), _environment(place)
    engine, machine, device = (mapping(value) for value in (
        manifest.get("environment"), recorded_env.get("machine"), recorded_env.get("device"),
    ))  # fmt: skip
    packages = mapping(recorded_env.get("packages")) or mapping(manifest.get("packages"))
    version = engine.get("version") or run.rows.get("engine version")
    facts = [("engine", f"{run.backend} {version or ''}"), ("python", engine.get("python_version"))]
    facts += [(name, package_version) for name, package_version in packages.items() if name != engine.get("engine")]
    facts += [("system", machine.get("system")), ("processor", machine.get("cpu")), ("GPUs", machine.get("gpus"))]
    facts += [("device", device.get("name") or run.rows.get("device"))]
    facts += [(name, run.rows.get(name)) for name in ("model", "dtype", "attention backend")]
    return [Fact(name, _value_text(value)) for name, value in facts if value]


def _value_text(value: Any) -> str:
    return clean(value if isinstance(value, str) else json.dumps(value, default=str)).strip()[:200]


def _manifest(path: str) -> dict[str, Any]:
    if not path or not os.path.isfile(os.path.join(path, MANIFEST)):
        return {}
    return _decoded(_start(Path(path) / MANIFEST))


def _environment(path: str) -> dict[str, Any]:
    """Return the `environment` event of the engine's process; of any other process where it has none."""
    if not path or not os.path.isdir(os.path.join(path, EVENTS)):
        return {}
    files = sorted(file for file in (Path(path) / EVENTS).glob("*.jsonl") if os.path.isfile(file))
    events_by_file = {file.name: event for file in files for event in _events(file)}
    of_engines = [event for name, event in events_by_file.items() if name.startswith("rollout")]
    return next(iter([*of_engines, *events_by_file.values()]), {})


def _events(file: Path) -> Iterator[dict[str, Any]]:
    for line in _start(file).split(b"\n")[:FIRST_EVENTS]:
        event = _decoded(line)
        if event.get("kind") == "environment":
            yield event


def _start(file: Path) -> bytes:
    try:
        with open(file, "rb") as stream:
            return stream.read(MOST_BYTES)
    except OSError:
        return b""


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        return mapping(redaction.scrub(decode_json(data)))
    except (ValueError, RecursionError):
        return {}

"""What processes recorded of themselves: where they started, and what they ran with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recordings.records.values import Parameters, filled_text, integer, parameters, texts_by_name, whole_number


@dataclass(frozen=True)
class ProcessStart:
    """One `open` event. `variables`: of its environment; `wall_ns`: when it started, Unix time."""

    role: str | None
    rank: int
    pid: int | None
    wall_ns: int | None
    host: str | None
    python: str | None
    packages: Mapping[str, str]
    variables: Mapping[str, str]

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> ProcessStart:
        return cls(
            role=filled_text(event.get("role")),
            rank=whole_number(event.get("rank")) or 0,
            pid=integer(event.get("pid")),
            wall_ns=integer(event.get("wall_ns")),
            host=filled_text(event.get("host")),
            python=filled_text(event.get("python")),
            packages=texts_by_name(event.get("packages")),
            variables=texts_by_name(event.get("env")),
        )


@dataclass(frozen=True)
class ProcessEnvironment:
    """One `environment` event: packages with their versions, and what the process says of its machine and device."""

    role: str | None
    python: str | None
    packages: Mapping[str, str]
    machine: Parameters
    device: Parameters

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> ProcessEnvironment:
        return cls(
            role=filled_text(event.get("role")),
            python=filled_text(event.get("python")),
            packages=texts_by_name(event.get("packages")),
            machine=parameters(event.get("machine")),
            device=parameters(event.get("device")),
        )

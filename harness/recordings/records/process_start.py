"""What processes recorded of themselves: where they started, and what they ran with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recordings.records.values import (
    Parameters,
    filled_text,
    integer,
    parameters,
    text,
    texts_by_name,
    whole_number,
)


@dataclass(frozen=True)
class ProcessStart:
    """One `open` event. `variables`: of its environment; `wall_ns`: when it started, Unix time. `file`: its journal."""

    role: str | None
    rank: int
    pid: int | None
    wall_ns: int | None
    host: str | None
    python: str | None
    packages: Mapping[str, str]
    variables: Mapping[str, str]
    file: str

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
            file=str(event.get("file")),
        )


@dataclass(frozen=True)
class ProcessEnd:
    """One `close` event: whether the process did what it was to do, and why it did not."""

    role: str | None
    succeeded: bool
    reason: str | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> ProcessEnd:
        return cls(
            role=filled_text(event.get("role")),
            succeeded=event.get("ok") in (True, 1),
            reason=filled_text(event.get("reason")),
        )


@dataclass(frozen=True)
class GroupMembership:
    """One `group` event: a process is a member of a process group. `role`: of the process."""

    role: str | None
    name: str | None
    backend: str | None
    world_size: int

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> GroupMembership:
        return cls(
            role=filled_text(event.get("role")),
            name=text(event.get("name")),
            backend=filled_text(event.get("backend")),
            world_size=whole_number(event.get("world_size")) or 0,
        )


@dataclass(frozen=True)
class ProcessEnvironment:
    """One `environment` event: packages with their versions, and what the process says of its machine and device.

    `file`: its journal.
    """

    role: str | None
    python: str | None
    packages: Mapping[str, str]
    machine: Parameters
    device: Parameters
    file: str

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> ProcessEnvironment:
        return cls(
            role=filled_text(event.get("role")),
            python=filled_text(event.get("python")),
            packages=texts_by_name(event.get("packages")),
            machine=parameters(event.get("machine")),
            device=parameters(event.get("device")),
            file=str(event.get("file")),
        )

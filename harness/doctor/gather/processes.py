"""Processes of Ray and of engines on this node, ours and those of an earlier run."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from harness.doctor.gather.files import age, pids, status, title
from scenarios.engines import registry


@dataclass(frozen=True)
class Leftover:
    """A process of Ray or of an engine. `orphan`: the process that started it has ended."""

    pid: int
    title: str
    kind: str  # ray, engine
    age_s: float
    orphan: bool
    mine: bool = True  # same user as the doctor
    zombie: bool = False
    gpu: int = 0  # bytes of GPU memory that it holds


@dataclass(frozen=True)
class Processes:
    found: tuple[Leftover, ...] = ()
    shell_age_s: float = 0.0


FOLLOW_S = 2.0  # chosen: a process that watches its parent ends within this time after it
# Titles that the programs set: engines with setproctitle, Ray's workers as ray::<task>.
_RAY = re.compile(r"^ray::|/raylet/raylet\b|/gcs/gcs_server\b|^raylet\b|^gcs_server\b")


def processes() -> dict[str, Any]:
    """Return the fields of `Processes`, without the doctor and everything above it.

    Orphans are looked at once more after a moment: a Ray worker whose raylet has ended soon ends by itself.
    """
    above = _ancestors(os.getpid())
    leftovers = _now(above)
    if any(process["orphan"] and not process["zombie"] for process in leftovers):
        time.sleep(FOLLOW_S)
        leftovers = _now(above)
    return {"found": leftovers, "shell_age_s": age(os.getppid())}


@cache
def _engine() -> re.Pattern[str]:
    engines = registry.processes().values()
    titles = "|".join(title for engine in engines for title in engine.titles)
    modules = "|".join(re.escape(module) for engine in engines for module in engine.modules)
    return re.compile(rf"^({titles})::|(-m |/)({modules})\b")


def _now(above: set[int]) -> list[dict[str, Any]]:
    leftovers = []
    for pid in pids():
        if pid in above:
            continue
        name, about = title(pid), status(pid)
        kinds = {"engine": _engine(), "ray": _RAY}
        kind = next((kind for kind, pattern in kinds.items() if pattern.search(name)), "")
        if not kind or not about:
            continue
        leftovers.append({
            "pid": pid, "title": _short(name), "kind": kind, "age_s": age(pid), "orphan": _orphan(pid, name),
            "mine": about.get("Uid", "").split()[:2][-1:] == [str(os.geteuid())],
            "zombie": about.get("State", "").startswith("Z"),
        })  # fmt: skip
    return leftovers


def _short(name: str) -> str:
    """A short title: for Ray's daemons the program, because their command lines begin with a long path."""
    program = os.path.basename(name.split(" ", 1)[0])
    return program if program in ("raylet", "gcs_server") else name[:120]


def _orphan(pid: int, name: str) -> bool:
    """Whether the process that started it has ended. Ray's daemons never count as orphans: they have no parent by
    design."""
    if re.search(r"raylet\b|gcs_server\b", name) and not name.startswith("ray::"):
        return False
    parent = int(status(pid).get("PPid", "0") or 0)
    return parent <= 1 or _reaper(parent)


def _reaper(pid: int) -> bool:
    """Whether that process adopts orphans: init systems, and what containers have instead."""
    return bool(re.match(r"(/\S+/)?(systemd|init|tini|dumb-init|docker-init|catatonit|s6-svscan)\b", title(pid)))


def _ancestors(pid: int) -> set[int]:
    ancestors = set()
    while pid > 0 and pid not in ancestors:
        ancestors.add(pid)
        pid = int(status(pid).get("PPid", "0") or 0)
    return ancestors

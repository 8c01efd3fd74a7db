"""Who this process is in the job: its role and its rank. A child inherits its parent's RANK variable but is not that
rank.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Any

from probes import collectives
from probes.engines import TITLES

ROLE = "RLHF_HARNESS_ROLE"
# Variables that tell a process that it is watched. probes/site imports nothing, so it repeats these names.
WATCH, SOCKETS = "RLHF_HARNESS_WATCH", "RLHF_HARNESS_SOCKETS"
# Further variables of a recorded job. ADAPTER: `adapter:package,package`, where the adapter is a module of `probes`
# or the file of another package's module. DIGESTS: whether digests of weights are wanted.
ADAPTER, DIGESTS = "RLHF_HARNESS_ADAPTER", "RLHF_HARNESS_DIGESTS"
PR_SET_PDEATHSIG = 1  # of linux/prctl.h: a process ends with its parent
IDLE = "worker"  # a process of Ray's that has no task or actor yet
NOWHERE: tuple[int | None, int | None] = (None, None)
_inherited: set[int] = set()  # this pid, where the process groups belong to the process that forked it
_titles: dict[int, str] = {}  # this pid -> the title that it has of the process that forked it


def started() -> int:
    """Return when this process was started, in clock ticks since boot; 0 where unknown.

    It tells the process from a later one with the same pid.
    """
    try:
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):  # not Linux
        return 0


def role_now() -> str:
    """Return what this process is called: by the watch's launcher, by Ray or by the engine; otherwise "process"."""
    assigned_role = os.environ.get(ROLE)
    if assigned_role:
        return assigned_role
    title = _title()
    if title == _titles.get(os.getpid()):
        title = ""  # a child of an actor, such as a loader's worker, is not that actor
    match = re.match(r"ray::([A-Za-z_]\w*)", title) or re.match(rf"(?i:({TITLES}))\b:*([A-Za-z_]\w*)?", title)
    if match:
        name = "_".join(part for part in match.groups() if part)
        return IDLE if name == "IDLE" else name
    if getattr(getattr(sys.modules.get("ray._private.worker"), "global_worker", None), "mode", None) == 0:
        return "driver"
    words = sys.orig_argv[1:4]  # not __main__: that is runpy while `python -m` imports the package
    name = os.path.basename("".join(sys.argv[:1]))
    if "-m" in words[:-1]:
        name = words[words.index("-m") + 1]
    if name in ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"):
        return "launcher"
    return "process"


def _title() -> str:
    try:
        return Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # not Linux
        return ""


def rank_now() -> tuple[int | None, int | None]:
    """Return (rank, world size) from the environment, else from torch.distributed where this process initialised it."""
    if not _inherits_rank():
        rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if rank.isdigit() and world.isdigit():
            return int(rank), int(world)
    c10d: Any = sys.modules.get(collectives.MODULE)
    try:
        if c10d is not None and c10d.is_initialized() and os.getpid() not in _inherited:
            return int(c10d.get_rank()), int(c10d.get_world_size())
    except (RuntimeError, ValueError, AttributeError):  # being destroyed, or half imported
        pass
    return NOWHERE


@functools.cache
def _inherits_rank() -> bool:
    """Whether RANK is the parent's: a data loader, or an engine inside a trainer's process, inherits it and is not
    that rank.
    """
    if multiprocessing.parent_process() is not None:
        return True
    mine = os.environ.get("RANK", "")
    try:
        parent = Path(f"/proc/{os.getppid()}")
        python = "python" in os.path.basename(os.readlink(parent / "exe"))
        return python and f"RANK={mine}".encode() in (parent / "environ").read_bytes().split(b"\0")
    except OSError:  # not Linux, or the parent has ended
        return False


def forked() -> None:
    """Note in a forked child that the existing process groups are not its own, nor is its title."""
    _titles.clear()
    _titles[os.getpid()] = _title()
    _inherits_rank.cache_clear()
    c10d: Any = sys.modules.get(collectives.MODULE)
    if getattr(c10d, "is_initialized", bool)():
        _inherited.add(os.getpid())

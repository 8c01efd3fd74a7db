"""Who may make a file for which a process of the job looks again and again, inside the job or beside it.

A process may that has the file, or a part of it, open for writing, or that names it in its command line and does not
only read it, as tail does. Of the job, one that only has another file of the same folder open for writing may as well:
a stranger may only have its log there. Nobody is looked for in a folder that everybody uses.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from harness.triage.collect import job, proc, redact
from harness.triage.collect.connections import PROC
from harness.triage.evidence import Maker

MAX_MAKERS = 16  # makers of one host that are kept
WAKING_S = 1.5 / proc.TICKS  # whoever only wakes up and sleeps again may be charged one tick of the kernel's clock
_COMMON = ("/", "/dev", "/dev/shm", "/tmp", "/var/tmp", "/var/log", tempfile.gettempdir())
# Programs that only read the files that they name. What they write, they have open.
_VIEWERS = frozenset({
    "tail", "head", "cat", "less", "more", "grep", "ls", "stat", "wc", "watch", "find", "jq", "inotifywait", "du",
})  # fmt: skip
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")  # an argument of sleep(1)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def look(
    host: str,
    sought: Mapping[int, tuple[str, ...]],
    window_s: float,
    *,
    members: Collection[int] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Maker, ...]:
    """The possible makers of the files for which processes look. `sought`: pid -> files, and folders with a slash at
    their end. `members`: processes of the job; whoever is in the process group of one belongs to it, too."""
    seekers: dict[str, set[int]] = {}  # absolute path -> the processes that look for it
    for pid, paths in sought.items():
        for path in paths:
            if path.startswith("/"):
                seekers.setdefault(path, set()).add(pid)
    if not seekers:
        return ()
    table = proc.parents()
    makers = sorted(_possible(host, seekers, {*members, *sought}, table), key=lambda maker: not maker.exact)[
        :MAX_MAKERS
    ]
    trees = {maker.pid: proc.descendants((maker.pid,), table) for maker in makers}
    before = {pid: _spent(tree) for pid, tree in trees.items()}
    if makers:
        sleep(window_s)
    return tuple(
        replace(maker, works=_works(before[maker.pid], _spent(trees[maker.pid])), sleeps_s=_sleeps_s(trees[maker.pid]))
        for maker in makers
    )


def _possible(
    host: str, seekers: Mapping[str, set[int]], members: Collection[int], table: Mapping[int, int]
) -> Iterator[Maker]:
    """The processes that may make one of these files. `table`: pid -> parent, of every process of the host."""
    # Nobody makes the file that it looks for itself, and whoever started a seeker waits for it. The command line of a
    # seeker names the file, too, and so does that of another process that runs the same command.
    excluded = {path: pids.union(*(job.ancestors(pid, table) for pid in pids)) for path, pids in seekers.items()}
    seeking = {path: {proc.arguments(pid) for pid in pids} for path, pids in seekers.items()}
    folders = {str(_folder(path)) for path in seekers} - {*_COMMON}
    groups = {proc.process_group(pid) for pid in members} - {0}
    # What a seeker has open for writing itself is no trace of a maker: the output of all ranks may go into one log.
    own = {path: {file for pid in pids for file, _ in _written(pid, folders)} for path, pids in seekers.items()}
    for pid in table.keys() - {os.getpid()}:
        arguments, files = proc.arguments(pid), list(_written(pid, folders))
        is_member = pid in members or proc.process_group(pid) in groups
        for path in seekers:
            if pid in excluded[path]:
                continue
            by, exact = _named(path, arguments if arguments not in seeking[path] else ()), True
            if not by:
                others = [(file, number) for file, number in files if file not in own[path]]
                by, exact = _open(path, others, is_member=is_member)
            if by:
                yield Maker(host, path, pid, redact.command(arguments), by, exact)


def _folder(path: str) -> PurePath:
    target = PurePath(os.path.realpath(path))
    return target if path.endswith("/") else target.parent


def _named(path: str, arguments: Sequence[str]) -> str:
    """How a command line names a file, as the verb of a sentence; empty if it does not."""
    if arguments and PurePath(arguments[0]).name in _VIEWERS:
        return ""
    pattern = re.compile(rf"(?<![\w/]){re.escape(path.rstrip('/'))}(?![\w./-])")
    return f"names {path} in its command line" if any(map(pattern.search, arguments)) else ""


def _open(path: str, files: Sequence[tuple[PurePath, int]], *, is_member: bool) -> tuple[str, bool]:
    """How files that are open for writing lead to `path`, as the verb of a sentence, and whether one is that file or a
    part of it; empty if none is of its folder. `files`: each with its descriptor. `is_member`: of the job."""
    # Where any file of a folder may be meant, a stranger's counts too, unless it is a standard stream: its log.
    beside = [
        file
        for file, number in files
        if file.parent == _folder(path) and (is_member or not path.endswith("/") or number > proc.STDERR)
    ]
    parts = [file for file in beside if not path.endswith("/") and PurePath(path).stem in file.name]
    for file in parts:
        return f"has {file} open for writing", True
    counts = beside and (is_member or path.endswith("/"))
    return (f"has {beside[0]} open for writing, in the same folder" if counts else ""), False


def _written(pid: int, folders: Collection[str]) -> Iterator[tuple[PurePath, int]]:
    """The files of these folders that a process has open for writing, each with its descriptor."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for number in os.listdir(PROC / str(pid) / "fd") if folders else ():
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                link = os.readlink(PROC / str(pid) / "fd" / number)
                if link.rpartition("/")[0] not in folders:
                    continue
                info = (PROC / str(pid) / "fdinfo" / number).read_text()
                flags = next((line.split()[1] for line in info.splitlines() if line.startswith("flags:")), "0")
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                    yield PurePath(link), int(number)


def _spent(tree: list[int]) -> dict[int, proc.Look]:
    return {pid: proc.look(pid) for pid in tree}


def _works(before: Mapping[int, proc.Look], after: Mapping[int, proc.Look]) -> str:
    """What a process and all below it used between two looks, in words; empty if they used nothing."""
    cpu_s = sum(look.cpu_s for look in after.values()) - sum(look.cpu_s for look in before.values())
    moved = sum(look.io_bytes for look in after.values()) - sum(look.io_bytes for look in before.values())
    return f"{cpu_s:.2f} s of CPU and {moved / 1000:.0f} kB between two looks" if cpu_s > WAKING_S or moved > 0 else ""


def _sleeps_s(tree: list[int]) -> float | None:
    """For how many seconds a `sleep` of these still sleeps; None without one."""
    for pid in tree:
        program, *arguments = proc.arguments(pid) or ("",)
        match = _LENGTH.fullmatch(arguments[0]) if len(arguments) == 1 else None
        if PurePath(program).name == "sleep" and match is not None:
            return max(0.0, float(match[1]) * _UNITS[match[2]] - proc.born(pid)[1])
    return None

"""Who may make a file for which a process of the job looks again and again, inside the job or beside it.

A process may that has the file, or a part of it, open for writing, or that names it in its command line. One that only
has another file of the same folder open for writing may as well. Nobody is looked for in a folder that everybody uses.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

from harness.triage.collect import job, proc, redact
from harness.triage.collect.connections import PROC
from harness.triage.evidence import Maker

MOST = 16  # makers of one host that are kept
WAKING_S = 1.5 / proc.TICKS  # whoever only wakes up and sleeps again may be charged one tick of the kernel's clock
_COMMON = ("/", "/dev", "/dev/shm", "/tmp", "/var/tmp", "/var/log", tempfile.gettempdir())
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")  # an argument of sleep(1)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def look(
    host: str, sought: Mapping[int, tuple[str, ...]], window_s: float, *, sleep: Callable[[float], None] = time.sleep
) -> tuple[Maker, ...]:
    """The possible makers of the files for which processes look. `sought`: pid -> files, and folders with a slash at
    their end."""
    wanted = {path: {pid for pid, paths in sought.items() if path in paths} for its in sought.values() for path in its}
    wanted = {path: pids for path, pids in wanted.items() if path.startswith("/")}
    if not wanted:
        return ()
    table = proc.parents()
    makers = []
    for pid in table:
        for path, pids in wanted.items():
            above = {each for looking in pids for each in job.ancestors(looking, table)}
            if pid in pids or pid in above or pid == os.getpid():
                continue
            if (maker := _maker(host, pid, path, {proc.arguments(looking) for looking in pids})) is not None:
                makers.append(maker)
    makers = sorted(makers, key=lambda maker: not maker.exact)[:MOST]
    trees = {maker.pid: proc.descendants((maker.pid,), table) for maker in makers}
    before = {pid: _spent(tree) for pid, tree in trees.items()}
    if makers:
        sleep(window_s)
    return tuple(
        replace(maker, works=_works(before[maker.pid], _spent(trees[maker.pid])), sleeps_s=_sleeps_s(trees[maker.pid]))
        for maker in makers
    )


def _maker(host: str, pid: int, path: str, programs: set[tuple[str, ...]]) -> Maker | None:
    """The process as a maker of `path`; None if nothing says that it is one. `programs`: command lines of those who
    look for it: the same program as theirs is started with the same arguments."""
    arguments = proc.arguments(pid)
    maker = Maker(host, path, pid, redact.command(arguments))
    named = re.compile(rf"(?<![\w/]){re.escape(path.rstrip('/'))}(?![\w/-])")
    if arguments not in programs and any(named.search(argument) for argument in arguments):
        return replace(maker, by=f"names {path} in its command line", exact=True)
    target = PurePath(os.path.realpath(path))
    folder = target if path.endswith("/") else target.parent
    beside = None
    for file in map(PurePath, _written(pid)):
        if file.parent != folder or str(folder) in _COMMON:
            continue
        if not path.endswith("/") and target.stem in file.name:
            return replace(maker, by=f"has {file} open for writing", exact=True)
        beside = replace(maker, by=f"has {file} open for writing, in the same folder")
    return beside


def _written(pid: int) -> Iterator[str]:
    """The files that a process has open for writing."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for number in os.listdir(PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                link = os.readlink(PROC / str(pid) / "fd" / number)
                info = (PROC / str(pid) / "fdinfo" / number).read_text() if link.startswith("/") else ""
                flags = next((line.split()[1] for line in info.splitlines() if line.startswith("flags:")), "0")
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                    yield link


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

"""Processor time of a job with every process of it, those that nobody waits for among them.

A shell's `times` adds up what its children waited for. Ray ignores the end of its workers, so their time reaches
nobody: a group of processes (cgroup v2) keeps it, whoever their parent was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 120.0  # Ray's processes end some seconds after their driver


class Group:
    """A group of processes, empty and new; `enter` starts a command in it, whose children stay there.

    Raises OSError where groups cannot be made: without cgroup v2, or without the right to.
    """

    def __init__(self, name: str, above: Group | None = None) -> None:
        self.folder = (above.folder if above is not None else _own()) / name
        self.folder.mkdir()
        if not (self.folder / "cpu.stat").exists():
            self.folder.rmdir()
            raise OSError(f"{self.folder} counts nothing")

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in this group."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.folder), *command]

    @property
    def seconds(self) -> float:
        """User and system time of all that ever ran here and in the groups below."""
        fields = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def wait(self) -> list[int]:
        """Wait until all of them have ended; the ids of those that do not."""
        until = time.monotonic() + PATIENCE_S
        while (left := [int(line) for line in (self.folder / "cgroup.procs").read_text().split()]) and (
            time.monotonic() < until
        ):
            time.sleep(0.1)
        return left

    def end(self) -> None:
        """End all that still run here, as after a job that failed, and forget the group."""
        (self.folder / "cgroup.kill").write_text("1")
        self.wait()
        self.remove()

    def remove(self) -> None:
        """Forget the group, which has to be empty."""
        self.folder.rmdir()


def _own() -> Path:
    """The directory of this process's own group."""
    with open("/proc/mounts") as stream:
        mounts = [line.split()[1] for line in stream if line.split()[2] == "cgroup2"]
    with open("/proc/self/cgroup") as stream:
        paths = [line.strip().removeprefix("0::") for line in stream if line.startswith("0::")]
    if not mounts or not paths:
        raise OSError("there is no cgroup v2")
    return Path(mounts[0] + paths[0].rstrip("/")) if os.path.isdir(mounts[0] + paths[0]) else Path(mounts[0])

"""How a job is ended: everybody in it, within a bounded time, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.triage.watch import Stall, Watchdog, watch
from harness.triage.watch.ending import GRACE_S, KILL_S, end, unended
from harness.triage.watch.observe import Observer, Stat, table
from reports.model import Verdict

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class World:
    """Processes that react to signals as they are told; time passes only in `sleep`."""

    def __init__(self, *pids: int) -> None:
        self.now, self.there = 0.0, {pid: Stat(pid, 1, "S", 0.0, 100) for pid in pids}
        self.reacts: dict[int, Callable[[int], None]] = {}
        self.sent: list[tuple[int, int]] = []

    def send(self, pid: int, signum: int) -> None:
        self.sent.append((pid, signum))
        if pid not in self.there:
            raise ProcessLookupError
        self.reacts.get(pid, lambda signum: self.there.pop(pid, None))(signum)  # type: ignore[arg-type, return-value]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def end(self) -> list[int]:
        left = end(lambda: dict(self.there), clock=lambda: self.now, sleep=self.sleep, send=self.send)
        return [stat.pid for stat in left]


def test_who_ends_at_once_is_not_waited_for() -> None:
    world = World(1, 2, 3)
    assert world.end() == [] and world.now < 1
    assert world.sent == [(pid, signal.SIGTERM) for pid in (1, 2, 3)]


def test_who_ignores_a_request_is_killed() -> None:
    world = World(1, 2)
    world.reacts[2] = lambda signum: world.there.pop(2) if signum == signal.SIGKILL else None  # type: ignore[return-value]
    assert world.end() == [] and GRACE_S <= world.now < GRACE_S + 1
    assert world.sent.count((2, signal.SIGTERM)) == world.sent.count((2, signal.SIGKILL)) == 1


def test_who_cannot_be_killed_is_not_waited_for() -> None:
    world = World(1, 2)
    world.there[2] = Stat(2, 1, "D", 0.0, 100)
    world.reacts[2] = lambda signum: None
    assert world.end() == [2] and world.now < GRACE_S + KILL_S + 1
    assert "2 (state D)" in unended([world.there[2]])


def test_nobody_escapes_by_a_fork() -> None:
    world = World(1)
    born = iter(range(10, 14))

    def react(signum: int) -> None:
        world.there.pop(max(world.there), None)
        if (pid := next(born, 0)) > 0:
            world.there[pid] = Stat(pid, 1, "S", 0.0, 100 + pid)
            world.reacts[pid] = react

    world.reacts[1] = react
    assert world.end() == [] and [pid for pid, _ in world.sent] == [1, 10, 11, 12, 13]


def test_a_zombie_is_over() -> None:
    world = World()
    world.there[1] = Stat(1, 9, "Z", 0.0, 100)
    assert world.end() == [] and world.sent == []


def test_without_descriptors_it_is_tried_again() -> None:
    world, failures = World(1), iter(range(5))

    def members() -> dict[int, Stat]:
        if next(failures, None) is not None:
            raise OSError(24, "Too many open files")
        return dict(world.there)

    assert end(members, clock=lambda: world.now, sleep=world.sleep, send=world.send) == [] and world.there == {}


class Hung(Watchdog):
    """Says once that the job hangs, when a file is there."""

    ready: Path
    told = False
    again = True  # and says so at the second look

    def tick(self) -> Stall | None:
        self.observer()
        if not self.ready.exists() or self.told:
            return None
        self.told = True
        return Stall(Verdict("triage", "HUNG", 1, "it hangs"), self.directory, 1.0)

    def confirm(self) -> Stall | None:
        self.told = not self.again
        return self.tick()


def ended(tmp_path: Path, code: str, **more: Any) -> tuple[int, list[str], dict[int, Stat]]:
    """Exit code of `watch --on-stall end` of this code, the lines it said, and whoever is left of it."""
    Hung.ready = tmp_path / "ready"
    script = tmp_path / "job.py"
    script.write_text(PREFIX.format(ready=str(Hung.ready)) + textwrap.dedent(code))
    lines: list[str] = []
    result = watch(
        [sys.executable, str(script)], stall_s=1.0, out=tmp_path / "out", on_stall="end", say=lines.append,
        watchdog=Hung, environ={**ENVIRONMENT, "MARK": str(tmp_path)}, **more,
    )  # fmt: skip
    return result.exit_code, lines, left(str(tmp_path))


PREFIX = """
import os, signal, subprocess, sys, time

def ready():
    open({ready!r}, "w").close()

def sleep():
    while True:
        time.sleep(1)
"""


def left(mark: str) -> dict[int, Stat]:
    """Living processes that were started with this mark in their environment."""

    def marked(pid: int) -> bool:
        try:
            return f"MARK={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    return {pid: stat for pid, stat in table().items() if stat.state not in ("Z", "X") and marked(pid)}


IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
CHILDREN = "[subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']) for _ in range(3)]\n"
SESSION = "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
DAEMON = """
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    ready()
    sleep()
os.wait()
sleep()
"""
GROUP = """
if not os.fork():
    if os.fork():
        os._exit(0)
    os.execve("/bin/sleep", ["sleep", "600"], {"MARK": os.environ["MARK"]})
os.wait()
ready(); sleep()
"""
STOPPED = "os.kill(subprocess.Popen(['sleep', '600']).pid, signal.SIGSTOP)\n"
FORKER = """
def again(*_):
    if not os.fork():
        return
    os._exit(0)
signal.signal(signal.SIGTERM, again)
ready(); sleep()
"""


@pytest.mark.parametrize(
    "code",
    [
        "ready(); sleep()",
        IGNORE + "ready(); sleep()",
        CHILDREN + IGNORE + "ready(); sleep()",
        SESSION + "ready(); sleep()",
        DAEMON,
        GROUP,
        STOPPED + "ready(); sleep()",
        FORKER,
    ],
    ids=["obeys", "ignores", "children", "session", "daemon", "group", "stopped", "forks"],
)
def test_a_job_that_hangs_is_ended_whole(tmp_path: Path, code: str) -> None:
    code_, lines, there = ended(tmp_path, code)
    for pid in there:  # before the assertion: nothing stays behind either way
        os.kill(pid, signal.SIGKILL)
    assert (code_, lines, there) == (86, [], {})


def test_a_verdict_that_cannot_be_printed_does_not_keep_the_job(tmp_path: Path) -> None:
    def show(stall: Stall) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    code, lines, there = ended(tmp_path, "ready(); sleep()", show=show)
    assert (code, there) == (86, {}) and len(lines) == 1 and "Broken pipe" in lines[0]


def test_a_job_that_is_not_hung_at_the_second_look_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hung, "again", False)
    code, lines, there = ended(tmp_path, f"ready(); time.sleep(4); os.unlink({str(tmp_path / 'ready')!r}); sys.exit(5)")
    assert (code, there) == (5, {}) and set(lines) == {"at a second look it is not hung: the command goes on"}


def test_a_bystander_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"], env=ENVIRONMENT)
    try:
        assert ended(tmp_path, "ready(); sleep()")[0] == 86 and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_worker_of_somebody_elses_cluster_is_no_member(tmp_path: Path) -> None:
    mark = b"RLHF_HARNESS_WATCH=" + os.fsencode(tmp_path.resolve())
    commands = {20: ("/x/raylet", "--gcs-address=h:1"), 21: ("ray::Stage.step",)}
    there = {pid: Stat(pid, parent, "S", 0.0, 5) for pid, parent in ((10, 1), (20, 1), (21, 20), (30, 1), (31, 30))}
    observer = Observer(
        tmp_path, (10,), processes=lambda: dict(there), argv=lambda pid: commands.get(pid, ("python",)),
        environ=lambda pid: b"A=1\0" + mark if pid in (21, 30) else b"",
    )  # fmt: skip
    assert sorted(observer.members()) == [10, 30, 31]



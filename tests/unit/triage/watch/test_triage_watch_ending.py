"""How a job is ended: everybody in it, within a bounded time, and nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from harness.triage.watch.ending import GRACE_S, KILL_S, end, unended
from harness.triage.watch.observe import Kernel, Observer, Stat


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


def test_a_worker_of_somebody_elses_cluster_is_no_member(tmp_path: Path) -> None:
    mark = b"RLHF_HARNESS_WATCH=" + os.fsencode(tmp_path.resolve())
    commands = {20: ("/x/raylet", "--gcs-address=h:1"), 21: ("ray::Stage.step",)}
    there = {pid: Stat(pid, parent, "S", 0.0, 5) for pid, parent in ((10, 1), (20, 1), (21, 20), (30, 1), (31, 30))}
    observer = Observer(
        tmp_path, (10,), kernel=Kernel(
            processes=lambda: dict(there), argv=lambda pid: commands.get(pid, ("python",)),
            environ=lambda pid: b"A=1\0" + mark if pid in (21, 30) else b"",
        ),
    )  # fmt: skip
    assert sorted(observer.members()) == [10, 30, 31]

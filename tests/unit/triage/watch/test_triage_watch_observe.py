"""Who is looked at: everything below the roots but Ray's own processes and foreign children."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from harness.triage.watch import Observer
from harness.triage.watch.observe import Kernel, Stat, table

OWN = os.getpid()
COMMANDS = {
    2: ("/env/ray/core/src/ray/gcs/gcs_server", "--log_dir=x"),
    3: ("/env/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=x"),
    4: ("ray::IDLE",),
    5: ("ray::Stage.step",),
    6: ("python", "train.py"),
    7: ("python", "notebook_helper.py"),
    8: ("python", "below_the_helper.py"),
}
PARENTS = {2: OWN, 3: OWN, 4: 3, 5: 3, 6: OWN, 7: OWN, 8: 7}


def seen(tmp_path: Path, **more: frozenset[int]) -> set[int]:
    processes = {pid: Stat(pid, parent, "S", 0.0, 100) for pid, parent in PARENTS.items()}
    kernel = Kernel(lambda: processes | {OWN: Stat(OWN, 1, "S", 0.0, 1)}, lambda pid: COMMANDS[pid])
    observer = Observer(tmp_path, (OWN,), kernel=kernel, **more)
    return {one.pid for one in observer().processes}


def test_processes_that_serve_the_job_are_left_out(tmp_path: Path) -> None:
    assert seen(tmp_path) == {5, 6, 7, 8}


def test_foreign_children_are_left_out_with_everything_below(tmp_path: Path) -> None:
    assert seen(tmp_path, foreign=frozenset({7})) == {5, 6}


def test_everything_below_a_root_is_ended_with_it(tmp_path: Path) -> None:
    processes = {pid: Stat(pid, parent, "S", 0.0, 100) for pid, parent in PARENTS.items()}
    observer = Observer(tmp_path, (OWN,), kernel=Kernel(lambda: processes | {OWN: Stat(OWN, 1, "S", 0.0, 1)}))
    assert observer.living() == sorted(PARENTS)


class Pid(int):
    """A pid that counts how often it is looked up or put into a set: work that no busy machine changes."""

    uses = 0

    def __hash__(self) -> int:
        Pid.uses += 1
        return int(self)


class Foreign(Set[int]):
    """Counts how often it is gone through as a whole; a real set would be copied without a word."""

    uses = 0

    def __contains__(self, pid: object) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[int]:
        Foreign.uses += 1
        return iter(())


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["children", "chain"])
def test_a_look_is_linear_in_the_number_of_processes(tmp_path: Path, shape: str) -> None:
    costs = []
    for number in (500, 4_000):
        pids = [Pid(pid) for pid in range(2**23, 2**23 + 1 + number)]  # no process has such: not the test's own
        parents = {pid: pids[0] if shape == "children" else pids[place - 1] for place, pid in enumerate(pids)}
        there = {pid: Stat(pid, parent if place else 1, "S", 0.0, 100)
                 for place, (pid, parent) in enumerate(parents.items())}  # fmt: skip
        observer = Observer(
            tmp_path, (pids[0],), lambda: 0.0, Kernel(lambda there=there: there, lambda pid: ("python",)),
            foreign=Foreign(),  # type: ignore[arg-type]
        )  # fmt: skip
        observer()  # everybody is new
        Pid.uses = Foreign.uses = 0
        assert len(observer().processes) == number + 1
        costs.append(Pid.uses)
        assert Foreign.uses <= 2
    assert 0 < costs[1] < 9 * costs[0]  # 8 times as many


@pytest.mark.slow
def test_each_process_is_read_once_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "proc"
    for pid in range(100, 4_100):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (a) b) S 1 {pid} 1 " + "0 " * 7 + "200 100 " + "0 " * 6 + "77 0")
    opened: list[str] = []
    real = builtins.open
    monkeypatch.setattr(builtins, "open", lambda file, *more: (opened.append(str(file)), real(file, *more))[1])
    found = table(proc)
    monkeypatch.undo()
    assert len(found) == len(opened) == 4_000
    assert found[100] == Stat(100, 1, "S", 3.0, 77, 100)


def beat(directory: Path, pid: int, name: str = "", **more: Any) -> Path:
    fields = {"host": os.uname().nodename, "pid": pid, "start_ticks": 100, "count": 1, "progress_ns": 5, **more}
    (directory / "beats").mkdir(exist_ok=True)
    file = directory / "beats" / (name or f"{pid}.json")
    file.write_text(json.dumps(fields).ljust(4096))
    return file


@pytest.mark.slow
def test_beats_of_processes_that_have_ended_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {10: Stat(10, 1, "S", 0.0, 100), 11: Stat(11, 10, "S", 0.0, 100)}
    for pid in (11, *range(1_000, 3_000)):
        beat(tmp_path, pid)
    beat(tmp_path, 7, "7-elsewhere.json", host="elsewhere")
    observer = Observer(tmp_path, (10,), lambda: 0.0, Kernel(lambda: there, lambda pid: ()))
    read: list[str] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: (read.append(self.name), real(self))[1])
    for expected in (2_002, 2, 2):
        read.clear()
        assert {one.pid for one in observer().processes} == {7, 10, 11} and len(read) == expected
    there[1_500] = Stat(1_500, 10, "S", 0.0, 200)  # a later process with the number, before its first beat
    assert {one.pid: one.beats for one in observer().processes}[1_500] is None
    beat(tmp_path, 1_500, start_ticks=200, count=3)
    assert {one.pid: one.beats for one in observer().processes}[1_500] == 3


def test_a_root_that_has_ended_has_no_successor(tmp_path: Path) -> None:
    there = {10: Stat(10, 1, "S", 0.0, 100), 11: Stat(11, 10, "S", 0.0, 100)}
    observer = Observer(tmp_path, (10,), lambda: 0.0, Kernel(lambda: dict(there), lambda pid: ()))
    assert observer.living() == [10, 11]
    there[10] = Stat(10, 1, "S", 0.0, 900)  # another process, which was given the number
    there[12] = Stat(12, 10, "S", 0.0, 901)
    assert observer.living() == [11] and sorted(observer.members()) == [11]


def test_the_commands_own_process_group_belongs_to_it(tmp_path: Path) -> None:
    there = {10: Stat(10, OWN, "S", 0.0, 1, 10), 11: Stat(11, 1, "S", 0.0, 1, 10), 12: Stat(12, 1, "S", 0.0, 1, OWN)}
    observer = Observer(tmp_path, (10,), lambda: 0.0, Kernel(lambda: dict(there), lambda pid: ()))
    assert observer.living() == [10, 11]
    guard = Observer(tmp_path, (OWN,), lambda: 0.0, Kernel(lambda: there | {OWN: Stat(OWN, 1, "S", 0.0, 1, OWN)}))
    assert guard.living() == [10]  # not 12, which the shell put into our pipeline


def test_time_that_the_watchdog_did_not_get_is_told_between_two_looks(tmp_path: Path) -> None:
    waited = iter([7.0, 7.5, None, 9.0])
    observer = Observer(tmp_path, (OWN,), kernel=Kernel(processes=lambda: {}, delay_s=lambda: next(waited)))
    assert [observer().starved_s for _ in range(4)] == [0.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("group", [0, 5])
def test_the_watch_and_those_above_it_never_belong_to_a_job(tmp_path: Path, group: int) -> None:
    """The shell 5 runs the watch and the job 20; the watch runs a reader of stacks, 30. Or 5 leads their group."""
    mark = b"RLHF_HARNESS_WATCH=" + os.fsencode(tmp_path.resolve())
    parents = {1: 0, 4: 1, 5: 4, OWN: 5, 20: 5, 21: 20, 30: OWN}
    there = {pid: Stat(pid, parent, "S", 0.0, 100, group) for pid, parent in parents.items()}
    kernel = Kernel(lambda: dict(there), lambda pid: ("python",), lambda pid: mark if pid in (1, 4, 5, OWN) else b"")
    observer = Observer(tmp_path, (5,), kernel=kernel)
    assert sorted(observer.members()) == observer.living() == [20, 21]

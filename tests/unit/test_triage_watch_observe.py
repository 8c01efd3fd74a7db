"""Who is looked at: everything below the roots but Ray's own processes and foreign children."""

from __future__ import annotations

import os
from pathlib import Path

from harness.triage.watch import Observer
from harness.triage.watch.observe import Stat

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
    observer = Observer(tmp_path, (OWN,), processes=lambda: processes | {OWN: Stat(OWN, 1, "S", 0.0, 1)},
                        argv=lambda pid: COMMANDS[pid], **more)  # fmt: skip
    return {one.pid for one in observer().processes}


def test_processes_that_serve_the_job_are_left_out(tmp_path: Path) -> None:
    assert seen(tmp_path) == {5, 6, 7, 8}


def test_foreign_children_are_left_out_with_everything_below(tmp_path: Path) -> None:
    assert seen(tmp_path, foreign=frozenset({7})) == {5, 6}


def test_everything_below_a_root_is_ended_with_it(tmp_path: Path) -> None:
    processes = {pid: Stat(pid, parent, "S", 0.0, 100) for pid, parent in PARENTS.items()}
    observer = Observer(tmp_path, (OWN,), processes=lambda: processes | {OWN: Stat(OWN, 1, "S", 0.0, 1)})
    assert observer.living() == sorted(PARENTS)

"""Fixes that remove files, typed into a shell: what is in use stays, and so does what nobody could be asked about."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doctor_support import healthy, problems

from harness.doctor.checks.builds import judge_locks
from harness.doctor.gather.builds import Builds, Lock
from harness.doctor.gather.storage import Segment
from harness.doctor.outcome import Problem

# Answers like psmisc: it cannot ask the processes of other users, and says so for each of their files.
FUSER = """#!/bin/sh
echo "Cannot stat file /proc/1/fd/0: Permission denied" >&2
case "$2" in *held) exit 0 ;; *) exit 1 ;; esac
"""
LEFT = (Segment("psm_left", 1000, 9000.0),)


def typed(fix: str, programs: Path) -> subprocess.CompletedProcess[str]:
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(["bash", "-c", fix], env={"PATH": path}, capture_output=True, text=True, timeout=600)


def segments(folder: Path) -> Path:
    folder.mkdir()
    for name, age_s in (("psm_left", 7200), ("psm_held", 7200), ("psm_young", 0)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    return folder


def program(folder: Path, name: str, content: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("hidden", "removed"), [({}, {"psm_left"}), ({"isolated": True}, set()), ({"unreadable": 1}, set())]
)
def test_a_segment_is_removed_when_all_processes_were_asked(
    tmp_path: Path, hidden: dict[str, int], removed: set[str]
) -> None:
    [problem] = problems("stale-segments", healthy(shm={"stale": LEFT, **hidden}))
    shm = segments(tmp_path / "shm")
    program(tmp_path / "bin", "fuser", FUSER)
    result = typed(problem.fix.replace("/dev/shm", str(shm)), tmp_path / "bin")
    assert {"psm_left", "psm_held", "psm_young"} - {*os.listdir(shm)} == removed
    assert result.stderr == "" and len(result.stdout.splitlines()) == 1 + bool(hidden), "a shell that is not flooded"


def test_a_user_asks_all_processes_as_root(tmp_path: Path) -> None:
    [problem] = problems("stale-segments", healthy(shm={"stale": LEFT, "root": False}))
    shm = segments(tmp_path / "shm")
    program(tmp_path / "bin", "fuser", FUSER)
    program(tmp_path / "bin", "sudo", f'#!/bin/sh\necho "$*" > {tmp_path}/asked\n')
    typed(problem.fix.replace("/dev/shm", str(shm)), tmp_path / "bin")
    assert len(os.listdir(shm)) == 3 and f"-user {os.geteuid()} " in (tmp_path / "asked").read_text()


def test_without_the_program_that_asks_nothing_is_removed(tmp_path: Path) -> None:
    [segment] = problems("stale-segments", healthy(shm={"stale": LEFT}))
    [session] = problems("old-sessions", healthy(storage={"sessions": 90, "ray": str(tmp_path / "ray")}))
    shm = segments(tmp_path / "shm")
    (tmp_path / "ray" / "session_2026-01-01").mkdir(parents=True)
    for name in ("find", "sh", "rm", "bash"):
        program(tmp_path / "bin", name, f'#!/bin/sh\nexec {shutil.which(name)} "$@"\n')
    for fix in (segment.fix.replace("/dev/shm", str(shm)), session.fix):
        subprocess.run([shutil.which("bash") or "bash", "-c", fix], env={"PATH": str(tmp_path / "bin")}, check=False)
    assert len(os.listdir(shm)) == 3 and os.listdir(tmp_path / "ray")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pgrep"), reason="needs pgrep")
@pytest.mark.parametrize("isolated", [False, True])
def test_a_session_is_removed_that_no_command_line_names(tmp_path: Path, isolated: bool) -> None:
    ray = tmp_path / "two words" / "ray"
    left, living = "session_2026-01-01_00-00-00_000000_1", "session_2026-01-02_00-00-00_000000_2"
    for name in (left, living):
        (ray / name / "logs").mkdir(parents=True)
    (ray / "session_latest").symlink_to(left)
    [problem] = problems("old-sessions", healthy(storage={"sessions": 90, "ray": str(ray)}, shm={"isolated": isolated}))
    raylet = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); input()", f"{ray}/{living}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        raylet.stdout.readline()
        result = typed(problem.fix, tmp_path)
    finally:
        raylet.communicate()
    assert {*os.listdir(ray)} == {living, "session_latest", *[left] * isolated}
    assert (left in result.stdout) is isolated and living not in result.stdout and result.stderr == ""


@pytest.mark.parametrize("doubt", [{"remote": True}, {"unreadable": 3}])
def test_a_lock_whose_holder_may_be_hidden_is_not_removed(tmp_path: Path, doubt: dict[str, int]) -> None:
    (tmp_path / "lock").touch()
    [problem] = judge_locks(Builds(str(tmp_path), (Lock(str(tmp_path / "lock"), 90.0),), **doubt))
    assert isinstance(problem, Problem)
    typed(problem.fix, tmp_path)
    assert (tmp_path / "lock").exists()

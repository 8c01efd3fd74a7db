"""Lock files of torch's extension builds: left by a build that was killed, held by one that goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_support import healthy, outcomes

from harness.doctor.checks.builds import judge_locks
from harness.doctor.gather import builds
from harness.doctor.gather.builds import Builds, Lock
from harness.doctor.outcome import Fine, Problem
from harness.frameworks.examine import look
from reports.doctor_model import Hazard, Unchecked

HOLDER = "import os, sys; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print('holds', flush=True); sys.stdin.read()"


def holder(lock: Path) -> subprocess.Popen[str]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    (lock.parent / "build.ninja").touch()
    started = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None and started.stdout.readline() == "holds\n"
    return started


@pytest.mark.parametrize("below", ["cpu_adam", "py311_cu130/fused_adam"])
def test_a_build_that_goes_on_and_then_is_killed(tmp_path: Path, below: str) -> None:
    lock = tmp_path / below / "lock"
    running = holder(lock)
    try:
        found = builds.look(str(tmp_path))
        assert [(one["path"], one["holder"]) for one in found["locks"]] == [(str(lock), running.pid)]
        running.send_signal(signal.SIGKILL)
        running.wait(600)
        found = builds.look(str(tmp_path))
        assert [(one["path"], one["holder"]) for one in found["locks"]] == [(str(lock), 0)]
    finally:
        running.kill()
        running.communicate()


def test_other_files_are_no_locks(tmp_path: Path) -> None:
    for name in ("lock", "a/other", "a/b/c/lock", "a/lock.txt", "models/x/lock", "models/x/config.json", "y/lock",
                 "build.ninja", "a/build.ninja", "a/b/c/build.ninja"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "d" / "lock").mkdir(parents=True)
    assert builds.look(str(tmp_path))["locks"] == []
    assert builds.look(str(tmp_path / "gone"))["locks"] == []


@pytest.mark.parametrize("beside", ["build.ninja", "fused_adam.so", "x.cuda.o", "main.cpp", ".ninja_log"])
def test_what_torch_leaves_beside_its_lock(tmp_path: Path, beside: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "lock").touch()
    assert builds.look(str(tmp_path))["locks"] == []
    (tmp_path / "x" / beside).touch()
    assert [one["path"] for one in builds.look(str(tmp_path))["locks"]] == [str(tmp_path / "x" / "lock")]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/scratch/x"}, "/scratch/x"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/torch_extensions"),
    ],
)
def test_the_folder_is_the_one_that_torch_takes(variables: dict[str, str], expected: str) -> None:
    assert builds.folder(variables) == expected


LEFT = Lock("/x/a dir/lock", 90.0)


def test_what_is_said_of_them() -> None:
    assert isinstance(next(iter(outcomes("build-locks", healthy()))), Fine)
    (problem,) = outcomes("build-locks", healthy(builds={"locks": (LEFT, Lock("/x/b/lock", 5.0, holder=7))}))
    assert isinstance(problem, Problem) and problem.severity == "error" and problem.fix == "rm '/x/a dir/lock'"
    assert "/x/b/lock" not in problem.measured
    (fine,) = outcomes("build-locks", healthy(builds={"locks": (Lock("/x/b/lock", 5.0, holder=7),)}))
    assert isinstance(fine, Fine)


@pytest.mark.parametrize("doubt", [{"remote": True}, {"unreadable": 3}])
def test_a_holder_that_may_be_elsewhere_is_a_doubt(doubt: dict[str, int]) -> None:
    (problem,) = judge_locks(Builds("/x", (LEFT,), **doubt))
    assert isinstance(problem, Problem) and problem.severity == "warning" and "pgrep -a ninja" in problem.fix


@pytest.mark.slow
def test_a_folder_of_the_commands_own_is_looked_at(tmp_path: Path) -> None:
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    (lock.parent / "build.ninja").touch()
    command = ["env", f"TORCH_EXTENSIONS_DIR={tmp_path}", sys.executable, "-m", "openrlhf.cli.train_ppo_ray"]
    found = [one for one in look(command, "openrlhf", {}) if one.check == "build-locks"]
    assert [type(one) for one in found] == [Hazard] and str(lock) in str(found)
    assert not [one for one in look(command[2:], "openrlhf", {}) if one.check == "build-locks"]
    command[1] = "TORCH_EXTENSIONS_DIR=$HERE/x"
    found = [one for one in look(command, "openrlhf", {}) if one.check == "build-locks"]
    assert [type(one) for one in found] == [Unchecked]


@pytest.mark.slow
def test_a_home_is_put_in_and_a_script_that_may_remove_the_lock_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "x" / "cpu_adam").mkdir(parents=True)
    for name in ("lock", "build.ninja"):
        (tmp_path / "x" / "cpu_adam" / name).touch()

    def found(*command: str) -> list[type]:
        words = ["env", "TORCH_EXTENSIONS_DIR=~/x", *command]
        items = look(words, "openrlhf", {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
        return [type(one) for one in items if one.check == "build-locks"]

    assert found("python", "-m", "openrlhf.cli.train_ppo_ray") == [Hazard]
    assert found("bash", "-c", "rm -rf ~/x; python -m openrlhf.cli.train_ppo_ray") == [Unchecked]

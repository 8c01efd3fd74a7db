"""A lock file that a killed build left, and one that a build holds: on evidence, and on a process that really waits."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from triage_evidence import evidence, process, rank

from harness.triage.collect import Scope, collect
from harness.triage.evidence import Evidence
from harness.triage.judge import triage
from reports.model import Verdict

WAITS = "main setup cpp.load baton.wait"


def named(verdict: Verdict) -> list[int | None]:
    assert verdict.triage is not None
    return [party.rank for party in verdict.triage.culprits]


def test_everybody_before_a_lock_that_nobody_holds() -> None:
    verdict = triage(evidence(rank(0, WAITS), rank(1, WAITS)))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K9")
    assert named(verdict) == [0, 1] and "lock file" in verdict.reason
    assert "torch_extensions -name lock" in verdict.triage.next[0]


def test_the_folder_is_the_one_that_the_process_was_told() -> None:
    told = rank(0, WAITS, environ={"TORCH_EXTENSIONS_DIR": "/scratch/ext"})
    verdict = triage(evidence(told))
    assert verdict.triage is not None and verdict.triage.next[0].startswith("find /scratch/ext -name lock")


@pytest.mark.parametrize("by", ["a child that works", "itself"])
def test_a_build_that_goes_on_is_slow(by: str) -> None:
    if by == "itself":
        some = [rank(1, "main setup cpp.load", cpu_s=1.0)]
    else:
        ninja = process(900, "process", "", state="R", cpu_s=1.4)
        some = [rank(1, "main setup cpp.load communicate"),
                dataclasses.replace(ninja, ppid=101, command="/usr/bin/ninja -v", beat=None)]  # fmt: skip
    verdict = triage(evidence(rank(0, WAITS), *some))
    assert verdict.verdict == "SLOW" and not named(verdict), verdict.reason


def test_an_actor_before_a_lock_is_named_and_not_the_driver_that_asks_it() -> None:
    driver, actor = process(1, "driver", "main ray.get"), process(2, "actor", "main_loop setup cpp.load baton.wait")
    verdict = triage(evidence(driver, actor))
    assert verdict.triage is not None and [party.pid for party in verdict.triage.culprits] == [2], verdict.reason


def test_a_build_that_stands_still_is_named_and_not_who_waits_for_it() -> None:
    verdict = triage(evidence(rank(0, WAITS), rank(1, "main setup cpp.load communicate")))
    assert verdict.verdict == "HUNG" and named(verdict) == [1], verdict.reason


def test_whoever_came_to_the_lock_a_moment_ago_is_not_named() -> None:
    verdict = triage(evidence(rank(0, "main setup", WAITS), rank(1, "main setup", WAITS)))
    assert not named(verdict)


def test_of_the_job_who_was_killed_is_named_first() -> None:
    killed = rank(1, gone=True, exit_code=-9)
    assert named(triage(evidence(rank(0, WAITS), killed))) == [1]


def _baton() -> str:
    """torch's own file, found without importing torch."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return os.path.join(next(iter(spec.submodule_search_locations)), "utils", "file_baton.py")


WAITER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("file_baton", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
baton = module.FileBaton(sys.argv[2])
if not baton.try_acquire():
    print("waits", flush=True)
    baton.wait()
    print("went on", flush=True)
else:
    print("holds", flush=True)
    sys.stdin.read()
"""


def _started(tmp_path: Path, lock: Path) -> subprocess.Popen[str]:
    (tmp_path / "job.py").write_text(WAITER)
    words = [sys.executable, str(tmp_path / "job.py"), _baton(), str(lock)]
    environ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(lock.parent.parent)}
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)


def _seen(pid: int, out: Path) -> Evidence:
    found = collect(Scope(roots=(pid,), ray_address=""), out=out)
    return dataclasses.replace(found, stall_s=30.0)


@pytest.mark.slow
def test_a_process_that_waits_for_what_a_killed_one_left(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    holder = _started(tmp_path, lock)
    waiter = None
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "holds\n"
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(600) == -signal.SIGKILL and lock.exists()
        waiter = _started(tmp_path, lock)
        assert waiter.stdout is not None and waiter.stdout.readline() == "waits\n"
        verdict = triage(_seen(waiter.pid, tmp_path / "evidence"))
        assert verdict.triage is not None
        assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K9"), verdict.reason
        assert [party.pid for party in verdict.triage.culprits] == [waiter.pid]
        assert verdict.triage.next[0].startswith(f"find {lock.parent.parent} -name lock")
        lock.unlink()  # the control: what the advice says ends the wait
        assert waiter.stdout.readline() == "went on\n" and waiter.wait(600) == 0
    finally:
        for one in filter(None, (holder, waiter)):
            one.kill()
            one.communicate()

"""Shared memory of an engine whose processes are killed: what they alone had goes, and nothing of a neighbour."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scenarios import shared_memory
from scenarios.engines.engine_processes import descendants
from scenarios.shared_memory import Segments

USER = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(file, 4096)
if sys.argv[2] == "mapped":
    mapped = mmap.mmap(file, 4096)
    os.close(file)
print("up", flush=True)
sys.stdin.read()
"""
Use = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def segment() -> Iterator[Path]:
    path = shared_memory.FOLDER / f"harness-test-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def use() -> Iterator[Use]:
    """Start a process that has a segment mapped, or open."""
    started = []

    def start(path: Path, how: str = "mapped") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(path), how]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_a_segment_of_a_killed_process_is_unlinked(segment: Path, use: Use, how: str) -> None:
    segments = Segments()
    engine = use(segment, how)
    segments.look([engine.pid])
    segments.unlink_unused()
    assert segment.exists(), "its process lives"
    killed(engine)
    segments.unlink_unused()
    assert not segment.exists()


SEMAPHORE = """
import multiprocessing, sys
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read()
"""


def test_a_semaphore_of_a_killed_process_is_unlinked() -> None:
    """Its maker has it mapped under a name that is deleted; so it is in use as long as its maker lives, too."""
    segments = Segments()
    command = [sys.executable, "-c", SEMAPHORE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None and engine.stdin is not None
        semaphore = shared_memory.FOLDER / f"sem.{engine.stdout.readline().strip().removeprefix('/')}"
        family = [*descendants(engine.pid)]  # with the tracker, which would unlink it
        segments.look(family)
        segments.unlink_unused()
        assert semaphore.exists()
        for pid in family:
            os.kill(pid, signal.SIGSTOP)  # so that none sees the end of another
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        engine.wait()
        segments.unlink_unused()
        assert not semaphore.exists()


def test_a_segment_that_was_there_before_stays(segment: Path, use: Use) -> None:
    segment.touch(0o600)
    segments = Segments()
    engine = use(segment)
    segments.look([engine.pid])
    killed(engine)
    segments.unlink_unused()
    assert segment.exists()


def test_a_segment_that_another_process_has_stays_until_that_ends(segment: Path, use: Use) -> None:
    segments = Segments()
    engine, neighbour = use(segment), use(segment, "open")
    segments.look([engine.pid])
    killed(engine)
    segments.unlink_unused()
    assert segment.exists()
    killed(neighbour)
    segments.unlink_unused()
    assert not segment.exists()


def test_a_new_segment_that_no_process_of_ours_had_stays(segment: Path, use: Use) -> None:
    segments = Segments()
    neighbour = use(segment)
    segments.look([os.getpid()])
    killed(neighbour)
    segments.unlink_unused()
    assert segment.exists()


def test_a_process_that_has_ended_and_a_folder_that_is_not_there_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "none")
    segments = Segments()
    segments.look([2**22 + 1])
    segments.unlink_unused()

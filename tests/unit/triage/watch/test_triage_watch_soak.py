"""A simulated week of trouble: what the watchdog keeps on disk, in memory and open has a bound."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_triage_watch_watchdog import Job

from harness.triage.watch import Limits, ProcessSnapshot, Snapshot
from harness.triage.watch.retention import MAX_VERDICTS
from harness.triage.watch.watchdog import MAX_SAID, Means, Watchdog

pytestmark = pytest.mark.slow

DAY_S, TICK_S = 24 * 3600, 5.0
DAYS = 7 if os.environ.get("TEST_PROFILE") == "nightly" else 3
EVIDENCE_BYTES = 20_000


class Weary(Job):
    """A job that stands still every five minutes, each time with other ranks and processes, and is judged in turns."""

    TURNS = ("INSUFFICIENT", "SLOW", "HUNG", "HEALTHY", "INSUFFICIENT", "a defect", "no disk")

    def __init__(self, directory: Path, limits: Limits) -> None:
        super().__init__(directory)
        means = Means(None, lambda: self.now, self.observe, self.collect, self.judge)
        self.dog = Watchdog(directory, (os.getpid(),), 60.0, limits=limits, means=means, say=self.said)
        self.count = 0

    def said(self, line: str) -> None:
        self.count += 1

    @property
    def turn(self) -> int:
        return int(self.now // 300)

    def observe(self) -> Snapshot:
        still = self.now % 300 > 100
        rank, moved = self.turn, self.turn * 10_000 + (0 if still else int(self.now % 300))
        seen = ProcessSnapshot(f"host:{rank}", 100 + rank, beats=int(self.now), progress=moved, wait="collective",
                    name=f"rank {rank}", sequences={str(rank): moved})  # fmt: skip
        return Snapshot(self.now, (seen,))

    def collect(self, folder: Path, stall_s: float) -> object:  # type: ignore[override]
        self.says = self.TURNS[self.turn % len(self.TURNS)]
        self.culprit = f"host:{self.turn}"
        evidence = super().collect(folder, stall_s)
        (folder / "evidence.json").write_bytes(bytes(EVIDENCE_BYTES))
        if self.says == "no disk":
            raise OSError(28, os.strerror(28))
        if self.says == "a defect":
            raise ValueError(f"defect {self.turn}")
        return evidence


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder in memory: thousands of looks on a disk that others use take minutes."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


def used(directory: Path) -> tuple[int, int]:
    """Files and bytes."""
    sizes = [path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def opened(directory: Path) -> list[str]:
    """The files below a directory and /proc that this process has open; other tests of it may open others meanwhile."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since, such as that of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    own = f"/proc/{os.getpid()}/fd"  # the listing itself
    return [link for link in links if link.startswith((str(directory), "/proc/")) and link != own]


def test_days_of_trouble_are_bounded_on_disk_in_memory_and_in_descriptors(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.triage.watch.retention.MAX_VERDICTS", 100)  # as in a year
    job = Weary(disk, Limits(count=8, size=2_000_000))
    before = opened(disk)
    seen: list[tuple[int, int, int]] = []
    while job.now < DAYS * DAY_S:
        job.now += TICK_S
        job.dog.tick()
        if job.now % (DAY_S) < TICK_S:
            gc.collect()
            seen.append((*used(disk), sys.getallocatedblocks()))
    assert min(job.looks, job.count) > 150 * DAYS  # they were days of trouble
    evidence = list((disk / "evidence").iterdir())
    assert sum((one / "evidence.json").exists() for one in evidence) == 8 and len(evidence) <= 108
    assert all(size <= 2_000_000 + 100_000 for _, size, _ in seen)
    files, size, memory = seen[-1]
    assert files <= seen[1][0] + 10 and size <= seen[1][1] + 200_000  # no more at the end than after two days
    assert memory <= seen[1][2] + 10_000  # blocks of Python's allocator: a look that left anything would leave more
    assert len(opened(disk)) <= len(before) + 1  # the watchdog's own beat
    assert len(job.dog._said) <= MAX_SAID and MAX_VERDICTS == 1_000
    kinds = [json.loads((one / "verdict.json").read_text())["verdict"] for one in evidence if list(one.glob("v*"))]
    assert "HUNG" in kinds
    assert json.loads((disk / "verdict.json").read_text())["verdict"] == "HUNG"
    job.dog.close()
    assert len(opened(disk)) <= len(before)


def test_a_day_that_is_unclear_every_five_minutes_leaves_two_directories(disk: Path) -> None:
    """It left 576 a day."""

    class Unclear(Weary):
        TURNS = ("INSUFFICIENT",)

        def observe(self) -> Snapshot:
            [seen] = super().observe().processes
            return Snapshot(self.now, (ProcessSnapshot("host:0", 100, beats=seen.beats, progress=seen.progress,
                                            wait="collective", name="rank 0"),))  # fmt: skip

    job = Unclear(disk, Limits())
    while job.now < DAY_S:
        job.now += TICK_S
        job.dog.tick()
    assert job.looks > 250 and job.count == 1
    assert len(list((disk / "evidence").iterdir())) == 2

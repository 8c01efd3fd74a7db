"""The watchdog with a clock, a job, a collector and a judge of the test's own: what it tells, and how often."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import evidence, rank

from harness.errors import HarnessError
from harness.triage.evidence import Evidence
from harness.triage.watch import Observer, ProcessSnapshot, Snapshot, Stall, Watchdog
from harness.triage.watch.observe import Kernel, Stat
from harness.triage.watch.watchdog import Means
from reports.model import TRIAGE_EXIT_CODES, Party, Triage, Verdict


class Job:
    """A rank in a collective since 0 s, or since it last moved; the judge says what `says` says."""

    def __init__(self, directory: Path, says: str = "HUNG", culprit: str = "host:1") -> None:
        self.now, self.moved, self.says, self.culprit, self.looks = 0.0, 0, says, culprit, 0
        self.lines: list[str] = []
        self.ranks = 1
        self.more: dict[str, Any] = {}
        means = Means(None, lambda: self.now, self.observe, self.collect, self.judge)
        self.dog = Watchdog(directory, (os.getpid(),), 10.0, means=means, say=self.lines.append)

    def observe(self) -> Snapshot:
        seen = ProcessSnapshot(
            "host:0", 100, beats=int(self.now), progress=self.moved, wait="collective", name="rank 0", **self.more
        )
        others = (replace(seen, key=f"host:{rank}", name=f"rank {rank}") for rank in range(1, self.ranks))
        return Snapshot(self.now, (seen, *others))

    def collect(self, folder: Path, stall_s: float) -> Evidence:
        self.looks += 1
        self.now += 3.0
        (folder / "evidence.json").write_text("{}")
        return Evidence(str(folder), "watch", "now", stall_s)

    def judge(self, evidence: Evidence) -> Verdict:
        culprits = [Party(self.culprit, "asleep")]
        body = Triage("K7" if self.says == "SLOW" else "K1", culprits, [], [], [], [], [])
        return Verdict("triage", self.says, TRIAGE_EXIT_CODES[self.says], f"it is {self.says}", triage=body)

    def run(self, seconds: float) -> list[Stall]:
        found, end = [], self.now + seconds
        while self.now < end:
            self.now += 1.0
            stall = self.dog.tick()
            found += [stall] if stall else []
        return found


def test_a_hang_is_told_once_with_its_evidence(tmp_path: Path) -> None:
    job = Job(tmp_path)
    [stall] = job.run(200)
    assert job.looks == 1 and job.lines == []
    assert stall.verdict.verdict == "HUNG" and 10 <= stall.seconds <= 15
    assert stall.evidence.parent == tmp_path / "evidence" and (stall.evidence / "evidence.json").exists()
    written = Verdict.from_dict(json.loads((tmp_path / "verdict.json").read_text()))
    assert written == stall.verdict and written.paths == {"evidence": str(stall.evidence)}


@pytest.mark.parametrize("says", ["SLOW", "INSUFFICIENT"])
def test_the_line_of_many_ranks_that_stand_is_short(tmp_path: Path, says: str) -> None:
    job = Job(tmp_path, says)
    job.ranks = 8
    job.run(30)
    assert job.lines and all(len(line.partition(" (evidence")[0].split()) <= 12 for line in job.lines)


@pytest.mark.parametrize(("says", "count"), [("HUNG", 1), ("SLOW", 2), ("INSUFFICIENT", 1), ("HEALTHY", 0)])
def test_each_verdict_that_is_told_is_handed_on(tmp_path: Path, says: str, count: int) -> None:
    job = Job(tmp_path, says)
    verdicts: list[Verdict] = []
    job.dog.on_verdict = verdicts.append
    job.run(60)
    assert [verdict.verdict for verdict in verdicts] == [says] * len(verdicts)
    assert len(verdicts) == count


def test_a_job_that_goes_on_is_watched_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert len(job.run(30)) == 1
    job.moved += 1
    assert len(job.run(5)) == 0 and job.lines == ["the job goes on again"]
    assert len(job.run(30)) == 1


@pytest.mark.parametrize("ends", ["asked to", "by itself"])
def test_a_job_that_ends_does_not_go_on(tmp_path: Path, ends: str) -> None:
    """Ctrl-C moves the stacks of a job that stood still, before its processes are gone."""
    job = Job(tmp_path)
    assert len(job.run(30)) == 1
    job.moved += 1
    job.dog.asked = (15, 0) if ends == "asked to" else None
    job.run(2)
    job.more = {"ended": True}
    job.run(5)
    assert job.lines == []


@pytest.mark.parametrize(("says", "code", "left"), [
    ("INSUFFICIENT", 0, "SLOW"), ("INSUFFICIENT", 1, "INSUFFICIENT"), ("HUNG", 0, "HUNG"), ("SLOW", 0, "SLOW"),
])  # fmt: skip
def test_what_went_on_to_a_good_end_was_no_hang(tmp_path: Path, says: str, code: int, left: str) -> None:
    job = Job(tmp_path, says)
    job.run(30)
    job.moved += 1
    job.run(5)
    job.dog.over(code)
    assert job.dog.verdict is not None and job.dog.verdict.verdict == left
    assert job.dog.verdict.exit_code == TRIAGE_EXIT_CODES[left]
    if says == "INSUFFICIENT":
        written = Verdict.from_dict(json.loads((tmp_path / "verdict.json").read_text()))
        assert written == job.dog.verdict


def test_a_good_end_replaces_what_was_published_though_the_last_look_was_another(tmp_path: Path) -> None:
    job = Job(tmp_path, "INSUFFICIENT")
    job.run(30)
    job.says = "SLOW"
    job.run(200)
    job.dog.over(0)
    written = Verdict.from_dict(json.loads((tmp_path / "verdict.json").read_text()))
    assert written.verdict == "SLOW" and written == job.dog.verdict
    assert written.triage is not None and not written.triage.next  # nothing is left to look at


@pytest.mark.parametrize("says", ["SLOW", "INSUFFICIENT", "HUNG"])
def test_the_last_word_on_a_job_that_ended_well_is_no_standstill(tmp_path: Path, says: str) -> None:
    job, failed = Job(tmp_path / "well", says), Job(tmp_path / "failed", says)
    for each in (job, failed):
        each.run(30)
    told = len(job.lines)
    failed.dog.over(1)
    job.dog.over(0)
    assert len(failed.lines) == told, "a job that failed may have failed for its standstill"
    assert job.lines[told:] == ["the command went on since, and ended well"]


@pytest.mark.parametrize("says", ["HEALTHY", "SLOW", "INSUFFICIENT"])
def test_nothing_is_told_of_a_job_that_ended_as_meant_while_it_was_looked_at(tmp_path: Path, says: str) -> None:
    job = Job(tmp_path, says)
    job.dog.ended_as_meant = lambda: True
    job.run(30)
    job.dog.over(0)
    assert job.looks and job.lines == [] and not [*(tmp_path / "evidence").iterdir()]


@pytest.mark.slow
def test_slow_is_said_and_looked_at_ever_less_often(tmp_path: Path) -> None:
    job = Job(tmp_path, "SLOW")
    assert job.run(200) == []
    assert 3 <= job.looks <= 5  # after 10, 20, 40, 80, 160 s
    assert {line.split(" (")[0] for line in job.lines} == {"it is SLOW"}
    assert len(job.lines) == job.looks == len(set(job.lines))  # each says how long by now
    job.run(2000)
    assert job.looks > len(job.lines) == 5  # and then no more
    kept = sorted((tmp_path / "evidence").iterdir())
    assert len(kept) == 6  # of each line, and the last look's
    assert all(json.loads((one / "verdict.json").read_text())["verdict"] == "SLOW" for one in kept)
    assert not (tmp_path / "verdict.json").exists()
    job.culprit = "host:2"
    job.moved += 1
    job.run(30)
    assert len(job.lines) == 6  # another straggler is news
    job.says = "HUNG"
    assert len(job.run(100)) == 1


def test_a_pause_is_no_news(tmp_path: Path) -> None:
    job = Job(tmp_path, "HEALTHY")
    assert job.run(100) == [] and job.lines == [] and job.looks > 1
    assert list((tmp_path / "evidence").iterdir()) == [] and not (tmp_path / "verdict.json").exists()


def test_what_cannot_be_told_is_said_with_its_evidence(tmp_path: Path) -> None:
    job = Job(tmp_path, "INSUFFICIENT")
    assert job.run(100) == []
    [line] = job.lines
    assert "rank 0" in line and str(tmp_path / "evidence") in line and (tmp_path / "verdict.json").exists()


@pytest.mark.parametrize("error", [HarnessError("no /proc"), RuntimeError("a defect")])
def test_an_analysis_that_fails_ends_neither_watch_nor_job(tmp_path: Path, error: Exception) -> None:
    job = Job(tmp_path)

    def judge(evidence: Evidence) -> Verdict:
        raise error

    right, job.dog._judge = job.dog._judge, judge
    assert job.run(60) == [] and len(job.lines) == 1 and str(error) in job.lines[0]
    job.dog._judge = right
    assert len(job.run(100)) == 1


def test_a_short_timeout_is_beaten_and_said(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.more = {"timeout_s": 10.0}
    [stall] = job.run(9)
    assert stall.seconds < 10 and "gives up after 10 s" in job.lines[0]


def test_a_debugger_is_said_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.more = {"breakpoint": True}
    assert job.run(100) == [] and job.looks == 0
    assert len(job.lines) == 1 and "debugger" in job.lines[0]


def test_the_watchdog_beats_and_says_that_it_ends(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(3)
    beat = json.loads((tmp_path / "watchdog.json").read_text())
    assert beat["pid"] == os.getpid() and beat["count"] == 3 and "ended" not in beat
    job.dog.close()
    assert json.loads((tmp_path / "watchdog.json").read_text())["ended"]


def test_a_hang_is_confirmed_by_a_second_verdict_before_a_job_is_ended(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert len(job.run(20)) == 1 and job.looks == 1
    job.now += 10
    again = job.dog.confirm()
    assert again is not None and again.verdict.verdict == "HUNG" and job.looks == 2


@pytest.mark.parametrize("says", ["SLOW", "INSUFFICIENT", "HEALTHY"])
def test_a_hang_that_is_none_at_the_second_look_is_watched_on(tmp_path: Path, says: str) -> None:
    job = Job(tmp_path)
    assert len(job.run(20)) == 1
    job.says = says
    assert job.dog.confirm() is None
    job.says = "HUNG"
    assert len(job.run(60)) == 1  # and told when it hangs after all


def test_a_job_that_moved_meanwhile_is_not_looked_at_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert len(job.run(20)) == 1
    job.moved += 1
    assert job.dog.confirm() is None and job.looks == 1


class World:
    """Processes as /proc would have them."""

    def __init__(self) -> None:
        self.there = {pid: Stat(pid, parent, "S", 0.0, pid) for pid, parent in ((10, 1), (11, 10), (12, 11), (90, 1))}

    def __call__(self) -> dict[int, Stat]:
        return dict(self.there)


def beat(directory: Path, pid: int, **more: Any) -> None:
    fields = {"host": os.uname().nodename, "pid": pid, "start_ticks": pid, "count": 1, "progress_ns": 5, **more}
    (directory / "beats").mkdir(exist_ok=True)
    (directory / "beats" / f"{fields['host']}-{pid}.json").write_text(json.dumps(fields).ljust(4096))


def test_whoever_is_below_the_root_is_seen_also_when_the_parent_ends(tmp_path: Path) -> None:
    world = World()
    observer = Observer(tmp_path, (10,), lambda: 0.0, Kernel(world))
    assert [seen.pid for seen in observer().processes] == [10, 11, 12]
    del world.there[11]
    world.there[12] = Stat(12, 1, "S", 0.0, 12)
    assert [seen.pid for seen in observer().processes] == [10, 12]
    world.there[12] = Stat(12, 1, "S", 0.0, 777)  # another process, which was given the number
    assert observer.living() == [10]


def test_heartbeats_are_taken_of_whoever_lives(tmp_path: Path) -> None:
    world = World()
    observer = Observer(tmp_path, (10,), lambda: 0.0, Kernel(world))
    beat(tmp_path, 11, rank=3, wait="collective", open=[{"name": "wake"}], sequences={"0": 2}, timeout_s=9.0)
    beat(tmp_path, 12, start_ticks=1)  # of an earlier process with this pid
    beat(tmp_path, 90, role="actor")  # not below the root: a worker of a cluster that was there before
    beat(tmp_path, 91)  # has ended
    beat(tmp_path, 5, host="elsewhere")
    (tmp_path / "beats" / "torn.json").write_text('{"host": "x", "pi')
    seen = {one.pid: one for one in observer().processes}
    assert set(seen) == {5, 10, 11, 12, 90}
    one = seen[11]
    assert (one.name, one.wait, one.spans, one.sequences, one.timeout_s) == (
        "rank 3", "collective", ("wake",), {"0": 2}, 9.0
    )  # fmt: skip
    assert seen[12].beats is None and seen[90].name == "actor 90" and seen[5].state == ""


@pytest.mark.parametrize("first", ["INSUFFICIENT", "SLOW", "HUNG"])
def test_a_program_that_looks_healthy_as_it_ends_takes_nothing_back(tmp_path: Path, first: str) -> None:
    job = Job(tmp_path, says=first)
    job.run(20)
    job.says, job.moved = "HEALTHY", 1
    job.run(60)
    assert job.looks >= 2 and job.dog.verdict is not None and job.dog.verdict.verdict == first


def test_what_was_kept_is_advised_only_by_the_look_that_ends_the_job(tmp_path: Path) -> None:
    stopped = rank(1, "main:5 train", world=2, state="T")
    hung = evidence(rank(0, "main:10 step:42 all_reduce", world=2), stopped, stall_s=10.0)
    job = Job(tmp_path)
    means = Means(None, lambda: job.now, job.observe, lambda folder, stall_s: hung)
    dog = job.dog = Watchdog(tmp_path, (os.getpid(),), 10.0, means=means, say=job.lines.append)
    dog.ends = True
    [first], last = job.run(30), dog.confirm()
    assert last is not None
    for stall, advises in ((first, False), (last, True)):
        assert stall.verdict.verdict == "HUNG" and stall.verdict.triage is not None
        assert stall.verdict.triage.next[0].startswith(f"harness triage {tmp_path}") is advises

"""A watch of a running job: each verdict is told once, and it acts on a hang as `--on-stall` says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from triage_evidence import evidence, rank

from harness.errors import BadInput
from harness.exit_codes import STALLED
from harness.triage.collect import Scope, conduct, proc
from harness.triage.evidence import Evidence
from harness.triage.watch import attached
from harness.triage.watch.attached import LACKS, Attached, attach
from harness.triage.watch.retention import Retention
from harness.triage.watch.watched_command import OnStall, WatchOptions
from reports.model import Verdict

STOPPED = "stopped"
WORKS = "works"


class Job:
    """A job whose looks show what `looks` says, one after another; it ends when they are used up."""

    beats = False  # whether another watch runs the job

    def __init__(self, folder: Path, looks: list[str], on_stall: OnStall = "report") -> None:
        self.now, self.looks, self.ended = 0.0, looks, 0
        self.lines: list[str] = []
        self.stalls: list[str] = []
        self.verdicts: list[Verdict] = []
        self.after: list[float | None] = []
        observer: Any = SimpleNamespace(goes_on=lambda: bool(self.looks), members=self.members)
        options = WatchOptions(
            on_stall=on_stall, say=self.lines.append, show=lambda stall: self.stalls.append(stall.verdict.reason),
            on_verdict=self.verdicts.append,
        )  # fmt: skip
        self.watch = Attached(
            Scope((100,)), Retention(folder, self.lines.append), observer, 10.0, options, collect=self.collect,
            clock=lambda: self.now, sleep=self.sleep,
        )  # fmt: skip

    def members(self) -> dict[int, object]:
        self.ended += 1
        return {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def collect(self, scope: Scope, *, out: Path, after: tuple[Evidence, float] | None) -> Evidence:
        self.after.append(None if after is None else after[1])
        look = self.looks.pop(0)
        waits = rank(0, "main:10 step:42 all_reduce", world=2)
        peer = (
            rank(1, "main:5 train", world=2, state="T") if look == STOPPED else rank(1, "main:5 a", "main:9 b", cpu_s=1)
        )
        job = waits, peer
        ours = job if self.beats else (replace(process, beat=None) for process in job)
        return evidence(*ours, source="live", stall_s=0.0)


@pytest.mark.parametrize(
    ("looks", "on_stall", "code", "stalls"),
    [
        ([STOPPED, STOPPED, WORKS], "report", 0, 1),
        ([STOPPED, WORKS, STOPPED], "report", 0, 2),
        ([STOPPED, STOPPED, WORKS], "exit", STALLED, 1),
        ([WORKS, STOPPED, STOPPED, WORKS], "end", STALLED, 1),
        ([STOPPED, WORKS, STOPPED], "end", 0, 2),
        ([WORKS, WORKS], "end", 0, 0),
    ],
)
def test_a_hang_is_told_once_and_decides_as_asked(
    tmp_path: Path, looks: list[str], on_stall: OnStall, code: int, stalls: int
) -> None:
    job = Job(tmp_path, looks, on_stall)
    assert job.watch.follow() == code and len(job.stalls) == stalls
    assert bool(job.ended) is (on_stall == "end" and code == STALLED)
    assert [verdict.verdict for verdict in job.verdicts].count("HUNG") == stalls
    assert all(LACKS in verdict.missing for verdict in job.verdicts)


def test_a_job_that_another_watch_runs_lacks_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, [STOPPED, WORKS])
    job.beats = True
    job.watch.follow()
    assert job.verdicts and not any(LACKS in verdict.missing for verdict in job.verdicts)


def test_what_was_kept_is_advised_only_by_the_verdict_that_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, [STOPPED, STOPPED], "end")
    assert job.watch.follow() == STALLED
    [first], last = job.verdicts, job.watch.verdict
    assert first.triage is not None and not any(str(tmp_path) in step for step in first.triage.next)
    assert last is not None and last.triage is not None
    assert last.triage.next[0].startswith(f"harness triage {tmp_path}")
    assert json.loads((tmp_path / "verdict.json").read_text())["triage"]["next"] == last.triage.next


def test_each_look_compares_with_the_one_a_threshold_before(tmp_path: Path) -> None:
    job = Job(tmp_path, [WORKS, WORKS, WORKS])
    job.watch.follow()
    assert job.after == [None, 10.0, 10.0]
    assert any("has ended" in line for line in job.lines)


def test_the_times_of_three_looks_go_on(tmp_path: Path) -> None:
    """Each look takes 2 s and compares with the one before, which began 12 s earlier."""
    job = Job(tmp_path, [WORKS] * 4)
    times: list[list[list[float]]] = []

    def look(scope: Scope, *, out: Path, after: tuple[Evidence, float] | None) -> Evidence:
        fresh = job.collect(scope, out=out, after=after)
        assert [[sample.at_s for sample in process.samples] for process in fresh.processes] == [[0.0, 1.5]] * 2
        job.now += 2.0
        looked = conduct.continued(fresh, *after) if after else fresh
        times.append([[sample.at_s for sample in process.samples] for process in looked.processes])
        return looked

    job.watch.collect = look
    job.watch.follow()
    assert times == [[[0.0, 1.5]] * 2, *[[[1.5, 12.0, 13.5]] * 2] * 3]


def test_a_process_that_is_new_at_a_look_has_its_times_too() -> None:
    first = evidence(rank(0, "main:5 a", world=2), source="live", stall_s=0.0)
    second = evidence(*first.processes, rank(1, "main:5 a", world=2), source="live", stall_s=0.0)
    known, new = conduct.continued(second, first, 10.0).processes
    assert [sample.at_s for sample in known.samples] == [0.0, 10.0, 11.5]
    assert [sample.at_s for sample in new.samples] == [10.0, 11.5]


@pytest.mark.parametrize("pid", [0, -1])
def test_a_number_that_is_no_process_is_refused(tmp_path: Path, pid: int) -> None:
    with pytest.raises(BadInput, match="above 0") as refusal:
        attach(pid, WatchOptions(out=tmp_path / "out"))
    assert refusal.value.fix and refusal.value.fix.startswith("pgrep") and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("pid", "children", "named"),
    [
        pytest.param(os.getpid(), {}, "", id="itself"),  # a shell that became the watch with exec
        (5, {}, ""),
        (5, {20: "sh", 21: "python3.12", 22: "python3.12"}, "21"),
        (5, {20: "torchrun"}, "20"),
        (1, {20: "python"}, "20"),
    ],
)
def test_what_runs_the_watch_is_refused_with_the_child_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int, children: dict[int, str], named: str
) -> None:
    table = {1: 0, 4: 1, 5: 4, os.getpid(): 5, **dict.fromkeys(children, pid)}
    monkeypatch.setattr(proc, "parents", lambda: table)
    monkeypatch.setattr(proc, "comm", lambda number: children[number])
    monkeypatch.setattr(attached, "live", lambda text: pytest.fail("it is looked at"))
    with pytest.raises(BadInput) as refusal:
        attach(pid, WatchOptions(out=tmp_path / "out"))
    fix = refusal.value.fix or ""
    assert fix == f"harness watch --pid {named}" if named else fix.startswith("pgrep")
    assert not (tmp_path / "out").exists()


def test_each_new_answer_of_an_undecided_watch_is_told_once(tmp_path: Path) -> None:
    job = Job(tmp_path, [])
    reasons = [
        "rank 0 had data 9.3 s ago",
        "rank 0 had data 4 s ago",
        "rank 1 sleeps at a.py:5",
        "rank 1 sleeps at a.py:5",
    ]
    for number, reason in enumerate(reasons):
        folder = tmp_path / "evidence" / str(number)
        folder.mkdir(parents=True)
        job.watch._tell(Verdict("triage", "INSUFFICIENT", 3, reason), folder, ends=False)
    assert [verdict.reason for verdict in job.verdicts] == [reasons[0], reasons[2]]
    assert job.watch.verdict is not None and job.watch.verdict.reason == reasons[2]

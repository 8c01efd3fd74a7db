"""The wall clock is set by an hour while a job hangs: nothing fresh looks old for it, and nothing old fresh."""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from harness import dates
from harness.triage import directory, recorders
from harness.triage.collect import recorder, scope
from harness.triage.collect.beats import parse
from harness.triage.collect.journals import Opening
from harness.triage.evidence import Evidence, Process
from harness.triage.flight.synthesis import encoded, simulate
from harness.triage.run import newest
from harness.triage.watch import retention
from harness.triage.watch.retention import Retention
from reports.model import Verdict

HOUR = 3600.0
STEPS = [HOUR, -HOUR]


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "trace_0").write_bytes(b"\x80\x02N.")
    return {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}


def set_clock(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + step_s)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(step_s * 1e9))


@pytest.mark.parametrize("step_s", STEPS)
def test_a_clock_that_was_set_is_noticed(step_s: float) -> None:
    """By the journals of the processes that live: each begins with both clocks."""
    sound = Opening(Path("a"), "h", 1, 0, opened_ns=10**9, wall_ns=10**18)
    later = 60 * 10**9
    assert scope.clock_set_s([sound], 10**9 + later, 10**18 + later) == 0.0
    assert scope.clock_set_s([sound], 10**9 + later, 10**18 + later + 10**8) == 0.0  # slewed, or read late
    assert scope.clock_set_s([sound], 10**9 + later, 10**18 + later + int(step_s * 1e9)) == step_s
    assert scope.clock_set_s([Opening(Path("a"), "h", 1, 0, 5)], 0, 10**18) == 0.0  # it does not say


def test_a_dump_of_before_the_clock_was_set_forward_is_fresh(
    trace: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock as it is now, it is an hour older than the process."""
    set_clock(monkeypatch, HOUR)
    pid, out = os.getpid(), tmp_path / "out"
    assert recorder.from_file(trace, 0, "h", pid, out) == ("", 0, ""), "the control: nobody noticed that it was set"
    assert recorder.from_file(trace, 0, "h", pid, out, clock_set_s=HOUR)[0]
    os.utime(tmp_path / "trace_0", (time.time(), time.time()))  # written after it was set
    assert recorder.from_file(trace, 0, "h", pid, out, clock_set_s=HOUR)[0]
    stale = recorder.proc.started_wall_s(pid) - HOUR - 60.0  # type: ignore[operator]
    os.utime(tmp_path / "trace_0", (stale, stale))
    assert recorder.from_file(trace, 0, "h", pid, out, clock_set_s=HOUR) == ("", 0, "")


def test_a_stale_dump_is_not_fresh_after_the_clock_was_set_back(
    trace: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = recorder.proc.started_wall_s(os.getpid()) - 600.0  # type: ignore[operator]
    os.utime(tmp_path / "trace_0", (stale, stale))
    set_clock(monkeypatch, -HOUR)
    pid, out = os.getpid(), tmp_path / "out"
    assert recorder.from_file(trace, 0, "h", pid, out)[0] == "", "it is of the future, which proves that it was set"
    path, _, note = recorder.from_file(trace, 0, "h", pid, out, clock_set_s=-HOUR)
    assert not path and "clock unknown" in note and "trace_0" in note
    fresh = time.time() + HOUR - 1.0  # written a second before it was set back
    os.utime(tmp_path / "trace_0", (fresh, fresh))
    assert recorder.from_file(trace, 0, "h", pid, out, clock_set_s=-HOUR)[0]


@pytest.mark.parametrize("step_s", STEPS)
def test_without_a_step_the_time_of_a_file_decides(step_s: float) -> None:
    now = time.time()
    since = recorder.Since(now - 100, now - 100)
    assert since.admits(now - 50) is True and since.admits(now - 200) is False and since.admits(now + 60) is None
    both = recorder.Since(now - 100, now - 100 - step_s)
    assert both.admits(now - 2 * HOUR) is False and both.admits(now + 2 * HOUR) is None


def evidence(folder: Path, *, step_s: float, taken_ns: int | None, age_s: float) -> Evidence:
    """One process whose dump was made before the clock was set by `step_s`, and looked at afterwards."""
    job = simulate(2, 40)
    (folder / "recorder").mkdir(parents=True)
    data = encoded(job, 1, "json")
    (folder / "recorder" / "h-1.json").write_bytes(data)
    last_ns = max(one["time_created_ns"] for one in json.loads(data)["entries"])
    taken = datetime.datetime.fromtimestamp(last_ns / 1e9 + 30 + step_s, datetime.UTC).isoformat()
    process = Process("h", 1, rank=1, world_size=2, age_s=age_s, dump="recorder/h-1.json", dump_taken_ns=taken_ns)
    return Evidence(str(folder), "watch", taken, 30.0, (process,))


def ages(given: Evidence) -> tuple[set[float | None], list[str]]:
    notes: list[str] = []
    [flight] = recorders._loaded(given, recorders.nanoseconds(given.taken), notes).values()
    return {one.age_s if one.age_s is None else round(one.age_s) for one in flight.collectives()}, notes


@pytest.mark.parametrize("step_s", STEPS)
def test_ages_of_operations_are_left_out_where_the_clock_was_set(step_s: float, tmp_path: Path) -> None:
    sound, notes = ages(evidence(tmp_path / "sound", step_s=0.0, taken_ns=None, age_s=10_000.0))
    assert min(sound) == 30 and not notes  # type: ignore[type-var]
    known, notes = ages(evidence(tmp_path / "known", step_s=step_s, taken_ns=0, age_s=10_000.0))
    assert known == {None} and "clock unknown" in notes[0]
    shown, notes = ages(evidence(tmp_path / "shown", step_s=step_s, taken_ns=None, age_s=300.0))
    assert shown == {None} and "clock unknown" in notes[0], "it would be older than its process, or of the future"


def test_a_dump_that_says_when_it_was_taken_is_aged_by_that(tmp_path: Path) -> None:
    given = evidence(tmp_path, step_s=HOUR, taken_ns=None, age_s=0.0)
    before_ns = recorders.nanoseconds(given.taken) - int(HOUR * 1e9)  # type: ignore[operator]
    [process] = given.processes
    again = Evidence(given.path, "watch", given.taken, 30.0, (directory.decode(Process, {
        **msgspec.to_builtins(process), "dump_taken_ns": before_ns}),))  # fmt: skip
    assert min(ages(again)[0]) == 30  # type: ignore[type-var]


def test_the_clock_of_another_host_is_that_of_its_beats() -> None:
    blocks = [{"host": host, "pid": pid, "count": 1, "t_ns": at, "progress_ns": 0}
              for host, pid, at in (("far", 1, 70), ("far", 2, 90), ("here", 3, 10))]  # fmt: skip
    pulses = {(one["host"], one["pid"]): parse(json.dumps(one).encode(), 500, "here") for one in blocks}
    assert scope.Cast("here", (), pulses=pulses).clocks(500) == {"here": 500, "far": 90}


def test_the_newest_evidence_stays_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime.datetime(2026, 11, 23, 12, 0, tzinfo=datetime.UTC)
    monkeypatch.setattr(dates, "utc", lambda: moment)
    kept = Retention(tmp_path, lambda line: None)
    made = []
    for number in range(12):
        if number == 1:
            moment -= datetime.timedelta(hours=1)
        if number == 11:  # another watch of the same folder
            kept = Retention(tmp_path, lambda line: None)
        made.append(kept.folder())
        (made[-1] / "evidence.json").write_text("{}")
        kept.keep(made[-1], Verdict("triage", "HUNG", 1, "x"), subject="hung", displayed=True)
        assert newest(tmp_path) == made[-1]
    assert sorted(made, key=lambda path: retention.order(path.name)) == made

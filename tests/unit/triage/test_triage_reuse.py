"""Pids that were given to another process, clocks that were set, and journals of any length."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from harness.triage.collect import Scope, beats, collect, journals, proc
from harness.triage.collect.draft import Draft
from harness.triage.collect.scope import cast
from harness.triage.evidence import Group
from probes.identity import started
from probes.lines import encode_line

HOST, HOUR = socket.gethostname(), 3_600 * 10**9


def opening(pid: int = 1, **more: Any) -> bytes:
    fields = {"role": "actor", "rank": 0, "pid": pid, "host": HOST, "wall_ns": time.time_ns(), **more}
    return encode_line(0, fields.pop("t_ns", time.monotonic_ns()), "open", fields)


def journal(path: Path, *lines: bytes, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(opening(**more) + b"".join(lines))
    return path


def beat(directory: Path, pid: int, **more: Any) -> None:
    now = time.monotonic_ns()
    fields = {"host": HOST, "pid": pid, "start_ticks": 0, "count": 9, "t_ns": now, "progress_ns": now, **more}
    (directory / "beats").mkdir(parents=True, exist_ok=True)
    (directory / "beats" / f"{pid}.json").write_text(json.dumps(fields).ljust(4096))


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process that has nothing to do with the job, with a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"], start_new_session=True
    )
    try:
        until(lambda: len(proc.descendants((process.pid,), proc.parents())) >= 2)
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


# --- pids


@pytest.mark.slow
@pytest.mark.parametrize("left", ["beat", "journal", "both", "old journal"])
def test_whoever_was_given_the_pid_is_not_the_one_that_had_it(tmp_path: Path, bystander: int, left: str) -> None:
    ticks = proc.facts(bystander).start_ticks - 500
    if left in ("beat", "both"):
        beat(tmp_path, bystander, start_ticks=ticks)
    if left in ("journal", "both"):
        journal(tmp_path / "events" / "a.jsonl", pid=bystander, start_ticks=ticks)
    if left == "old journal":  # of a recorder that does not say when its process began
        journal(tmp_path / "events" / "a.jsonl", pid=bystander, t_ns=time.monotonic_ns() - HOUR)
    there = cast(Scope(directory=tmp_path, ray_address=""))
    assert there.pids == () and there.ended == (bystander,) and "another process has its number" in there.notes[0]
    evidence = collect(Scope(directory=tmp_path, ray_address=""), out=tmp_path / "out", samples=1, native=False)
    [process] = evidence.processes
    assert process.samples[0].state == "gone" and (process.beat is None) == ("journal" in left)


def test_a_process_that_is_the_one_is_a_member_with_its_children(tmp_path: Path, bystander: int) -> None:
    beat(tmp_path, bystander, start_ticks=proc.facts(bystander).start_ticks)
    there = cast(Scope(directory=tmp_path, ray_address=""))
    assert bystander in there.pids and len(there.pids) == 2 and there.ended == () and there.notes == ()


def test_of_two_journals_of_one_pid_the_living_process_has_its_own(tmp_path: Path) -> None:
    own = journal(tmp_path / "events" / "a-2.jsonl", pid=os.getpid(), start_ticks=started())
    journal(tmp_path / "events" / "a.jsonl", pid=os.getpid(), start_ticks=started() - 7)
    there = cast(Scope(directory=tmp_path, ray_address=""))
    assert there.journals == {(HOST, os.getpid()): [own.resolve()]} and os.getpid() in there.pids


def test_a_recorder_says_when_its_process_began(tmp_path: Path) -> None:
    from probes.install import start

    with start(tmp_path, role="actor") as recorder:
        assert json.loads(recorder.path.read_text().splitlines()[0])["start_ticks"] == started() > 0


@pytest.mark.slow
def test_a_pid_that_is_given_away_between_two_looks_is_gone(
    tmp_path: Path, bystander: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter((0, 500))
    real = proc.look

    def look(pid: int, *store: object) -> proc.Look:
        seen = real(pid, *store)
        return proc.Look(**{**vars(seen), "start_ticks": seen.start_ticks + next(looks)})

    children = {pid for pid in proc.descendants((bystander,), proc.parents()) if pid != bystander}
    monkeypatch.setattr(proc, "look", lambda pid, *store: (real if pid in children else look)(pid, *store))
    evidence = collect(Scope((bystander,), ray_address=""), out=tmp_path, gap_s=0.0, native=False)
    [process] = [one for one in evidence.processes if one.pid == bystander]
    assert [sample.state == "gone" for sample in process.samples] == [False, True]


# --- clocks


@pytest.mark.parametrize("step_ns", [-5 * HOUR, 5 * HOUR])
def test_a_wall_clock_that_was_set_hides_and_lends_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    file = journal(tmp_path / "a.jsonl", pid=os.getpid())
    stale = journal(tmp_path / "b.jsonl", pid=os.getpid(), t_ns=time.monotonic_ns() - HOUR)
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + step_ns / 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + step_ns)
    draft = Draft(HOST, os.getpid(), None)
    facts = proc.facts(os.getpid())
    draft.learn(facts)
    for path, own in ((file, True), (stale, False)):
        draft.recording = None
        [recording] = journals.read([path], {HOST: time.monotonic_ns()})[0].values()
        assert recording.journal.last_age_s < 60 or not own
        draft.remember(recording)
        assert (draft.recording is not None) == (own or facts.age_s > 3_598)


def test_the_clock_of_another_host_is_not_ours(tmp_path: Path) -> None:
    for pid, offset in ((7, 100 * HOUR), (8, -100 * HOUR)):
        now = time.monotonic_ns() + offset
        beat(tmp_path, pid, host="elsewhere", t_ns=now, progress_ns=now - 40 * 10**9,
             open=[{"name": "sync", "start_ns": now - 50 * 10**9}])  # fmt: skip
    pulses, notes = beats.read(tmp_path, time.monotonic_ns())
    assert notes == () and len(pulses) == 2
    for pulse in pulses.values():
        assert (pulse.beat.age_s, pulse.beat.progress_age_s, pulse.beat.open_spans[0].age_s) == (0.0, 40.0, 50.0)
    still = beats.again(pulses["elsewhere", 7], pulses["elsewhere", 7].read_ns + 3 * 10**9)
    assert (still.beat.age_s, still.beat.progress_age_s) == (3.0, 43.0)  # as long as we have waited for the next
    beat(tmp_path, 7, host="elsewhere", count=10, t_ns=HOUR, progress_ns=HOUR)
    assert beats.again(pulses["elsewhere", 7], time.monotonic_ns()).beat.age_s == 0.0


def test_a_beat_of_another_host_is_as_old_as_it_was_seen_to_be(tmp_path: Path) -> None:
    beat(tmp_path, 7, host="elsewhere", t_ns=time.monotonic_ns() + 100 * HOUR, progress_ns=0)
    evidence = collect(Scope(directory=tmp_path, ray_address=""), out=tmp_path / "out", samples=1, native=False)
    [process] = evidence.processes
    assert process.host == "elsewhere" and process.beat is not None and process.beat.age_s < 60


# --- journals


def event(seq: int, kind: str = "span", **fields: Any) -> bytes:
    return encode_line(seq, time.monotonic_ns(), kind, fields)


def last(path: Path) -> journals.Recording:
    found, notes = journals.read([path], {HOST: time.monotonic_ns() + 10**9})
    assert notes == []
    [one] = found.values()
    return one.journal


@pytest.mark.by_day(5)
@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 10, (1 << 20) + 1, 5 << 20, 20 << 20])
@pytest.mark.parametrize("torn", [0, 100, 3 << 20], ids=["whole", "torn", "torn beyond the tail"])
def test_a_last_event_of_any_size_is_read(tmp_path: Path, size: int, torn: int) -> None:
    lines = [event(1, name="first"), event(2, name="big", text="x" * size)]
    unfinished = event(3, name="unfinished", text="y" * torn)[:-1] if torn else b""
    found = last(journal(tmp_path / "a.jsonl", *lines, unfinished))
    assert (found.events, found.last_span) == (3, "big") and 1.0 <= found.last_age_s < 600 and not found.closed


def test_an_event_too_large_to_be_decoded_still_has_its_number_and_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MAX_EVENT", 1 << 20)
    monkeypatch.setattr(journals, "BLOCK", 1 << 16)
    found = last(journal(tmp_path / "a.jsonl", event(1), event(2, "close", text="x" * (9 << 20)), b'{"seq":3,'))
    assert (found.events, found.closed) == (3, True) and 1.0 <= found.last_age_s < 600


def test_a_message_of_megabytes_is_cut_before_it_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[int] = []
    real = journals.redact.text
    monkeypatch.setattr(
        journals.redact, "text", lambda text, *more: (cleaned.append(len(text)), real(text[:100], *more))[1]
    )
    found = last(journal(tmp_path / "a.jsonl", event(1, "call", name="sync", ok=False, message="x " * (1 << 20))))
    assert len(found.calls) == len(found.errors) == 1 and max(cleaned) <= journals.LONGEST


def group(seq: int, name: str) -> bytes:
    return event(seq, "group", name=name, torch_name=name, rank=0, world_size=2, members=[0, 1], backend="gloo")


class Counted:
    """Opens files, and counts the bytes that are read of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        real = open

        def opened(file: Any, mode: str) -> Any:
            stream = real(file, mode)
            read = stream.read

            class Stream:
                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *exc: object) -> None:
                    stream.close()

                def __getattr__(self, name: str) -> Any:
                    return getattr(stream, name)

                def read(_, size: int = -1) -> bytes:
                    data = read(size)
                    self.bytes += len(data)
                    return data

            return Stream()

        monkeypatch.setattr(journals, "open", opened, raising=False)


@pytest.mark.slow
def test_what_was_read_of_a_long_journal_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filler = b"".join(event(number, text="x" * 1_000) for number in range(2, 40_000))
    path = journal(tmp_path / "a.jsonl", group(1, "early"), filler)
    counted = Counted(monkeypatch)
    assert last(path).groups == (Group("early", (0, 1), "gloo", "", 2),)
    assert counted.bytes < path.stat().st_size + (4 << 20)
    counted.bytes = 0
    with open(path, "ab") as stream:
        stream.write(group(40_000, "late")[:50])  # caught in the middle of a write
    assert [one.name for one in last(path).groups] == ["early"]
    with open(path, "ab") as stream:
        stream.write(group(40_000, "late")[50:])
    assert [one.name for one in last(path).groups] == ["early", "late"]
    assert counted.bytes < 3 << 20  # the tail, twice, and what was added


def test_a_journal_of_gigabytes_costs_a_bounded_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = journal(tmp_path / "a.jsonl", group(1, "early"))
    with open(path, "ab") as stream:
        stream.truncate(40 << 30)  # a hole: it takes no disk
        stream.seek(0, 2)
        stream.write(b"\n" + group(2, "late") + event(3, name="last"))
    monkeypatch.setattr(journals, "SCAN_BYTES", 64 << 20)
    counted = Counted(monkeypatch)
    found = last(path)
    assert (found.events, found.last_span) == (4, "last") and counted.bytes <= 66 << 20
    assert [one.name for one in found.groups] == ["early", "late"]  # of what lies between, the next looks read more


@pytest.mark.parametrize("length", [100, 300, 1_000])
def test_groups_on_both_sides_of_a_line_longer_than_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(journals, "BLOCK", 256)
    path = journal(tmp_path / "a.jsonl", group(1, "a"), event(2, text="x" * length), group(3, "b"), group(4, "c"))
    assert [one.name for one in last(path).groups] == ["a", "b", "c"]


def test_a_file_that_took_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", group(1, "before"))
    assert [one.name for one in last(path).groups] == ["before"]
    path.write_bytes(opening() + group(1, "after") + event(2, text="x" * 1_000))
    assert [one.name for one in last(path).groups] == ["after"]


def test_the_journal_of_a_process_that_is_gone_says_where_it_met_whom(tmp_path: Path) -> None:
    """But not its rank: it may have inherited the variable from a parent that cannot be looked at any more."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    env = {"PYTHONPATH": "/job", **place}
    journal(tmp_path / "events" / "a.jsonl", pid=gone.pid, env=env, t_ns=time.monotonic_ns() - HOUR // 3_600 * 9)
    (found,) = collect(Scope(directory=tmp_path), out=tmp_path / "out", samples=1, native=False).processes
    assert found.rank is None and found.environ == place and 9 <= found.age_s < 60

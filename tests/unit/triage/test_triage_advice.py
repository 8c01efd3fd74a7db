"""What a verdict advises can be typed: for processes that live, with their pid; for a job that ended, what was kept."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from triage_evidence import compared, evidence, frames, group, process, rank, wording

from harness.triage import judge
from harness.triage.collect import Scope, conduct
from harness.triage.collect.stacks import TOO_BUSY
from harness.triage.evidence import Evidence, Frame, Process, Thread
from harness.triage.flight.model import Comparison
from harness.triage.judge import triage
from harness.triage.rules import threads
from harness.triage.run import _lives
from probes.heartbeat import WATCHDOG
from reports.model import Verdict

PID = re.compile(r"\b10[0-3]\b")


def steps(verdict: Verdict) -> list[str]:
    assert verdict.triage is not None
    return verdict.triage.next


def job(late: Process) -> Verdict:
    return triage(*parts(late))


def parts(late: Process) -> tuple[Evidence, Comparison]:
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    return evidence(late, *ranks), compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))


@pytest.mark.parametrize("late", [rank(0, "main:10 wait:44"), rank(0, "main:10 wait:44", state="T")])
def test_after_an_end_no_advice_is_about_a_process_that_lived(late: Process) -> None:
    assert any(PID.search(step) for step in steps(job(late)))
    ended = steps(triage(*parts(late), afterwards="harness triage OUT   # what was kept"))
    assert ended[0].startswith("harness triage OUT") and not any(PID.search(step) for step in ended)


STACK = re.compile(r"py-spy dump .*--pid (\d+)")


@pytest.mark.parametrize(
    ("processes", "pid"),
    [
        pytest.param(
            (
                process(50, "process", "main:3 spawn join"),
                *(dataclasses.replace(rank(n, f"main:1{n} all_reduce", world=3, beat=None), ppid=50) for n in (0, 1)),
            ),
            "100",
            id="ranks below a parent that joins them",
        ),
        pytest.param(
            (
                process(50, "process", "main:3 getresponse", peers=("127.0.0.1:80",)),
                dataclasses.replace(
                    (its := process(60, "process", "main:6 serve_forever select", listening=("127.0.0.1:80",))),
                    samples=tuple(
                        dataclasses.replace(look, unread=(("127.0.0.1:9", 8),), wchan="inet_csk_accept")
                        for look in its.samples
                    ),
                ),
            ),
            "60",
            id="a server that reads nothing, below its client",
        ),
    ],
)
def test_a_stack_is_asked_of_the_process_that_waits(processes: tuple[Process, ...], pid: str) -> None:
    verdict = triage(evidence(*processes, source="live", stall_s=0.0))
    asked = [match[1] for step in steps(verdict) if (match := STACK.search(step))]
    assert verdict.verdict == "INSUFFICIENT" and asked and asked[0] == pid, (verdict.reason, steps(verdict))


def test_advice_that_needs_no_process_stays_as_it_is() -> None:
    ranks = [rank(n, "main:10 step:42 all_reduce", world=2) for n in range(2)]
    crossed = compared(group("A", {0: (5, "all_reduce"), 1: 4}), group("B", {1: (3, "all_reduce"), 0: 2}))
    plain = triage(evidence(*ranks), crossed)
    assert steps(triage(evidence(*ranks), crossed, afterwards="harness triage OUT")) == steps(plain)


def test_who_may_live_is_known_of_this_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.triage.run.socket.gethostname", lambda: "node0")
    mine, gone = (
        Evidence("", "watch", "", 9.0, (dataclasses.replace(rank(0, "main"), pid=pid),)) for pid in (1, 2**22 + 1)
    )
    far = dataclasses.replace(gone, processes=(dataclasses.replace(gone.processes[0], host="elsewhere"),))
    assert _lives(mine) and _lives(far) and not _lives(gone)


def test_py_spy_is_given_with_its_path_where_the_shell_does_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    late = rank(0, "main:10 wait:44", state="S", stale_s=60.0, gil=True)
    for found, begin in (("/usr/bin/py-spy", "py-spy "), (None, "/venv/bin/py-spy ")):
        monkeypatch.setattr(judge.shutil, "which", lambda name, found=found: found)
        monkeypatch.setattr(judge, "program", lambda: "/venv/bin/py-spy")
        spies = [step for step in steps(job(late)) if "py-spy" in step]
        assert spies and all(step.startswith(begin) for step in spies)


@pytest.mark.parametrize("timed", [True, False])
def test_a_wait_that_ends_by_itself_is_told_as_one(timed: bool) -> None:
    alone = dataclasses.replace(process(9, "process", "main:10 lock.wait"), beat=None)
    looks = tuple(dataclasses.replace(look, timed=timed) for look in alone.samples)
    verdict = triage(evidence(dataclasses.replace(alone, samples=looks), source="live", stall_s=0.0))
    assert verdict.verdict == "INSUFFICIENT"
    assert any("with a time limit" in line for line in verdict.evidence) is timed


def test_a_stack_of_c_is_tried_last() -> None:
    late = rank(0, "main:10 wait:44", state="S", stale_s=60.0, gil=True)
    advice = steps(job(late))
    assert len(advice) > 1 and ["--native" in step for step in advice] == [*(False,) * (len(advice) - 1), True]
    assert "train.py:44" in advice[0]


@pytest.mark.parametrize(("source", "attaches"), [("live", True), ("watch", False)])
def test_a_job_that_hangs_now_and_is_not_watched_can_be_attached_to(source: str, attaches: bool) -> None:
    alone = dataclasses.replace(process(9, "process", "main:10 queue.get"), beat=None, ppid=1)
    found = steps(triage(evidence(alone, source=source, stall_s=0.0 if source == "live" else 30.0)))
    assert any(step.startswith("harness watch --pid 9 ") for step in found) is attaches, found
    assert not found[0].startswith("for the next run")


@pytest.mark.parametrize("stack", ["main:10 step:42 all_reduce", "main:10 queue.get", ""])
@pytest.mark.parametrize("how", ["watched", "beats", "by a watch"])
def test_who_is_watched_is_not_told_to_start_a_watch(stack: str, how: str) -> None:
    alone = dataclasses.replace(process(9, "process", stack), ppid=1)
    plain = dataclasses.replace(alone, beat=None)
    assert any("harness watch" in step for step in steps(triage(evidence(plain, source="live", stall_s=0.0))))
    seen = {
        "watched": evidence(plain, source="live", stall_s=0.0, watched=True),
        "beats": evidence(alone, source="live", stall_s=0.0),
        "by a watch": evidence(plain),
    }[how]
    assert not any("harness watch" in step for step in steps(triage(seen)))


@pytest.mark.parametrize("watched", [False, True])
def test_a_look_at_the_folder_of_a_watch_advises_no_other(tmp_path: Path, watched: bool) -> None:
    (tmp_path / "beats").mkdir()
    if watched:
        (tmp_path / WATCHDOG).write_bytes(b"{}")
    looked_at = conduct.collect(Scope(directory=tmp_path, ray_address=""), out=tmp_path / "out", nodes=False)
    assert looked_at.is_watched is watched
    alone = dataclasses.replace(process(9, "process", "main:10 queue.get"), beat=None)
    seen = dataclasses.replace(looked_at, processes=(alone,))
    [note] = conduct._merged(seen, [], 0.0).notes
    assert "flight recorder" in note and ("harness watch" in note) is not watched


def test_a_host_that_is_too_busy_is_said_to_be() -> None:
    note = f"no Python stacks within 8 s: {TOO_BUSY}"
    blind = dataclasses.replace(process(9, "process"), notes=(note,), beat=None)
    assert TOO_BUSY in triage(evidence(blind)).reason
    assert TOO_BUSY not in triage(evidence(dataclasses.replace(blind, notes=()))).reason


def with_threads(one: Process, *stacks: tuple[Frame, ...]) -> Process:
    beside = tuple(Thread(f"Thread-{at}", 70 + at, stack) for at, stack in enumerate(stacks, 1))
    looks = tuple(dataclasses.replace(look, threads=(*look.threads, *beside)) for look in one.samples)
    return dataclasses.replace(one, samples=looks)


HANDLES = (
    Frame("take", "/job/server.py", 12),
    Frame("do_GET", "/job/server.py", 20),
    Frame("handle_one_request", "/usr/lib/python3.11/http/server.py", 424),
    Frame("finish_request", "/usr/lib/python3.11/socketserver.py", 361),
    Frame("process_request_thread", "/usr/lib/python3.11/socketserver.py", 691),
    Frame("run", "/usr/lib/python3.11/threading.py", 982),
)


@pytest.mark.parametrize(("stack", "frame"), [(HANDLES, "server.py:12 in take"), (frames("run:80 report:90"), "")])
def test_the_thread_that_handles_the_request_is_where_a_server_stands(stack: tuple[Frame, ...], frame: str) -> None:
    client = rank(0, "main:5 ask:9 getresponse", world=1, peers=("127.0.0.1:8000",))
    server = with_threads(process(200, "process", "main:30 serve_forever select", listening=("127.0.0.1:8000",)), stack)
    verdict = triage(evidence(client, server))
    assert verdict.triage is not None
    parties = [party for party in verdict.triage.culprits if party.pid == 200]
    if frame:
        assert [party.frame for party in parties] == [frame] and "server.py:12" in parties[0].why
        below = triage(evidence(dataclasses.replace(client, rank=None, ppid=200), server))
        assert [party.pid for party in below.triage.culprits] == [200]  # type: ignore[union-attr]
    else:
        assert all("train.py:90" not in party.frame for party in parties)


@pytest.mark.parametrize("own", [True, False])
def test_a_process_that_asks_its_own_server_is_told_so(own: bool) -> None:
    address = "127.0.0.1:8000"
    asker = process(200, "process", "main:5 ask:9 getresponse", peers=(address,), listening=(address,) if own else ())
    verdict = triage(evidence(with_threads(asker, HANDLES)))
    assert verdict.verdict == "INSUFFICIENT" and ("server.py:12 in take" in wording(verdict)) is own
    assert verdict.triage is not None and any("by its pid" in step for step in verdict.triage.next) is not own


SLEEPS = (Frame("do_GET", "/job/server.py", 20), *HANDLES[2:])
IN_A_POOL = (
    *frames("ask:9 getresponse"),
    Frame("run", "/usr/lib/python3.11/concurrent/futures/thread.py", 58),
)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_handler_that_waits_for_no_lock_may_still_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    monkeypatch.setattr(threads, "_lock", lambda stacks, waiting: "waits for the lock of MainThread" if keeps else "")
    address = "127.0.0.1:8000"
    asker = process(200, "process", "main:5 ask:9 getresponse", peers=(address,), listening=(address,))
    verdict = triage(evidence(with_threads(asker, SLEEPS, IN_A_POOL)))
    assert "server.py:20 in do_GET" in wording(verdict) and "Thread-2" not in wording(verdict)
    assert any("lock" in step for step in steps(verdict)) is keeps
    assert any(line.startswith("why ") for line in verdict.missing) is keeps


CROSSED = """\
def first():
    with a:
        with b:
            pass

def second():
    with b:
        with {lock}:
            pass
"""


@pytest.mark.parametrize("lock", ["a", "c"])
def test_locks_that_two_threads_take_in_two_orders_are_named_with_both_places(tmp_path: Path, lock: str) -> None:
    file = tmp_path / "locks.py"
    file.write_text(CROSSED.format(lock=lock))
    one = rank(0, "main:10")
    main = tuple(
        dataclasses.replace(
            look, threads=(dataclasses.replace(look.threads[0], frames=(Frame("first", str(file), 3),)),)
        )
        for look in one.samples
    )
    late = with_threads(dataclasses.replace(one, samples=main), (Frame("second", str(file), 8),))
    fix = steps(job(late))[0]
    assert ("locks.py:3" in fix and "locks.py:8" in fix) is (lock == "a")

"""When a job is suspected to stand still, and when it must not be: snapshots with a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.triage.watch import ProcessSnapshot, Progress, Snapshot, Suspicion

STALL_S = 60.0


def process(number: int, **more: Any) -> Callable[[float], ProcessSnapshot]:
    """A process over time: each value is one, or a function of the time in seconds."""

    def at(now: float) -> ProcessSnapshot:
        fields = {"beats": lambda s: int(s), "progress": 1, "name": f"rank {number}", **more}
        return ProcessSnapshot(f"host:{number}", number, **{k: v(now) if callable(v) else v for k, v in fields.items()})

    return at


def working(number: int, **more: Any) -> Callable[[float], ProcessSnapshot]:
    return process(number, progress=lambda s: int(s), **more)


def after(seconds: float, *processes: Callable[[float], ProcessSnapshot], step_s: float = 1.0) -> Suspicion | None:
    """What is suspected after so long."""
    progress, now, found = Progress(STALL_S), 0.0, None
    while now <= seconds:
        found = progress.feed(Snapshot(now, tuple(one(now) for one in processes)))
        now += step_s
    return found


WAITING = {"wait": "collective", "sequences": {"0": 7}}
IN_INIT = {"spans": ("init_process_group",)}
CASES = {
    "one rank in a collective, its peer elsewhere": [process(0, **WAITING), process(1, sequences={"0": 6})],
    "one rank in a collective, its peer computes for ever": [process(0, **WAITING), working(1)],
    "a group that never forms": [process(0, **IN_INIT)],
    "an engine that never wakes": [process(0, spans=("wake",)), working(1)],
    "the interpreter lock is held": [process(0, beats=5), working(1)],
    "stopped": [process(0, beats=5, state="T"), working(1)],
    "stopped, and nobody beats": [process(0, beats=None, state="T")],
    "in the kernel, and nobody beats": [process(0, beats=None, state="D")],
    "everybody waits for Ray": [process(0, wait="ray"), process(1, wait="ray"), process(2, wait="idle")],
    "a wait that Python does not see": [process(0, sequences={"0": 7}), process(1, sequences={"0": 7})],
    "a spin that Python does not see": [process(0, sequences={"0": 7}, cpu_s=lambda s: s)],
    "a wait that nobody has a name for": [process(0), process(1)],
    "nobody beats, and nobody computes": [process(0, beats=None), process(1, beats=None, cpu_s=lambda s: s / 1000)],
    "an event loop that only runs its timers": [process(0, wait="idle", loops=True, cpu_s=lambda s: s / 1000)],
    "everybody in user code, one with an open span": [process(0, spans=("train",)), process(1)],
}
CONTROLS = {
    "all work": [working(0, **WAITING), working(1, **WAITING)],
    "a pause in user code while a program without a heartbeat computes": [
        process(0), process(1), process(2, beats=None, cpu_s=lambda s: s / 10),
    ],
    "an event loop whose callbacks compute": [process(0, wait="idle", loops=True, cpu_s=lambda s: s / 10)],
    "an event loop beside a rank that works": [process(0, wait="idle", loops=True), working(1)],
    "everybody waits for orders": [process(0, wait="idle", sequences={"0": 7}), process(1, wait="idle")],
    "the driver waits for Ray while an actor works": [process(0, wait="ray"), working(1)],
    "an open span while another process works": [process(0, spans=("rollout",)), working(1)],
    "a rank in user code while another works": [process(0, sequences={"0": 7}), working(1, sequences={"0": 7})],
    "a long compile that holds the lock at the start": [process(0, beats=5, cpu_s=lambda s: s), working(1)],
    "somebody sits in a debugger": [process(0, **WAITING), process(1, breakpoint=True)],
    "programs without a heartbeat": [process(0, beats=None, state="S"), process(1, beats=None, cpu_s=lambda s: s)],
    "it has ended": [process(0, beats=5, ended=True, **WAITING), process(1, beats=5, state="Z", **WAITING)],
    "nobody": [],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_stall_is_suspected_at_its_threshold(name: str) -> None:
    assert after(STALL_S - 5, *CASES[name]) is None
    found = after(STALL_S + 6, *CASES[name])
    assert found is not None and found.suspects[0].process.pid == 0 and found.suspects[0].why
    assert STALL_S <= found.still_s <= STALL_S + 6


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_nothing_is_suspected(name: str) -> None:
    assert after(10 * STALL_S, *CONTROLS[name]) is None


def launched(ends_s: float, ranks: int = 2) -> list[Callable[[float], ProcessSnapshot]]:
    """A launcher that waits since it was started, and ranks that work and then end in good order."""
    some = [working(n, ended=lambda now: now >= ends_s, sequences={"0": 7}) for n in range(ranks)]
    return [process(99, name="launcher", wait="child", sequences={"0": 1}), *some]


@pytest.mark.parametrize("vanish", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_launcher_whose_ranks_have_just_ended_has_waited_for_nothing(vanish: bool, named: bool) -> None:
    """Whether its ranks are still there as zombies or not, and whether its wait has a name or none."""
    progress, told = Progress(STALL_S), {}
    for now in range(300):
        there = [one(float(now)) for one in launched(100.0)]
        there[0] = replace(there[0], sequences={"0": 1} if named else {})
        there = [seen for seen in there if not (vanish and seen.ended)]
        told[now] = progress.feed(Snapshot(float(now), tuple(there)))
    assert not any(told[now] for now in range(100 + int(STALL_S)))
    late = told[299]
    assert late is not None and 199 <= late.still_s <= 200, "the launcher itself hangs: since the end of its ranks"


def test_progress_takes_a_suspicion_back() -> None:
    stuck = process(0, wait="collective", progress=lambda s: 1 if s < 100 else 2)
    assert after(99, stuck) is not None
    assert after(101, stuck) is None
    assert after(161, stuck) is not None


def test_a_watchdog_that_was_suspended_has_seen_no_stall() -> None:
    assert after(5 * STALL_S, process(0, **WAITING), step_s=STALL_S) is None


def test_evidence_is_due_before_a_collective_gives_up() -> None:
    soon = process(0, timeout_s=30.0, **WAITING)
    assert after(15, soon) is None
    assert after(20, soon) is not None
    assert after(20, process(0, timeout_s=1800.0, **WAITING)) is None


def test_the_debugger_starts_the_count_again() -> None:
    stuck = process(0, **WAITING)
    debugger = process(1, breakpoint=lambda s: s < 100)
    assert after(100 + STALL_S - 5, stuck, debugger) is None
    assert after(100 + STALL_S + 5, stuck, debugger) is not None


def test_a_pid_that_is_used_again_is_another_process() -> None:
    progress = Progress(STALL_S)
    for now in range(50):
        progress.feed(Snapshot(now, (ProcessSnapshot("host:7:1", 7, beats=now, wait="collective"),)))
    for now in range(50, 100):
        assert progress.feed(Snapshot(now, (ProcessSnapshot("host:7:2", 7, beats=now, wait="collective"),))) is None

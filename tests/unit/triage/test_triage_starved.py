"""A host that is too busy: whoever is runnable and gets no processor has not stopped by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from triage_evidence import late, rank

from harness.triage.collect import proc
from harness.triage.evidence import Process, Thread
from harness.triage.watch import ProcessSnapshot, Progress, Snapshot, Suspicion
from reports.model import Verdict

LOOP = "main rollout run_forever select"


def waited(one: Process, *, main_s: float = 0.0, beat_s: float = 0.0, threads: tuple[Thread, ...] | None = None,
           beat_state: str = "S") -> Process:  # fmt: skip
    """Seconds that its main thread, and the one that beats, were runnable between the looks without a processor."""
    looks = []
    for number, look in enumerate(one.samples):
        more: dict[str, Any] = {} if threads is None else {"threads": threads}
        looks.append(dataclasses.replace(
            look, main_cpu_s=0.0, main_delay_s=main_s * number, beat_delay_s=beat_s * number, beat_state=beat_state,
            **more,
        ))  # fmt: skip
    return dataclasses.replace(one, samples=tuple(looks))


def named(verdict: Verdict) -> set[int | None]:
    return {one.rank for one in verdict.triage.culprits}  # type: ignore[union-attr]


def test_an_event_loop_whose_beat_got_no_processor_does_not_hold_the_interpreter_lock() -> None:
    found = late(waited(rank(0, LOOP, stale_s=20.0), beat_s=1.4))
    assert found.verdict == "INSUFFICIENT" and not named(found), found.reason


def test_a_beat_that_waits_for_its_disk_does_not_wait_for_the_interpreter_lock() -> None:
    found = late(waited(rank(0, LOOP, stale_s=20.0), beat_state="D"))
    assert found.verdict == "INSUFFICIENT" and not named(found), found.reason


def test_a_main_thread_that_got_no_processor_is_slow() -> None:
    found = late(waited(rank(0, "main:10 step:44 tokenize", stale_s=20.0, gil=True), main_s=1.4))
    assert found.verdict == "SLOW" and not named(found), found.reason
    assert "processor" in found.reason


def test_a_host_that_was_too_busy_for_stacks_is_no_proof_of_a_held_lock() -> None:
    """py-spy had no answer in time, and the kernel does not say who waited."""
    blind = rank(0, "", stale_s=20.0)
    assert late(blind).triage.hang != "K9"  # type: ignore[union-attr]
    starved = waited(blind, main_s=0.2, beat_s=1.4)
    assert late(starved).triage.hang != "K9"  # type: ignore[union-attr]


@pytest.mark.parametrize("stack", ["main tokenize", ""])
def test_a_lock_that_is_held_asleep_is_named_whatever_another_thread_waits_for(stack: str) -> None:
    """Neither the main thread nor the one that beats waits for a processor: the lock is what they wait for."""
    one = waited(rank(0, stack, gil=bool(stack), stale_s=20.0), main_s=0.05, beat_s=0.02)
    found = late(one)
    assert (found.triage.hang, named(found)) == ("K9", {0}), found.reason  # type: ignore[union-attr]


def test_a_helper_that_waits_for_a_processor_excuses_nobody() -> None:
    main = Thread("MainThread", 1, rank(0, "main tokenize").samples[0].threads[0].frames, main=True, gil=True)
    helper = Thread("helper", 7, (), delay_s=0.0)
    one = waited(rank(0, "main tokenize", gil=True, stale_s=20.0), threads=(main, helper))
    last = one.samples[-1]
    busy = dataclasses.replace(last, threads=(main, dataclasses.replace(helper, delay_s=1.4)))
    found = late(dataclasses.replace(one, samples=(one.samples[0], busy)))
    assert (found.triage.hang, named(found)) == ("K9", {0})  # type: ignore[union-attr]


def test_a_loop_that_sleeps_is_not_excused_by_what_each_wake_waits_for() -> None:
    one = waited(rank(0, "main:10 step:44 keep_alive", wchan="hrtimer_nanosleep"), main_s=0.4)
    found = late(one)
    assert (found.verdict, named(found)) == ("HUNG", {0}), found.reason


def test_the_kernel_says_how_long_a_thread_waited_for_a_processor() -> None:
    look = proc.look(proc.os.getpid())
    spent = look.threads[proc.os.getpid()]
    assert spent.delay_s is None or spent.delay_s >= 0.0
    assert spent.state in "RS"


# --- the watchdog's own time


def silent(seconds: float, *, starved_s: float) -> Suspicion | None:
    """A beat that does not come, seen by a watchdog that waited so long of each second for a processor itself."""
    progress, found = Progress(10.0), None
    for now in range(int(seconds) + 1):
        one = ProcessSnapshot("host:1", 1, beats=5, progress=1, wait="collective")
        found = progress.feed(Snapshot(float(now), (one,), starved_s=starved_s if now else 0.0))
    return found


def test_a_watchdog_that_got_no_processor_discounts_the_time_that_it_did_not_get() -> None:
    assert silent(12.0, starved_s=0.0) is not None
    assert silent(12.0, starved_s=0.5) is None
    found = silent(22.0, starved_s=0.5)
    assert found is not None and found.still_s == pytest.approx(11.0, abs=1.0)

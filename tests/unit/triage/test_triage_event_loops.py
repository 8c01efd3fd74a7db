"""Jobs whose processes sit in event loops: what is progress of them, and that nobody is named over one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from triage_evidence import compared, evidence, group, process, rank, wording

from harness.triage.evidence import Process
from harness.triage.judge import triage
from reports.model import Verdict

LOOP = "main rollout run_forever select"


def looked(one: Process, *, woken: int = 0, quiet_s: float | None = None, **more: Any) -> Process:
    looks = tuple(
        dataclasses.replace(look, main_switches=100 + number * woken, net_quiet_s=quiet_s)
        for number, look in enumerate(one.samples)
    )
    return dataclasses.replace(one, samples=looks, **more)


def late(one: Process, stall_s: float = 10.0, **more: Any) -> Verdict:
    """Rank 0 has not come to what the others are in."""
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    at = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    return triage(evidence(one, *ranks, stall_s=stall_s, **more), at)


def culprits(verdict: Verdict) -> list[Any]:
    return verdict.triage.culprits  # type: ignore[union-attr]


@pytest.mark.parametrize("progress", [{"quiet_s": 2.4}, {"woken": 3}])
def test_answers_that_come_and_timers_that_fire_are_progress(progress: dict[str, Any]) -> None:
    """A rate-limited tool answers every 2.5 s."""
    assert late(looked(rank(0, LOOP), **progress)).verdict == "SLOW"


@pytest.mark.parametrize("still", [{"quiet_s": 40.0}, {"quiet_s": 9.0}, {"quiet_s": None}, {}])
def test_an_event_loop_in_which_nothing_happens_names_nobody(still: dict[str, Any]) -> None:
    found = late(looked(rank(0, LOOP), **still))
    assert found.verdict == "INSUFFICIENT" and not culprits(found)


@pytest.mark.parametrize("stack", ["main_loop", "main uvicorn.run run_forever select"])
def test_a_server_and_a_worker_of_rays_tick_for_ever(stack: str) -> None:
    """What wakes them is no work of the job."""
    one = looked(rank(0, stack, title="ray::Worker.run" if stack == "main_loop" else ""), woken=30, quiet_s=0.1)
    assert late(one).verdict != "SLOW"


def test_a_plain_wait_is_no_event_loop() -> None:
    found = late(looked(rank(0, "main:10 step:44 keep_alive"), woken=3, quiet_s=0.5))
    assert found.verdict == "HUNG" and [one.rank for one in culprits(found)] == [0]


@pytest.mark.slow
def test_a_job_of_a_thousand_event_loops_is_not_hung() -> None:
    some = [looked(rank(n, LOOP, world=1000), quiet_s=2.0) for n in range(1000)]
    assert triage(evidence(*some), None).verdict in ("HEALTHY", "SLOW")


def test_a_driver_that_asks_an_event_loop_names_nobody() -> None:
    asks = process(20, "trainer", "rollout getresponse", peers=("127.0.0.1:30000",))
    server = process(30, "server", "main uvicorn.run run_forever select", listening=("127.0.0.1:30000",))
    found = triage(evidence(asks, server))
    assert found.verdict == "INSUFFICIENT" and not culprits(found), found.reason


# --- a loop with a timer looks alive for ever


@pytest.mark.parametrize(("stall_s", "verdict"), [(10.0, "SLOW"), (29.0, "SLOW"), (31.0, "INSUFFICIENT")])
def test_a_timer_alone_is_progress_for_three_thresholds(stall_s: float, verdict: str) -> None:
    """A metrics task wakes it twice a second, whatever else is stuck in it."""
    found = late(looked(rank(0, LOOP), woken=3, quiet_s=40.0), stall_s=stall_s, threshold_s=10.0)
    assert found.verdict == verdict and not culprits(found), found.reason
    assert verdict == "SLOW" or ("timer" in wording(found) and found.missing)


def test_data_that_comes_is_progress_however_long_it_goes_on() -> None:
    one = looked(rank(0, LOOP), woken=3, quiet_s=2.0)
    assert late(one, stall_s=500.0, threshold_s=10.0).verdict == "SLOW"


def test_without_a_watch_the_age_of_the_pending_operation_says_how_long_a_timer_counts() -> None:
    ranks = [looked(rank(0, LOOP), woken=3, quiet_s=400.0), *(rank(n, "main:10 step:42 all_reduce") for n in (1, 2, 3))]
    for age_s, verdict in ((20.0, "SLOW"), (400.0, "INSUFFICIENT")):
        at = group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))})
        for state in at.ranks.values():
            if state.pending is not None:
                at.ranks[state.rank] = dataclasses.replace(
                    state, pending=dataclasses.replace(state.pending, age_s=age_s)
                )
        found = triage(evidence(*ranks, source="live", stall_s=0.0), compared(at))
        assert found.verdict == verdict and not culprits(found), found.reason


@pytest.mark.parametrize("woken", [0, 3])
def test_a_job_that_only_sits_in_event_loops_is_not_healthy(woken: int) -> None:
    """One request of its tasks may be lost: nothing that was seen says that none is."""
    one = looked(rank(0, LOOP, world=1), woken=woken, quiet_s=400.0)
    found = triage(evidence(one, stall_s=31.0, threshold_s=10.0))
    assert found.verdict == "INSUFFICIENT" and not culprits(found), found.reason
    assert "event loop" in wording(found) and found.missing


@pytest.mark.parametrize("stack", ["main uvicorn.run run_forever select", "main_loop"])
def test_an_idle_server_is_healthy(stack: str) -> None:
    found = triage(evidence(looked(process(30, "server", stack), woken=3, quiet_s=400.0), stall_s=31.0))
    assert found.verdict == "HEALTHY", found.reason


# --- a loop that only its own clients could wake


def asked(wakers: tuple[int, ...] | None, *beside: Process) -> Verdict:
    asks = process(20, "trainer", "rollout getresponse", peers=("127.0.0.1:30000",))
    server = looked(process(30, "server", LOOP, listening=("127.0.0.1:30000",)), quiet_s=400.0, wakers=wakers)
    return triage(evidence(asks, server, *beside))


NEVER = "unless somebody else connects"


def test_a_server_that_only_its_waiting_clients_could_wake_is_told_and_not_named() -> None:
    """A person may still send what it waits for, as a label."""
    found = asked((20,))
    assert found.verdict == "INSUFFICIENT" and not culprits(found) and NEVER in wording(found)


@pytest.mark.parametrize("wakers", [None, (), (40,), (20, 40)])
def test_a_server_that_somebody_else_may_wake_is_not_told_so(wakers: tuple[int, ...] | None) -> None:
    found = asked(wakers)
    assert found.verdict != "HUNG" and not culprits(found) and NEVER not in wording(found)


@pytest.mark.parametrize(
    "beside",
    [
        looked(rank(0, "main:10 step:44 compute", world=1, cpu_s=2.0), woken=3),
        dataclasses.replace(process(40, "tool", "main:3 read"), ppid=30),
    ],
    ids=["somebody works who may send a request", "it has a child"],
)
def test_a_server_beside_which_somebody_may_still_act_is_not_named(beside: Process) -> None:
    found = asked((20,), beside)
    assert found.verdict != "HUNG" and not culprits(found) and NEVER not in wording(found)

"""Bystanders: who is odd and not waited for explains nothing; HEALTHY is never said of what nobody looked at."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import HOST, compared, evidence, group, process, rank, samples

from harness.triage import source
from harness.triage.evidence import Call, Evidence, Frame, Journal, OpenSpan, Process, RayActor
from harness.triage.flight.model import Comparison
from harness.triage.judge import triage
from reports.model import Verdict

WAIT = "main:1 step:2 all_reduce"
OUTSIDE = "main:1 step:9"
REFUSED = Call("update", False, "no such tensor", 60.0, 3)


def absent(*more: Process, **fields: object) -> tuple[Evidence, Comparison]:
    """Rank 0 waits for rank 1, which is outside; `more` stands beside them."""
    ranks = (rank(0, WAIT, world=2), rank(1, OUTSIDE, world=2))
    return evidence(*ranks, *more, **fields), compared(group("0", {0: (7, "all_reduce"), 1: 6}))


def wedged(*more: Process) -> tuple[Evidence, Comparison]:
    ranks = (rank(n, WAIT, world=2) for n in range(2))
    return evidence(*ranks, *more), compared(group("0", dict.fromkeys(range(2), (7, "all_reduce"))))


def named(verdict: Verdict) -> set[str]:
    assert verdict.triage is not None
    return {party.key for party in verdict.triage.culprits}


def engine(stack: str = "main event_loop_normal", **more: object) -> Process:
    return process(700, "engine", stack, engine="sglang", **more)


ASIDE = {
    "a stopped helper": process(400, "tensorboard", "main poll", state="T"),
    "a helper that reads from a dead disk": process(400, "loader", "main read", state="D"),
    "a helper whose beat is late": process(400, "logger", "main poll", stale_s=4.6),
    "a helper in a debugger": process(400, "shell", "main pdb.interaction"),
    "an engine that just began to sleep": engine("main lock.wait", spans=(OpenSpan("engine.sleep", 0.1),)),
    "an engine asleep for long": engine("main lock.wait", spans=(OpenSpan("engine.sleep", 90.0),)),
    "a refusal of an hour ago": engine(
        journal=Journal("", 10, 3600.0, calls=(dataclasses.replace(REFUSED, age_s=3600.0),))
    ),
    "a refusal just now": engine(journal=Journal("", 10, 60.0, calls=(REFUSED,))),
    "a helper in a lock": process(400, "writer", "main flush lock.wait"),
    "a stopped rank of another world": dataclasses.replace(
        rank(1, "main", world=8, state="T", engine="vllm"), pid=400, role="rollout"
    ),
}


@pytest.mark.parametrize("aside", ASIDE.values(), ids=ASIDE)
@pytest.mark.parametrize("driver", [False, True])
def test_who_is_waited_for_comes_before_who_stands_beside(aside: Process, driver: bool) -> None:
    built, at = absent(aside, *([process(200, "driver", "main ray.get")] if driver else []))
    verdict = triage(built, at)
    assert verdict.triage is not None
    assert (verdict.triage.hang, named(verdict)) == ("K4", {f"{HOST}:101"}), verdict.reason


@pytest.mark.parametrize("aside", ASIDE.values(), ids=ASIDE)
def test_nobody_beside_a_wedge_is_its_cause(aside: Process) -> None:
    verdict = triage(*wedged(aside))
    assert verdict.triage is not None
    assert (verdict.triage.hang, named(verdict)) == ("K12", set()), verdict.reason


def test_a_slow_run_stays_slow_beside_a_helper_that_is_held() -> None:
    built, at = absent(ASIDE["a helper that reads from a dead disk"])
    busy = rank(1, OUTSIDE, world=2, cpu_s=1.4)
    assert triage(dataclasses.replace(built, processes=(built.processes[0], busy, built.processes[2])), at).verdict == (
        "SLOW"
    )


def test_who_is_held_counts_where_the_wait_can_mean_him() -> None:
    """Ray does not say whose task is open: the actor that is stopped is the only end that the wait can have."""
    driver = process(200, "driver", "main ray.get")
    stopped = process(400, "actor", "main_loop", state="T")
    helper = process(401, "tensorboard", "main poll", state="T")
    actors = (RayActor("a", "Actor", "ALIVE", HOST, 400),)
    assert named(triage(evidence(driver, stopped, helper, ray_actors=actors), None)) == {f"{HOST}:400"}
    beside = triage(evidence(driver, helper), None)
    assert (beside.verdict, named(beside)) == ("INSUFFICIENT", set())


def test_a_job_all_of_whose_processes_are_stopped_hangs() -> None:
    """None of them has a rank, or a recorder. The control: one of them goes on."""
    stopped = [process(pid, "process", "main", state="T") for pid in (400, 401)]
    verdict = triage(evidence(*stopped), None)
    assert (verdict.verdict, named(verdict)) == ("HUNG", {f"{HOST}:400", f"{HOST}:401"})
    assert not named(triage(evidence(stopped[0], process(401, "process", "main", cpu_s=1.4)), None))


def test_a_stopped_rank_is_a_hang_though_nobody_waits_yet() -> None:
    ranks = (rank(0, "main prepare", world=2, cpu_s=1.4), rank(1, "main", world=2, state="T"))
    assert named(triage(evidence(*ranks), None)) == {f"{HOST}:101"}


def test_a_late_beat_is_not_said_to_be_a_lock_that_nobody_saw() -> None:
    built, at = absent()
    late = rank(1, OUTSIDE, world=2, stale_s=40.0)
    verdict = triage(dataclasses.replace(built, processes=(built.processes[0], late)), at)
    assert named(verdict) == {f"{HOST}:101"} and "lock is held" not in verdict.reason


def test_a_debugger_explains_whoever_waits_for_it() -> None:
    built, at = absent()
    held = dataclasses.replace(built, processes=(built.processes[0], rank(1, "main pdb.interaction", world=2)))
    assert triage(held, at).verdict == "HEALTHY"
    alone = evidence(process(400, "shell", "main pdb.interaction"), rank(0, "main", world=1))
    assert triage(alone, None).verdict == "HEALTHY"


# ---- a refused call


def refusing(age_s: float) -> tuple[Evidence, Comparison]:
    journal = Journal("", 10, age_s, calls=(dataclasses.replace(REFUSED, age_s=age_s),))
    sender = rank(0, "main sync broadcast", world=1)
    return evidence(sender, engine(journal=journal)), compared(group("sync", {0: (3, "broadcast")}, missing=[1]))


def test_a_refusal_counts_if_the_wait_followed_it() -> None:
    assert named(triage(*refusing(62.0))) == {f"{HOST}:700"}
    old = triage(*refusing(3600.0))
    assert (old.verdict, named(old)) == ("INSUFFICIENT", set())


# ---- a corpse of an earlier attempt


def corpse(number: int, **more: object) -> Process:
    fields = {"world": 2, "gone": True, "exit_code": 1, "error": "ValueError: boom", **more}
    return dataclasses.replace(rank(number, "", **fields), pid=90)  # type: ignore[arg-type]


def test_a_corpse_whose_place_is_taken_blames_nobody() -> None:
    assert named(triage(*absent(corpse(0)))) == {f"{HOST}:101"}
    assert named(triage(*absent(corpse(1)))) == {f"{HOST}:101"}


def test_a_corpse_of_another_world_blames_nobody() -> None:
    assert named(triage(*absent(corpse(1, world=5, engine="vllm")))) == {f"{HOST}:101"}


def test_a_corpse_whose_place_is_empty_is_the_cause() -> None:
    ranks = (rank(0, WAIT, world=2), corpse(1))
    at = compared(group("0", {0: (7, "all_reduce")}, missing=[1]))
    assert named(triage(evidence(*ranks), at)) == {f"{HOST}:90"}


def test_who_waits_for_a_dead_peer_waits_in_an_operation() -> None:
    dead = rank(1, gone=True, world=2, exit_code=1)
    verdict = triage(evidence(rank(0, "main recv", world=2), dead), None)
    assert named(verdict) == {f"{HOST}:101"} and verdict.triage.place == "recv"


# ---- calls


def test_an_idle_server_is_not_blamed_for_somebody_elses() -> None:
    server = process(300, "server", "main serve_forever select", listening=("127.0.0.1:18471",))
    client = process(301, "trainer", "main reward getresponse", peers=("127.0.0.1:18472",))
    elsewhere = triage(evidence(server, client), None)
    assert (elsewhere.verdict, named(elsewhere)) == ("INSUFFICIENT", set())
    hers = dataclasses.replace(client, peers=("127.0.0.1:18471",))
    assert named(triage(evidence(server, hers), None)) == {f"{HOST}:300"}
    unknown = dataclasses.replace(client, peers=())
    assert named(triage(evidence(server, unknown), None)) == {f"{HOST}:300"}


# ---- HEALTHY only of what was looked at


def untested(verdict: Verdict, *words: str) -> None:
    assert (verdict.verdict, named(verdict)) == ("INSUFFICIENT", set()), verdict.reason
    assert all(any(word in item for item in verdict.missing) for word in words), verdict.missing


def test_half_of_the_world_is_not_the_world() -> None:
    half = compared(group("0", {0: 7, 1: 7}))
    untested(triage(evidence(source="dumps", expected_world=4), half), "rank 2", "rank 3")
    untested(triage(evidence(*(rank(n, "main pause") for n in range(2))), None), "rank 2", "rank 3")
    whole = compared(group("0", dict.fromkeys(range(4), 7)))
    verdict = triage(evidence(source="dumps", expected_world=4), whole)
    assert verdict.verdict == "INSUFFICIENT" and verdict.missing == ["stacks of the ranks"]
    looked_at = evidence(*(rank(n, "main pause") for n in range(4)), expected_world=4)
    assert triage(looked_at, whole).verdict == "HEALTHY"


def test_ranks_without_a_stack_are_not_healthy() -> None:
    one = rank(0, "main:1 step:2 lock.wait")
    untested(triage(evidence(one, *(rank(n) for n in range(1, 4))), None), "rank 1", "rank 3", "waits for a lock")
    moving = evidence(rank(0, "main pause", world=2), rank(1, world=2, progress_s=0.3))
    assert triage(moving, None).verdict == "HEALTHY"


@pytest.mark.parametrize(
    ("stack", "wchan", "what"),
    [
        ("main step lock.wait", "", "a lock"),
        ("main step", "futex_do_wait", "a lock"),
        ("main:3 queue.get", "", "a queue"),
        ("main step", "locks_lock_inode_wait", "a lock of a file"),
        ("main step", "anon_pipe_read", "a pipe that is empty"),
        ("main step", "pipe_write", "a pipe that is full"),
        ("main step", "do_wait", "the end of a process that it started"),
        ("main step", "inet_csk_accept", "a connection"),
        ("main step", "wait_woken", "what has to come through a socket or a terminal"),
    ],
)
def test_a_main_thread_in_a_lock_or_a_queue_says_nothing_of_whom_it_waits_for(
    stack: str, wchan: str, what: str
) -> None:
    script = dataclasses.replace(process(400, "process", stack, wchan=wchan), beat=None)
    untested(triage(evidence(script), None), what)
    ranked = evidence(rank(0, stack, world=2, wchan=wchan), rank(1, "main pause", world=2))
    untested(triage(ranked, None), "rank 0 waits for " + what)
    moved = evidence(rank(0, stack, world=2, wchan=wchan, progress_s=0.5), rank(1, "main pause", world=2))
    assert triage(moved, None).verdict == "HEALTHY"


def test_who_waits_for_work_is_idle() -> None:
    parent = process(400, "trainer", "main pause")
    loader = process(401, "loader", "main fetch queue.get lock.wait", ppid=400)
    assert triage(evidence(parent, loader), None).verdict == "HEALTHY"
    server = process(402, "server", "main serve lock.wait")
    serving = dataclasses.replace(samples("main serve_forever")[0].threads[0], name="http", tid=2, main=False)
    looks = tuple(dataclasses.replace(one, threads=(*one.threads, serving)) for one in server.samples)
    assert triage(evidence(dataclasses.replace(server, samples=looks)), None).verdict == "HEALTHY"
    scheduler = process(403, "rollout", "main event_loop queue.get lock.wait", engine="sglang")
    assert triage(evidence(scheduler), None).verdict == "HEALTHY"
    assert triage(evidence(rank(0, "main pause", world=1, wchan="hrtimer_nanosleep")), None).verdict == "HEALTHY"


def test_who_waits_for_a_process_that_it_started_stands_as_that_one_does() -> None:
    parent = process(400, "process", "main step", wchan="do_wait")
    asleep = process(401, "child", "main pause", ppid=400, wchan="hrtimer_nanosleep")
    assert triage(evidence(parent, asleep), None).verdict == "HEALTHY"
    locked = process(401, "child", "main step", ppid=400, wchan="locks_lock_inode_wait")
    untested(triage(evidence(parent, locked), None), "a lock of a file")  # though a parent started it
    reader = process(400, "process", "main step", wchan="anon_pipe_read")
    untested(triage(evidence(reader, asleep), None), "a pipe that is empty")
    working = process(401, "child", "main step", ppid=400, cpu_s=1.4)
    assert triage(evidence(reader, working), None).verdict == "HEALTHY"


def test_a_program_that_loops_for_ever_over_its_queue_is_idle(tmp_path: Path) -> None:
    file = tmp_path / "serve.py"
    file.write_text("def serve(jobs):\n    while True:\n        jobs.get()\n    for one in jobs:\n        jobs.get()\n")
    assert source.endless_loop(Frame("serve", str(file), 3)) and not source.endless_loop(Frame("serve", str(file), 5))

    def waiting(line: int) -> Evidence:
        one = process(400, "server", "main serve queue.get")
        thread = one.samples[0].threads[0]
        inner = (thread.frames[0], Frame("serve", str(file), line), Frame("main", str(file), 9))
        looks = tuple(
            dataclasses.replace(look, threads=(dataclasses.replace(thread, frames=inner),)) for look in one.samples
        )
        return evidence(dataclasses.replace(one, samples=looks))

    assert triage(waiting(3), None).verdict == "HEALTHY"
    untested(triage(waiting(5), None), "a queue")


def test_a_run_is_in_motion_only_if_those_waited_for_are(tmp_path: Path) -> None:
    at = compared(group("0", {0: (7, "all_reduce"), 1: 6}))

    def after(progress_s: float) -> Verdict:
        ranks = (rank(0, WAIT, world=2, progress_s=1.0), rank(1, OUTSIDE, world=2, progress_s=progress_s))
        return triage(evidence(*ranks), at)

    assert named(after(300.0)) == {f"{HOST}:101"}
    assert after(0.5).verdict == "HEALTHY"


def test_advice_names_the_process_that_it_is_about() -> None:
    advice = triage(*absent()).triage.next  # type: ignore[union-attr]
    assert any("py-spy dump --pid 101 " in step for step in advice) and not any("PID" in step for step in advice)

"""Who waits for somebody outside the job, has finished, or failed to stop what had ended, is not blamed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import HOST, compared, evidence, frames, group, late, process, rank, wording

from harness.triage.evidence import Call, Frame, Journal, LostThread, Process, Thread
from harness.triage.judge import triage
from reports.model import Verdict

DATABASE = ("10.7.0.9:5432",)
CONCURRENT = "/usr/lib/python3.11/concurrent/futures/thread.py"
RECV = Frame("recv_into", "/usr/lib/python3.11/socket.py", 720)


def keys(verdict: Verdict) -> set[str]:
    return {party.key for party in verdict.triage.culprits}  # type: ignore[union-attr]


def inside(one: Process, frame: Frame) -> Process:
    looks = [
        dataclasses.replace(look, threads=tuple(
            dataclasses.replace(thread, frames=(frame, *thread.frames)) for thread in look.threads
        ))
        for look in one.samples
    ]  # fmt: skip
    return dataclasses.replace(one, samples=tuple(looks))


@pytest.mark.parametrize(
    "one",
    [
        rank(0, "main:10 load_prompts", wchan="sk_wait_data", peers=DATABASE),
        rank(0, "main:10 load_prompts", wchan="poll_schedule_timeout.constprop.0", peers=DATABASE),
        inside(rank(0, "main:10 upload", peers=DATABASE), RECV),
    ],
    ids=["a database's client in C", "one that polls", "an upload in Python"],
)
def test_a_blocking_client_of_a_peer_outside_is_not_blamed(one: Process) -> None:
    found = late(one)
    assert found.verdict == "INSUFFICIENT" and not keys(found) and DATABASE[0] in wording(found), wording(found)


@pytest.mark.parametrize(
    "one",
    [
        rank(0, "main:10 load_prompts", wchan="sk_wait_data"),  # nobody outside at the other end
        rank(0, "main:10 load_prompts", wchan="hrtimer_nanosleep", peers=DATABASE),  # asleep, with a connection open
        rank(0, "main:10 load_prompts", peers=DATABASE),
    ],
)
def test_a_connection_alone_excuses_nobody(one: Process) -> None:
    assert keys(late(one)) == {f"{HOST}:100"}


LOCAL = ("127.0.0.1:18431",)
POOL = Thread("ThreadPoolExecutor-0_0", 9, (RECV, *frames("score"), Frame("_WorkItem.run", CONCURRENT, 58)))


def beside(one: Process, *threads: Thread) -> Process:
    looks = tuple(dataclasses.replace(look, threads=(*look.threads, *threads)) for look in one.samples)
    return dataclasses.replace(one, samples=looks)


@pytest.mark.parametrize(
    "one",
    [
        inside(rank(0, "main:10 score", peers=LOCAL), RECV),
        inside(rank(0, "main:10 score", peers=("10.0.0.1:5432",), listening=("10.0.0.1:5",)), RECV),
        beside(rank(0, "main:10 rollout lock.wait", peers=LOCAL), POOL),
        beside(
            rank(0, "main:10 rollout lock.wait", peers=LOCAL),
            dataclasses.replace(POOL, frames=POOL.frames[1:], wchan="wait_woken"),
        ),
    ],
    ids=["loopback", "the own address", "through a pool", "through a pool, in C"],
)
def test_a_server_on_the_own_host_may_be_outside_the_job(one: Process) -> None:
    found = late(one)
    assert found.verdict == "INSUFFICIENT" and not keys(found) and one.peers[0] in wording(found), wording(found)


@pytest.mark.parametrize(
    "one",
    [
        inside(rank(0, "main:10 score", peers=LOCAL, listening=LOCAL), RECV),  # the job's own
        inside(rank(0, "main:10 score", peers=LOCAL, environ={"MASTER_PORT": "18431"}), RECV),  # torch's store
        beside(rank(0, "main:10 rollout", peers=LOCAL, wchan="hrtimer_nanosleep"), POOL),  # it does not wait for that
        beside(rank(0, "main:10 rollout lock.wait"), POOL),
    ],
    ids=["served by the job", "the store", "asleep beside a pool", "nobody outside"],
)
def test_a_server_of_the_job_or_a_pool_alone_excuses_nobody(one: Process) -> None:
    assert f"{HOST}:100" in keys(late(one)) or "nothing says" in late(one).reason, late(one).reason


def test_a_service_of_the_job_is_asked_over_a_plain_socket() -> None:
    asks = inside(rank(0, "main:10 score", peers=LOCAL), RECV)
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    at = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    loops = process(70, "judge", "main run_forever select", listening=LOCAL)
    found = triage(evidence(asks, *ranks, loops), at)
    assert found.verdict == "INSUFFICIENT" and not keys(found), found.reason
    sleeps = process(70, "judge", "main:5 forgot", wchan="hrtimer_nanosleep", listening=LOCAL)
    assert not keys(triage(evidence(asks, *ranks, sleeps), at)), "nothing says for how long it sleeps"
    stands = process(70, "judge", "main:5 forgot", wchan="futex_do_wait", listening=LOCAL)
    assert keys(triage(evidence(asks, *ranks, stands), at)) == {f"{HOST}:70"}


@pytest.mark.parametrize("code", [None, 0])
def test_a_rank_that_has_finished_is_not_why_another_waits_for_a_judge(code: int | None) -> None:
    """Its journal was never closed: it left by os._exit."""
    journal = Journal("j", 9, 40.0)
    done = rank(1, gone=True, world=2, exit_code=code, journal=journal)
    asks = rank(0, "main score getresponse", world=2, peers=("104.18.6.192:443",))
    found = triage(evidence(asks, done))
    assert not keys(found) and found.verdict == "INSUFFICIENT", found.reason
    joins = rank(0, "main:5 communicate", world=2)  # with its own child
    assert code is None or not keys(triage(evidence(joins, dataclasses.replace(done, journal=None, beat=None))))
    waits = rank(0, "main wait_for_epoch", world=2)  # the hang beside it: nothing says that it waits elsewhere
    assert keys(triage(evidence(waits, done))) == {f"{HOST}:101"}


def refused(*calls: Call, **more: Any) -> Verdict:
    journal = Journal("j", 9, 40.0, calls=calls)
    engine = process(7, "rollout", "main_loop", journal=journal, engine="sglang", **more)
    sender = rank(0, "main sync broadcast", world=1)
    return triage(evidence(sender, engine), compared(group("sync", {0: (3, "broadcast")}, missing=[1])))


def test_an_abort_that_failed_is_no_refusal() -> None:
    """The request had ended: nothing was left to stop."""
    update = Call("update_weights", True, "", 50.0, 3)
    abort = Call("abort_request", False, "no such request", 40.0, 3)
    assert not keys(refused(update, abort))
    assert keys(refused(Call("update_weights", False, "not begun", 50.0, 3), abort)) == {f"{HOST}:7"}


SERVED, OTHER = "127.0.0.1:8000", "127.0.0.1:8001"
HANDLER = (
    Frame("answer", "/job/judge.py", 9), Frame("do_GET", "/job/judge.py", 5),
    Frame("process_request_thread", "/usr/lib/python3.11/socketserver.py", 691),
)  # fmt: skip


def in_loop(*owed: str, peers: tuple[str, ...] = (SERVED, OTHER), **fields: Any) -> Process:
    """Rank 1 in an event loop of which nobody shows the tasks; these peers owe it an answer."""
    its = rank(1, "main:10 score:12 run_forever select", world=2, peers=peers, **fields)
    return dataclasses.replace(its, samples=tuple(dataclasses.replace(look, owed=owed) for look in its.samples))


def judge_at(address: str, pid: int, *threads: Thread, **fields: Any) -> Process:
    its = process(pid, f"judge{pid}", "main:4 serve_forever select", listening=(address,), **fields)
    looks = tuple(dataclasses.replace(look, threads=(*look.threads, *threads)) for look in its.samples)
    return dataclasses.replace(its, samples=looks)


def looped(*processes: Process) -> Verdict:
    pending = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    return triage(evidence(rank(0, "main:10 step:42 all_reduce", world=2), *processes), pending)


STUCK = Thread("Thread-2", 77, HANDLER, wchan="futex_do_wait")


def test_the_only_process_that_owes_an_event_loop_an_answer_is_waited_for() -> None:
    verdict = looped(in_loop(SERVED), judge_at(SERVED, 70, STUCK), judge_at(OTHER, 71))
    assert verdict.verdict == "HUNG" and keys(verdict) == {f"{HOST}:70"}
    assert {party.rank for party in verdict.triage.victims} == {0, 1}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "waiter",
    [
        in_loop(),
        in_loop(SERVED, OTHER),  # of two, nothing says which it needs
        in_loop(SERVED, *DATABASE, peers=(SERVED, *DATABASE)),
        in_loop(SERVED, environ={"MASTER_PORT": "8000"}),
    ],
    ids=["no request", "two requests", "a request to somebody outside", "its store"],
)
def test_a_server_is_not_blamed_where_an_event_loop_may_wait_for_somebody_else(waiter: Process) -> None:
    verdict = looped(waiter, judge_at(SERVED, 70, STUCK), judge_at(OTHER, 71))
    assert verdict.verdict == "INSUFFICIENT" and not keys(verdict)


def test_a_child_may_be_what_an_event_loop_waits_for() -> None:
    child = process(200, "tool", "main:3 run:8", ppid=101)
    verdict = looped(in_loop(SERVED), judge_at(SERVED, 70, STUCK), child)
    assert verdict.verdict == "INSUFFICIENT" and not keys(verdict)


def test_a_server_that_computes_for_an_event_loop_is_slow() -> None:
    judge = judge_at(SERVED, 70)
    busy = (dataclasses.replace(STUCK, cpu_s=spent_s) for spent_s in (0.0, 1.4))
    looks = (dataclasses.replace(look, threads=(*look.threads, thread))
             for look, thread in zip(judge.samples, busy, strict=True))  # fmt: skip
    verdict = looped(in_loop(SERVED), dataclasses.replace(judge, samples=tuple(looks)))
    assert not keys(verdict) and verdict.verdict != "HUNG"


SERVICE = """
class Handler:
    def do_GET(self):
        {wait}
        return items.pop()
    def do_POST(self):
        {bring}

def fill():
    items.append(1)
    ready.set()
"""


@pytest.mark.parametrize(
    ("wait", "bring", "lost", "named"),
    [
        ("ready.wait()", "ready.set()", (), False),
        ("item = queue.get()", "queue.put(1)", (), False),
        ("item = queue.get()", "pass", (), True),
        ("lock.acquire()", "lock.release()", (), True),
        ("ready.wait()", "pass", (), False),  # a thread that runs `fill` may come
        ("ready.wait()", "pass", (LostThread("Thread-2 (fill)", "OSError"),), True),  # it has died
    ],
)
def test_a_handler_may_wait_for_what_another_request_brings(
    tmp_path: Path, wait: str, bring: str, lost: tuple[LostThread, ...], named: bool
) -> None:
    file = tmp_path / "service.py"
    file.write_text(SERVICE.format(wait=wait, bring=bring))
    handler = dataclasses.replace(STUCK, frames=(Frame("do_GET", str(file), 4), HANDLER[-1]))
    client = rank(1, "main score getresponse", world=2, peers=(SERVED,))
    server = judge_at(SERVED, 70, handler)
    assert server.beat is not None
    server = dataclasses.replace(server, beat=dataclasses.replace(server.beat, lost_threads=lost))
    verdict = looped(client, server)
    assert (verdict.verdict, keys(verdict)) == (("HUNG", {f"{HOST}:70"}) if named else ("INSUFFICIENT", set()))

"""What torchrun scripts with hangs that the lab does not have made the rules say, and must not say again."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import threading

import pytest
from triage_evidence import HOST, compared, evidence, group, process, rank, samples, wording

from harness.triage.collect import beats, proc, traffic
from harness.triage.evidence import Beat, Frame, Journal, OpenSpan, RayTask, Sample, Thread
from harness.triage.judge import triage
from harness.triage.stacks import classify
from probes.attach import Attachment

WAIT = "main:10 step:42 all_reduce"
FORMING = (OpenSpan("init_process_group", 11.0, {"world_size": 3}),)


def named(verdict):
    return {party.key for party in verdict.triage.culprits}


def making(members):
    return (OpenSpan("new_group", 12.0, {"ranks": list(members)}),)


def test_a_group_that_was_made_between_the_beat_and_the_stacks_is_no_longer_forming():
    ranks = [rank(0, WAIT, world=3, spans=FORMING), rank(1, "main ask", world=3), rank(2, WAIT, world=3)]
    verdict = triage(evidence(*ranks), compared(group("0", {0: (6, "all_reduce"), 1: 5, 2: (6, "all_reduce")})))
    assert verdict.triage.hang == "K4" and named(verdict) == {f"{HOST}:101"}
    still = [rank(n, "main init_process_group", world=3, spans=FORMING) for n in (0, 2)]
    verdict = triage(evidence(*still, rank(1, "main ask", world=3)), None)
    assert verdict.triage.hang == "K5" and named(verdict) == {f"{HOST}:101"}


def test_a_beat_is_read_once_more_after_the_last_look(tmp_path):
    folder = tmp_path / beats.FOLDER
    folder.mkdir()
    here = socket.gethostname()
    told = {"host": here, "pid": 7, "count": 3, "t_ns": 10**9, "progress_ns": 10**9, "start_ticks": 5}
    (folder / "7.json").write_text(json.dumps({**told, "open": [{"name": "new_group", "start_ns": 10**9}]}))
    pulses, _ = beats.read(tmp_path, 2 * 10**9)
    pulse = pulses[here, 7]
    assert [span.name for span in pulse.beat.open_spans] == ["new_group"]
    (folder / "7.json").write_text(json.dumps({**told, "count": 4, "t_ns": 3 * 10**9}))
    assert not beats.again(pulse, 4 * 10**9).beat.open_spans and beats.again(pulse, 4 * 10**9).beat.count == 4
    (folder / "7.json").write_text(json.dumps({**told, "open": []}))
    assert beats.again(pulse, 90 * 10**9) == pulse  # no new beat: as old as when looking began
    (folder / "7.json").write_text(json.dumps({**told, "count": 4, "start_ticks": 6}))
    assert beats.again(pulse, 4 * 10**9) == pulse  # another process has the pid now
    (folder / "7.json").unlink()
    assert beats.again(pulse, 4 * 10**9) == pulse


def test_ranks_that_list_other_members_of_one_group_make_different_groups():
    others = {0: (0, 1), 1: (0, 1, 2)}
    ranks = [rank(n, "main new_group", world=3, spans=making(some)) for n, some in others.items()]
    at = {0: 5, 1: 5, 2: (6, "all_reduce")}
    verdict = triage(evidence(*ranks, rank(2, WAIT, world=3)), compared(group("0", at)))
    assert verdict.triage.hang == "K5" and not named(verdict) and "ranks 0, 1" in wording(verdict)
    ranks = [rank(n, "main new_group", world=3, spans=making((0, 1) if n == 1 else (0, 1, 2))) for n in range(3)]
    verdict = triage(evidence(*ranks), None)
    assert verdict.triage.hang == "K5" and named(verdict) == {f"{HOST}:101"}


def test_disjoint_groups_are_no_different_lists():
    ranks = [rank(n, "main new_group", world=4, spans=making((0, 1) if n < 2 else (2, 3))) for n in (0, 2, 3)]
    verdict = triage(evidence(*ranks, rank(1, "main idle", world=4)), None)
    assert verdict.triage.hang == "K5" and named(verdict) == {f"{HOST}:101"}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_who_waits_at_the_store_alone_is_named_unless_it_is_one_against_one(world):
    ranks = [rank(n, WAIT, world=world) for n in range(world) if n != 1]
    odd = rank(1, "main new_group", world=world, spans=making(range(world)))
    at = {n: (6, "all_reduce") if n != 1 else 5 for n in range(world)}
    verdict = triage(evidence(odd, *ranks), compared(group("0", at)))
    assert verdict.verdict == "HUNG" and verdict.triage.hang == "K5"
    assert named(verdict) == ({f"{HOST}:101"} if world > 2 else set())


def test_a_world_in_which_everybody_waits_hangs_and_names_nobody():
    """A receive is in no recorder: nothing says for whom ranks 0 and 1 wait, and nobody is left to come."""
    ranks = [rank(0, "main recv", world=3), rank(1, "main recv", world=3), rank(2, WAIT, world=3)]
    at = compared(group("0", {0: 5, 1: 5, 2: (6, "all_reduce")}))
    verdict = triage(evidence(*ranks), at)
    assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K2") and not named(verdict)
    assert triage(evidence(*ranks, source="live", stall_s=0.0), at).verdict == "INSUFFICIENT"
    assert triage(evidence(*ranks[:2]), compared(group("0", {0: 5, 1: 5}))).verdict == "INSUFFICIENT"
    busy = rank(0, "main recv", "main send recv", world=3, cpu_s=1.0)
    assert triage(evidence(busy, *ranks[1:]), at).verdict != "HUNG"


def test_two_ranks_that_both_receive_are_a_cycle_and_three_are_none():
    two = [rank(number, "main recv", world=2) for number in (0, 1)]
    verdict = triage(evidence(*two), compared(group("0", {0: 5, 1: 5})))
    assert verdict.triage.hang == "K2" and set(verdict.triage.cycle) == {member.key for member in two}
    three = [rank(number, "main recv", world=3) for number in range(3)]
    verdict = triage(evidence(*three), compared(group("0", dict.fromkeys(range(3), 5))))
    assert verdict.triage.hang == "K2" and not verdict.triage.cycle
    sends = rank(1, "main recv", "main send recv", world=2, cpu_s=1.0)
    assert triage(evidence(two[0], sends), compared(group("0", {0: 5, 1: 5}))).verdict != "HUNG"


@pytest.mark.parametrize("stack", ["main next_batch pipe.recv", "main next_batch select", "main lock.wait"])
def test_a_rank_that_waits_for_its_stopped_child_is_a_victim_of_it(stack):
    at = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    child = process(900, "process", "getitem", state="T", ppid=101)
    verdict = triage(evidence(rank(0, WAIT, world=2), rank(1, stack, world=2), child), at)
    assert verdict.triage.hang == "K9" and named(verdict) == {child.key}
    assert {party.rank for party in verdict.triage.victims} == {0, 1}
    sound = process(900, "process", "getitem pipe.recv", ppid=101)
    verdict = triage(evidence(rank(0, WAIT, world=2), rank(1, stack, world=2), sound), at)
    assert verdict.triage.hang == "K4" and named(verdict) == {f"{HOST}:101"}


def test_a_child_that_failed_is_told_of_whoever_waits_for_it():
    at = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    child = process(900, "process", "", state="Z", ppid=101, exit_code=1)
    verdict = triage(evidence(rank(0, WAIT, world=2), rank(1, "main put", world=2), child), at)
    assert named(verdict) == {f"{HOST}:101"} and "child 900" in wording(verdict)
    done = dataclasses.replace(child, exit_code=0)
    verdict = triage(evidence(rank(0, WAIT, world=2), rank(1, "main put", world=2), done), at)
    assert "child" not in verdict.reason


def test_a_rank_whose_main_thread_is_over_has_failed_where_it_says_so():
    at = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    threading_py = "/usr/lib/python3.11/threading.py"
    stopped = Thread("MainThread", 1, (Frame("_shutdown", threading_py, 1590),), main=True)
    joining = dataclasses.replace(stopped, frames=(Frame("join", threading_py, 1112), *stopped.frames))
    assert {classify(stopped).kind, classify(joining).kind} == {"finished"}
    assert classify(dataclasses.replace(stopped, frames=joining.frames[:1])).kind == "lock"
    over = rank(1, "main", world=2)
    over = dataclasses.replace(
        over, samples=tuple(dataclasses.replace(look, threads=(stopped,)) for look in over.samples)
    )
    failed = dataclasses.replace(over, error="KeyError: 'reward'", error_age_s=40.0)
    verdict = triage(evidence(rank(0, WAIT, world=2), failed), at)
    assert verdict.triage.hang == "K4" and named(verdict) == {over.key} and "KeyError: 'reward'" in verdict.reason
    verdict = triage(evidence(rank(0, WAIT, world=2), over), at)
    assert verdict.verdict == "HUNG" and named(verdict) == {over.key}


def test_the_heartbeat_tells_an_error_only_once_the_main_thread_is_over(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "last_value", KeyError("reward"), raising=False)
    attached = Attachment(tmp_path, 1.0)
    assert attached._failure() == ""  # a notebook goes on after an error
    monkeypatch.setattr(threading, "main_thread", threading.Thread)  # one that does not run
    assert "reward" in attached._failure()


def test_a_download_is_progress_and_the_chatter_of_an_idle_cluster_is_none():
    at = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    loads = rank(1, "main download", world=2)

    def verdict(net_bytes):
        first, last = loads.samples
        moved = dataclasses.replace(loads, samples=(first, dataclasses.replace(last, net_bytes=net_bytes)))
        return triage(evidence(rank(0, WAIT, world=2), moved), at)

    assert verdict(300_000).verdict == "SLOW" and "200 kB/s" in verdict(300_000).reason
    assert verdict(4_000).verdict == "HUNG" and named(verdict(4_000)) == {loads.key}


def test_the_kernel_counts_what_went_through_a_connection(monkeypatch):
    monkeypatch.setattr(traffic, "KEPT_MOST_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        there, _ = server.accept()
        before = proc.look(os.getpid()).net_bytes
        client.sendall(bytes(300_000))
        assert there.recv(300_000, socket.MSG_WAITALL) == bytes(300_000)
        found = proc.look(os.getpid()).net_bytes - before
        there.close()
    if before == 0 and found == 0:
        pytest.skip("this kernel does not answer socket diagnostics")
    assert 300_000 <= found <= 600_000  # received here, and acknowledged there
    assert proc.look(2**22 + 1).net_bytes == 0
    assert traffic.of({"1"}) == (0, None)


def test_an_answer_that_an_outside_server_owes_is_told_as_such():
    asks = rank(1, "main reward getresponse", world=2, peers=("10.0.0.9:8000",))
    at = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    verdict = triage(evidence(rank(0, WAIT, world=2), asks), at)
    assert verdict.verdict == "INSUFFICIENT" and "10.0.0.9:8000" in wording(verdict) and "rank 1" in wording(verdict)


def test_a_coroutine_of_an_actor_is_in_no_stack():
    """One look at a driver that waits 40 s for an asyncio actor: it may await the answer of a long rollout."""
    asks = process(100, "driver", "main step ray.get")
    actor = process(200, "Rollout", "main_loop")
    loop = Thread("AsyncIO Thread", 2, (Frame("run_forever", "/usr/lib/python3.11/asyncio/base_events.py", 607),))
    looks = tuple(dataclasses.replace(look, threads=(*look.threads, loop)) for look in actor.samples)
    task = RayTask("t", "Rollout.run", "RUNNING", 40.0, pid=200, caller_pid=100)
    for told, verdict in (((actor, 0.0), "HUNG"), ((dataclasses.replace(actor, samples=looks), 0.0), "INSUFFICIENT"),
                          ((dataclasses.replace(actor, samples=looks), 60.0), "INSUFFICIENT")):  # fmt: skip
        found = triage(evidence(asks, told[0], source="live", stall_s=told[1], ray_tasks=(task,)), None)
        assert found.verdict == verdict


def test_an_asyncio_actor_whose_engine_still_starts_is_slow():
    """Its constructor waits in Ray's event loop (uvloop: no frame of its own) for an engine whose worker imports."""
    packages = "/venv/lib/python3.11/site-packages"
    asks, actor = process(100, "driver", "main step ray.get"), process(200, "Rollout", "main_loop")
    start = (
        Frame("Poller.poll", f"{packages}/zmq/sugar/poll.py", 106),
        Frame("wait_for_engine_startup", f"{packages}/vllm/v1/engine/utils.py", 1398),
        Frame("RolloutRayActor.__init__", f"{packages}/openrlhf/trainer/ray/vllm_engine.py", 90),
        Frame("Thread.run", "/usr/lib/python3.11/threading.py", 982),
    )
    loop = Thread("AsyncIO Thread: default", 2, start)
    starts = tuple(dataclasses.replace(look, threads=(*look.threads, loop)) for look in actor.samples)
    actor = dataclasses.replace(actor, samples=starts)
    core = dataclasses.replace(process(300, "VLLM_EngineCore", "main step"), ppid=200, engine="vllm")
    ready = (
        Frame("_PollLikeSelector.select", "/usr/lib/python3.11/selectors.py", 415),
        Frame("WorkerProc.wait_for_ready", f"{packages}/vllm/v1/executor/multiproc_executor.py", 799),
        Frame("EngineCoreProc.run_engine_core", f"{packages}/vllm/v1/engine/core.py", 1200),
    )
    main = (Thread("MainThread", 300, ready, main=True),)
    core = dataclasses.replace(core, samples=tuple(dataclasses.replace(look, threads=main) for look in core.samples))
    task = RayTask("t", "Rollout.__init__", "RUNNING", 170.0, pid=200, caller_pid=100)
    for cpu_s, verdict in ((1.0, "SLOW"), (0.0, "HUNG")):
        worker = dataclasses.replace(process(400, "process"), ppid=300, samples=samples("main step", cpu_s=cpu_s))
        found = triage(evidence(asks, actor, core, worker, ray_tasks=(task,)), None)
        assert found.verdict == verdict, found.reason
        assert verdict == "SLOW" or "main_loop" not in found.reason


def test_a_run_that_is_over_says_how_it_ended():
    word = Beat(9, 300.0, 300.0, ended=True)
    good = rank(0, gone=True, world=2, beat=word), rank(1, gone=True, world=2, beat=word)
    verdict = triage(evidence(*good, source="live", stall_s=0.0), None)
    assert verdict.verdict == "HEALTHY" and verdict.exit_code == 0
    assert "5 minutes ago: 2" in verdict.reason
    for odd, told in (
        ({"error": "KeyError: 'reward'", "beat": word}, "rank 1 ended with KeyError: 'reward'"),
        ({"exit_code": 1, "beat": word}, "rank 1 ended with exit code 1"),
        ({"beat": dataclasses.replace(word, ended=False)}, "rank 1 was ended without a last word"),
        ({"journal": Journal("j", 9, 300.0, full=True), "beat": dataclasses.replace(word, ended=False)},
         "rank 1 stopped recording because the disk was full"),
        ({"journal": Journal("j", 9, 300.0, closed=True, closing_error="OSError: full"), "beat": word},
         "rank 1 ended with OSError: full"),
    ):  # fmt: skip
        verdict = triage(evidence(good[0], rank(1, gone=True, world=2, **odd), source="live", stall_s=0.0), None)
        assert verdict.verdict == "INSUFFICIENT" and verdict.exit_code == 3 and told in verdict.reason
    echo = rank(0, gone=True, world=2, beat=word, error="RuntimeError: Connection closed by peer")
    launcher = process(99, "launcher", error="ChildFailedError", beat=word)
    launcher = dataclasses.replace(launcher, samples=echo.samples)
    first = rank(1, gone=True, world=2, beat=word, error="KeyError: 'reward'")
    verdict = triage(evidence(launcher, echo, first, source="live", stall_s=0.0), None)
    assert "rank 1 (pid 101 on node0) ended with KeyError: 'reward'" in wording(verdict)
    waits = triage(evidence(good[0], rank(1, WAIT, world=2)), None)
    assert waits.verdict == "HUNG" and named(waits) == {good[0].key}


def test_a_process_that_outlived_its_full_journal_is_named():
    word = Beat(9, 300.0, 300.0, ended=True)
    cut = rank(1, gone=True, world=2, beat=word, journal=Journal("j", 9, 300.0, full=True))
    whole = rank(0, gone=True, world=2, beat=word, journal=Journal("k", 9, 300.0, closed=True))
    verdict = triage(evidence(whole, cut, source="live", stall_s=0.0), None)
    assert verdict.verdict == "HEALTHY" and verdict.missing == ["rank 1 stopped recording because the disk was full"]
    assert "rank 1" in verdict.reason and "rank 0" not in verdict.reason


@pytest.mark.parametrize("parent, verdict", [(100, "HEALTHY"), (1, "INSUFFICIENT")])
def test_a_forked_child_that_leaves_without_a_word_is_judged_by_its_parents_end(parent: int, verdict: str) -> None:
    """The first half of a daemon leaves with os._exit, which runs nothing that could say so."""
    one = rank(0, gone=True, world=1, beat=Beat(9, 300.0, 300.0, ended=True))
    child = process(95, "process", gone=True, ppid=parent, journal=Journal("j", 3, 400.0))
    found = triage(evidence(one, dataclasses.replace(child, beat=None), source="live", stall_s=0.0), None)
    assert found.verdict == verdict, found.reason


def test_who_sleeps_with_the_interpreter_lock_at_both_looks_is_known_before_its_beat_is_stale():
    at = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    for gil, hang in ((True, "K9"), (False, "K4")):
        odd = rank(1, "main tokenize", world=2, gil=gil, stale_s=3.7, wchan="hrtimer_nanosleep")
        verdict = triage(evidence(rank(0, WAIT, world=2), odd), at)
        assert verdict.triage.hang == hang and named(verdict) == {odd.key}
    young = rank(1, "main tokenize", world=2, gil=True, stale_s=0.5)
    assert triage(evidence(rank(0, WAIT, world=2), young), at).triage.hang == "K4"


def test_a_server_whose_engine_works_is_not_blamed_for_a_long_answer():
    at = compared(group("0", {0: 5, 1: (6, "all_reduce")}))
    asks = rank(0, "main rollout getresponse", world=2, peers=("127.0.0.1:8000",))
    front = process(700, "server", "serve_forever select", listening=("127.0.0.1:8000",))
    worker = process(701, "engine", "run_busy_loop forward", ppid=700, cpu_s=1.4, engine="vllm")
    assert triage(evidence(asks, rank(1, WAIT, world=2), front, worker), at).verdict == "SLOW"
    idle = process(701, "engine", "run_busy_loop zmq.poll", ppid=700, engine="vllm")
    verdict = triage(evidence(asks, rank(1, WAIT, world=2), front, idle), at)
    assert verdict.verdict == "HUNG" and named(verdict) == {front.key}


@pytest.mark.parametrize(("cpu_s", "verdict"), [(1.3, "SLOW"), (0.0, "HUNG")])
def test_an_engine_that_works_for_its_start_is_not_idle(cpu_s: float, verdict: str) -> None:
    """Seen in a real job: memory was so slow that an engine zeroed its KV cache for half a minute."""
    asks = process(99, "driver", "main ray.get")
    core = process(700, "VLLM_EngineCore", "run_engine_core run_busy_loop get_response zmq.poll", engine="vllm")
    at = "worker_busy_loop allocate_kv_cache:596"
    worker = process(701, "VLLM_Worker", at, ppid=700, cpu_s=cpu_s, state="R" if cpu_s else "S", engine="vllm")
    found = triage(evidence(asks, core, worker, source="watch"), None)
    assert found.verdict == verdict and "idle" not in found.reason
    assert named(found) == (set() if cpu_s else {worker.key})


def test_a_process_that_ends_in_good_order_while_it_is_looked_at_is_a_run_that_moves():
    word = Beat(9, 0.1, 0.1, ended=True)
    asks = process(99, "driver", "main unknown_call")
    leaves = process(100, "engine", gone=True, beat=word)
    leaves = dataclasses.replace(leaves, samples=(Sample(0.0, "R", 9.0), Sample(1.5, "gone")))
    silent = dataclasses.replace(asks, samples=tuple(dataclasses.replace(look, threads=()) for look in asks.samples))
    verdict = triage(evidence(silent, leaves, source="watch"), None)
    assert verdict.verdict == "SLOW" and "ended in good order while it was looked at" in verdict.reason
    for wrong in ({"exit_code": 1}, {"beat": dataclasses.replace(word, ended=False)}, {"error": "KeyError: 'x'"}):
        verdict = triage(evidence(silent, dataclasses.replace(leaves, **wrong), source="watch"), None)
        assert verdict.verdict != "SLOW"

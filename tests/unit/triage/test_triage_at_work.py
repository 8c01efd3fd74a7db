"""Who is at work, or waits for somebody outside the job, is not blamed; the hang beside each of these still is one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import HOST, compared, evidence, frames, group, process, rank, wording
from triage_trial import late

from harness.triage.collect import proc
from harness.triage.evidence import Evidence, Frame, Journal, Process, RayTask, Sample, Thread
from harness.triage.flight.model import Comparison
from harness.triage.graph import motion
from harness.triage.judge import triage
from harness.triage.stacks import doing
from reports.model import Verdict

BUSY = {"cpu_s": 1.4, "state": "R"}
LOOP = Thread("AsyncIO Thread: default", 2, frames("run_forever"))
JUDGE = ("104.18.6.192:443",)


def seen(one: Process, *threads: Thread, net: int = 0, **more: Any) -> Process:
    """With threads beside its main one, and `net` bytes over TCP between the looks."""
    looks = tuple(
        dataclasses.replace(look, threads=(*look.threads, *threads), net_bytes=number * net)
        for number, look in enumerate(one.samples)
    )
    return dataclasses.replace(one, samples=looks, **more)


def below(parent: int, pid: int, role: str, stack: str, engine: str = "vllm", **more: Any) -> Process:
    return dataclasses.replace(process(pid, role, stack, **more), ppid=parent, engine=engine)


def named(verdict: Verdict) -> set[int]:
    return {one.pid for one in verdict.triage.culprits}  # type: ignore[union-attr]


def judged(one: Process, world: int = 4) -> Verdict:
    """Rank 0 has not come to what the others are in."""
    built, at = late(world, 0, "")
    return triage(dataclasses.replace(built, processes=(one, *built.processes[1:])), at)


# ---- engines


def asked(*engine: Process) -> Evidence:
    """A request to a server, and the server's engine below it."""
    client = process(20, "trainer", "rollout getresponse", peers=("127.0.0.1:30000",))
    server = process(30, "server", "main uvicorn.run", listening=("127.0.0.1:30000",))
    return evidence(client, server, *engine)


@pytest.mark.parametrize(
    ("engine", "stack"),
    [
        ("sglang", "event_loop_normal process_batch_result_decode"),
        ("vllm", "run_busy_loop _process_engine_step schedule"),
        ("vllm", "worker_busy_loop _execute_worker_rpc mine:20"),
    ],
)
def test_an_engine_that_works_for_an_order_is_slow_and_its_server_is_not_blamed(engine: str, stack: str) -> None:
    verdict = triage(asked(below(30, 40, "engine", stack, engine, **BUSY)))
    assert verdict.verdict == "SLOW" and verdict.reason.startswith("engine (")
    still = triage(asked(below(30, 40, "engine", stack, engine)))
    assert still.verdict == "HUNG" and named(still) == {40}


def test_a_controller_of_several_schedulers_hands_on_what_it_is_asked() -> None:
    controller = below(30, 40, "controller", "event_loop zmq.poll", "sglang")
    work = "event_loop_normal forward_batch mine:9"
    verdict = triage(asked(controller, below(40, 50, "scheduler", work, "sglang", **BUSY)))
    assert verdict.verdict == "SLOW" and verdict.reason.startswith("scheduler (")
    assert named(triage(asked(controller, below(40, 50, "scheduler", work, "sglang", state="T")))) == {50}
    assert named(triage(asked(controller))) == {30}


@pytest.mark.parametrize("server", ["main uvicorn.run", "main managers.serve_forever"])
def test_an_engine_waits_for_its_children_not_for_a_server_beside_it(server: str) -> None:
    core = below(1, 40, "VLLM_EngineCore", "run_busy_loop _process_engine_step get_response zmq.poll")
    worker = below(40, 50, "VLLM_Worker", "worker_busy_loop _execute_worker_rpc mine:20", **BUSY)
    verdict = triage(evidence(core, worker, process(60, "reward", server)))
    assert verdict.verdict == "SLOW" and [wait.target for wait in verdict.triage.waits] == [f"{HOST}:50"]


def test_a_manager_of_multiprocessing_is_no_http_server() -> None:
    client = process(20, "trainer", "rollout getresponse")
    assert not triage(evidence(client, process(60, "aside", "main managers.serve_forever"))).triage.culprits
    assert named(triage(evidence(client, process(60, "aside", "main serve_forever")))) == {60}


# ---- bytes, processors, networks


def test_the_kernels_count_has_page_faults_and_a_write_that_has_not_returned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "7").mkdir()
    fields = {"rchar": 1, "wchar": 20, "syscr": 5, "read_bytes": 300, "write_bytes": 4000, "cancelled_write_bytes": 9}
    (tmp_path / "7" / "io").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    monkeypatch.setattr(proc, "PROC", tmp_path)
    assert proc._io(7) == 4321


@pytest.mark.parametrize(("bytes_", "verdict"), [(16_400, "HUNG"), (24_600, "HUNG"), (60_000, "SLOW")])
def test_a_heartbeat_whose_pages_go_to_storage_is_no_progress(bytes_: int, verdict: str) -> None:
    """Two beats between the looks, or three, each written and counted again."""
    assert judged(rank(0, "main:10 step:44 keep_alive", io_bytes=bytes_)).verdict == verdict


def test_the_beats_of_a_process_that_is_about_to_end_are_no_work() -> None:
    """Its threads were counted apart at the first look; at the last one its stack is gone, and its heartbeat."""
    sleeps = rank(0, "main:10 step:44 keep_alive", io_bytes=13_336)
    first, last = (
        dataclasses.replace(
            look,
            main_io_bytes=bytes_,
            threads=tuple(dataclasses.replace(thread, frames=stack, io_bytes=bytes_) for thread in look.threads),
        )
        for look, bytes_, stack in zip(
            sleeps.samples, (0, 8_464), (sleeps.samples[0].threads[0].frames, ()), strict=True
        )
    )
    ends = dataclasses.replace(sleeps, samples=(first, last))
    assert motion.moved_bytes(ends, doing(ends)) == 0
    assert motion.moved_bytes(dataclasses.replace(ends, beat=None), doing(ends)) > 0


@pytest.mark.parametrize("look", [{"cpu_s": 0.5}, {"last": "main load:7 parse"}, {"io_bytes": 40_000}])
def test_a_load_by_page_faults_is_slow(look: dict[str, Any]) -> None:
    faults = {"state": "D", "wchan": "folio_wait_bit_common"}
    assert judged(rank(0, "main load:9 read", **faults, **look)).verdict == "SLOW"
    held = judged(rank(0, "main load:9 read", **faults, cpu_s=0.01))
    assert held.triage.hang == "K9" and named(held) == {100}


def test_the_beat_of_another_host_has_no_age() -> None:
    """Its clock began at another boot."""
    far = dataclasses.replace(rank(0, world=2, stale_s=10_800.0), samples=())
    built, at = late(2, 0, "")
    verdict = triage(dataclasses.replace(built, processes=(far, built.processes[1])), at)
    assert verdict.triage.hang != "K9"
    fresh = [dataclasses.replace(one, samples=()) for one in (rank(n, world=2, progress_s=0.0) for n in range(2))]
    moving = triage(evidence(*fresh), compared(group("0", {0: (7, "all_reduce"), 1: 6})))
    assert moving.verdict != "HEALTHY"


def test_a_main_thread_that_its_own_thread_feeds_is_at_work() -> None:
    waits = "main next_batch queue.get lock.wait"
    feeder = Thread("prefetch", 2, frames("tokenize:20"), active=True)
    assert judged(seen(rank(0, waits, cpu_s=1.5), feeder)).verdict == "SLOW"
    assert judged(seen(rank(0, waits), net=60_000)).verdict == "SLOW"
    assert named(judged(rank(0, waits))) == {100}
    assert named(judged(seen(rank(0, waits, cpu_s=1.5), dataclasses.replace(feeder, active=False)))) == {100}


def everybody(net: int, at: Comparison) -> Verdict:
    return triage(evidence(*(seen(rank(n, "main all_gather"), net=net) for n in range(4))), at)


def test_an_operation_that_transfers_is_slow() -> None:
    at = compared(group("0", dict.fromkeys(range(4), (6, "all_gather"))))
    assert everybody(3_000_000, at).verdict == "SLOW"
    assert everybody(300_000, at).triage.hang == "K12"


def test_the_first_communicator_that_is_made_is_no_closed_world() -> None:
    none = compared(group("0", dict.fromkeys(range(4))))
    assert everybody(200_000, none).verdict == "INSUFFICIENT"
    assert everybody(0, none).triage.hang == "K2"
    recv = [seen(rank(n, "main recv"), net=0) for n in range(4)]
    assert triage(evidence(*recv), none).triage.hang == "K2"


def test_ranks_that_wait_in_operations_that_name_no_peer_are_in_no_cycle() -> None:
    """Ranks 1 and 2 receive from each other, and rank 0 waits in a barrier: no edge of it is seen."""
    none = compared(group("0", dict.fromkeys(range(3))))
    ranks = [rank(0, "main barrier", world=3), *(rank(n, "main recv", world=3) for n in (1, 2))]
    body = triage(evidence(*ranks), none).triage
    assert body is not None and body.hang == "K2" and not body.cycle and not body.culprits
    assert {node.party for node in body.nodes} == {"victim"}
    assert {(party.rank, party.why.partition(",")[0]) for party in body.victims} == {
        (0, "barrier"),
        (1, "recv"),
        (2, "recv"),
    }


# ---- who awaits somebody outside


@pytest.mark.parametrize("stack", ["main score lock.wait", "main score run_forever select", "main_loop"])
def test_who_awaits_a_server_outside_the_job_in_an_event_loop_is_not_blamed(stack: str) -> None:
    verdict = judged(seen(rank(0, stack), LOOP, peers=JUDGE))
    assert verdict.verdict == "INSUFFICIENT" and JUDGE[0] in wording(verdict)
    assert verdict.missing == ["the server that rank 0 asks"]
    served = ("127.0.0.1:99", "10.0.0.1:6379")
    near = rank(0, stack, peers=served, listening=served)
    for other in (seen(near, LOOP), seen(rank(0, stack), LOOP)):  # nor over what its tasks may await in the job
        inside = judged(other)
        assert inside.verdict == "INSUFFICIENT" and not named(inside)
        assert inside.missing == ["what the tasks of rank 0 await"]


def test_an_event_loop_that_awaits_nothing_outside_or_a_plain_thread_excuses_nobody() -> None:
    exporter = Thread("Thread-7", 3, frames("serve_forever select"))
    for one in (
        seen(rank(0, "main score lock.wait", peers=JUDGE), exporter),
        seen(rank(0, "main:10 step:44 keep_alive", peers=JUDGE), LOOP),
    ):
        assert named(judged(one)) == {100}


@pytest.mark.parametrize("stack", ["main score _sleep_for_retry", "main score grpc._blocking lock.wait"])
def test_a_client_that_waits_for_its_server_is_told_as_such(stack: str) -> None:
    verdict = judged(rank(0, stack, peers=JUDGE))
    assert verdict.verdict == "INSUFFICIENT" and "over HTTP" in wording(verdict) and JUDGE[0] in wording(verdict)


def test_a_stream_that_a_thread_beside_keeps_open_is_not_what_the_process_waits_for() -> None:
    stream = Thread("stream", 3, frames("run grpc._blocking lock.wait"))
    assert named(judged(seen(rank(0, "main:10 step:44 keep_alive", peers=JUDGE), stream))) == {100}


def test_who_waits_for_the_samples_of_a_rollout_is_a_victim() -> None:
    driver = process(10, "driver", "main ray.get")
    runner = process(20, "TaskRunner", "main_loop run fit _wait_for_next_poll", wchan="hrtimer_nanosleep")
    task = RayTask("1", "TaskRunner.run", "RUNNING", 900.0, HOST, 20, "", caller_pid=10)
    engine = below(30, 40, "engine", "run_busy_loop _process_engine_step schedule", **BUSY)
    assert triage(evidence(driver, runner, engine, ray_tasks=(task,))).verdict == "SLOW"
    alone = triage(evidence(driver, runner, ray_tasks=(task,)))
    assert alone.verdict == "INSUFFICIENT" and "samples of the rollout" in wording(alone)


def test_a_worker_beside_a_device_that_hangs_does_not_make_it_slow() -> None:
    """Only a wait for samples ends nowhere: an operation of a recorder has an end, whatever moves beside it."""
    at = compared(group("0", dict.fromkeys(range(3), (17, "all_reduce")), unstarted=[1]))
    ranks = [rank(n, "main:10 step:42 all_reduce", world=3) for n in range(3)]
    verdict = triage(evidence(*ranks, process(900, "logger", "main crunch", cpu_s=1.4)), at)
    assert verdict.triage.hang == "K9" and named(verdict) == {101}


# ---- Ray


def placing(*tasks: RayTask) -> Verdict:
    caller, logger = process(10, "driver", "main make ray.get"), process(70, "Logger", "main_loop run queue.get")
    running = RayTask("1", "Logger.run", "RUNNING", 900.0, HOST, 70, "", caller_pid=10)
    return triage(evidence(caller, logger, ray_tasks=(running, *tasks)))


@pytest.mark.parametrize("name", ["bundle_reservation_check_func", "Engine.__init__"])
def test_who_waits_for_nodes_does_not_wait_for_a_task_that_runs(name: str) -> None:
    assert placing(RayTask("2", name, "PENDING_NODE_ASSIGNMENT", 70.0, "", 0, "", caller_pid=10)).verdict != "HUNG"
    assert named(placing()) == {70}


def test_tasks_that_queue_behind_their_like_wait_for_those() -> None:
    queued = RayTask("2", "Logger.run", "PENDING_NODE_ASSIGNMENT", 70.0, "", 0, "", caller_pid=10)
    assert named(placing(queued)) == {70}


@pytest.mark.parametrize(("state", "verdict"), [("PENDING_ARGS_FETCH", "INSUFFICIENT"), ("FINISHED", "HUNG")])
def test_a_rank_whose_arguments_are_on_their_way_will_come(state: str, verdict: str) -> None:
    built, at = late(4, 0, "main_loop")
    task = RayTask("1", "Worker.update", state, 60.0, HOST, 100, "", caller_pid=10)
    found = triage(dataclasses.replace(built, ray_tasks=(task,)), at)
    assert found.verdict == verdict and named(found) == (set() if verdict == "INSUFFICIENT" else {100})


def test_only_ranks_are_named_for_one_round_more() -> None:
    driver = process(10, "driver", "main ray.get")
    ranks = [rank(n, "main:10 step:42 all_reduce" if n == 0 else "main_loop") for n in range(4)]
    task = RayTask("1", "Worker.update", "RUNNING", 60.0, HOST, 101, "", caller_pid=10)
    at = compared(group("0", {0: (6, "all_reduce"), 1: 5, 2: 5, 3: 5}))
    assert named(triage(evidence(driver, *ranks, ray_tasks=(task,)), at)) == {100}


def test_one_look_shows_no_rest() -> None:
    one = rank(0, "main:10 tokenize", **BUSY)
    assert judged(dataclasses.replace(one, samples=one.samples[:1])).verdict == "INSUFFICIENT"
    ended = dataclasses.replace(one, samples=(Sample(0.0, "gone"),))
    assert named(judged(ended)) == {100}


# ---- Ray's workers whose tasks run beside the main thread


def scoring(*, busy: bool) -> Evidence:
    """A trainer that waits for an actor with concurrency groups, after engines of one rank each have ended."""
    spent = 1.2 if busy else 0.0
    trainer = process(20, "trainer", "main_loop score ray.get", title="ray::Host.call")
    actor = process(30, "actor", "main_loop", title="ray::Host.call")
    looks = tuple(
        dataclasses.replace(
            look,
            state="S",
            cpu_s=number * spent,
            main_cpu_s=0.0,
            threads=(*look.threads, Thread("Dummy-1", 31, TASK, active=busy, cpu_s=number * spent)),
        )
        for number, look in enumerate(actor.samples)
    )
    actor = dataclasses.replace(actor, samples=looks)
    over = [
        dataclasses.replace(rank(0, world=1, gone=True, role="rollout", journal=Journal("", 9, 200.0)), pid=pid, ppid=9)
        for pid in (40, 41)
    ]
    task = RayTask("t", "Host.call", "RUNNING", 0.0, HOST, 30, "a", 20)
    return evidence(trainer, actor, *over, ray_tasks=(task,))


TASK = tuple(reversed([
    Frame("FunctionActorManager._make_actor_method_executor.<locals>.actor_method_executor",
          "/venv/lib/python3.11/site-packages/ray/_private/function_manager.py", 740),
    *(Frame(name, "/job/role.py", 7) for name in ("score", "forward")),
]))  # fmt: skip


def test_a_task_in_a_thread_of_a_ray_worker_is_its_work() -> None:
    verdict = triage(scoring(busy=True))
    assert verdict.verdict == "SLOW", verdict.reason
    assert named(verdict) <= {30}


def test_engines_of_one_rank_that_ended_are_not_why_others_wait() -> None:
    verdict = triage(scoring(busy=False))
    assert not named(verdict) & {40, 41}, verdict.reason

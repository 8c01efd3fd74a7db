"""The wait graph: edges of each layer, where waiting ends, and what counts as progress."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triage_evidence import HOST, compared, evidence, group, process, rank

from harness.triage.evidence import NO_LOOK, OpenSpan, Process, RayActor, RayTask
from harness.triage.graph import build
from harness.triage.graph.shape import components

WAIT = "main:10 step:42 all_reduce"


def edges(graph, layer=None):
    return {
        (wait.waiter.rsplit(":", 1)[-1], wait.target.rsplit(":", 1)[-1])
        for wait in graph.waits
        if layer in (None, wait.layer)
    }


def test_sinks_and_rings():
    assert components([("a", "b"), ("b", "c")]) == (["c"], [])
    assert components([("a", "b"), ("b", "a"), ("x", "a")]) == ([], [["a", "b"]])
    assert components([("a", "b"), ("b", "a"), ("b", "c")]) == (["c"], [])
    assert components([("a", "a")]) == ([], [["a"]])
    assert components([("a", "c"), ("b", "a"), ("c", "b"), ("d", "e")]) == (["e"], [["a", "c", "b"]])
    assert components([]) == ([], [])


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), max_size=24))
def test_from_everybody_waiting_leads_to_an_end(pairs):
    sinks, cycles = components(pairs)
    ends = {*sinks, *(node for ring in cycles for node in ring)}
    after = {}
    for waiter, target in pairs:
        after.setdefault(waiter, set()).add(target)
    for node in {one for pair in pairs for one in pair}:
        reached, queue = {node}, [node]
        while queue:
            for target in after.get(queue.pop(), ()):
                if target not in reached:
                    reached.add(target)
                    queue.append(target)
        assert reached & ends
    assert all(not after.get(sink) for sink in sinks)
    for ring in cycles:
        assert all(there in after[here] for here, there in zip(ring, [*ring[1:], ring[0]], strict=True))


def test_a_thousand_deep_chain_ends():
    pairs = [(f"n{n}", f"n{n + 1}") for n in range(5000)]
    assert components(pairs) == (["n5000"], [])


def test_a_rank_is_waited_for_when_it_has_not_come_never_when_it_is_ahead():
    at = compared(group("0", {0: (17, "all_reduce"), 1: 16, 2: (18, "all_reduce"), 3: 17}))
    graph = build(evidence(*(rank(n, WAIT) for n in range(4))), at)
    assert edges(graph) == {("100", "101"), ("102", "100"), ("102", "101"), ("102", "103")}
    assert graph.sinks == (f"{HOST}:101", f"{HOST}:103")


def test_a_member_that_never_used_the_group_has_not_come_unless_its_ring_overflowed():
    silent = group("0", {0: (2, "barrier"), 1: None})
    ranks = evidence(*(rank(n, WAIT, world=2) for n in range(2)))
    assert edges(build(ranks, compared(silent))) == {("100", "101")}
    unsure = dataclasses.replace(silent, unsure=(1,))
    assert edges(build(ranks, compared(unsure))) == set()


def test_a_minority_is_waited_for_and_does_not_wait_for_the_majority():
    at = compared(group("0", {0: (9, "all_gather"), 1: (9, "all_reduce"), 2: (9, "all_gather")}))
    assert edges(build(evidence(*(rank(n, WAIT, world=3) for n in range(3))), at)) == {("100", "101"), ("102", "101")}


def test_a_stack_speaks_for_a_rank_without_a_dump():
    at = compared(group("0", {0: (9, "all_reduce")}, missing=[1]))
    outside = build(evidence(rank(0, WAIT, world=2), rank(1, "main sleeping", world=2)), at)
    inside = build(evidence(rank(0, WAIT, world=2), rank(1, WAIT, world=2)), at)
    nobody = build(evidence(rank(0, WAIT, world=2)), at)
    assert edges(outside) == {("100", "101")} and edges(inside) == set()
    assert nobody.sinks == ("rank 1",) and not nobody.subjects["rank 1"].observed


def test_a_member_that_nobody_saw_shows_nothing():
    graph = build(evidence(rank(0, WAIT, world=2)), compared(group("0", {0: (9, "all_reduce")}, missing=[1])))
    waiter, absent = graph.subjects[f"{HOST}:100"], graph.subjects["rank 1"]
    assert waiter.has_process and not absent.has_process
    assert (absent.label, absent.role, absent.ended, absent.finished, absent.stuck) == (
        "rank 1",
        "",
        False,
        False,
        False,
    )
    assert (absent.process.threads, absent.process.open_spans, absent.process.key) == ((), (), ":0")


def test_what_a_process_shows_is_of_its_last_look():
    moved = rank(0, "main step:1", "main step:2", spans=[OpenSpan("train", 1.0)])
    assert moved.threads == moved.last_look.threads == moved.samples[-1].threads != moved.samples[0].threads
    assert [span.name for span in moved.open_spans] == ["train"]
    unlooked = Process(HOST, 7)
    assert unlooked.last_look is NO_LOOK and (unlooked.threads, unlooked.open_spans) == ((), ())


def test_two_worlds_with_the_same_ranks_are_kept_apart():
    trainer = [rank(n, WAIT, world=2) for n in range(2)]
    engine = [
        dataclasses.replace(rank(n, "event_loop_normal", world=3), pid=200 + n, engine="sglang") for n in range(3)
    ]
    at = compared(group("0", {0: (9, "all_reduce")}, missing=[1]))
    graph = build(evidence(*trainer, *engine), at)
    assert {wait.target for wait in graph.waits} <= {f"{HOST}:101"}


def test_store_waits_lead_to_whoever_is_not_there():
    span = (OpenSpan("init_process_group", 9.0, {"world_size": 3}),)
    graph = build(
        evidence(rank(0, "main init_process_group", world=3, spans=span), rank(2, "main load", world=3)), None
    )
    assert edges(graph, "store") == {("100", "102"), ("100", "rank 1")}
    assert graph.waits[0].since_s == 9.0


def test_ray_edges_by_caller_or_only_where_a_single_one_can_be_meant():
    one, two, three = (process(n, f"Stage{n}", "main_loop work ray.get") for n in (1, 2, 3))
    actors = tuple(RayActor(f"a{n}", "Stage", "ALIVE", HOST, n) for n in (1, 2, 3))
    task = RayTask("t", "Stage.work", "PENDING", 5.0, "", 0, "a2")
    told = dataclasses.replace(task, caller_pid=1)
    assert edges(build(evidence(one, two, ray_actors=actors, ray_tasks=(told,)), None)) == {("1", "2")}
    assert edges(build(evidence(one, ray_actors=actors, ray_tasks=(task,)), None)) == set()  # actor 2 was not seen
    assert ("1", "2") in edges(build(evidence(one, two, ray_actors=actors, ray_tasks=(task,)), None))
    other = dataclasses.replace(task, task_id="u", actor_id="a3")
    both = build(evidence(one, two, three, ray_actors=actors, ray_tasks=(task, other)), None)
    assert ("1", "2") not in edges(both) and ("1", "3") not in edges(both)
    done = dataclasses.replace(told, state="FINISHED")
    assert edges(build(evidence(one, two, ray_actors=actors, ray_tasks=(done,)), None)) == set()


def test_ray_edges_lead_to_the_host_of_the_task_where_two_hosts_have_the_same_pids():
    here = [process(n, f"Stage{n}", "main_loop work ray.get") for n in (1, 2)]
    there = [dataclasses.replace(one, host="hostb") for one in here]
    task = RayTask("t", "Stage.work", "RUNNING", 5.0, "hostb", 2, "", 1, caller_host=HOST)
    graph = build(evidence(*here, *there, ray_tasks=(task,)), None)
    assert {(wait.waiter, wait.target) for wait in graph.waits if wait.layer == "ray"} == {(f"{HOST}:1", "hostb:2")}
    unseen = build(evidence(*here, ray_tasks=(task,)), None)
    assert not edges(unseen, "ray"), "the process that runs it was not looked at, and another has its number"


def test_http_edges_follow_the_connection_not_the_collectives():
    client = process(1, "trainer", "main getresponse", peers=("127.0.0.1:9001", "127.0.0.1:7000"))
    server = process(2, "engine", "main serve_forever", listening=("127.0.0.1:9001",))
    peer = rank(0, WAIT, listening=("127.0.0.1:7000",))
    assert edges(build(evidence(client, server, peer), None), "http") == {("1", "2")}


def advances(first, last=None, **more):
    graph = build(evidence(rank(0, first, last, **more)), None)
    return graph.subjects[f"{HOST}:100"].progress


@pytest.mark.parametrize(
    "seen",
    [
        ("main:1 work", "main:1 work", {"cpu_s": 0.9}),
        ("main:1 work", "main:1 work", {"io_bytes": 50_000}),
        ("main:1 load:3 parse", "main:1 load:4 parse", {}),
        ("main:1 load", "main:1 tokenize", {}),
        ("main:1 a", "main:2 a", {}),
    ],
)
def test_progress(seen):
    first, last, more = seen
    assert advances(first, last, **more)


@pytest.mark.parametrize(
    "seen",
    [
        ("main:1 work:5", "main:1 work:5", {}),
        ("main:1 poll:5", "main:1 poll:6", {"cpu_s": 0.05}),  # a loop that polls is where it was
        ("main event_loop receive", "main event_loop next_batch", {"cpu_s": 1.5}),  # schedulers poll at full speed
        ("main:1 step:2 all_reduce", "main:1 step:2 all_reduce", {"cpu_s": 1.5}),  # NCCL's waiters spin
        ("main:1 beat", "main:1 beat", {"io_bytes": 6_144}),  # the heartbeat's own writes
        ("main:1 work", "main:2 work", {"state": "T", "stale_s": 30.0}),
    ],
)
def test_no_progress(seen):
    first, last, more = seen
    assert not advances(first, last, **more)


def test_a_single_look_shows_no_progress():
    seen = rank(0, "main work", cpu_s=1.5)
    graph = build(evidence(dataclasses.replace(seen, samples=seen.samples[-1:])), None)
    assert not graph.subjects[seen.key].progress

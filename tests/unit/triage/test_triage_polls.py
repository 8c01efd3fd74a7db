"""Waits whose end somebody unknown has to bring: nobody is named, and nothing healthy is called hung."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import compared, evidence, frames, group, process, rank

from harness.triage import source, stacks
from harness.triage.collect import channels, connections, traffic
from harness.triage.evidence import Beat, Frame, Maker, Process
from harness.triage.graph.polling import polled_in
from harness.triage.judge import triage
from harness.triage.source import Loop
from reports.model import Verdict

PROGRAM = """
def until(path):
    while not path.exists():
        time.sleep(2)

def retries(url):
    while True:
        try:
            return ask(url)
        except OSError:
            time.sleep(2)

def attempts():
    for attempt in range(60):
        if ready():
            break
        time.sleep(1)

def kept():
    while True:
        time.sleep(1)

def rounds():
    for step in range(60):
        time.sleep(1)

def once():
    time.sleep(600)

def collects():
    while child.poll() is None:
        time.sleep(1)

def spins():
    while not READY:
        pass

def counts():
    while not READY:
        TOTAL.append(1)
"""
UNTIL, RETRIES, ATTEMPTS, KEPT, ROUNDS, ONCE, COLLECTS, SPINS, COUNTS = 4, 11, 17, 21, 25, 28, 32, 36, 40
NAMES = {UNTIL: "until", RETRIES: "retries", ATTEMPTS: "attempts", KEPT: "kept", ROUNDS: "rounds", ONCE: "once",
         COLLECTS: "collects", SPINS: "spins", COUNTS: "counts"}  # fmt: skip
PACKAGES = "/venv/lib/python3.11/site-packages"
WAIT = "main:10 step:42 all_reduce"
ADDRESS = "127.0.0.1:8000"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def standing(one: Process, *stacks: tuple[Frame, ...], **look: Any) -> Process:
    """The same process with these stacks of its main thread, one for each look, and what the kernel says of it."""
    looks = zip(one.samples, (stacks[0], stacks[-1]), strict=True)
    return dataclasses.replace(one, samples=tuple(
        dataclasses.replace(sample, threads=(dataclasses.replace(sample.threads[0], frames=stack),), **look)
        for sample, stack in looks
    ))  # fmt: skip


def at(file: str, line: int, *inner: Frame) -> tuple[Frame, ...]:
    return (*inner, Frame(NAMES[line], file, line), *frames("main:40"))


def judged(one: Process) -> Verdict:
    """Rank 1 is as given, and rank 0 waits for it in a collective."""
    return triage(evidence(rank(0, WAIT, world=2), one), compared(group("0", {0: (6, "all_reduce"), 1: 5})))


def named(verdict: Verdict) -> set[int | None]:
    return {party.rank for party in verdict.triage.culprits}  # type: ignore[union-attr]


# --- what a poll is


@pytest.mark.parametrize(
    ("line", "loop"),
    [(UNTIL, Loop.UNTIL), (RETRIES, Loop.UNTIL), (ATTEMPTS, Loop.UNTIL), (KEPT, Loop.ENDLESS), (ROUNDS, Loop.ROUNDS),
     (ONCE, Loop.NONE)],
)  # fmt: skip
def test_the_text_says_whether_a_loop_looks_again_until_something_has_come(file: str, line: int, loop: Loop) -> None:
    assert source.loop_around(Frame(NAMES[line], file, line)) is loop
    assert source.loop_around(Frame(NAMES[line], "/nonexistent.py", line)) is Loop.UNKNOWN


@pytest.mark.parametrize("line", [UNTIL, RETRIES, ATTEMPTS, ROUNDS])
@pytest.mark.parametrize("look", [{"wchan": "hrtimer_nanosleep"}, {"timed": True}])
def test_a_rank_that_polls_is_no_dead_peer(file: str, line: int, look: dict[str, Any]) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, line), **look))
    assert verdict.verdict == "INSUFFICIENT" and not named(verdict)
    assert any("rank 1" in missing for missing in verdict.missing)


def between(one: Process, *, switches: int = 0, delay_s: float = 0.0, **look: Any) -> Process:
    """The same process, whose main thread woke up so often between the looks, and waited so long for a processor."""
    looks = (
        dataclasses.replace(each, main_switches=5 + switches * number, main_delay_s=delay_s * number, **look)
        for number, each in enumerate(one.samples)
    )
    return dataclasses.replace(one, samples=tuple(looks))


@pytest.mark.parametrize(("line", "switches", "blamed"), [(UNTIL, 35, False), (UNTIL, 0, True), (KEPT, 35, True)])
def test_a_short_sleep_of_a_loop_may_be_met_by_no_look(file: str, line: int, switches: int, blamed: bool) -> None:
    """The controls: a loop that does not wake up, and one that looks for nothing."""
    verdict = judged(between(standing(rank(1, "main", world=2), at(file, line)), switches=switches))
    assert named(verdict) == ({1} if blamed else set())


@pytest.mark.parametrize(("line", "verdict"), [(SPINS, "INSUFFICIENT"), (COUNTS, "SLOW")])
def test_a_loop_that_only_asks_its_condition_does_no_work(file: str, line: int, verdict: str) -> None:
    """The control: a loop whose body may bring what its condition asks for."""
    one = standing(rank(1, "main", world=2), at(file, line))
    busy = (dataclasses.replace(look, cpu_s=0.9 * look.at_s, state="R") for look in one.samples)
    found = judged(dataclasses.replace(one, samples=tuple(busy)))
    assert found.verdict == verdict and not named(found)


@pytest.mark.parametrize(("wchan", "polls"), [("anon_pipe_read", False), ("", True)])
def test_a_loop_whose_condition_waits_in_the_kernel_does_not_poll(file: str, wchan: str, polls: bool) -> None:
    """`while os.read(pipe, 10): pass` has asked once, and has no answer yet."""
    one = standing(rank(1, "main", world=2), at(file, SPINS))
    looks = tuple(dataclasses.replace(look, wchan=wchan) for look in one.samples)
    process = dataclasses.replace(one, samples=looks)
    assert bool(polled_in(process, stacks.Doing("user"), stacks.Doing("user"))) is polls


@pytest.mark.parametrize("look", [{"state": "R"}, {"delay_s": 1.3}])
@pytest.mark.parametrize(("line", "verdict"), [(UNTIL, "INSUFFICIENT"), (ONCE, "SLOW")])
def test_who_polls_on_a_busy_host_does_no_work(file: str, line: int, verdict: str, look: dict[str, Any]) -> None:
    """The control: a process that does not poll, and gets no processor."""
    one = standing(rank(1, "main", world=2), at(file, line), timed=line == UNTIL)
    assert judged(between(one, switches=35, **look)).verdict == verdict


@pytest.mark.parametrize("line", [UNTIL, ATTEMPTS, ROUNDS])
def test_a_rank_that_others_wait_for_is_not_said_to_wait(file: str, line: int) -> None:
    """A loop that sleeps may be its work."""
    verdict = judged(standing(rank(1, "main", world=2), at(file, line), wchan="hrtimer_nanosleep"))
    assert "rank 1" in verdict.reason and not re.search(r"rank 1\b.* waits?\b", verdict.reason)


@pytest.mark.parametrize("sought", [("/data/ready",), ()])
def test_a_program_that_polls_alone_is_named_with_its_place_and_what_it_looks_for(
    file: str, sought: tuple[str, ...]
) -> None:
    look = {"wchan": "hrtimer_nanosleep"}
    alone = between(standing(process(9, "process", "main"), at(file, UNTIL), **look), switches=3, **look)
    verdict = triage(evidence(dataclasses.replace(alone, sought=sought, beat=None), stall_s=0.0, source="live"))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert "train.py:4" in verdict.reason and verdict.triage.place == "train.py:4 in until"
    if sought:
        assert "/data/ready" in verdict.reason and "/data/ready" in verdict.triage.next[0]
    else:
        assert any("not path.exists()" in line for line in verdict.evidence)


def test_who_may_make_what_a_program_alone_looks_for_is_named(file: str) -> None:
    look = {"wchan": "hrtimer_nanosleep"}
    alone = between(standing(process(9, "process", "main"), at(file, UNTIL), **look), switches=3, **look)
    alone = dataclasses.replace(alone, sought=("/data/ready",), beat=None)
    maker = Maker(alone.host, "/data/ready", 77, "bash make.sh", "writes it", exact=True)
    answer = triage(evidence(alone, stall_s=0.0, source="live", makers=(maker,)))
    assert answer.verdict == "INSUFFICIENT" and "77" in answer.reason
    assert not any("no process is seen" in line for line in answer.evidence)


@pytest.mark.parametrize(("line", "waits"), [(UNTIL, True), (ROUNDS, False)])
def test_of_ranks_that_poll_that_which_looks_for_something_is_said_to_wait(file: str, line: int, waits: bool) -> None:
    """Nobody waits for rank 1, and rank 0 waits for nobody who is known."""
    poller = standing(rank(1, "main", world=2), at(file, line), wchan="hrtimer_nanosleep")
    verdict = triage(evidence(rank(0, "main score getresponse", world=2, peers=(ADDRESS,)), between(poller)), None)
    assert verdict.verdict == "INSUFFICIENT" and bool(re.search(r"rank 1\b.* waits?\b", verdict.reason)) is waits


@pytest.mark.parametrize(("line", "looks"), [(UNTIL, True), (ATTEMPTS, True), (ROUNDS, False)])
def test_a_loop_of_rounds_that_sleeps_is_not_said_to_look_for_anything(file: str, line: int, looks: bool) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, line), wchan="hrtimer_nanosleep"))
    assert verdict.triage is not None
    assert any("looks for" in text for text in (*verdict.missing, *verdict.triage.next)) is looks


@pytest.mark.parametrize("line", [KEPT, ONCE])
def test_a_rank_that_looks_for_nothing_is_named(file: str, line: int) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, line), wchan="hrtimer_nanosleep"))
    assert verdict.verdict == "HUNG" and named(verdict) == {1}


def test_a_blocking_wait_in_such_a_loop_is_no_poll(file: str) -> None:
    verdict = judged(standing(rank(1, "main", world=2), at(file, UNTIL), wchan="futex_do_wait"))
    assert verdict.verdict == "HUNG" and named(verdict) == {1}


@pytest.mark.parametrize(("woken", "verdict"), [(2, "INSUFFICIENT"), (0, "HUNG")])
def test_without_its_text_a_sleep_that_wakes_up_may_be_a_poll(woken: int, verdict: str) -> None:
    one = standing(rank(1, "main", world=2), frames("main:40 wait:4"), wchan="hrtimer_nanosleep", main_switches=9)
    last = dataclasses.replace(one.samples[-1], main_switches=9 + woken)
    assert judged(dataclasses.replace(one, samples=(one.samples[0], last))).verdict == verdict


def test_what_a_poll_does_between_its_sleeps_is_no_progress(file: str) -> None:
    asks = at(file, UNTIL, *frames("get:7 getresponse"))
    one = rank(1, "main", world=2)
    for pair in ((at(file, UNTIL), asks), (asks, at(file, UNTIL))):
        verdict = judged(standing(one, *pair, timed=True))
        assert verdict.verdict == "INSUFFICIENT" and not named(verdict)


def test_a_request_that_is_not_answered_is_no_poll(file: str) -> None:
    stack = at(file, UNTIL, *frames("get:7 getresponse"))
    asks = standing(dataclasses.replace(rank(1, "main", world=2), peers=(ADDRESS,)), stack, timed=True)
    server = process(70, "tool", "main serve_forever select", listening=(ADDRESS,))
    told = triage(evidence(rank(0, WAIT, world=2), asks, server), compared(group("0", {0: (6, "all_reduce"), 1: 5})))
    assert told.verdict == "HUNG" and [party.key for party in told.triage.culprits] == [server.key]  # type: ignore[union-attr]


def test_a_rank_that_polls_before_it_joins_a_group_is_not_named(file: str) -> None:
    joins = [rank(number, "main init_process_group", world=3) for number in (0, 2)]
    for line, verdict in ((UNTIL, "INSUFFICIENT"), (ONCE, "HUNG")):
        one = standing(rank(1, "main", world=3), at(file, line), wchan="hrtimer_nanosleep")
        told = triage(evidence(*joins, one), None)
        assert told.verdict == verdict and named(told) == (set() if line == UNTIL else {1})


def test_a_parent_that_asks_whether_its_children_have_ended_waits_for_them(file: str) -> None:
    assert source.asks_for_children(Frame("collects", file, COLLECTS))
    assert not source.asks_for_children(Frame("until", file, UNTIL))


# --- engines that wait for orders


def engine(core: str, **look: Any) -> Verdict:
    """A core, and its two workers, which poll a socket of a library of messages and are connected to each other."""
    poll = "worker_busy_loop:1 zmq.poll"
    ends = ("127.0.0.1:1001", "127.0.0.1:1002")
    workers = [
        process(
            50 + number,
            "worker",
            poll,
            ppid=40,
            engine="vllm",
            listening=ends[number : number + 1],
            peers=ends[1 - number : 2 - number],
            wchan="poll_schedule_timeout",
        )
        for number in range(2)
    ]
    workers = [dataclasses.replace(one, samples=tuple(dataclasses.replace(its, **look) for its in one.samples))
               for one in workers]  # fmt: skip
    return triage(evidence(process(40, "enginecore", core, engine="vllm"), *workers, source="live", stall_s=0.0))


@pytest.mark.parametrize("look", [{}, {"polled": ("anon_inode:[eventfd]",)}])
def test_workers_that_poll_for_orders_are_no_ring_of_calls(look: dict[str, Any]) -> None:
    assert engine("run_busy_loop zmq.poll", **look).verdict == "HEALTHY"


def test_idle_workers_owe_no_answer_that_is_known() -> None:
    verdict = engine("run_busy_loop get_response zmq.poll zmq.poll")
    assert verdict.verdict == "INSUFFICIENT" and not named(verdict) and len(verdict.missing) >= 2
    assert "worker (" not in verdict.reason, "either of them may have lost its answer"


def woken(one: Process) -> Process:
    first, last = (dataclasses.replace(look, main_switches=9 * at) for at, look in enumerate(one.samples, 1))
    return dataclasses.replace(one, samples=(first, last))


def test_a_core_that_polls_for_its_idle_workers_is_not_healthy(file: str) -> None:
    core = woken(standing(process(40, "core", "main"), at(file, UNTIL), wchan="hrtimer_nanosleep"))
    workers = [process(50 + number, "worker", "worker_busy_loop", ppid=40) for number in range(2)]
    assert triage(evidence(core, *workers), None).verdict == "INSUFFICIENT"
    pauses = standing(process(40, "core", "main"), at(file, ATTEMPTS), wchan="hrtimer_nanosleep")
    assert triage(evidence(pauses, *workers), None).verdict == "HEALTHY"
    launcher = woken(standing(process(40, "core", "main"), at(file, COLLECTS), wchan="hrtimer_nanosleep"))
    assert triage(evidence(launcher, *workers), None).verdict == "HEALTHY"


RING = ("/dev/shm/psm_1",)


def test_a_core_that_polls_memory_of_idle_workers_waits_for_their_answer(file: str) -> None:
    core = woken(standing(process(40, "core", "main", shared=RING), at(file, UNTIL), wchan="hrtimer_nanosleep"))
    workers = [process(50, "first", "worker_busy_loop", ppid=40, shared=RING),
               process(51, "other", "worker_busy_loop", ppid=40, shared=("/dev/shm/psm_2",))]  # fmt: skip
    verdict = triage(evidence(core, *workers), None)
    assert verdict.verdict == "INSUFFICIENT" and not named(verdict)
    assert [missing for missing in verdict.missing if "answer" in missing] == [
        "the last order and answer of first (node0:50)"
    ]


TWO_RINGS = ("/dev/shm/psm_1", "/dev/shm/psm_2")


@pytest.mark.parametrize(
    ("touched", "missing"),
    [((), {"first", "other"}), (TWO_RINGS, {"first", "other"}), (("/dev/shm/psm_2",), {"other"})],
)
def test_the_memory_that_a_core_polls_tells_whose_answer_is_missing(
    file: str, touched: tuple[str, ...], missing: set[str]
) -> None:
    core = process(40, "core", "main", shared=TWO_RINGS, touched=touched)
    core = woken(standing(core, at(file, UNTIL), wchan="hrtimer_nanosleep"))
    workers = [process(50, "first", "worker_busy_loop", ppid=40, shared=TWO_RINGS[:1]),
               process(51, "other", "worker_busy_loop", ppid=40, shared=TWO_RINGS[1:])]  # fmt: skip
    verdict = triage(evidence(core, *workers), None)
    assert verdict.verdict == "INSUFFICIENT" and not named(verdict)
    answers = [words.partition("answer of ")[2] for words in verdict.missing if "answer of" in words]
    assert {words.split()[0] for words in answers} == missing
    assert ("other" in verdict.reason) is (missing == {"other"}) and "first" not in verdict.reason


def test_memory_that_no_idle_worker_shares_tells_of_no_answer(file: str) -> None:
    core = process(40, "core", "main", shared=TWO_RINGS, touched=("/dev/shm/psm_2",))
    core = woken(standing(core, at(file, UNTIL), wchan="hrtimer_nanosleep"))
    workers = [process(50, "first", "worker_busy_loop", ppid=40, shared=TWO_RINGS[:1]),
               process(51, "other", "main:3 plan:7", ppid=40, shared=TWO_RINGS[1:])]  # fmt: skip
    verdict = triage(evidence(core, *workers), None)
    assert not named(verdict) and not any("answer of" in words for words in verdict.missing)


@pytest.mark.parametrize(
    ("stack", "verdict"), [("main requests queue.get", "HEALTHY"), ("main:3 plan:7", "INSUFFICIENT")]
)
def test_a_rank_that_polls_memory_of_an_idle_process_waits_for_orders(file: str, stack: str, verdict: str) -> None:
    ranks = [
        woken(standing(rank(number, "main", world=2, shared=RING), at(file, UNTIL), wchan="hrtimer_nanosleep"))
        for number in range(2)
    ]
    front, core = process(30, "front", "main:3 think:9"), process(40, "core", stack, ppid=30, shared=RING)
    assert (
        triage(evidence(front, core, *ranks), None).verdict == "INSUFFICIENT"
    )  # either may owe the other one something
    apart = [dataclasses.replace(each, shared=(f"/dev/shm/psm_{each.rank}",)) for each in ranks]
    core = dataclasses.replace(core, shared=tuple(name for each in apart for name in each.shared))
    assert triage(evidence(front, core, *apart), None).verdict == verdict


# --- answers that come in pieces


@pytest.mark.parametrize(("age_s", "verdict"), [(4.0, "SLOW"), (14.0, "SLOW"), (29.0, "HUNG"), (None, "HUNG")])
def test_a_server_whose_pieces_came_within_the_stall_is_slow(age_s: float | None, verdict: str) -> None:
    asks = rank(1, "main score getresponse", world=2, peers=(ADDRESS,))
    heard = () if age_s is None else ((ADDRESS, age_s),)
    looks = tuple(dataclasses.replace(look, heard=heard) for look in asks.samples)
    server = process(70, "tool", "main serve_forever select", listening=(ADDRESS,))
    told = triage(
        evidence(rank(0, WAIT, world=2), dataclasses.replace(asks, samples=looks), server),
        compared(group("0", {0: (6, "all_reduce"), 1: 5})),
    )
    assert told.verdict == verdict


@pytest.mark.parametrize("line", [UNTIL, ROUNDS])
def test_one_read_in_a_loop_around_it_is_no_poll(file: str, line: int) -> None:
    """A loop of steps, in one of which an answer comes in pieces: who sends it is known."""
    reads = Frame("readinto", "/usr/lib/python3.11/socket.py", 718)
    asks = standing(rank(1, "main", world=2, peers=(ADDRESS,)), at(file, line, reads), timed=True, polled=(ADDRESS,),
                    heard=((ADDRESS, 0.1),))  # fmt: skip
    server = process(70, "tool", "main serve_forever select", listening=(ADDRESS,))
    verdict = triage(evidence(rank(0, WAIT, world=2), asks, server), compared(group("0", {0: (6, "all_reduce"), 1: 5})))
    assert verdict.verdict == "SLOW" and not named(verdict)


def test_the_kernel_tells_when_data_came_from_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_kept", traffic.NO_ANSWER)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        there, _ = server.accept()
        with there:
            client.sendall(b"question")
            assert there.recv(8, socket.MSG_WAITALL) == b"question"
            inodes = {str(os.fstat(end.fileno()).st_ino) for end in (client, there)}
            heard, owed = traffic.heard(inodes), traffic.owed(inodes)
            address = "{}:{}".format(*server.getsockname())
            if not traffic.peers(inodes):
                pytest.skip("this kernel does not answer socket diagnostics")
    assert owed == (address,)
    assert address not in heard and len(heard) == 1 and 0 <= next(iter(heard.values())) < 60


def test_a_peer_that_has_answered_owes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        there, _ = server.accept()
        with there:
            client.sendall(b"question")
            assert there.recv(8, socket.MSG_WAITALL) == b"question"
            time.sleep(0.05)  # the kernel counts milliseconds
            there.sendall(b"answer")
            assert client.recv(6, socket.MSG_WAITALL) == b"answer"
            monkeypatch.setattr(traffic, "_kept", traffic.NO_ANSWER)
            assert traffic.owed({str(os.fstat(client.fileno()).st_ino)}) == ()


# --- a queue that is not drained


def joined(**fields: Any) -> Verdict:
    parent = rank(1, "main rewards communicate", world=2)
    child = process(200, "judge", "main lock.wait", ppid=parent.pid, **fields)
    child = dataclasses.replace(child, samples=tuple(dataclasses.replace(look, writing="pipe:[7]")
                                                     for look in child.samples))  # fmt: skip
    return triage(evidence(rank(0, WAIT, world=2), parent, child), compared(group("0", {0: (6, "all_reduce"), 1: 5})))


def test_who_joins_a_child_whose_full_pipe_it_alone_reads_is_named() -> None:
    verdict = joined(reader=101)
    assert verdict.verdict == "HUNG" and named(verdict) == {1}


@pytest.mark.parametrize("reader", [0, 100])
def test_a_full_pipe_that_somebody_else_may_read_names_nobody(reader: int) -> None:
    verdict = joined(reader=reader)
    assert verdict.verdict == "INSUFFICIENT" and not named(verdict)


# --- what the kernel says of a wait


@pytest.mark.parametrize(
    ("call", "timed"),
    [
        ("230 0x1 0x0 0x7f", True),  # clock_nanosleep
        ("202 0x1 0x0 0x0 0x0", False),  # futex
        ("202 0x1 0x0 0x0 0x7f", True),
        ("7 0x1 0x1 0x3e8", True),  # poll
        ("7 0x1 0x1 0xffffffff", False),
        ("running", False),
    ],
)
def test_a_sleep_and_a_wait_with_a_limit_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, timed: bool
) -> None:
    monkeypatch.setattr(channels, "PROC", tmp_path)
    monkeypatch.setattr(channels, "_CLOCK_SLEEP", 230)
    monkeypatch.setattr(channels, "_TIMEOUT_AT", {202: 3, 7: 2})
    monkeypatch.setattr(channels, "_MILLISECONDS", (7,))
    monkeypatch.setattr(channels, "_POLLS", ())
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "syscall").write_text(call if call == "running" else f"{call} 0x0 0x0 0x0 0x0 0x0 0x0")
    assert channels.waiting(1).timed is timed
    assert channels.waiting(2) == channels.Waiting()


def test_who_can_read_a_pipe_is_known(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    link = os.readlink(f"/proc/self/fd/{reader}")
    try:
        assert channels.readers({os.getppid(): link}, connections.Sockets()) == {os.getppid(): {os.getpid()}}
        assert channels.readers({os.getpid(): link}, connections.Sockets()) == {os.getpid(): set()}
    finally:
        os.close(reader)
        os.close(writer)


SENDING = {"wchan": "sock_alloc_send_pskb", "writing": "socket:[7]"}


def sends(reader: int, stack: str, **look: Any) -> Verdict:
    """What is said of a rank that sends to a Unix socket which a consumer reads."""
    one = rank(1, "main push:4", world=2, reader=reader)
    one = dataclasses.replace(one, samples=tuple(dataclasses.replace(each, **SENDING) for each in one.samples))
    consumer = process(200, "consumer", stack)
    consumer = dataclasses.replace(consumer, samples=tuple(dataclasses.replace(each, **look)
                                                           for each in consumer.samples))  # fmt: skip
    return triage(evidence(rank(0, WAIT, world=2), one, consumer), compared(group("0", {0: (6, "all_reduce"), 1: 5})))


@pytest.mark.parametrize(("reader", "sleeps_s", "culprits"), [
    (0, None, []), (200, 3.0, []), (200, 1e8, ["node0:200"]),
])  # fmt: skip
def test_who_sends_to_a_full_socket_waits_for_its_reader(
    reader: int, sleeps_s: float | None, culprits: list[str]
) -> None:
    """Nobody is named where that one is not known, or may read again."""
    verdict = sends(reader, "main pause", wchan="hrtimer_nanosleep", timed=True, sleeps_s=sleeps_s)
    assert verdict.triage is not None and [party.key for party in verdict.triage.culprits] == culprits
    assert verdict.verdict == ("HUNG" if culprits else "INSUFFICIENT")


READING = {"reading": "socket:[7]", "wchan": "unix_stream_read_generic"}


@pytest.mark.parametrize(("look", "switches", "verdict"), [
    (READING, 1, "SLOW"), (READING, 0, "HUNG"), (SENDING, 1, "SLOW"), (SENDING, 0, "INSUFFICIENT"),
])  # fmt: skip
def test_who_wakes_up_at_a_socket_and_waits_there_again_gets_on(
    look: dict[str, Any], switches: int, verdict: str
) -> None:
    """The controls: one that does not wake up, where nobody else is seen at its socket."""
    one = standing(rank(1, "main", world=2), frames("main push:4"), **look)
    one = between(one, switches=switches)
    assert judged(one).verdict == verdict
    if switches:  # A native stack was taken before the last two looks.
        again = dataclasses.replace(one.samples[-1], at_s=3.0)
        assert judged(dataclasses.replace(one, samples=(*one.samples, again))).verdict != "SLOW"


@pytest.mark.parametrize(("fed", "verdict"), [(True, "INSUFFICIENT"), (False, "HUNG")])
def test_a_rank_that_reads_what_another_process_writes_waits_for_that_one(fed: bool, verdict: str) -> None:
    told = judged(rank(1, "main pipe.recv", world=2, fed=fed))
    assert told.verdict == verdict and named(told) == (set() if fed else {1})


@pytest.mark.parametrize(("woken", "verdict"), [(3, "INSUFFICIENT"), (0, "HUNG")])
def test_a_loader_whose_workers_stand_is_named(tmp_path: Path, woken: int, verdict: str) -> None:
    loader = tmp_path / "torch" / "utils" / "data" / "dataloader.py"
    loader.parent.mkdir(parents=True)
    loader.write_text(PROGRAM.replace("def until", "def _get_data"))
    stack = (*frames("pipe.poll"), Frame("_get_data", str(loader), UNTIL), *frames("main:40"))
    one = standing(rank(1, "main", world=2), stack, timed=True)
    worker = process(200, "process", "main:9 decode:4", ppid=one.pid)
    first, last = worker.samples
    looks = (dataclasses.replace(first, main_switches=5), dataclasses.replace(last, main_switches=5 + woken))
    told = triage(
        evidence(rank(0, WAIT, world=2), one, dataclasses.replace(worker, samples=looks)),
        compared(group("0", {0: (6, "all_reduce"), 1: 5})),
    )
    assert told.verdict == verdict


@pytest.mark.parametrize(("progress_s", "verdict"), [(0.7, "INSUFFICIENT"), (31.0, "HUNG")])
def test_a_rank_that_its_heartbeat_saw_move_lately_is_no_dead_peer(progress_s: float, verdict: str) -> None:
    """Of a job that fetches each batch from its own loader: a look falls between two steps."""
    peers = group("0", {0: (41, "all_reduce"), 1: None})
    outside = rank(1, "train.py:18 trainer", world=2, beat=Beat(90, 0.7, progress_s, wait="lock"))
    found = triage(evidence(rank(0, WAIT, world=2), outside, threshold_s=15.0), compared(peers))
    assert found.verdict == verdict, found.account

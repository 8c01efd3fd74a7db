"""Processes that read from each other's pipes or sockets: nobody is left who could write."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from triage_evidence import evidence, frames, process
from waiting import until

from harness.triage import judge
from harness.triage.collect import channels, connections
from harness.triage.evidence import Process, Thread
from reports.model import Verdict

CLIENT, SERVER, THIRD = 1, 2, 3
WORKS = "main:6 serve_forever handle:9"


def reader(pid: int, *writers: int, link: str = "socket:[7]", **fields: object) -> Process:
    """A process whose only thread reads throughout, without a limit, what `writers` can write."""
    look = {"reading": link, "reads_for_ever": True, "alone": True, "wchan": "wait_woken", **fields}
    its = process(pid, "process", f"main:{pid} ask:{pid}")
    others = [writer for writer in writers if writer != pid]
    return dataclasses.replace(
        its,
        samples=tuple(dataclasses.replace(sample, **look) for sample in its.samples),  # type: ignore[arg-type]
        writers=writers,
        writer=others[0] if writers == (*others,) and len(others) == 1 else 0,
        fed=bool(others),
        own_pipe=writers == (pid,),
    )


def judged(*processes: Process, stall_s: float = 0.0) -> Verdict:
    return judge.triage(evidence(*processes, source="live", stall_s=stall_s))


@pytest.mark.parametrize("link", ["socket:[7]", "pipe:[7]"])
@pytest.mark.parametrize("kept", [False, True], ids=["each has its end", "forked, with both ends"])
def test_two_that_read_from_each_other_never_go_on(link: str, kept: bool) -> None:
    both = (CLIENT, SERVER)
    verdict = judged(
        reader(CLIENT, *(both if kept else (SERVER,)), link=link),
        reader(SERVER, *(both if kept else (CLIENT,)), link=link),
    )
    its = verdict.triage
    assert its is not None and (verdict.verdict, its.hang) == ("HUNG", "K6"), verdict.reason
    assert len(its.cycle) == 2 and not its.culprits
    assert link.partition(":")[0] in " ".join(verdict.evidence)
    assert all(f"train.py:{pid}" in its.place for pid in both)


def of_multiprocessing(pid: int, *writers: int, beside: str = "", **fields: object) -> Process:
    """A process with native threads, whose main thread reads a connection of multiprocessing."""
    its = reader(pid, *writers, alone=False, **fields)
    main = Thread("MainThread", pid, frames(f"main:{pid} queue.get pipe.recv"), main=True)
    threads = (main, *([Thread("T1", 70, frames(beside))] if beside else []))
    return dataclasses.replace(its, samples=tuple(dataclasses.replace(look, threads=threads) for look in its.samples))


@pytest.mark.parametrize(
    ("client", "verdict"),
    [
        (of_multiprocessing(CLIENT, CLIENT, SERVER), "HUNG"),
        (of_multiprocessing(CLIENT, CLIENT, SERVER, beside="run:80 produce:90 lock.wait"), "INSUFFICIENT"),
        (of_multiprocessing(CLIENT, CLIENT, SERVER, handles=("SIGALRM",)), "INSUFFICIENT"),
        (of_multiprocessing(CLIENT, CLIENT, SERVER, THIRD), "INSUFFICIENT"),  # which was not looked at
    ],
)
def test_native_threads_write_to_no_connection_of_multiprocessing(client: Process, verdict: str) -> None:
    judgement = judged(client, reader(SERVER, CLIENT))
    its = judgement.triage
    assert its is not None and judgement.verdict == verdict, judgement.reason
    assert len(its.cycle) == (2 if verdict == "HUNG" else 0) and not its.culprits


@pytest.mark.parametrize("locked", [True, False])
def test_a_writer_that_waits_for_a_lock_of_its_own_keeps_its_reader(locked: bool) -> None:
    """A child that was forked beside a pool of threads, and waits for one of them: the fork copied none."""
    child = dataclasses.replace(process(SERVER, "process", "work:7 lock.wait", ppid=CLIENT))
    looks = tuple(dataclasses.replace(look, locked_alone=locked, wchan="futex_do_wait") for look in child.samples)
    verdict = judged(of_multiprocessing(CLIENT, CLIENT, SERVER), dataclasses.replace(child, samples=looks))
    assert verdict.triage is not None
    assert {party.pid for party in verdict.triage.culprits} == ({SERVER} if locked else set()), verdict.reason


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param((reader(CLIENT, SERVER, timed=True, reads_for_ever=False), reader(SERVER, CLIENT)), id="a limit"),
        pytest.param((reader(CLIENT, SERVER, alone=False), reader(SERVER, CLIENT)), id="a thread beside"),
        pytest.param((reader(CLIENT, SERVER, handles=("SIGALRM",)), reader(SERVER, CLIENT)), id="a handler"),
        pytest.param(
            (reader(CLIENT, SERVER), reader(SERVER, CLIENT), process(THIRD, "process", WORKS, cpu_s=1.4)),
            id="the job moves",
        ),
    ],
)
def test_two_that_read_from_each_other_are_no_pass(processes: tuple[Process, ...]) -> None:
    verdict = judged(*processes)
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    assert all(f"({host})" in verdict.reason for host in ("node0:1", "node0:2")), verdict.reason
    assert "socket" in verdict.triage.place


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param(
            (reader(CLIENT, SERVER), process(SERVER, "process", "main:3 work:4")), id="the other one reads not"
        ),
        pytest.param((reader(CLIENT, SERVER), reader(SERVER, 9)), id="the other one reads from outside"),
        pytest.param(
            (reader(CLIENT, SERVER, THIRD), reader(SERVER, CLIENT), process(THIRD, "process", "main:3 work:4")),
            id="a third one can write",
        ),
        pytest.param((reader(CLIENT), reader(SERVER)), id="who writes is not known"),
    ],
)
def test_a_read_that_somebody_else_may_end_is_not_called_hung(processes: tuple[Process, ...]) -> None:
    assert judged(*processes).verdict != "HUNG"


PEER = "127.0.0.1:8000"


@pytest.mark.parametrize("owed", [(PEER,), ()])
def test_a_server_that_listens_no_more_is_told_and_not_blamed(owed: tuple[str, ...]) -> None:
    """Either end may have sent last: a server its answer, a client its question."""
    client = reader(CLIENT, SERVER, reads_from=PEER, owed=owed, timed=True, reads_for_ever=False, wchan="do_poll")
    server = process(SERVER, "process", "main:3 work:4")
    its = judged(dataclasses.replace(client, peers=(PEER,)), server)
    assert its.verdict == "INSUFFICIENT" and its.triage is not None and not its.triage.culprits, its.reason
    assert any(f"node0:{SERVER}" in line and "train.py:4" in line for line in its.evidence), its.evidence


def test_who_serves_is_found_by_the_connection_where_nobody_listens() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    with client, server:
        listener.close()
        serving = subprocess.Popen([sys.executable, "-S", "-c", RECEIVE.format("pass"), str(server.fileno())],
                                   pass_fds=(server.fileno(),))  # fmt: skip
        inode = str(os.fstat(server.fileno()).st_ino)
        server.close()
        with contextlib.ExitStack() as stack:
            stack.callback(serving.wait)
            stack.callback(serving.kill)
            until(lambda: inode in connections.inodes(serving.pid))
            assert connections.Sockets().servers([os.getpid()]) >= {inode}
            assert inode not in connections.Sockets().servers([serving.pid])


RECEIVE = "import socket, sys, struct; end = socket.socket(fileno=int(sys.argv[1])); {}; end.recv(1)"
LIMITED = "end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 500, 0))"
Start = Callable[[str, int], int]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def run(text: str, end: int) -> int:
            job = subprocess.Popen([sys.executable, "-S", "-c", text, str(end)], pass_fds=(end,))
            stack.callback(job.wait)
            stack.callback(job.kill)
            return job.pid

        yield run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "unlimited"),
    [("pass", True), (LIMITED, False), ("end.settimeout(5000)", False)],
    ids=["no limit", "SO_RCVTIMEO", "a timeout"],
)
def test_whether_a_read_from_a_socket_has_a_limit_is_asked_of_the_kernel(
    start: Start, setting: str, unlimited: bool
) -> None:
    mine, its = socket.socketpair()
    with mine, its:
        assert struct.calcsize("ll") == 16
        pid = start(RECEIVE.format(setting), its.fileno())
        until(lambda: bool(channels.reading(pid).link))
        assert channels.reading(pid).unlimited is unlimited

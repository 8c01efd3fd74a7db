"""A server that stands still while its clients' data lies unread."""

from __future__ import annotations

import dataclasses
import os
import socket

import pytest
from triage_evidence import evidence, process, rank

from harness.triage import judge
from harness.triage.collect import traffic
from harness.triage.evidence import Process
from reports.model import Verdict

CLIENT, OTHER, SERVED = "127.0.0.1:40001", "127.0.0.1:40002", ("127.0.0.1:8000",)
Clients = tuple[tuple[str, int], ...]


IDLE, WORKS = "main:6 serve_forever select", "main:6 serve_forever handle:9"


def server(
    *unread: Clients, stack: str = IDLE, unaccepted: tuple[int, int] = (0, 0), pid: int = 100, **fields: object
) -> Process:
    its = process(pid, "process", stack, listening=SERVED, **fields)
    its = dataclasses.replace(its, ppid=int(fields.get("ppid", 0)))  # type: ignore[call-overload]
    looks = zip(its.samples, unread or ((), ()), unaccepted, strict=True)
    changed = (dataclasses.replace(look, unread=clients, unaccepted=count, wchan="inet_csk_accept")
               for look, clients, count in looks)  # fmt: skip
    return dataclasses.replace(its, samples=tuple(changed))


def judged(*processes: Process) -> Verdict:
    return judge.triage(evidence(*processes, source="live", stall_s=0.0))


def test_a_server_that_reads_nothing_is_not_healthy() -> None:
    verdict = judged(server(((CLIENT, 128),), ((CLIENT, 128),)))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    assert verdict.triage.place == "train.py:6 in main"
    assert any("128" in line and CLIENT in line for line in verdict.evidence)


def test_a_server_that_accepts_no_connection_is_not_healthy() -> None:
    verdict = judged(server(unaccepted=(2, 3)))
    assert verdict.verdict == "INSUFFICIENT" and "2 connections" in verdict.reason


def test_a_child_that_has_the_sockets_of_a_server_is_not_named_beside_it() -> None:
    unread = ((CLIENT, 128),), ((CLIENT, 128),)
    verdict = judged(server(*unread), server(*unread, pid=101, ppid=100))
    assert verdict.verdict == "INSUFFICIENT" and "100" in verdict.reason
    assert not any("101" in line for line in verdict.evidence)


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param((server(),), id="nothing unread"),
        pytest.param((server(((CLIENT, 128),), ()),), id="read between the looks"),
        pytest.param((server(((CLIENT, 128),), ((OTHER, 128),)),), id="another client each time"),
        pytest.param((server(((CLIENT, 128),), ((CLIENT, 64),)),), id="read in part"),
        pytest.param((server(((CLIENT, 128),), ((CLIENT, 128),), stack=WORKS, cpu_s=1.4),), id="a server at work"),
        pytest.param((server(unaccepted=(1, 0)),), id="accepted between the looks"),
        pytest.param(
            (server(unaccepted=(1, 1)), server(pid=101, stack=WORKS, cpu_s=1.4)), id="another worker at the same port"
        ),
        pytest.param((dataclasses.replace(server(((CLIENT, 8),), ((CLIENT, 8),)), rank=0, world_size=1),), id="a rank"),
    ],
)
def test_a_server_that_reads_on_is_none(processes: tuple[Process, ...]) -> None:
    assert judged(*processes).verdict == "HEALTHY"


def test_a_rank_that_waits_for_a_mute_server_is_told_so() -> None:
    asks = dataclasses.replace(rank(0, "main score:3 getresponse", world=1), peers=SERVED)
    verdict = judged(asks, server(((CLIENT, 128),), ((CLIENT, 128),)))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert verdict.triage.place == "train.py:6 in main"


def test_the_kernel_tells_what_a_server_has_not_read_or_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as its, socket.create_connection(its.getsockname()) as client:
        there, (host, port) = its.accept()
        with there, socket.create_connection(its.getsockname()):
            client.sendall(b"question")
            ends = [{str(os.fstat(each.fileno()).st_ino) for each in group} for group in ((its, there), (client,))]
            monkeypatch.setattr(traffic, "_kept", traffic.NO_ANSWER)
            if not traffic.peers(ends[0]):
                pytest.skip("this kernel does not answer socket diagnostics")
            assert traffic.unread(ends[0]) == traffic.Unread(((f"{host}:{port}", 8),), 1)
            assert traffic.unread(ends[1]) == traffic.NOTHING_UNREAD

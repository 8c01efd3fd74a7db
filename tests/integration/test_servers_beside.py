"""A server that was started apart from the job is found by the port of a request, looked at and judged."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until

from harness.triage.collect import channels, connections, traffic
from harness.triage.graph.calls import PIECE_S
from harness.triage.run import triage
from reports.model import Verdict

HEAD = """
import asyncio, queue, socket, subprocess, sys, threading, time
lock = threading.Lock()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
"""
SERVER = f"""{HEAD}
connection, _ = listener.accept()
connection.recv(65536)
{{}}
"""
LOOP = f"""{HEAD}
async def read_on(reader, writer):
    {{}}
async def serve():
    server = await asyncio.start_server(read_on, sock=listener)
    {{}}
    await server.serve_forever()
asyncio.run(serve())
"""
CLIENT = "import sys, urllib.request\nurllib.request.urlopen('http://127.0.0.1:' + sys.argv[1]{0}).read()"
EVENT = "await asyncio.Event().wait()"
NEVER = "unless somebody else connects"
STUCK = {
    "a lock": SERVER.format("lock.acquire(); lock.acquire()"),
    "an empty queue": SERVER.format("queue.Queue().get()"),
}
STUCK_LOOPS = {
    "an event that nobody sets": LOOP.format(EVENT, ""),
    "a timer in an hour": LOOP.format(EVENT, "await asyncio.sleep(3600)"),  # as `run_app` of aiohttp has
}
CHILD = "await (await asyncio.create_subprocess_exec('sleep', '500', stdout=subprocess.PIPE)).stdout.read()"
NOT_NAMED = {
    "it computes": SERVER.format("[sum(range(1000)) for _ in range(10**9)]"),
    "it sleeps and looks again": SERVER.format("[time.sleep(0.3) for _ in range(9999)]"),
}
LOOPS_NOT_NAMED = {
    "a thread of its pool works": LOOP.format("await asyncio.to_thread(time.sleep, 500)", ""),
    "its loop has a timer": LOOP.format(EVENT, "await asyncio.sleep(500)"),
    "a task of its loop ticks": LOOP.format(EVENT, "while True: await asyncio.sleep(0.1)"),
    "it reads from a child": LOOP.format(CHILD, ""),
    # The writer is kept: a StreamWriter that nobody refers to closes its connection, and the task ends unanswered.
    "it asks a server outside the job": LOOP.format(
        "answers, keeps_open = await asyncio.open_connection('127.0.0.1', PORT); await answers.read()", ""
    ),
}


def first_by_day(texts: dict[str, str]) -> list[object]:
    """The texts as parameters. Each takes over ten seconds, and the first shows the kind."""
    return [pytest.param(text, id=name, marks=[pytest.mark.night] if number else [])
            for number, (name, text) in enumerate(texts.items())]  # fmt: skip


@contextmanager
def ended(*command: str, environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, as if started from another shell; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", *command], stdout=-1, text=True, start_new_session=True, env=environ
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def asleep_in_request(process: subprocess.Popen[str]) -> bool:
    return bool(channels.reading(process.pid).link or channels.waiting(process.pid).polled)


def quiet_s(pid: int) -> float:
    """Seconds since data went through the connections of a process."""
    return traffic.of(connections.inodes(pid))[1] or 0.0


def looked(text: str, folder: Path, options: str = "", *, after_s: float = 0.0, **environ: str) -> tuple[Verdict, int]:
    """The verdict on a client alone, and the pid of its server."""
    with ended(text, environ=environ or None) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with ended(CLIENT.format(options), port) as client:
            until(lambda: asleep_in_request(client) and quiet_s(server.pid) >= after_s)
            return triage([str(client.pid)], str(folder / "evidence")), server.pid


@pytest.mark.parametrize("options", ["", ", timeout=3600"])
@pytest.mark.parametrize("text", STUCK.values(), ids=list(STUCK))
def test_whoever_owns_the_port_of_a_request_is_its_server(tmp_path: Path, text: str, options: str) -> None:
    verdict, server = looked(text, tmp_path, options)
    assert verdict.triage is not None and [party.pid for party in verdict.triage.culprits] in ([server], [])
    assert any(str(server) in node.key for node in verdict.triage.nodes)
    assert any(str(server) in wait.target for wait in verdict.triage.waits)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("text", first_by_day(STUCK_LOOPS))
def test_a_server_whose_event_loop_only_a_new_connection_can_wake_is_told_so(tmp_path: Path, text: str) -> None:
    verdict, _ = looked(text, tmp_path, after_s=PIECE_S + 1)
    assert verdict.triage is not None and verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits
    assert NEVER in verdict.account


@pytest.mark.parametrize("text", NOT_NAMED.values(), ids=list(NOT_NAMED))
def test_a_server_that_may_still_answer_is_looked_at_and_not_named(tmp_path: Path, text: str) -> None:
    verdict, server = looked(text, tmp_path)
    assert verdict.triage is not None and verdict.verdict != "HUNG" and not verdict.triage.culprits
    assert any(str(server) in wait.target for wait in verdict.triage.waits)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("text", first_by_day(LOOPS_NOT_NAMED))
def test_a_server_whose_event_loop_something_may_wake_is_not_named(tmp_path: Path, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        verdict, _ = looked(text.replace("PORT", str(outside.getsockname()[1])), tmp_path, after_s=PIECE_S + 1)
    assert verdict.triage is not None and verdict.verdict != "HUNG" and not verdict.triage.culprits
    assert NEVER not in verdict.account


@pytest.mark.night
def test_a_server_beside_which_a_client_waits_for_nothing_is_not_named(tmp_path: Path) -> None:
    """It may send the request that ends the wait of the others."""
    with ended(STUCK_LOOPS["an event that nobody sets"]) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with ended(CLIENT.format(""), port) as client, socket.create_connection(("127.0.0.1", int(port))):
            until(lambda: asleep_in_request(client) and quiet_s(server.pid) > PIECE_S)
            verdict = triage([str(client.pid)], str(tmp_path / "evidence"))
    assert verdict.triage is not None and verdict.verdict != "HUNG" and not verdict.triage.culprits


def test_a_rank_of_another_job_is_not_taken_into_this_one(tmp_path: Path) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29876"}
    verdict, server = looked(STUCK["a lock"], tmp_path, **rank)
    assert verdict.triage is not None and not any(str(server) in node.key for node in verdict.triage.nodes)


def test_a_listener_that_nobody_of_the_job_asks_is_left_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)), ended("import time; time.sleep(600)") as lonely:
        until(lambda: channels.waiting(lonely.pid).timed)
        verdict = triage([str(lonely.pid)], str(tmp_path / "evidence"))
    assert verdict.coverage["processes"] == 1

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

from harness.triage.collect import channels
from harness.triage.run import triage
from reports.model import Verdict

SERVER = """
import asyncio, queue, socket, sys, threading, time
lock = threading.Lock()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def answer():
    connection, _ = listener.accept()
    connection.recv(65536)
    {0}
def read_on(reader, writer):
    return asyncio.Event().wait()
{1}
"""
CLIENT = "import sys, urllib.request\nurllib.request.urlopen('http://127.0.0.1:' + sys.argv[1]{0}).read()"
STUCK = {
    "a lock": ("lock.acquire(); lock.acquire()", "answer()"),
    "an empty queue": ("queue.Queue().get()", "answer()"),
}
NOT_NAMED = {
    "it computes": ("[sum(range(1000)) for _ in range(10**9)]", "answer()"),
    "it sleeps and looks again": ("[time.sleep(0.3) for _ in range(9999)]", "answer()"),
    "its tasks are in no stack": (
        "",
        "async def serve():\n    server = await asyncio.start_server(read_on, sock=listener)\n"
        "    await server.serve_forever()\nasyncio.run(serve())",
    ),
}


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
    return bool(channels.reading(process.pid) or channels.waiting(process.pid).polled)


def looked(text: tuple[str, str], folder: Path, options: str = "", **environ: str) -> tuple[Verdict, int]:
    """The verdict on a client alone, and the pid of its server."""
    with ended(SERVER.format(*text), environ=environ or None) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with ended(CLIENT.format(options), port) as client:
            until(lambda: asleep_in_request(client))
            return triage([str(client.pid)], str(folder / "evidence")), server.pid


@pytest.mark.parametrize("options", ["", ", timeout=3600"])
@pytest.mark.parametrize("text", STUCK.values(), ids=list(STUCK))
def test_whoever_owns_the_port_of_a_request_is_its_server(tmp_path: Path, text: tuple[str, str], options: str) -> None:
    verdict, server = looked(text, tmp_path, options)
    assert verdict.triage is not None and [party.pid for party in verdict.triage.culprits] in ([server], [])
    assert any(str(server) in node.key for node in verdict.triage.nodes)
    assert any(str(server) in wait.target for wait in verdict.triage.waits)


@pytest.mark.parametrize("text", NOT_NAMED.values(), ids=list(NOT_NAMED))
def test_a_server_that_may_still_answer_is_looked_at_and_not_named(tmp_path: Path, text: tuple[str, str]) -> None:
    verdict, server = looked(text, tmp_path)
    assert verdict.triage is not None and verdict.verdict != "HUNG" and not verdict.triage.culprits
    assert any(str(server) in wait.target for wait in verdict.triage.waits)


def test_a_rank_of_another_job_is_not_taken_into_this_one(tmp_path: Path) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29876"}
    verdict, server = looked(STUCK["a lock"], tmp_path, **rank)
    assert verdict.triage is not None and not any(str(server) in node.key for node in verdict.triage.nodes)


def test_a_listener_that_nobody_of_the_job_asks_is_left_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)), ended("import time; time.sleep(600)") as lonely:
        until(lambda: channels.waiting(lonely.pid).timed)
        verdict = triage([str(lonely.pid)], str(tmp_path / "evidence"))
    assert verdict.coverage["processes"] == 1

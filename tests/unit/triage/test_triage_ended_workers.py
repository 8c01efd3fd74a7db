"""A server that takes requests, and whose thread that made the answers has ended without a word."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import evidence, process, rank, wording

from harness.triage import judge, queue_text, source
from harness.triage.evidence import Frame, Process, Thread
from reports.model import Verdict

PROGRAM = """import http.server, queue, threading
jobs = queue.Queue()


def work():
    while True:
        reply = jobs.get()  # takes
        reply.put(answer())  # brings


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        reply = queue.Queue()
        jobs.put(reply)
        reply.get()  # awaits


def serve():
    threading.Thread(target=work, daemon=True).start()
    http.server.ThreadingHTTPServer(ADDRESS, Handler).serve_forever()  # serves
"""
SOCKETSERVER, SERVER = "/usr/lib/python3.11/socketserver.py", "/usr/lib/python3.11/http/server.py"
SELECT = (
    Frame("select", "/usr/lib/python3.11/selectors.py", 415),
    Frame("BaseServer.serve_forever", SOCKETSERVER, 233),
)
GET = (Frame("Condition.wait", "/usr/lib/python3.11/threading.py", 327),
       Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171))  # fmt: skip
REQUEST = (Frame("BaseHTTPRequestHandler.handle_one_request", SERVER, 424),
           Frame("BaseServer.finish_request", SOCKETSERVER, 361),
           Frame("ThreadingMixIn.process_request_thread", SOCKETSERVER, 691))  # fmt: skip
# The function of the main thread's stack calls another one that starts the thread.
STARTED_ELSEWHERE = (
    PROGRAM.replace("def serve():", "def start():") + "\n\ndef serve():\n    start()\n    go()  # serves"
)
ADDRESS = "127.0.0.1:8000"


def line(text: str, marker: str) -> int:
    return next(number for number, part in enumerate(text.splitlines(), 1) if part.endswith(f"# {marker}"))


def judged(folder: Path, text: str = PROGRAM, beside: str = "", wchan: str = "futex_do_wait") -> Verdict:
    """The verdict on a rank that asks the server of this text. `beside`: where a thread of it stands in `work`."""
    program = folder / "server.py"
    program.write_text(text)

    def at(function: str, marker: str) -> Frame:
        return Frame(function, str(program), line(text, marker))

    main = Thread("MainThread", 200, (*SELECT, at("serve", "serves")), main=True, wchan="poll_schedule_timeout")
    handler = Thread("Thread-1", 201, (*GET, at("Handler.do_POST", "awaits"), *REQUEST), wchan="futex_do_wait")
    worker = (Thread("worker", 202, (at("work", beside),), wchan=wchan),) if beside else ()
    server = process(200, "process", "main", listening=(ADDRESS,))
    looks = tuple(
        dataclasses.replace(look, threads=(main, handler, *worker), wchan="poll_schedule_timeout")
        for look in server.samples
    )
    asks: Process = rank(1, "main:31 getresponse", world=2, peers=(ADDRESS,))
    return judge.triage(evidence(dataclasses.replace(server, samples=looks), asks))


def test_a_server_whose_answers_nobody_makes_any_more_is_named(tmp_path: Path) -> None:
    verdict = judged(tmp_path)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4"), verdict.reason
    assert [party.pid for party in verdict.triage.culprits] == [200]
    assert verdict.triage.culprits[0].frame == f"server.py:{line(PROGRAM, 'awaits')} in do_POST"
    assert f"work (server.py:{line(PROGRAM, 'brings')})" in verdict.reason and "no thread runs it" in verdict.reason
    assert "work" in verdict.triage.next[0]


@pytest.mark.parametrize(
    ("text", "beside"),
    [
        pytest.param(PROGRAM, "brings", id="its thread makes an answer"),
        pytest.param(PROGRAM, "takes", id="its thread waits for a request"),
        pytest.param(PROGRAM.replace("    jobs.put(reply)", "    jobs.put(reply); work()"), "", id="another calls it"),
        pytest.param(PROGRAM.replace("        jobs.put(reply)",
                                     "        jobs.put(reply)\n        threading.Thread(target=work).start()"),
                     "", id="each request starts it anew"),
        pytest.param(STARTED_ELSEWHERE, "", id="a start of which nobody knows when it comes"),
    ],
)  # fmt: skip
def test_a_server_whose_answers_may_still_be_made_is_not_named(tmp_path: Path, text: str, beside: str) -> None:
    verdict = judged(tmp_path, text, beside)
    assert "no thread runs it" not in wording(verdict)
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits


def test_what_brings_an_item_is_told_with_its_line(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(PROGRAM)
    awaits = Frame("Handler.do_POST", str(program), line(PROGRAM, "awaits"))
    assert source.bringing(awaits) == {"work": line(PROGRAM, "brings")}
    past = Frame("serve", str(program), line(PROGRAM, "serves"))
    assert queue_text.started_once(str(program), ["work"], [past])
    assert not queue_text.started_once(str(program), ["work"], [])
    assert not queue_text.started_once(str(program), ["work"], [dataclasses.replace(past, line=past.line - 1)])

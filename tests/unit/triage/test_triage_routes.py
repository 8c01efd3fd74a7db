"""Servers that nobody watched, whose handlers wait for a request that their waiting client sends later, by the text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import FILES, evidence, rank

from harness.triage import server_text, sought
from harness.triage.evidence import Frame, Process, Sample, Thread
from harness.triage.judge import triage
from reports.model import Verdict

PROGRAM = """
import asyncio, threading, time
from aiohttp import web

def server():
    gate, awake = asyncio.Lock(), asyncio.Event()
    awake.set()

    async def draw(request):
        async with gate:
            for _ in range(4):
                await awake.wait()
                await asyncio.sleep(0.05)

    async def freeze(request):
        awake.clear()

    async def load(request):
        body = await request.json()
        async with gate:
            await asyncio.sleep(0.1)

    async def thaw(request):
        awake.set()

    routes = {"/draw": draw, "/freeze": freeze, "/load": load, "/thaw": thaw}
    serve(routes)

def post(path):
    with urlopen(URL + path, timeout=3600) as answer:
        return answer.read()

def rollout():
    while True:
        post("/draw")

def rank():
    post("/freeze")
    post("/load")
    post("/thaw")
"""
ADDRESS = "127.0.0.1:8000"


def line(text: str, word: str) -> int:
    return next(number for number, its in enumerate(text.splitlines(), 1) if its.strip().startswith(word))


def stands(file: str, function: str, word: str) -> Frame:
    return Frame(function, file, line(Path(file).read_text(), word))


def looks(library: str, *frames: Frame, wchan: str = "") -> tuple[Sample, ...]:
    threads = (Thread("MainThread", 1, (Frame(library, FILES[library], 1), *frames), main=True),)
    if library == "select":
        loop = Frame("run_forever", FILES["run_forever"], 1)
        threads = (dataclasses.replace(threads[0], frames=(threads[0].frames[0], loop, *frames)),)
    return tuple(Sample(at_s, "S", wchan=wchan, threads=threads, main_switches=3) for at_s in (0.0, 9.0))


def job(path: Path, *changes: tuple[str, str], served: str = "serve(", **fields: object) -> list[Process]:
    """A server, a client that draws and one that loads, which stand as after 9 s."""
    text = PROGRAM
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    file = str(path)
    asks = stands(file, "post", "with urlopen")
    server = Process("node0", 30, role="process", samples=looks("select", stands(file, "server", served)),
                     listening=(ADDRESS,))  # fmt: skip
    clients = [
        Process("node0", pid, role="process", samples=looks("getresponse", asks, stands(file, function, word)),
                peers=(ADDRESS,))
        for pid, function, word in ((40, "rollout", 'post("/draw")'), (41, "rank", 'post("/load")'))
    ]  # fmt: skip
    return [dataclasses.replace(server, **fields), *clients]  # type: ignore[arg-type]


def judged(processes: list[Process]) -> Verdict:
    verdict = triage(evidence(*processes, source="live", stall_s=0.0), None)
    assert verdict.triage is not None
    return verdict


def test_a_server_that_waits_for_a_later_request_of_its_client_is_named(tmp_path: Path) -> None:
    verdict = judged(job(tmp_path / "engine.py"))
    [culprit] = verdict.triage.culprits  # type: ignore[union-attr]
    assert (verdict.verdict, verdict.triage.hang, culprit.pid) == ("HUNG", "K4", 30)  # type: ignore[union-attr]
    assert "/thaw" in culprit.why and "load" in culprit.why and "draw" in culprit.why


def test_a_server_whose_loop_is_uvloop_is_named_too(tmp_path: Path) -> None:
    """Its innermost Python frame is asyncio's runner: uvloop is in C."""
    server, *clients = job(tmp_path / "engine.py")
    frames = (
        Frame("Runner.run", "/usr/lib/python3.11/asyncio/runners.py", 118),
        Frame("Server.run", "/venv/lib/python3.11/site-packages/uvicorn/server.py", 75),
        *server.samples[-1].threads[0].frames[2:],
    )
    main = dataclasses.replace(server.samples[-1].threads[0], frames=frames)
    server = dataclasses.replace(
        server, samples=tuple(dataclasses.replace(look, threads=(main,)) for look in server.samples)
    )
    verdict = judged([server, *clients])
    assert (verdict.verdict, [culprit.pid for culprit in verdict.triage.culprits]) == ("HUNG", [30])  # type: ignore[union-attr]


CLASS = (
    ("def server():\n    gate, awake = asyncio.Lock(), asyncio.Event()\n    awake.set()\n",
     "class Engine:\n    def __init__(self):\n        self.gate = asyncio.Lock()\n"
     "        self.awake = asyncio.Event()\n"),
    ("(request)", "(self, request)"), ("with gate", "with self.gate"), (" awake.", " self.awake."),
    ('    routes = {"/draw": draw, "/freeze": freeze, "/load": load, "/thaw": thaw}\n    serve(routes)\n',
     'def server():\n    engine = Engine()\n    app.add_routes([web.post("/draw", engine.draw), web.post("/freeze", '
     'engine.freeze),\n        web.post("/load", engine.load), web.post("/thaw", engine.thaw)])\n    serve(app)\n'),
)  # fmt: skip
TABLE = (
    ("    serve(routes)\n", "    async def app(scope, receive, send):\n        await routes[scope]()\n"
     "        await send(b'')\n\n    serve(app)\n"),
)  # fmt: skip
AWAKE_AT_FIRST = (*CLASS, ("asyncio.Event()\n", "asyncio.Event()\n        self.awake.set()\n"))
CONDITION = (
    ("asyncio.Lock()", "asyncio.Condition()"),
    ("        async with gate:\n            await asyncio.sleep(0.1)\n", "        await enter()\n"),
    ("    async def draw", "    async def enter():\n        await gate.acquire()\n        await gate.wait_for(idle)\n\n"
     "    async def draw"),
)  # fmt: skip
DECORATED = tuple(
    (f"    async def {name}(", f'    @app.post("/{name}")\n    async def {name}(')
    for name in ("draw", "freeze", "load", "thaw")
)
NO_TABLE = ('    routes = {"/draw": draw, "/freeze": freeze, "/load": load, "/thaw": thaw}\n', "")


@pytest.mark.parametrize(
    "changes", [CLASS, AWAKE_AT_FIRST, TABLE, CONDITION, (*DECORATED, NO_TABLE), (("timeout=3600", "data=b''"),)]
)
@pytest.mark.slow
def test_it_is_named_whatever_its_structure(tmp_path: Path, changes: tuple[tuple[str, str], ...]) -> None:
    processes = job(tmp_path / "engine.py", *changes, served="serve(")
    assert [culprit.pid for culprit in judged(processes).triage.culprits] == [30]  # type: ignore[union-attr]


LOAD = "        body = await request.json()\n"
HEALTHY = {
    "a task of the server lets it go on later": (
        ("        awake.clear()\n", "        awake.clear()\n        asyncio.create_task(again())\n"),
        ("    async def load", "    async def again():\n        await asyncio.sleep(60)\n        awake.set()\n\n"
         "    async def load"),
    ),
    "a timer of the server does": (
        ("awake.clear()\n", "awake.clear()\n        asyncio.get_event_loop().call_later(60, awake.set)\n"),
    ),
    "a callback does": (("    serve(", "    on_signal(awake.set)\n    serve("),),
    "a function that is registered elsewhere does": (
        ("    serve(", "    def wake():\n        awake.set()\n    on_signal(wake)\n    serve("),
    ),
    "a function of the module does": (("def post(", "def wake(awake):\n    awake.set()\n\ndef post("),),
    "its handler sleeps": ((LOAD, LOAD + "        await asyncio.sleep(60)\n"),),
    "its handler sleeps in a loop": ((LOAD, LOAD + "        while busy():\n            await asyncio.sleep(1)\n"),),
    "its handler sleeps in many rounds": (("range(4)", "range(4000)"),),
    "its handler awaits a thread": ((LOAD, LOAD + "        await asyncio.to_thread(copy)\n"),),
    "its handler awaits another server": ((LOAD, LOAD + "        await session.get(OTHER)\n"),),
    "its handler awaits a method with the name of a function": ((LOAD, LOAD + "        await session.post(OTHER)\n"),),
    "its handler awaits what it was not seen to make": ((LOAD, LOAD + "        await pending\n"),),
    "its handler reads from somebody": ((LOAD, LOAD + "        async for part in source:\n            use(part)\n"),),
    "its handler has a time limit": (("await awake.wait()", "await asyncio.wait_for(awake.wait(), 60)"),),
    "a block of its handler has a time limit": (
        ("            await asyncio.sleep(0.1)\n",
         "            async with asyncio.timeout(60):\n                await awake.wait()\n"),
    ),
    "its handler awaits an event of a library": ((LOAD, LOAD + "        await library.ready.wait()\n"),),
    "its event is another one by then": (
        ("        awake.clear()\n", "        nonlocal awake\n        awake = asyncio.Event()\n"),
    ),
    "its event has another name as well": (("    serve(", "    library.awake = other = awake\n    serve("),),
    "the client gives up soon": (("timeout=3600", "timeout=30"),),
    "the client gives up some time": (("timeout=3600", "timeout=LIMIT"),),
    "the client does not let it go on": (('    post("/thaw")\n', ""),),
    "somebody else lets it go on": (("def rank", 'def watch():\n    post("/thaw")\n\ndef rank'),),
    "a loop of the server lets it go on": (("    serve(", "    while True:\n        awake.set()\n        serve("),),
    "a function beside the handlers lets it go on": (
        ("    serve(", "    async def warm(app):\n        await thaw(None)\n"
         "    app.on_startup.append(warm)\n    serve("),
    ),
    "something before the handlers awaits": (
        ("    serve(", "    async def app(scope):\n        await asyncio.sleep(60)\n"
         "        await routes[scope]()\n    serve("),
    ),
    "a library awaits before the handlers": (("    serve(", "    app.add_middleware(Limits)\n    serve("),),
    "a path has two handlers": (("    serve(", '    app.add_get("/load", freeze)\n    serve('),),
    "two functions have one name": (("def post(", "def thaw():\n    pass\n\ndef post("),),
    "its handler is not in the file": (('"/load": load', '"/load": library.handle'),),
}  # fmt: skip


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=HEALTHY)
@pytest.mark.slow
def test_nobody_is_named_where_something_else_may_let_it_go_on(
    tmp_path: Path, changes: tuple[tuple[str, str], ...]
) -> None:
    verdict = judged(job(tmp_path / "engine.py", *changes))
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits  # type: ignore[union-attr]


def with_thread(process: Process) -> Process:
    beside = Thread("sends", 2, (Frame("send", "/job/other.py", 3),))
    return dataclasses.replace(process, samples=tuple(
        dataclasses.replace(look, threads=(*look.threads, beside)) for look in process.samples))  # fmt: skip


@pytest.mark.parametrize("who", [0, 1, 2])
def test_nobody_is_named_where_a_thread_may_send_a_request(tmp_path: Path, who: int) -> None:
    processes = job(tmp_path / "engine.py")
    processes[who] = with_thread(processes[who])
    assert judged(processes).verdict == "INSUFFICIENT"


def test_nobody_is_named_where_another_process_may_send_a_request(tmp_path: Path) -> None:
    file = tmp_path / "beside.py"
    file.write_text("import time\n\ndef main():\n    time.sleep(60)\n")
    beside = Process("node0", 50, role="process", samples=looks("select", Frame("main", str(file), 4)))
    assert not judged([*job(tmp_path / "engine.py"), beside]).triage.culprits  # type: ignore[union-attr]


def test_nobody_is_named_at_two_looks_that_are_close(tmp_path: Path) -> None:
    processes = [
        dataclasses.replace(process, samples=tuple(
            dataclasses.replace(look, at_s=look.at_s / 6) for look in process.samples))
        for process in job(tmp_path / "engine.py")
    ]  # fmt: skip
    assert judged(processes).verdict == "INSUFFICIENT"


def test_nobody_is_named_where_the_server_asks_somebody_itself(tmp_path: Path) -> None:
    assert judged(job(tmp_path / "engine.py", peers=("10.0.0.9:80",))).verdict == "INSUFFICIENT"


def test_a_client_that_asks_for_no_certain_route_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "client.py"
    file.write_text(
        'def ask(path):\n    return urlopen(URL + path)\n\ndef main():\n    ask(choose("/a", "/b"))\n    ask("/c")\n'
    )
    asks = Frame("ask", str(file), 2)
    assert sought.route([asks, Frame("main", str(file), 5)]) == ""
    assert sought.route([asks, Frame("main", str(file), 6)]) == "/c"
    assert sought.route([]) == "" and server_text.keys([], ["/c"], 9.0) is None


def test_a_rank_that_waits_for_a_waiting_client_changes_nothing(tmp_path: Path) -> None:
    processes = job(tmp_path / "engine.py")
    processes[2] = dataclasses.replace(processes[2], rank=0, world_size=2)
    waits = rank(1, "main:10 step:42 all_reduce", world=2)
    waits = dataclasses.replace(waits, beat=None, samples=tuple(
        dataclasses.replace(look, at_s=6 * look.at_s, net_quiet_s=20.0) for look in waits.samples))  # fmt: skip
    assert [culprit.pid for culprit in judged([*processes, waits]).triage.culprits] == [30]  # type: ignore[union-attr]


def test_nobody_is_named_where_a_rank_was_not_seen(tmp_path: Path) -> None:
    processes = job(tmp_path / "engine.py")
    verdict = triage(evidence(*processes, source="live", stall_s=0.0, expected_world=2), None)
    assert not verdict.triage.culprits  # type: ignore[union-attr]

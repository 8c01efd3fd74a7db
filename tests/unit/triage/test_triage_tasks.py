"""Tasks of an event loop that wait for each other are a hang; what somebody outside its loop may end is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import evidence, process, rank, wording

from harness.triage.evidence import EventLoop, Frame, LaterCall, LostTask, Process, Task, Thread
from harness.triage.graph.awaiting import Awaiting
from harness.triage.judge import triage
from reports.model import Verdict

LOOP = "main rollout run_forever select"
LOCKS = "/usr/lib/python3.11/asyncio/locks.py"


def task(number: int, awaits: str, target: int = 0, *, line: int = 0, file: str = "/job/serve.py", **more: Any) -> Task:
    frames = (Frame("Lock.acquire", LOCKS, 113), Frame(f"handle{number}", file, line or number))
    return Task((number,), f"Task-{number}", frames, awaits, target, **{"still": True, **more})


def looped(one: Process, *tasks: Task, **more: Any) -> Process:
    loop = EventLoop(one.pid, tasks, **{"later": (), "descriptors": 0, **more})
    return dataclasses.replace(one, loops=(loop,))


def main(**more: Any) -> Task:
    """The task until whose end the loop runs: it awaits tasks 1 and 2."""
    return task(9, **{"awaits": "tasks", "targets": (1, 2), "main": True, **more})


CROSSED = (task(1, "lock", 71, keeps=(72,)), task(2, "lock", 72, keeps=(71,)))


def late(*tasks: Task, awaited: bool = True, **more: Any) -> Verdict:
    """Rank 0 runs these tasks; rank 1 waits for it in a collective."""
    one = looped(rank(0, LOOP, world=2, listening=("127.0.0.1:29500",)), *tasks, **more)  # as gloo does
    return triage(evidence(one, *([rank(1, "main:10 step:42 all_reduce", world=2)] if awaited else ())))


def named(verdict: Verdict) -> list[int | None]:
    assert verdict.triage is not None
    return [party.rank for party in verdict.triage.culprits]


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize(
    "tasks",
    [
        (main(), *CROSSED),
        (main(targets=(1,)), task(1, "lock", 71, keeps=(71,))),
        (main(awaits="task", targets=(1,), keeps=(71,)), task(1, "lock", 71)),
        (main(), *CROSSED, task(3, "sleep", still=False)),
        (main(targets=(3,)), task(3, "task", targets=(1,)), *CROSSED, task(4, "socket")),
    ],
    ids=["two locks", "one lock twice", "a lock and a result", "beside a ticker", "main behind it, beside a request"],
)
def test_a_ring_of_tasks_is_a_hang_of_its_process_with_the_place(tasks: tuple[Task, ...], awaited: bool) -> None:
    verdict = late(*tasks, awaited=awaited)
    assert (verdict.verdict, named(verdict)) == ("HUNG", [0])
    assert verdict.triage is not None and verdict.triage.hang == "K6" and "serve.py" in verdict.triage.place


def test_tasks_that_await_each_others_results_are_a_cycle_without_a_lock() -> None:
    verdict = late(main(targets=(1,)), task(1, "task", targets=(2,)), task(2, "task", targets=(1,)))
    assert (verdict.verdict, named(verdict)) == ("HUNG", [0]) and verdict.triage is not None
    assert verdict.triage.hang == "K6" and not any("lock" in step for step in verdict.triage.next)


@pytest.mark.parametrize(
    "tasks",
    [
        (main(), *(dataclasses.replace(each, still=False) for each in CROSSED)),
        (main(), *(dataclasses.replace(each, limited=True) for each in CROSSED)),
        (main(), task(1, "lock", 71), task(2, "sleep", keeps=(71,))),
        (main(targets=()), task(1, "lock", 71, keeps=(72,)), task(2, "lock", 72, keeps=(73,)), task(3, "socket")),
        (main(awaits="socket", targets=()), *CROSSED),
    ],
    ids=["they move", "with a limit", "the keeper sleeps", "the keeper is not seen", "main awaits a connection"],
)
def test_tasks_that_may_go_on_are_no_hang(tasks: tuple[Task, ...]) -> None:
    verdict = late(*tasks)
    assert verdict.verdict != "HUNG" and not named(verdict)


# --- what no task is left to do

GETS = task(9, "queue.get", 71, main=True)
DIED = LostTask("producer", "RuntimeError: no prompts are left", None, Frame("produce", "/job/serve.py", 12))


@pytest.mark.parametrize("awaited", [True, False])
def test_a_consumer_whose_producer_died_is_a_hang_that_says_the_error(awaited: bool) -> None:
    verdict = late(GETS, lost=(DIED,), awaited=awaited)
    assert (verdict.verdict, named(verdict)) == ("HUNG", [0])
    assert "producer" in verdict.reason and "no prompts" in verdict.reason and "serve.py:12" in wording(verdict)


LIBRARY = "/venv/lib/python3.11/site-packages/"
FEEDER = Thread("feeder", 7, (Frame("feed", "/job/train.py", 3),))
OBSERVER = Thread("observer", 7, (Frame("dispatch", LIBRARY + "watchdog/observers/api.py", 3),))
TIMER = Thread("timer", 7, (Frame("wait", "/usr/lib/python3.11/threading.py", 320),))
RESTING = Thread("pool", 7, (Frame("_worker", "/usr/lib/python3.11/concurrent/futures/thread.py", 81),))
PROBE = Thread("", 8, (Frame("_run", "/job/harness/probes/attach.py", 181),))


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": (GETS, task(1, "sleep"))},
        {"tasks": (GETS, task(1, "socket"))},
        {"tasks": (GETS, task(1, "future"))},
        {"tasks": (dataclasses.replace(GETS, still=False),)},
        {"tasks": (dataclasses.replace(GETS, limited=True),)},
        {"later": (LaterCall("feed", "/job/train.py", 60.0),)},
        {"later": (LaterCall("_set_result_unless_cancelled", "/usr/lib/python3.11/asyncio/futures.py", 60.0),)},
        {"later": None},
        {"ready": 1},
        {"descriptors": 1},
        {"descriptors": None},
        {"left_out": 3},
        {"tid": 7},
        {"thread": FEEDER},
        {"thread": OBSERVER},
        {"thread": TIMER},
        {"child": process(300, "tool", "main:3 read")},
    ],
    ids=["the producer sleeps", "it reads", "it awaits a future", "it moves", "a limit", "a timer", "a sleep",
         "unknown timers", "a call that is due", "a descriptor", "unknown descriptors", "more tasks",
         "another thread's loop", "a thread", "a library's thread, which may call back",
         "a Timer that has not fired", "a child"],
)  # fmt: skip
def test_a_consumer_whose_producer_may_come_is_no_hang(changes: dict[str, Any]) -> None:
    """The same with everything that may put an item, or that is not known."""
    tasks = changes.get("tasks", (GETS,))
    loop = {key: changes[key] for key in ("later", "ready", "descriptors", "left_out") if key in changes}
    one = looped(rank(0, LOOP, world=2), *tasks, **loop)
    one = dataclasses.replace(one, loops=(dataclasses.replace(one.loops[0], tid=changes.get("tid", one.pid)),))
    if "thread" in changes:
        one = beside_main(one, changes["thread"])
    children = [dataclasses.replace(changes["child"], ppid=one.pid)] if "child" in changes else []
    verdict = triage(evidence(one, rank(1, "main:10 step:42 all_reduce", world=2), *children))
    assert verdict.verdict != "HUNG" and not named(verdict)


def beside_main(one: Process, *threads: Thread) -> Process:
    looks = tuple(dataclasses.replace(look, threads=(*look.threads, *threads)) for look in one.samples)
    return dataclasses.replace(one, samples=looks)


def test_a_resting_pool_and_our_own_probe_put_nothing_into_a_queue() -> None:
    one = beside_main(looped(rank(0, LOOP, world=2), GETS), RESTING, PROBE)
    assert triage(evidence(one, rank(1, "main:10 step:42 all_reduce", world=2))).verdict == "HUNG"


@pytest.mark.parametrize(("awaits", "verdict"), [("event", "INSUFFICIENT"), ("queue.get", "HUNG")])
def test_a_main_task_that_only_keeps_its_process_alive_is_no_hang(awaits: str, verdict: str) -> None:
    """As a program that starts servers does, and waits for a signal."""
    assert late(task(9, awaits, 71, main=True), awaited=False).verdict == verdict


@pytest.mark.parametrize("awaits", ["sleep", "queue.get"])
def test_a_process_alone_in_its_loop_is_told_by_what_its_task_awaits(awaits: str) -> None:
    verdict = late(task(9, awaits, 71, main=True), awaited=False, descriptors=1)
    assert verdict.verdict == "INSUFFICIENT" and "serve.py:9" in verdict.reason


# --- a request that waits for another request

SERVER = """
async def update():
    async with changed:
        await changed.wait_for(lambda: readers == 0)

async def generate():
    await resumed.wait()
    await leave()

async def read():
    await resumed.wait()

async def leave():
    async with changed:
        changed.notify_all()
"""
ASKED = "127.0.0.1:30000"


def served(
    folder: Path, *tasks: Task, stall_s: float = 30.0, beside: tuple[Process, ...] = (),
    threads: tuple[Thread, ...] = (), peers: tuple[str, ...] = (), later: tuple[LaterCall, ...] = (),
) -> Verdict:  # fmt: skip
    asks = process(20, "trainer", "rollout getresponse", peers=(ASKED,))
    server = looped(process(30, "server", LOOP, listening=(ASKED,), peers=peers), *tasks, descriptors=2, later=later)
    return triage(evidence(asks, beside_main(server, *threads), *beside, stall_s=stall_s))


def requests(folder: Path, reader: str, line: int) -> tuple[Task, ...]:
    (folder / "serve.py").write_text(SERVER)
    file = str(folder / "serve.py")
    waits = task(1, "condition", 71, line=4, file=file)
    waits = dataclasses.replace(waits, frames=(waits.frames[0], Frame("update", file, 4)))
    reads = dataclasses.replace(task(2, "event", 72), frames=(waits.frames[0], Frame(reader, file, line)))
    return waits, reads, task(9, "connections", main=True)


@pytest.mark.parametrize(
    ("reader", "line", "verdict"), [("generate", 7, "HUNG"), ("read", 11, "INSUFFICIENT")],
)  # fmt: skip
def test_an_update_that_waits_for_a_paused_request_is_a_hang_of_the_server(
    tmp_path: Path, reader: str, line: int, verdict: str
) -> None:
    """If the rest of that request is what the update waits for."""
    result = served(tmp_path, *requests(tmp_path, reader, line))
    assert result.verdict == verdict and result.triage is not None
    assert [party.key for party in result.triage.culprits] == (["node0:30"] if verdict == "HUNG" else [])


@pytest.mark.parametrize(
    "call", [("_set_result_unless_cancelled", "/usr/lib/python3.11/asyncio/futures.py"),
             ("HttpToolsProtocol.timeout_keep_alive_handler", LIBRARY + "uvicorn/protocols/http/httptools_impl.py")],
)  # fmt: skip
def test_the_timers_of_an_idle_server_send_no_request(tmp_path: Path, call: tuple[str, str]) -> None:
    later = (LaterCall(*call, 0.1),)
    assert served(tmp_path, *requests(tmp_path, "generate", 7), later=later).verdict == "HUNG"


def test_a_paused_request_alone_is_no_hang_for_somebody_may_still_send_the_resumption(tmp_path: Path) -> None:
    _, reads, main_task = requests(tmp_path, "generate", 7)
    result = served(tmp_path, reads, main_task)
    assert result.verdict == "INSUFFICIENT" and "handle" not in result.reason and "generate" in wording(result)


@pytest.mark.parametrize(
    "changes",
    [
        {"stall_s": 0.0},
        {"beside": (process(40, "controller", "main:3 wait"),)},
        {"beside": (rank(5, "main:10 step:44 compute", world=1, cpu_s=2.0),)},
        {"threads": (FEEDER,)},
        {"peers": ("10.0.0.9:6379",)},
        {"later": (LaterCall("Event.set", LOCKS, 60.0),)},
    ],
    ids=[
        "nobody watched a stall",
        "a process that does not wait for it",
        "a process that works",
        "a thread",
        "a connection to somebody else",
        "a timer that sets an event",
    ],
)
def test_a_server_to_which_somebody_may_still_send_is_no_hang(tmp_path: Path, changes: dict[str, Any]) -> None:
    result = served(tmp_path, *requests(tmp_path, "generate", 7), **changes)
    assert result.verdict != "HUNG"


LAUNCHER = """
import time
def main():
    while any(child.poll() is None for child in children):
        time.sleep(0.5)
"""


def test_a_launcher_that_asks_for_the_end_of_its_children_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(LAUNCHER)
    launcher = process(40, "process", "main:5", wchan="hrtimer_nanosleep")
    looks = tuple(
        dataclasses.replace(
            look, timed=True, main_switches=100 + number,
            threads=(Thread("MainThread", 40, (Frame("main", str(tmp_path / "launch.py"), 5),), main=True),),
        )
        for number, look in enumerate(launcher.samples)
    )  # fmt: skip
    launcher = dataclasses.replace(launcher, samples=looks)
    assert served(tmp_path, *requests(tmp_path, "generate", 7), beside=(launcher,)).verdict == "HUNG"


def test_a_server_with_a_request_that_goes_on_is_no_hang(tmp_path: Path) -> None:
    result = served(tmp_path, *requests(tmp_path, "generate", 7), task(5, "executor"))
    assert result.verdict != "HUNG"


CLIENT = (Frame("read", LIBRARY + "aiohttp/client_reqrep.py", 5), Frame("rollout", "/job/train.py", 9))
ANSWERED = {
    "a stream": (task(9, "socket", of=ASKED, main=True),),
    "streams behind a gather": (main(), task(1, "socket", of=ASKED), task(2, "socket", of=ASKED)),
    "aiohttp": (dataclasses.replace(task(9, "future", main=True), frames=CLIENT),),
}
UNANSWERED = {
    "with a limit": (task(9, "socket", of=ASKED, main=True, limited=True),),
    "of somebody else": (task(9, "socket", of="10.0.0.9:80", main=True),),
    "beside the main task": (task(9, "event", main=True), task(1, "socket", of=ASKED)),
    "one of several is enough": (
        dataclasses.replace(main(), frames=(Frame("_wait", "/usr/lib/python3.11/asyncio/tasks.py", 5),)),
        task(1, "socket", of=ASKED), task(2, "socket", of=ASKED),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ANSWERED, *UNANSWERED])
def test_a_main_task_that_awaits_an_answer_waits_for_the_server(name: str) -> None:
    """So the ring of tasks in the server explains the rank that waits for the client."""
    client = looped(rank(0, LOOP, world=2, peers=(ASKED,)), *(ANSWERED | UNANSWERED)[name], descriptors=1)
    server = looped(process(30, "server", LOOP, listening=(ASKED,)), task(9, "connections", main=True), *CROSSED)
    verdict = triage(evidence(client, server, rank(1, "main:10 step:42 all_reduce", world=2)))
    assert verdict.triage is not None
    assert [party.key for party in verdict.triage.culprits] == (["node0:30"] if name in ANSWERED else [])
    assert [wait.target for wait in verdict.triage.waits if wait.layer == "http"] == ["node0:30"] * (name in ANSWERED)


def test_what_a_library_awaits_in_its_own_event_may_come_from_the_network() -> None:
    frames = (
        Frame("Event.wait", LOCKS, 213),
        Frame("receive", LIBRARY + "anyio/_backends/_asyncio.py", 5),
        *CLIENT[1:],
    )
    verdict = late(dataclasses.replace(task(9, "event", main=True), frames=frames))
    assert verdict.verdict != "HUNG" and not named(verdict)


@pytest.mark.parametrize("lost", [(), (DIED,)])
def test_an_idle_server_is_no_hang(lost: tuple[LostTask, ...]) -> None:
    one = looped(process(30, "server", LOOP, listening=(ASKED,)), task(9, "connections", main=True), lost=lost)
    assert triage(evidence(one)).verdict != "HUNG"


@pytest.mark.parametrize(("version", "reads"), [("3.11", False), ("3.13", False), ("3.14", True), ("3.15", True)])
def test_without_a_probe_the_verdict_says_what_would_show_the_tasks(version: str, reads: bool) -> None:
    one = rank(0, LOOP, world=2, command="python train.py --steps 10", beat=None)
    looks = tuple(
        dataclasses.replace(look, threads=tuple(
            dataclasses.replace(thread, frames=tuple(
                dataclasses.replace(frame, file=frame.file.replace("python3.11", f"python{version}"))
                for frame in thread.frames))
            for thread in look.threads))
        for look in one.samples
    )  # fmt: skip
    peer = rank(1, "main:10 step:42 all_reduce", world=2, ppid=one.pid, beat=None)
    verdict = triage(evidence(dataclasses.replace(one, samples=looks), peer, stall_s=0.0, source="live"))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and verdict.missing
    commands = [step.partition("   #")[0] for step in verdict.triage.next]
    assert "for the next run: harness watch -- python train.py --steps 10" in commands
    assert (f"python{version} -m asyncio pstree {one.pid}" in commands) == reads


@pytest.mark.parametrize("command", ["python -c print(1)", "python train.py --prompt 'a b'", "[python]", ""])
def test_a_command_that_needs_quotes_is_not_repeated(command: str) -> None:
    one = rank(0, LOOP, world=2, command=command, beat=None)
    peer = rank(1, "main:10 all_reduce", world=2, ppid=one.pid, beat=None)
    verdict = triage(evidence(one, peer, stall_s=0.0, source="live"))
    assert verdict.triage is not None
    assert any(step.startswith("for the next run: harness watch -- COMMAND") for step in verdict.triage.next)


def test_no_more_tasks_are_looked_at_than_a_probe_lists() -> None:
    """Evidence may be anybody's."""
    loop = EventLoop(1, tuple(task(number, "event", number) for number in range(1000)))
    assert len(Awaiting.of(dataclasses.replace(rank(0, LOOP), loops=(loop,) * 100)).tasks) == 512

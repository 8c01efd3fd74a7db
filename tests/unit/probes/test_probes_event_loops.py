"""What the tasks of an event loop await is written when a look asks, with who keeps which lock, and read again."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.triage.collect import event_loops as collected
from harness.triage.evidence import EventLoop, Process
from harness.triage.graph.awaiting import Awaiting
from probes import event_loops
from probes.attach import Attachment


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(event_loops.signal, "getitimer", lambda which: (0.0, 0.0))  # pytest's time limit is an alarm
    event_loops._loops.clear()
    event_loops._lost.clear()
    yield
    event_loops._loops.clear()
    event_loops._lost.clear()


def seen(directory: Path, program: Callable[[], Awaitable[Any]], *, beside: int = 0) -> tuple[EventLoop, ...]:
    """The loops while every task that `program` starts has come to where it waits; `beside` more steps of the loop."""
    loops: list[tuple[EventLoop, ...]] = []

    async def main() -> None:
        event_loops.note(asyncio.get_running_loop())
        task = asyncio.ensure_future(program())
        for _ in range(20 + beside):
            await asyncio.sleep(0)
        mark = collected.ask(directory)
        assert event_loops.Answers(directory, lambda seconds: None).answer()
        loops.append(collected.answer(directory, os.getpid(), mark, lambda: 0.0))
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    return loops[0]


async def gets() -> None:
    await asyncio.Queue[int]().get()


async def puts() -> None:
    full: asyncio.Queue[int] = asyncio.Queue(1)
    full.put_nowait(1)
    await full.put(2)


async def joins() -> None:
    work: asyncio.Queue[int] = asyncio.Queue()
    work.put_nowait(1)
    await work.join()


async def notified() -> None:
    async with (condition := asyncio.Condition()):
        await condition.wait_for(lambda: False)


async def permitted() -> None:
    await asyncio.Semaphore(0).acquire()


async def set_() -> None:
    await asyncio.Event().wait()


async def gathers() -> None:
    await asyncio.gather(set_(), set_())


async def groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(set_())


async def awaits_a_task() -> None:
    await asyncio.create_task(set_())


async def sleeps() -> None:
    await asyncio.sleep(1000)


async def reads() -> None:
    await asyncio.StreamReader().readline()


async def awaits_a_future() -> None:
    await asyncio.get_running_loop().create_future()


async def items() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 1


async def iterates() -> None:
    async for _ in items():
        pass


async def in_a_thread() -> None:
    end = threading.Event()
    try:
        await asyncio.to_thread(end.wait)
    finally:
        end.set()


KINDS = [
    (gets, "queue.get"), (puts, "queue.put"), (joins, "queue.join"), (notified, "condition"), (permitted, "semaphore"),
    (set_, "event"), (gathers, "tasks"), (groups, "tasks"), (awaits_a_task, "task"), (sleeps, "sleep"),
    (reads, "socket"), (awaits_a_future, "future"), (iterates, "event"), (in_a_thread, "executor"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "awaits"), KINDS, ids=[program.__name__ for program, _ in KINDS])
def test_each_kind_of_wait_has_its_name_and_its_place(
    tmp_path: Path, program: Callable[[], Awaitable[Any]], awaits: str
) -> None:
    [loop] = seen(tmp_path, program)
    [task] = [task for task in loop.tasks if task.frames[-1].function == program.__name__]
    assert (task.awaits, task.still, task.main, task.limited, loop.left_out) == (awaits, True, False, False, 0)
    assert task.frames[-1].file == __file__
    assert loop.tid == threading.get_native_id()
    known = {identity for other in loop.tasks for identity in other.ids}
    assert known.issuperset(task.targets) and bool(task.targets) == (awaits in ("task", "tasks"))


async def use(first: asyncio.Lock, second: asyncio.Lock) -> None:
    async with first:
        await asyncio.sleep(0)
        async with second:
            pass


async def crossed() -> None:
    first, second = asyncio.Lock(), asyncio.Lock()
    await asyncio.gather(use(first, second), use(second, first))


async def twice() -> None:
    lock = asyncio.Lock()
    await use(lock, lock)


async def orderly() -> None:
    first, second = asyncio.Lock(), asyncio.Lock()
    await first.acquire()
    await asyncio.gather(use(first, second), use(first, second))


async def queued() -> None:
    """One keeps the lock and waits for something else; the other waits for the lock."""
    lock = asyncio.Lock()

    async def keeps() -> None:
        async with lock:
            await asyncio.Event().wait()

    await asyncio.gather(keeps(), use(lock, asyncio.Lock()))


async def given_up() -> None:
    """Who waits for the notification of a condition keeps its lock no more."""
    condition = asyncio.Condition()

    async def waits() -> None:
        async with condition:
            await condition.wait()

    async def enters() -> None:
        async with condition:
            await asyncio.Event().wait()

    await asyncio.gather(waits(), enters())


@pytest.mark.parametrize(("program", "size"), [(crossed, 2), (twice, 1), (orderly, 0), (queued, 0), (given_up, 0)])
def test_tasks_that_wait_for_each_others_locks_are_a_ring(
    tmp_path: Path, program: Callable[[], Awaitable[Any]], size: int
) -> None:
    tasks = Awaiting.of(Process("here", 1, loops=seen(tmp_path, program)))
    assert [len(ring) for ring in tasks.rings()] == ([size] if size else [])
    behind = [task for ring in tasks.rings() for task in tasks.behind(ring)]
    assert len(behind) == {2: 3, 1: 1, 0: 0}[size]  # `crossed` itself awaits the two


async def limited_by_timeout() -> None:
    async with asyncio.timeout(1000):
        await asyncio.Event().wait()


async def limited_by_wait_for() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), 1000)


async def limited_by_a_call() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(1000, task.cancel)
    await asyncio.Event().wait()


@pytest.mark.parametrize("program", [limited_by_timeout, limited_by_wait_for, limited_by_a_call])
def test_a_wait_with_a_time_limit_is_said_to_have_one(tmp_path: Path, program: Callable[[], Awaitable[Any]]) -> None:
    [loop] = seen(tmp_path, program)
    assert [task.limited for task in loop.tasks if task.frames[-1].function == program.__name__] == [True]


def test_hundreds_of_tasks_in_one_place_are_one_entry(tmp_path: Path) -> None:
    async def many() -> None:
        turn = asyncio.Event()
        await asyncio.gather(*(turn.wait() for _ in range(300)))

    [loop] = seen(tmp_path, many)
    assert [len(task.ids) for task in loop.tasks if task.awaits == "event"] == [300] and not loop.left_out


def test_more_kinds_than_are_listed_are_counted(tmp_path: Path) -> None:
    async def many() -> None:
        await asyncio.gather(*(asyncio.Event().wait() for _ in range(100)))

    [loop] = seen(tmp_path, many)
    assert len(loop.tasks) == event_loops.MOST_LISTED and loop.left_out == 102 - event_loops.MOST_LISTED


async def sleeps_twice() -> None:
    await asyncio.gather(asyncio.sleep(1000), asyncio.sleep(2000))


async def is_set_later() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(1000, event.set)
    await event.wait()


async def is_filled_later() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1000, future.set_result, 1)
    await future


async def always_ready() -> None:
    while True:
        await asyncio.sleep(0)


async def has_given_up_its_timer() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(1000, event.set).cancel()
    await event.wait()


@pytest.mark.parametrize(("program", "functions"), [
    (sleeps_twice, ["_set_result_unless_cancelled"] * 2), (is_set_later, ["Event.set"]), (is_filled_later, [""]),
    (has_given_up_its_timer, []),
])  # fmt: skip
def test_every_call_that_comes_later_is_listed(
    tmp_path: Path, program: Callable[[], Awaitable[Any]], functions: list[str]
) -> None:
    """Each may end the wait of a task."""
    [loop] = seen(tmp_path, program)
    assert loop.later is not None and [each.function for each in loop.later] == functions
    assert all(each.due_s > 900 for each in loop.later)


def test_an_alarm_whose_handler_may_make_a_call_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loops.signal, "getitimer", lambda which: (1000.0, 0.0))
    [loop] = seen(tmp_path, has_given_up_its_timer)
    assert loop.later is not None and [each.due_s > 900 for each in loop.later] == [True]


def test_a_call_that_the_loop_is_about_to_make_is_counted(tmp_path: Path) -> None:
    [idle], [busy] = seen(tmp_path, is_set_later), seen(tmp_path, always_ready)
    assert (idle.ready, busy.ready > 0) == (0, True)


@pytest.mark.parametrize("kept", [True, False])
def test_a_task_that_died_unread_is_told_whether_the_program_refers_to_it_or_not(tmp_path: Path, kept: bool) -> None:
    async def dies() -> None:
        raise RuntimeError("password=hunter2secret1 was refused")

    async def program() -> None:
        task = asyncio.create_task(dies(), name="producer")
        references = [task] if kept else []
        del task
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.Event().wait()
        del references

    reports: list[str] = []

    async def quiet() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context["message"]))
        await program()

    [loop] = seen(tmp_path, quiet)
    [died] = loop.lost
    assert (died.name, died.error.startswith("RuntimeError: password=***")) == ("producer", True)
    assert died.frame is not None and died.frame.function.endswith("dies") and (died.age_s is None) == kept
    assert kept or reports == ["Task exception was never retrieved"]  # the program's own handler is still called


def test_nothing_is_written_unless_a_look_asks_and_each_question_has_one_answer(tmp_path: Path) -> None:
    async def main() -> None:
        event_loops.note(asyncio.get_running_loop())
        answers = event_loops.Answers(tmp_path, lambda seconds: None)
        assert not answers.answer() and not [*tmp_path.iterdir()]
        mark = collected.ask(tmp_path)
        assert [answers.answer(), answers.answer()] == [True, False]
        file = tmp_path / "tasks" / f"{os.getpid()}.json"
        assert json.loads(file.read_bytes())["asked"] == mark
        assert not collected.answer(tmp_path, os.getpid(), mark + 1000, lambda: 0.0)  # an answer to another question

    asyncio.run(main())


@pytest.mark.parametrize("damage", [5, [5], [{}], {"x": 1}, [{"tasks": [{"ids": "x"}]}]])
def test_a_damaged_answer_is_none(tmp_path: Path, damage: object) -> None:
    mark = collected.ask(tmp_path)
    content = {"host": os.uname().nodename, "asked": mark, "t_ns": 0, "left_out": 0, "lost": [], "loops": damage}
    (tmp_path / "tasks" / "7.json").write_text(json.dumps(content))
    assert collected.answer(tmp_path, 7, mark, lambda: 0.0) == ()


def test_an_asyncio_that_is_not_understood_costs_the_answer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment = Attachment(tmp_path, 1.0)
    answers = event_loops.Answers(tmp_path, lambda seconds: None)
    monkeypatch.setattr(answers, "answer", lambda: [].pop())
    attachment._answer(answers)
    assert attachment.off.startswith("no tasks of event loops: IndexError")


LOOPS = """
import asyncio, os, sys
async def main():
    while not os.path.isfile(sys.argv[1] + f"/tasks/{os.getpid()}.json"):
        await asyncio.sleep(0.05)
asyncio.run(main())
asyncio.run(asyncio.sleep(0))
print("torch" in sys.modules, "goes on")
"""


@pytest.mark.slow
def test_a_process_of_a_watched_command_answers_from_the_loop_on_that_it_runs(tmp_path: Path) -> None:
    """Though it imports neither torch nor Ray."""
    root, watch = Path(__file__).parents[3], tmp_path / "watch"
    (watch / "tasks").mkdir(parents=True)
    mark = collected.ask(watch)
    variables = {"PYTHONPATH": str(root / "probes" / "site"), "RLHF_HARNESS_WATCH": str(watch)}
    done = subprocess.run([sys.executable, "-c", LOOPS, str(watch)], env=os.environ | variables, cwd=tmp_path,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "False goes on\n"
    [file] = (file for file in (watch / "tasks").iterdir() if file.suffix == ".json")
    content = json.loads(file.read_bytes())
    [loop] = collected.parse(content, content["t_ns"])
    assert content["asked"] == mark and [(task.main, task.frames[-1].function) for task in loop.tasks] == [
        (True, "main")
    ]

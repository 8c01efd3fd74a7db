"""What the tasks of event loops await: asks the probes of a watch directory, and reads what they answer."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.triage.collect import redact
from harness.triage.collect.beats import LOST_TEXT, MAX_LOST
from harness.triage.evidence import EventLoop, Frame, LaterCall, LostTask, Task
from probes.event_loops import ASKED, DEPTH, FOLDER, MOST_LISTED, MOST_LOOPS, MOST_TASKS
from probes.files import make_folder
from probes.limits import check_whole

MAX_BYTES = 8 << 20  # 64 kinds of tasks in each of 8 loops, 24 frames each
ANSWER_S = 2.5  # a beat's period, the time between the two looks at a task, and as much again for a busy host
_POLL_S = 0.1  # between two looks for the answers; a beat answers within one second
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


def ask(directory: Path | None) -> int:
    """Ask every process of a watch directory what its tasks await. Return the mark of this question; 0 if it cannot be
    asked."""
    if directory is None:
        return 0
    mark = time.time_ns() // 1000 * 1000  # file systems keep microseconds at least
    try:
        make_folder(directory / FOLDER)
        file = directory / FOLDER / ASKED
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(file, ns=(mark, mark))
        return file.stat().st_mtime_ns
    except OSError:  # a full disk, or a directory of somebody else
        return 0


def answer(directory: Path, pid: int, mark: int, remaining_s: Callable[[], float]) -> tuple[EventLoop, ...]:
    """The event loops of a process of this host, as its probe answers the question `mark`; empty without an answer in
    time."""
    file, by = directory / FOLDER / f"{pid}.json", time.monotonic() + ANSWER_S
    while True:
        try:
            if os.path.isfile(file) and file.stat().st_size <= MAX_BYTES:
                content = json.loads(file.read_bytes())
                if content["asked"] == mark and content["host"] == socket.gethostname():
                    return parse(content, time.monotonic_ns())
        except (OSError, *_DAMAGED):  # it is no answer, or of an earlier process
            pass
        if time.monotonic() >= by or remaining_s() <= _POLL_S:
            return ()
        time.sleep(_POLL_S)


def parse(content: dict[str, Any], now_ns: int) -> tuple[EventLoop, ...]:
    """Parse an answer. Raises one of _DAMAGED for anything else."""
    check_whole(content)
    died = tuple(_lost(each, now_ns) for each in content["lost"][:MAX_LOST])
    left_out = int(content["left_out"])
    return tuple(
        EventLoop(
            tid=int(loop["thread"]),
            tasks=tuple(_task(task) for task in loop["tasks"][:MOST_LISTED]),
            left_out=int(loop["left_out"]) + left_out,
            later=None if loop["timers"] is None else tuple(
                LaterCall(str(function), str(file), float(due_s)) for function, file, due_s in loop["timers"]
            ),
            ready=int(loop["ready"]),
            descriptors=None if loop["descriptors"] is None else int(loop["descriptors"]),
            lost=(*(_lost(each, now_ns) for each in loop["lost"][:MAX_LOST]), *(died if not at else ())),
        )
        for at, loop in enumerate(content["loops"][:MOST_LOOPS])
    )  # fmt: skip


def _task(task: dict[str, Any]) -> Task:
    return Task(
        ids=_numbers(task["ids"]),
        name=redact.text(str(task["name"]), LOST_TEXT),
        frames=tuple(map(_frame, task["frames"][:DEPTH])),
        awaits=str(task["awaits"]),
        target=int(task["target"]),
        of=redact.text(str(task["of"]), LOST_TEXT),
        targets=_numbers(task["targets"]),
        keeps=_numbers(task["keeps"]),
        main=bool(task["main"]),
        limited=bool(task["limited"]),
        still=bool(task["still"]),
    )


def _lost(task: dict[str, Any], now_ns: int) -> LostTask:
    name, error = (redact.text(str(task[key]), LOST_TEXT) for key in ("name", "error"))
    age_s = max(0.0, (now_ns - int(task["t_ns"])) / 1e9) if "t_ns" in task else None
    return LostTask(name, error, age_s, _frame(task["frame"]) if task["frame"] else None)


def _numbers(values: list[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values[:MOST_TASKS])


def _frame(place: list[Any]) -> Frame:
    function, file, line = place
    return Frame(str(function), str(file), int(line))

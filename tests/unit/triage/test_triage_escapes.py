"""Ranks that an error took out of the `try` in which the others wait, and that wait in its `except` or `finally`."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from pathlib import Path

import pytest
from triage_evidence import compared, evidence, group, rank

from harness.triage import judge, try_text
from harness.triage.collect.beats import parse
from harness.triage.evidence import Frame, HandledError, Process, Thread
from probes import handled_errors
from probes.heartbeat import block
from reports.model import Triage, Verdict

PROGRAM = """import torch.distributed as dist


def step(batch):
    check(batch)  # raised
    dist.all_reduce(batch)  # reduced


def close():
    dist.barrier()  # closed


def train():
    try:
        for batch in batches:
            step(batch)  # body
    except ValueError:
        dist.barrier()  # caught
    finally:
        dist.barrier()  # finally
        close()  # helper


def drain():
    try:
        while True:
            step(next(batches))  # drained
    except StopIteration:
        dist.barrier()  # over
"""
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def line(marker: str) -> int:
    return next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {marker}"))


def at(program: Path, *calls: tuple[str, str]) -> tuple[Frame, ...]:
    return tuple(Frame(function, str(program), line(marker)) for function, marker in calls)


def member(number: int, operation: str, frames: tuple[Frame, ...], handles: HandledError | None = None,
           *, tells: bool = True) -> Process:  # fmt: skip
    its = rank(number, "main", world=2)
    main = Thread("MainThread", 1, (Frame(operation, TORCH, 9), *frames), main=True)
    looks = tuple(dataclasses.replace(look, threads=(main,)) for look in its.samples)
    assert its.beat is not None
    beat = dataclasses.replace(its.beat, handles=handles, tells_handled=tells)
    return dataclasses.replace(its, samples=looks, beat=beat)


def inside(number: int, program: Path, function: str = "train", marker: str = "body") -> Process:
    return member(number, "all_reduce", at(program, ("step", "reduced"), (function, marker)))


def raised(program: Path, error: str = "ValueError", function: str = "train", marker: str = "body") -> HandledError:
    [place], [caught] = at(program, ("step", "raised")), at(program, (function, marker))
    return HandledError(error, place, caught)


def judged(*processes: Process) -> tuple[Verdict, Triage]:
    """The verdict on ranks of which the last one is in a barrier, and the others in an all_reduce, at one position."""
    last = len(processes) - 1
    where = {number: (5, "barrier" if number == last else "all_reduce") for number in range(last + 1)}
    verdict = judge.triage(evidence(*processes), compared(group("0", where)))
    assert verdict.triage is not None and verdict.verdict == "HUNG"
    return verdict, verdict.triage


@pytest.mark.parametrize(
    ("frames", "by"),
    [
        pytest.param((("train", "finally"),), "finally", id="a finally"),
        pytest.param((("close", "closed"), ("train", "helper")), "finally", id="a function that a finally calls"),
        pytest.param((("train", "caught"),), "except", id="an except"),
    ],
)
def test_a_rank_that_an_error_took_away_is_named_with_the_line(
    program: Path, frames: tuple[tuple[str, str], ...], by: str
) -> None:
    gone = member(1, "barrier", at(program, *frames), raised(program))
    verdict, body = judged(inside(0, program), gone)
    assert [party.rank for party in body.culprits] == [1]
    assert f"ValueError at train.py:{line('raised')}" in verdict.reason and f"`{by}`" in verdict.reason
    assert f"train.py:{line('raised')}" in body.next[0]


def test_an_except_tells_of_its_error_without_a_probe(program: Path) -> None:
    verdict, body = judged(inside(0, program), member(1, "barrier", at(program, ("train", "caught")), tells=False))
    assert [party.rank for party in body.culprits] == [1]
    assert f"`except` at train.py:{line('caught') - 1}" in verdict.reason


def test_a_finally_without_a_probe_names_nobody(program: Path) -> None:
    gone = member(1, "barrier", at(program, ("train", "finally")), tells=False)
    verdict, body = judged(inside(0, program), gone)
    assert not body.culprits and "`finally`" in verdict.reason
    assert any("by an error or in good order" in text for text in verdict.missing)


def test_a_rank_that_left_in_good_order_has_met_no_error(program: Path) -> None:
    verdict, body = judged(inside(0, program), member(1, "barrier", at(program, ("train", "finally"))))
    assert not body.culprits and "in good order" in verdict.reason
    assert "rounds" in body.next[0] and not any("error" in text for text in verdict.missing)


def test_an_error_of_another_try_has_not_taken_it_there(program: Path) -> None:
    other = raised(program, "ImportError", "drain", "drained")
    verdict, body = judged(inside(0, program), member(1, "barrier", at(program, ("train", "finally")), other))
    assert not body.culprits and "ImportError" not in verdict.reason


def test_the_end_of_a_loop_is_no_fault_of_its_rank(program: Path) -> None:
    gone = member(1, "barrier", at(program, ("drain", "over")), raised(program, "StopIteration", "drain", "drained"))
    verdict, body = judged(inside(0, program, "drain", "drained"), gone)
    assert not body.culprits and "StopIteration" in verdict.reason


def test_ranks_that_left_no_try_are_not_told_to_have(program: Path) -> None:
    frames = at(program, ("close", "closed"))
    verdict, body = judged(inside(0, program), member(1, "barrier", frames, raised(program)))
    assert not body.culprits and "ValueError" not in verdict.reason


def test_a_line_in_a_try_has_left_none(program: Path) -> None:
    assert try_text.left_try(*at(program, ("train", "body"))) is None


def test_the_error_that_a_main_thread_handles_is_in_its_beat() -> None:
    assert handled_errors.handled() is None
    try:
        int("none")
    except ValueError:
        beat = {"host": socket.gethostname(), "pid": 7, "t_ns": time.monotonic_ns(), "progress_ns": 0, "count": 1,
                "handles": handled_errors.handled()}  # fmt: skip
    pulse = parse(block(beat), time.monotonic_ns())
    handles = pulse.beat.handles
    assert handles is not None and (handles.error, handles.caught) == ("ValueError", handles.raised)
    assert handles.raised.function == "test_the_error_that_a_main_thread_handles_is_in_its_beat"


def test_the_error_of_a_side_thread_is_not_the_main_threads() -> None:
    looked: list[object] = []

    def handle() -> None:
        try:
            int("none")
        except ValueError:
            looked.append(handled_errors.handled())

    thread = threading.Thread(target=handle)
    thread.start()
    thread.join()
    assert looked == [None]

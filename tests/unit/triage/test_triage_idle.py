"""Who is idle: a process that waits for requests, and none that waits for what nobody is seen to make."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import evidence, process

from harness.triage.evidence import NOT_PYTHON, Evidence, Frame, Process
from harness.triage.judge import triage
from reports.model import Verdict

READS = "main:10 collect:20 pipe.recv"
SHELL = process(90, "shell", beat=None)
TOOL = process(90, "process", beat=None, notes=(f"{NOT_PYTHON}: no Python stacks",))
DRIVER = process(90, "process", "main:40 hand_out select")


def live(*processes: Process) -> Evidence:
    return evidence(*processes, source="live", stall_s=0.0)


@pytest.mark.parametrize(
    ("above", "verdict"),
    [((), "INSUFFICIENT"), ((SHELL,), "INSUFFICIENT"), ((TOOL,), "INSUFFICIENT"), ((DRIVER,), "HEALTHY")],
)
def test_a_program_that_only_waits_for_its_child_makes_it_no_idle_worker(
    above: tuple[Process, ...], verdict: str
) -> None:
    reader = process(100, "process", READS, ppid=90, beat=None)
    assert triage(live(*above, reader)).verdict == verdict


PROGRAM = """
def until(path):
    while not path.exists():
        time.sleep(2)
"""


def dead(code: int = -9) -> Process:
    return process(200, "process", gone=True, ppid=100, exit_code=code, beat=None)


def standing(stack: str = "main:10 step:42", **more: Any) -> Process:
    return process(100, "process", stack, ppid=90, beat=None, **more)


def poller(folder: Path, **more: Any) -> Process:
    """A program without a rank that looks again and again until a file is there."""
    (folder / "job.py").write_text(PROGRAM)
    frame = Frame("until", str(folder / "job.py"), 4)
    looks = tuple(
        dataclasses.replace(look, wchan="hrtimer_nanosleep", main_switches=number, threads=(
            dataclasses.replace(look.threads[0], frames=(frame,)),))
        for number, look in enumerate(standing().samples)
    )  # fmt: skip
    return dataclasses.replace(standing(**more), samples=looks)


@pytest.mark.parametrize("code", [1, -9])
@pytest.mark.parametrize("stack", ["main:10 step:42", "main:10 queue.get select"])
@pytest.mark.parametrize("above", [(), (SHELL,)])
def test_whoever_stands_beside_a_child_that_ended_badly_is_not_idle(
    above: tuple[Process, ...], stack: str, code: int
) -> None:
    verdict = triage(live(*above, standing(stack), dead(code)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)
    assert "node0:200" in verdict.reason and any("node0:200" in step for step in verdict.triage.next)  # type: ignore[union-attr]


def culprits(verdict: Verdict) -> list[str]:
    assert verdict.triage is not None
    return [party.key for party in verdict.triage.culprits]


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ((standing(), dead(0)), "its child ended well"),
        ((standing("main:10 serve_forever"), dead()), "a server takes requests"),
        ((standing("main:10 run_busy_loop queue.get"), dead()), "so does an engine"),
        ((standing(listening=("127.0.0.1:80",)), dead()), "and whoever listens"),
        ((standing(cpu_s=1.2), dead()), "it goes on"),
        ((DRIVER, standing("main:10 serve_forever"), dead(), process(95, "process", "main", cpu_s=1.2)), "others do"),
    ],
)
def test_a_child_that_ended_badly_stops_no_server_and_nobody_who_goes_on(
    others: tuple[Process, ...], what: str
) -> None:
    assert triage(live(*others)).verdict == "HEALTHY", what


def test_a_program_that_looks_for_what_nobody_makes_is_not_idle(tmp_path: Path) -> None:
    verdict = triage(live(poller(tmp_path)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)


@pytest.mark.parametrize("others", [(process(95, "process", "main", cpu_s=1.2, beat=None),), ()])
def test_a_program_that_looks_for_what_may_come_is_healthy(tmp_path: Path, others: tuple[Process, ...]) -> None:
    """Somebody works, or it is a server that looks whether it shall end."""
    looks = poller(tmp_path, listening=() if others else ("127.0.0.1:80",))
    assert triage(live(looks, *others)).verdict == "HEALTHY"


@pytest.mark.parametrize(
    ("more", "timed", "verdict"),
    [({}, False, "INSUFFICIENT"), ({}, True, "HEALTHY"), ({"listening": ("127.0.0.1:80",)}, False, "HEALTHY")],
)
def test_a_select_without_a_limit_waits_for_somebody(more: dict[str, Any], timed: bool, verdict: str) -> None:
    selects = standing(wchan="do_select", **more)
    looks = tuple(dataclasses.replace(look, timed=timed) for look in selects.samples)
    assert triage(live(dataclasses.replace(selects, samples=looks))).verdict == verdict

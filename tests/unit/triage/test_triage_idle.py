"""Who is idle: a process that waits for requests, and none that waits for what nobody is seen to make."""

from __future__ import annotations

import pytest
from triage_evidence import evidence, process

from harness.triage.evidence import NOT_PYTHON, Process
from harness.triage.judge import triage

READS = "main:10 collect:20 pipe.recv"
SHELL = process(90, "shell", beat=None)
TOOL = process(90, "process", beat=None, notes=(f"{NOT_PYTHON}: no Python stacks",))
DRIVER = process(90, "process", "main:40 hand_out select")


@pytest.mark.parametrize(
    ("above", "verdict"),
    [((), "INSUFFICIENT"), ((SHELL,), "INSUFFICIENT"), ((TOOL,), "INSUFFICIENT"), ((DRIVER,), "HEALTHY")],
)
def test_a_program_that_only_waits_for_its_child_makes_it_no_idle_worker(
    above: tuple[Process, ...], verdict: str
) -> None:
    reader = process(100, "process", READS, ppid=90, beat=None)
    assert triage(evidence(*above, reader, source="live", stall_s=0.0)).verdict == verdict

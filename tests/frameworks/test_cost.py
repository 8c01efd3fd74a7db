"""Processor time of processes that nobody waits for, as Ray's workers: a shell loses it, a group keeps it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from accounting import Group
from cost import shell_seconds

BURN = "import time\nwhile time.process_time() < 1.5: pass"
# As a raylet: the end of its children is ignored, so their time is added to nobody's.
PARENT = f"""
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {BURN!r}], stdout=subprocess.PIPE)
child.stdout.read()
"""


@pytest.fixture
def group() -> Group:
    try:
        return Group(f"harness-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(f"no group of processes can be made here: {error}")


def test_a_group_counts_what_its_shell_does_not(group: Group) -> None:
    inner = Group("job", group)
    try:
        command = inner.enter(["sh", "-c", '"$@"; times', "sh", sys.executable, "-c", PARENT])
        done = subprocess.run(group.enter(command), capture_output=True, text=True, check=True)
        assert inner.wait() == group.wait() == []
        assert group.seconds >= inner.seconds >= 1.5 > shell_seconds(done.stdout)
    finally:
        inner.remove()
        group.remove()


def test_what_a_failed_job_left_is_ended(group: Group) -> None:
    subprocess.run(group.enter(["sh", "-c", "sleep 1000 & exit 3"]), stdout=subprocess.DEVNULL)
    group.end()
    assert not group.folder.exists()


def test_the_last_line_of_times_is_the_shells_children() -> None:
    said = "0m9.0s 0m9.0s\nits own\n0m0.01s 0m0.02s\n1m2.50s 0m3.25s\n"
    assert shell_seconds(said) == pytest.approx(65.75)

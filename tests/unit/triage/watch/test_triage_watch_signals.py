"""Signals that end the watch end all that its command started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from waiting import until

from harness.triage.collect import proc
from harness.triage.watch.signals import Passing

SCRIPT = "sleep 1000 & echo $!; wait"


@pytest.fixture
def heard_signal(signum: int) -> Iterator[None]:
    """`nohup`, under which somebody may run the tests, leaves SIGHUP ignored in all that they start."""
    before = signal.signal(signum, signal.SIG_DFL)
    yield
    signal.signal(signum, before)


@pytest.mark.usefixtures("heard_signal")
@pytest.mark.parametrize("foreground", [False, True])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_script_started_is_not_left_behind(signum: int, foreground: bool) -> None:
    passing = Passing()
    passing.foreground = foreground  # then the command is in the group of the watch
    group = None if foreground else 0
    with subprocess.Popen(["sh", "-c", SCRIPT], stdout=subprocess.PIPE, process_group=group) as script:
        assert script.stdout is not None
        started = int(script.stdout.readline())
        passing.to(script)
        passing.arrived(signum, None)
        assert script.wait() == -signum
    until(lambda: not proc.alive(started))
    assert passing.asked is not None and passing.asked[0] == signum


def test_a_signal_of_the_user_reaches_the_command_alone() -> None:
    passing = Passing()
    passing.foreground = False
    with subprocess.Popen(["sh", "-c", SCRIPT], stdout=subprocess.PIPE, process_group=0) as script:
        assert script.stdout is not None
        started = int(script.stdout.readline())
        passing.to(script)
        passing.arrived(signal.SIGUSR1, None)
        assert script.wait() == -signal.SIGUSR1
        assert proc.alive(started) and not passing.ending
        os.kill(started, signal.SIGKILL)

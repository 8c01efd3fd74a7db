"""A signal whose handler runs in a callback of the interpreter, where its exception is ignored, comes again."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, weakref
from harness import cli, lost_interrupts
from harness.errors import Terminated

number = int(sys.argv[1])
lost_interrupts.send_again()
if number != signal.SIGINT:
    signal.signal(number, cli._terminated)

class Thing:
    pass

thing = Thing()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
try:
    del thing  # the exception is raised in the callback, or right behind it
    signal.pause()
except KeyboardInterrupt as error:
    print(type(error).__name__, Terminated.arrived)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (signal.SIGHUP, "Terminated 1\n"),
        (signal.SIGTERM, "Terminated 15\n"),
        (signal.SIGINT, "KeyboardInterrupt 0\n"),
    ],
)
def test_an_interrupt_that_python_ignores_comes_again(number: signal.Signals, answer: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(int(number))], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (answer, 0), done.stderr

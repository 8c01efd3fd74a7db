"""Lines on standard error, whose reader may go away: `harness env create vllm 2>&1 | head` ends no creation."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from harness.aside import print_aside

PROGRAM = """
import sys
from harness.envs.progress import announce, console
announce("about to begin")
with console("environment vllm") as progress:
    for step in range(3):
        progress.step(f"step {step}")
print("done", flush=True)
"""


@pytest.mark.slow
def test_progress_without_a_reader_ends_nothing_and_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    answer = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=writing, text=True)
    os.close(writing)
    assert (answer.returncode, answer.stdout) == (0, "done\n")


def test_a_line_goes_to_the_stream_at_once() -> None:
    class Flushed(io.StringIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    stream = Flushed()
    print_aside("one line", stream)
    print_aside("1/2", stream, end="\r")
    assert stream.getvalue() == "one line\n1/2\r" and stream.flushes == 2


def test_a_closed_stream_without_a_descriptor_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    print_aside("nobody reads it", stream)

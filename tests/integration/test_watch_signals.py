"""Signals, closed terminals and closed pipes around `harness watch`: the command ends as it would without."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

ROOT = Path(__file__).parents[2]
# `harness watch` with a watchdog of the test's own, so that nothing has to hang for long.
DRIVER = """
import sys, time
from pathlib import Path
from harness.commands import showing
from harness.triage.watch import Stall, Watchdog, watch
from reports.model import Verdict

class Dog(Watchdog):
    def tick(self):
        self.observer()
        if Path("look").exists():
            Path("looking").touch()
            time.sleep(600)
        if Path("hung").exists():
            return Stall(Verdict("triage", "HUNG", 1, "it hangs"), self.directory, 1.0)

    confirm = tick

def show(stall):
    showing.say("a stall")
    showing.show_aside(stall.verdict, "text")

result = watch(
    sys.argv[2:], stall_s=1.0, out=Path("out"), on_stall=sys.argv[1], say=showing.say, show=show, watchdog=Dog
)
Path("code").write_text(str(result.exit_code))
"""
JOB = """
import os, signal, sys, time
from pathlib import Path
Path("pid").write_text(str(os.getpid()))
count = 0
def interrupted(*_):
    global count
    count += 1
    Path(f"interrupted{count}").touch()
    if count == int(sys.argv[1]):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, interrupted)
if "nohup" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("ready").touch()
while True:
    time.sleep(0.1)
"""


class Session:
    """The driver in the foreground of a terminal of its own; or, without one, with pipes."""

    def __init__(self, folder: Path, on_stall: str, *words: str, terminal: bool = True) -> None:
        self.folder = folder
        (folder / "driver.py").write_text(DRIVER)
        (folder / "job.py").write_text(JOB)
        self.terminal, inner = pty.openpty() if terminal else (-1, subprocess.PIPE)
        self.process = subprocess.Popen(
            [sys.executable, "driver.py", on_stall, sys.executable, "job.py", *words], cwd=folder, stdin=inner,
            stdout=inner, stderr=inner, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if terminal else None,
        )  # fmt: skip
        if terminal:
            os.close(inner)
        until(self.there("ready"))

    def there(self, name: str) -> Callable[[], bool]:
        return (self.folder / name).exists

    def type(self, key: bytes) -> None:
        os.write(self.terminal, key)

    def close(self) -> None:
        os.close(self.terminal)
        self.terminal = -1

    def ended(self) -> int:
        """The exit code of `watch`, once nobody is left."""
        self.process.wait(300)
        until(lambda: not os.path.exists(f"/proc/{(self.folder / 'pid').read_text()}"), 30)
        return int((self.folder / "code").read_text())


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def start(*words: str, terminal: bool = True) -> Session:
        sessions.append(Session(tmp_path, *words, terminal=terminal))
        return sessions[-1]

    yield start
    for one in sessions:
        if one.terminal >= 0:
            one.close()
        for pid in (one.process.pid, int((tmp_path / "pid").read_text())):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        one.process.wait()


def test_each_ctrl_c_reaches_the_command_once(session: Callable[..., Session]) -> None:
    one = session("end", "2")
    one.type(b"\x03")
    until(one.there("interrupted1"))
    time.sleep(0.5)
    assert one.process.poll() is None and not one.there("interrupted2")()
    one.type(b"\x03")
    assert one.ended() == 128 + signal.SIGINT


def test_ctrl_c_gives_up_the_look_at_a_command_that_has_ended(session: Callable[..., Session]) -> None:
    one = session("end", "1")
    (one.folder / "look").touch()
    until(one.there("looking"))
    job = int((one.folder / "pid").read_text())
    os.kill(job, signal.SIGKILL)
    dead = ") Z "  # and not reaped
    until(lambda: dead in Path(f"/proc/{job}/stat").read_text())
    one.type(b"\x03")
    assert one.ended() == 128 + signal.SIGKILL


def test_a_closed_terminal_ends_a_command_that_lets_it(session: Callable[..., Session]) -> None:
    one = session("end", "1")
    one.close()
    assert one.ended() == 128 + signal.SIGHUP


def test_a_closed_terminal_does_not_end_the_watch_of_a_command_that_goes_on(session: Callable[..., Session]) -> None:
    one = session("end", "1", "nohup", "stubborn")
    one.close()
    time.sleep(0.5)
    assert one.process.poll() is None
    (one.folder / "hung").touch()
    assert one.ended() == 86


def test_a_reader_that_goes_away_keeps_nobody_alive(session: Callable[..., Session]) -> None:
    one = session("end", "1", terminal=False)
    for stream in (one.process.stdin, one.process.stdout, one.process.stderr):
        assert stream is not None
        stream.close()
    (one.folder / "hung").touch()
    assert one.ended() == 86


def test_a_command_that_ignores_sigterm_goes_on_until_a_stall_ends_it(session: Callable[..., Session]) -> None:
    one = session("end", "1", "stubborn", terminal=False)
    one.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert one.process.poll() is None
    (one.folder / "hung").touch()
    assert one.ended() == 86


def test_the_command_line_survives_a_closed_stderr(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import os, sys
        from harness.commands.showing import say
        sys.argv[0] = "harness"
        import harness.cli
        def run():
            say("one"); say("two")
            return 86
        harness.cli.main = run
        from harness.entry import main
        main()
    """)
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=writing, env=environment)
    os.close(reading)
    os.close(writing)
    assert process.wait(600) == 86

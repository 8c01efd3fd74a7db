"""Real jobs that `watch --on-stall end` ends: everybody in them, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from harness.triage.remote import gather
from harness.triage.remote.serve import Server
from harness.triage.watch import Serving, Stall, Watchdog, watch
from harness.triage.watch.observe import Stat, table
from harness.triage.watch.signals import passing_on
from reports.model import Verdict

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class Hung(Watchdog):
    """Says once that the job hangs, when a file is there."""

    ready: Path
    told = False
    again = True  # and says so at the second look

    def tick(self) -> Stall | None:
        self.observer()
        if not self.ready.exists() or self.told:
            return None
        self.told = True
        return Stall(Verdict("triage", "HUNG", 1, "it hangs"), self.directory, 1.0)

    def confirm(self) -> Stall | None:
        self.told = not self.again
        return self.tick()


def ended(tmp_path: Path, code: str, **more: Any) -> tuple[int, list[str], dict[int, Stat]]:
    """Exit code of `watch --on-stall end` of this code, the lines it said, and whoever is left of it."""
    Hung.ready = tmp_path / "ready"
    script = tmp_path / "job.py"
    script.write_text(PREFIX.format(ready=str(Hung.ready)) + textwrap.dedent(code))
    lines: list[str] = []
    result = watch(
        [sys.executable, str(script)], stall_s=1.0, out=tmp_path / "out", on_stall="end", say=lines.append,
        watchdog=Hung, environ={**ENVIRONMENT, "MARK": str(tmp_path)}, **more,
    )  # fmt: skip
    return result.exit_code, lines, left(str(tmp_path))


PREFIX = """
import os, signal, subprocess, sys, time

def ready():
    open({ready!r}, "w").close()

def sleep():
    while True:
        time.sleep(1)
"""


def left(mark: str) -> dict[int, Stat]:
    """Living processes that were started with this mark in their environment."""

    def marked(pid: int) -> bool:
        try:
            return f"MARK={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    return {pid: stat for pid, stat in table().items() if stat.state not in ("Z", "X") and marked(pid)}


IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
CHILDREN = "[subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']) for _ in range(3)]\n"
SESSION = "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
DAEMON = """
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    ready()
    sleep()
os.wait()
sleep()
"""
GROUP = """
if not os.fork():
    if os.fork():
        os._exit(0)
    os.execve("/bin/sleep", ["sleep", "600"], {"MARK": os.environ["MARK"]})
os.wait()
ready(); sleep()
"""
STOPPED = "os.kill(subprocess.Popen(['sleep', '600']).pid, signal.SIGSTOP)\n"
FORKER = """
def again(*_):
    if not os.fork():
        return
    os._exit(0)
signal.signal(signal.SIGTERM, again)
ready(); sleep()
"""


@pytest.mark.parametrize(
    "code",
    [
        "ready(); sleep()",
        IGNORE + "ready(); sleep()",
        CHILDREN + IGNORE + "ready(); sleep()",
        SESSION + "ready(); sleep()",
        DAEMON,
        GROUP,
        STOPPED + "ready(); sleep()",
        FORKER,
    ],
    ids=["obeys", "ignores", "children", "session", "daemon", "group", "stopped", "forks"],
)
def test_a_job_that_hangs_is_ended_whole(tmp_path: Path, code: str) -> None:
    code_, lines, there = ended(tmp_path, code)
    for pid in there:  # before the assertion: nothing stays behind either way
        os.kill(pid, signal.SIGKILL)
    assert (code_, lines, there) == (86, [], {})


def test_a_verdict_that_cannot_be_printed_does_not_keep_the_job(tmp_path: Path) -> None:
    def show(stall: Stall) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    code, lines, there = ended(tmp_path, "ready(); sleep()", show=show)
    assert (code, there) == (86, {}) and len(lines) == 1 and "Broken pipe" in lines[0]


def test_a_job_that_is_not_hung_at_the_second_look_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hung, "again", False)
    code, lines, there = ended(tmp_path, f"ready(); time.sleep(4); os.unlink({str(tmp_path / 'ready')!r}); sys.exit(5)")
    assert (code, there) == (5, {}) and set(lines) == {"at a second look it is not hung: the command goes on"}


@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails meanwhile"])
def test_a_job_is_ended_whose_hang_the_evidence_of_all_hosts_shows(tmp_path: Path, fails: bool) -> None:
    """Also where its command ends because another host's has."""
    server = Server("0", b"a token of these nodes")

    def tell() -> None:
        until((tmp_path / "up").exists, 60)
        assert gather.end([server.url], b"a token of these nodes") == {}
        (tmp_path / "told").touch()

    with ThreadPoolExecutor(1) as pool:
        telling = pool.submit(tell)
        up = f"open({str(tmp_path / 'up')!r}, 'w')\n"
        failing = f"while not os.path.exists({str(tmp_path / 'told')!r}): time.sleep(0.01)\nsys.exit(1)\n"
        code, lines, there = ended(
            tmp_path, up + CHILDREN + (failing if fails else "sleep()"), serving=Serving(server, 0.0)
        )
        telling.result()
    assert (code, there) == (86, {})
    assert lines == ["the job hangs, by the evidence of all its nodes: the command is ended"]


def test_a_bystander_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"], env=ENVIRONMENT)
    try:
        assert ended(tmp_path, "ready(); sleep()")[0] == 86 and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_signal_ends_the_time_for_which_evidence_is_served_after_the_command() -> None:
    lines: list[str] = []

    def told(line: str) -> None:
        lines.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    server = Server("0", b"a token of these nodes")
    with passing_on() as passed, subprocess.Popen(["true"]) as child:
        child.wait()
        passed.to(child)
        Serving(server, after_s=3600.0).stay(told, passed)
    server.close()
    assert lines == ["the command has ended; its evidence is served for 3600 s more; Ctrl-C ends that"]


def test_the_command_does_not_inherit_the_token(tmp_path: Path) -> None:
    environ = {**ENVIRONMENT, "RLHF_HARNESS_TOKEN": "a token of these nodes"}
    asks = ["sh", "-c", f"echo ${{RLHF_HARNESS_TOKEN-none}} > {tmp_path}/job"]
    assert watch(asks, stall_s=None, out=tmp_path / "out", environ=environ).exit_code == 0
    assert (tmp_path / "job").read_text() == "none\n"

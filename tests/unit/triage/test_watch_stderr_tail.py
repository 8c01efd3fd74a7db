"""The last words of a command, whatever its standard error goes to; and that everything is passed on."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from harness.triage.collect import stacks
from harness.triage.watch import stderr_tail as tail
from harness.triage.watch.stderr_tail import KEPT, LATE_S, PROGRAM, StderrTail
from harness.triage.watch.watchdog import Watchdog

pytestmark = pytest.mark.slow  # each starts two or three processes
LAST = "RuntimeError: the bucket is empty"
FAILS = [
    sys.executable,
    "-S",
    "-c",
    "import sys; sys.stderr.write('first\\n'); raise RuntimeError('the bucket is empty')",
]


def ran(command: list[str], into: int) -> str:
    with StderrTail(into) as stderr_tail:
        child = subprocess.Popen(command, stderr=into if stderr_tail.descriptor is None else stderr_tail.descriptor)
        stderr_tail.started()
        return stderr_tail.words(child.wait())


def read(descriptor: int) -> bytes:
    parts = []
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


def test_a_file_is_read_where_it_was_written(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab") as log:
        log.write(b"ValueError: of another command\n")
        log.flush()
        assert ran(FAILS, log.fileno()) == LAST
        assert ran([sys.executable, "-S", "-c", "raise SystemExit(3)"], log.fileno()) == ""


@pytest.mark.parametrize(
    ("code", "words"), [("raise SystemExit(3)", ""), ("raise RuntimeError('of the job')", "RuntimeError: of the job")]
)
def test_what_others_write_into_the_same_file_is_no_word_of_the_command(tmp_path: Path, code: str, words: str) -> None:
    with open(tmp_path / "log", "ab") as log, StderrTail(log.fileno()) as stderr_tail:
        into = log.fileno() if stderr_tail.descriptor is None else stderr_tail.descriptor
        child = subprocess.Popen([sys.executable, "-S", "-c", f"input(); {code}"], stdin=subprocess.PIPE, stderr=into)
        stderr_tail.started()
        os.write(log.fileno(), b"harness: nothing has progressed in rank 0\nValueError: of another program\n")
        child.communicate(b"\n")
        assert stderr_tail.words(child.returncode) == words
        assert "nothing has progressed" not in stderr_tail.text()


def test_a_pipe_gets_all_of_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    assert ran(FAILS, writer) == LAST
    os.close(writer)
    assert read(reader).startswith(b"first\n")
    os.close(reader)


def test_a_terminal_stays_one() -> None:
    reader, writer = pty.openpty()
    asks = (
        "import sys; sys.stderr.write(f'terminal {sys.stderr.isatty()}\\n'); raise RuntimeError('the bucket is empty')"
    )
    assert ran([sys.executable, "-S", "-c", asks], writer) == LAST
    os.close(writer)
    assert b"terminal True" in read(reader)
    os.close(reader)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("python3 -m no_such_module", "No module named no_such_module"),
        ("no-such-program", "no-such-program: command not found"),
        ("python3 -m no_such.module", "No module named 'no_such'"),
        ("kill -9 $$", "killed by signal 9"),
        ("exit 0", ""),
    ],
)
def test_words_of_what_is_no_python(script: str, words: str) -> None:
    reader, writer = os.pipe()
    said = ran(["bash", "-c", script], writer)
    os.close(writer), os.close(reader)
    assert words in said and bool(said) is bool(words)


def test_a_command_that_has_ended_before_its_words_are_read_has_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "PROGRAM", f"import time; time.sleep(1)\n{PROGRAM}")
    reader, writer = os.pipe()
    assert ran(["bash", "-c", "echo 'RuntimeError: early' >&2; exit 1"], writer) == "RuntimeError: early"
    os.close(writer), os.close(reader)


def test_a_daemon_that_holds_it_open_delays_nobody_and_goes_on_writing() -> None:
    reader, writer = os.pipe()
    gate, opened = os.pipe()
    daemon = "import os; os.read(0, 1); os.write(2, b'late\\n')"
    script = f"{sys.executable} -S -c {daemon!r} <&{gate} & echo 'RuntimeError: early' >&2; exit 1"
    with StderrTail(writer) as stderr_tail:
        child = subprocess.Popen(["bash", "-c", script], stderr=stderr_tail.descriptor, pass_fds=(gate,))
        stderr_tail.started()
        assert stderr_tail.words(child.wait()) == "RuntimeError: early"
    os.close(writer)
    os.write(opened, b"x")
    assert read(reader) == b"RuntimeError: early\nlate\n"
    for descriptor in (reader, gate, opened):
        os.close(descriptor)


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "words"
    file.touch()
    written = (b"x" * 99 + b"\n") * 50_000 + b"END"
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(file), str(KEPT), "-1"]
    subprocess.run(command, input=written, stdout=subprocess.DEVNULL, check=True)
    assert file.read_bytes().endswith(b"END") and file.stat().st_size <= 2 * KEPT + (1 << 16)


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True])
def test_what_was_printed_early_is_no_reason_for_a_kill(monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    if early:
        monkeypatch.setattr(tail, "PROGRAM", PROGRAM.replace(str(LATE_S), "0.0"))
    reader, writer = os.pipe()
    words = ran(["bash", "-c", "echo 'ValueError: bad batch, skipped' >&2; kill -TERM $$"], writer)
    os.close(writer), os.close(reader)
    assert words.startswith("killed by signal 15") is early and "ValueError" in words


def test_a_closed_standard_error_is_nothing_to_hear() -> None:
    reader, writer = os.pipe()
    os.close(reader), os.close(writer)
    with StderrTail(writer) as stderr_tail:
        assert stderr_tail.descriptor is None and stderr_tail.words(1) == ""


def test_a_missing_py_spy_is_told_when_a_watch_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    Watchdog(tmp_path, (os.getpid(),), 60.0, say=told.append).close()
    assert not told
    monkeypatch.setattr(stacks, "program", lambda: None)
    Watchdog(tmp_path, (os.getpid(),), 60.0, say=told.append).close()
    (line,) = told
    assert "py-spy is missing" in line and "pip install" in line and "py-spy>=" in line

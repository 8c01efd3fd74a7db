"""What holds nothing to read is named, with what is wanted and a command that works."""

from __future__ import annotations

import io
import os
import shlex
import sys
from pathlib import Path

import pytest

import reports
from harness import cli
from harness.triage.run import triage
from reports.doctor_model import Report
from reports.model import Triage, Verdict
from reports.sections import answer as sections_answer

JAVA = """Full thread dump OpenJDK 64-Bit Server VM (17.0.9+9 mixed mode, sharing):

"main" #1 prio=5 os_prio=0 cpu=45.12ms tid=0x00007f nid=0x1 waiting on condition  [0x0000]
   java.lang.Thread.State: WAITING (parking)
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.9/Native Method)
"""
GO = "goroutine 1 [chan receive, 5 minutes]:\nmain.main()\n\t/src/main.go:12 +0x3c\n"
RUST = "stack backtrace:\n   0: rust_begin_unwind\n             at /rustc/library/std/src/panicking.rs:645:5\n"
C = """Thread 1 (Thread 0x7f0 (LWP 1234)):
#0  __lll_lock_wait (futex=0x7f) at lowlevellock.c:52
#1  0x0000555 in main () at main.c:30
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    Path("empty").mkdir()
    Path("void.txt").touch()
    Path("verdict.json").write_bytes(Verdict("triage", "HUNG", 1, "one waits").to_json().encode())
    for name, text in {"java": JAVA, "go": GO, "rust": RUST, "c": C}.items():
        Path(f"{name}.txt").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("bundle empty", "harness record -- COMMAND"),
        ("bundle c.txt", "harness triage c.txt --out c.txt-evidence; harness bundle c.txt-evidence"),
        ("triage -", "py-spy dump --pid PID | harness triage -"),
        ("stacks -", "py-spy dump --pid PID | harness stacks -"),
        ("triage void.txt", "harness triage --help"),
        ("stacks void.txt", "harness stacks --help"),
        ("triage empty", "harness triage --help"),
        ("triage verdict.json", "harness report verdict.json"),
        ("stacks verdict.json", "harness report verdict.json"),
        ("stacks java.txt", "harness stacks PID"),
        ("stacks go.txt", "harness stacks PID"),
    ],
)
def test_the_fix_is_no_other_command_that_refuses(
    words: str, fix: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert second.partition("   # ")[0].strip() == f"fix: {fix}"
    assert words.split()[1] in first or "the standard input" in first


@pytest.mark.parametrize("name", ["java.txt", "go.txt", "rust.txt"])
def test_stacks_of_other_languages_are_no_python_stacks(name: str, here: Path) -> None:
    verdict = triage([name])
    assert verdict.verdict == "INSUFFICIENT" and verdict.reason.startswith(f"nothing recognised in {name}")
    assert any("Python" in line for line in verdict.missing)


def test_frames_of_c_alone_lack_those_of_python(here: Path) -> None:
    assert any("the Python frames" in line for line in triage(["c.txt"]).missing)
    Path("py.txt").write_text('Thread 0x00007f0000000001 (most recent call first):\n  File "a.py", line 3 in f\n')
    assert not any("the Python frames" in line for line in triage(["py.txt"]).missing)


ANSWERS = [
    Verdict("parity", "DIVERGENT", 1, "the runs part"),
    Verdict("triage", "HUNG", 1, "rank 1 has ended", triage=Triage("K4", [], [], [], [], [], [])),
    Verdict("audit", "SOUND", 0, "9 checks hold"),
    Report((), (), (), ("this shell",), 0.0),
]


@pytest.mark.parametrize("format", ["text", "md", "json"])
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.verdict)
@pytest.mark.slow
def test_an_answer_of_the_harness_on_a_pipe_is_told_as_such(
    answer: Verdict | Report, format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(answer, Report) and format != "text":
        return  # it has no title there
    printed = reports.render(answer, format).encode()
    for command in ("triage", "stacks"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(printed)))
        assert cli.main([command, "-"]) == 2
        first, fix = capsys.readouterr().err.splitlines()
        title = sections_answer.of(answer).title
        assert title in first and (format == "md" or answer.reason in first)
        assert shlex.split(fix.removeprefix("  fix: ")) == ["harness", "explain", title]
        assert cli.main(["explain", title]) == 0
        capsys.readouterr()


@pytest.mark.parametrize("line", ["HUNG (exit code 1) of the job", "it says HUNG (exit code 1): no", "SLOW: 3 s"])
def test_a_log_that_speaks_of_verdicts_is_no_answer(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{line}\n".encode())))
    assert triage(["-"]).verdict == "INSUFFICIENT"


def test_bytes_that_are_no_text_are_not_called_empty(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for content in (b"", b"\x00\x9f\x07" * 99):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert cli.main(["triage", "-"]) == 2
        told.append(capsys.readouterr().err.splitlines())
    assert told[0][0] != told[1][0] and "empty" not in told[1][0] and told[0][1] == told[1][1]


def test_a_pid_beside_recorded_evidence_says_that_they_are_judged_apart(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("evidence", "processes").mkdir(parents=True)
    pid = str(os.getpid())
    for words in (["evidence", pid], [pid, "evidence"]):
        assert cli.main(["triage", *words]) == 2
        first, fix = capsys.readouterr().err.splitlines()
        assert pid in first and "did you mean" not in first
        assert fix.strip() == f"fix: harness triage evidence   # and the process as it is now: harness triage {pid}"
    assert cli.main(["triage", pid, "nowhere"]) == 2
    assert capsys.readouterr().err.splitlines()[0].startswith("harness: 'nowhere' is")

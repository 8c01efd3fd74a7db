"""What holds nothing to read is named, with what is wanted and a command that works."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.triage.run import triage
from reports.model import Verdict

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
        ("triage void.txt", "py-spy dump --pid PID | harness triage -"),
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
    assert verdict.verdict == "INSUFFICIENT" and verdict.reason.startswith(
        f"no Python stack, error or timeout in {name}"
    )
    assert any("Python" in line for line in verdict.missing)


def test_frames_of_c_alone_lack_those_of_python(here: Path) -> None:
    assert any("the Python frames" in line for line in triage(["c.txt"]).missing)
    Path("py.txt").write_text('Thread 0x00007f0000000001 (most recent call first):\n  File "a.py", line 3 in f\n')
    assert not any("the Python frames" in line for line in triage(["py.txt"]).missing)

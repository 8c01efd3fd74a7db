"""`harness adapters check`: every symbol looked up in the source that is installed, and nothing of it imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from adapters_support import NAME, adapter, hook, write
from waiting import until

from harness import cli
from harness.frameworks import installed as installed_
from harness.frameworks.spec import Framework, frameworks
from harness.frameworks.symbols import check
from probes.adapters import Hook

pytestmark = pytest.mark.slow

EXTRA = {
    "inherits.py": "from .trainer import Trainer\nclass Mine(Trainer):\n    pass\n",
    "reexports.py": (
        "from little_rlhf.early import helper as renamed\ntry:\n    def inside(): ...\nexcept ImportError:\n    pass\n"
    ),
    "broken.py": "def (:\n",
    "__init__.py": "raise SystemExit('imported')\n",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = write(tmp_path / "site")
    for name, text in EXTRA.items():
        (source / NAME / name).write_text(text)
    info = source / f"{NAME}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.5\n")
    monkeypatch.setenv("PYTHONPATH", str(source) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    return source


def test_what_is_there_is_found_where_it_is_defined_inherited_or_reexported(installed: Path) -> None:
    good = [
        "trainer:Trainer.generate", "trainer:Trainer.agenerate", "trainer:Trainer.inherited", "trainer:Trainer.static",
        "inherits:Mine.generate", "inherits:Mine.inherited", "early:helper", "reexports:renamed", "reexports:inside",
    ]  # fmt: skip
    found = check(adapter(*map(hook, good)), sys.executable)
    assert [one.trouble for one in found.symbols] == [""] * len(good)
    assert found.ok and found.tested and found.version == "1.5" and not found.moved


def test_what_moved_is_named_with_the_place_where_it_is_missing(installed: Path) -> None:
    wrong = {
        "trainer:Trainer.gone": "little_rlhf.trainer:Trainer has no gone",
        "trainer:Nobody.generate": "little_rlhf.trainer has no Nobody",
        "trainer:profiled.x": "little_rlhf.trainer:profiled is no class",
        "trainer:State": "little_rlhf.trainer:State is no function",
        "absent:f": "module little_rlhf.absent is not installed",
        "broken:f": "module little_rlhf.broken is not installed",
    }
    found = check(adapter(*map(hook, wrong)), sys.executable)
    assert [one.trouble for one in found.symbols] == list(wrong.values()) and not found.ok
    missing = check(adapter(hook("early:helper"), versions=("2", "3")), sys.executable)
    assert not missing.tested and not missing.ok and not missing.moved


def test_symbols_of_an_engine_that_is_not_there_are_not_looked_up(installed: Path) -> None:
    """A framework's table holds those of each engine, and an interpreter has one of them."""
    found = check(adapter(hook("early:helper"), Hook("no_such_engine.core:Core.add")), sys.executable)
    assert [one.symbol for one in found.symbols] == ["little_rlhf.early:helper"] and found.ok
    moved = check(adapter(hook("early:helper"), Hook("json.decoder:JSONDecoder.gone")), sys.executable)
    assert [one.trouble for one in moved.moved] == ["json.decoder:JSONDecoder has no gone"]


def test_the_command_ends_with_1_for_a_moved_symbol_and_2_for_nothing_installed(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def framework(*hooks: Hook) -> None:
        module = ModuleType("little_adapter")
        module.ADAPTER = adapter(*hooks)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "little_adapter", module)
        monkeypatch.setitem(frameworks(), NAME, Framework(NAME, "little_adapter", (), "", ("vllm",)))

    framework(hook("early:helper"))
    line = ["adapters", "check", "--framework", NAME, "--python", sys.executable]
    assert cli.main(line) == 0 and "1 of 1 symbols" in capsys.readouterr().out
    framework(hook("early:gone"), hook("early:helper"))
    assert cli.main([*line, "--format", "json"]) == 1
    [found] = json.loads(capsys.readouterr().out)
    assert found["symbols"][0]["trouble"] == "little_rlhf.early has no gone" and found["ok"] is False
    monkeypatch.setenv("PYTHONPATH", "")
    assert cli.main(line) == 2 and f"has none of: {NAME}" in capsys.readouterr().err
    assert cli.main(["adapters", "check", "--python", "/no/such/python"]) == 2
    assert "/no/such/python" in capsys.readouterr().err


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def program(folder: Path, text: str) -> str:
    file = folder / "python"
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "#!/bin/sh\necho usage >&2\nexit 2\n",
            "is no Python interpreter that works: told to run Python it ended with 2 (usage)",
        ),
        ("#!/bin/sh\nexec /bin/sh \"$@\"\n", "is no Python interpreter that works"),
        ("#!/bin/sh\nexit 0\n", "ended with 0 (nothing)"),
        ("#!/nowhere/at/all\n", "the interpreter that it names is not there"),
        ("no program\n", "cannot be started: Exec format error"),
        (
            f"#!{sys.executable}\nprint('rlhf-harness-python:2.7')\nraise ImportError('No module named metadata')\n",
            "is Python 2.7 and cannot say what it has: ImportError: No module named metadata",
        ),
    ],
)  # fmt: skip
def test_what_is_no_python_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    assert cli.main(["adapters", "check", "--python", program(tmp_path, text)]) == 2
    line, fix = capsys.readouterr().err.splitlines()
    assert sentence in line and fix == f"  fix: {installed_.NAME_IT}"


def test_ls_and_a_directory_are_no_pythons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["adapters", "check", "--python", "/bin/ls"]) == 2
    assert "/bin/ls" in capsys.readouterr().err
    assert cli.main(["adapters", "check", "--python", str(tmp_path)]) == 2
    assert f"{tmp_path} is a directory, no interpreter" in capsys.readouterr().err
    (tmp_path / "a.txt").touch()
    assert cli.main(["adapters", "check", "--python", str(tmp_path / "a.txt")]) == 2
    assert "Permission denied" in capsys.readouterr().err
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "")
    assert cli.main(["adapters", "check", "--python", str(tmp_path)]) == 2
    assert f"--python {tmp_path / 'bin' / 'python'}" in capsys.readouterr().err


def test_a_python_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "gate")  # nobody writes to it: whoever opens it waits
    pid = tmp_path / "pid"
    hangs = program(tmp_path, f"#!/bin/sh\nsh -c 'echo $$ > {pid}; read x < {tmp_path}/gate'\n")
    monkeypatch.setattr(installed_, "TIMEOUT_S", 2.0)
    assert cli.main(["adapters", "check", "--python", hangs]) == 2
    assert f"{hangs} did not say within 2 s what it has installed" in capsys.readouterr().err
    until(lambda: not (pid.exists() and alive(int(pid.read_text() or 0))))  # what the interpreter started

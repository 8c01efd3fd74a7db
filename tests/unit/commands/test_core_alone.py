"""An installation of the core alone, without the extras' packages: every command that the README promises works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WITHOUT_EXTRAS = """
import sys
for name in ("numpy", "scipy", "pandas", "pyarrow", "torch", "ray", "matplotlib", "sqlalchemy", "psutil"):
    sys.modules[name] = None
from harness import cli
sys.exit(cli.main(sys.argv[1:]))
"""
STACKS = (
    'Process 7: python train.py\nThread 7 (idle): "MainThread"\n    wait (threading.py:331)\n    step (train.py:3)\n'
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("stacks.txt").write_text(STACKS)
    Path("mine.py").write_text("def to_sglang(args): return {'model_path': args['model'], 'dtype': args['dtype']}\n")
    return tmp_path


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("help", 0),
        ("help env create", 0),
        ("explain K4", 0),
        ("explain INSUFFICIENT 3", 0),
        ("explain", 0),
        ("doctor --no-imports", None),
        ("triage stacks.txt --out ev", 3),
        ("stacks stacks.txt", 0),
        ("mapping mine.py --engine sglang", 1),
        ("watch -- true", 0),
        ("adapters list", 0),
        ("env list", 0),
    ],
)
def test_a_command_works_without_the_extras(typed: str, code: int | None, here: Path) -> None:
    done = _run(*typed.split())
    assert done.returncode in ((0, 1) if code is None else (code,)), done.stderr
    assert done.stdout or typed.startswith("watch")
    assert "not installed here" not in done.stderr


def test_evidence_is_judged_and_packed_without_the_extras(here: Path) -> None:
    assert _run("triage", "stacks.txt", "--out", "ev").returncode == 3
    assert _run("bundle", "ev").stdout == "ev.bundle.zip\n"
    assert _run("triage", "ev.bundle.zip").stdout.split()[0] == "INSUFFICIENT"


def test_a_cause_is_explained_where_its_package_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = _run("explain", "STALE_WEIGHTS")
    assert done.returncode == 2 and "numpy" in done.stderr and "[diff]" in done.stderr
    assert cli.main(["explain", "STALE_WEIGHTS"]) == 0


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, *words], capture_output=True, text=True, env=environ)


@pytest.mark.parametrize(
    ("typed", "extras"),
    [("faults run --suite hang", "[parity]"), ("nightly matrix.toml", "[nightly,parity]")],
)
def test_what_is_missing_is_asked_for_at_once(typed: str, extras: str, here: Path) -> None:
    Path("matrix.toml").write_text('name = "mine"\n[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["ppo-tiny"]\n')
    done = _run(*typed.split())
    assert done.returncode == 2 and extras in done.stderr, done.stderr
    assert not Path("runs").exists()

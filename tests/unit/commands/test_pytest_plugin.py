"""The pytest plugin: a verdict passes or fails a test with its sentence, and who does not use it pays nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from recordings import make

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
STUB = """
import harness
from harness.errors import BadInput
from reports.model import Cause, Verdict

calls = []
def run_parity(baseline, candidate, **options):
    calls.append((baseline, candidate, options))
    if candidate == "absent":
        raise BadInput("there is no engine 'absent'", fix="harness env create absent")
    if candidate == "brief":
        raise BadInput("3 steps show nothing", fix="--steps 8   # or more", instead="--steps")
    if candidate == "shy":
        return Verdict("parity", "INCONCLUSIVE", 3, "nothing was compared")
    if candidate == "other":
        cause = Cause("STOP(</s>)", "candidate", "it ends elsewhere")
        return Verdict("parity", "DIVERGENT", 1, "they differ", causes=[cause], paths={"report": "/runs/report.html"})
    return Verdict("parity", "EQUIVALENT", 0, "equal")
harness.run_parity = run_parity

def pytest_unconfigure():
    print("calls:", calls)
"""
TESTS = """
import pytest

@pytest.mark.harness_parity("vllm", "sglang", rollout_only=True)
def test_equal(harness_parity):
    assert harness_parity.verdict == "EQUIVALENT"

@pytest.mark.harness_parity("vllm", "sglang", rollout_only=True)
def test_again(harness_parity):
    pass

@pytest.mark.harness_parity("vllm", "other")
def test_other(harness_parity):
    raise AssertionError("not reached")

@pytest.mark.harness_parity("vllm", "shy")
def test_shy(harness_parity):
    raise AssertionError("not reached")

@pytest.mark.harness_parity("vllm", "absent")
def test_absent(harness_parity):
    raise AssertionError("not reached")

@pytest.mark.harness_parity("vllm", "brief", rollout_only=True, steps=3)
def test_brief(harness_parity):
    raise AssertionError("not reached")

def test_unmarked(harness_parity):
    raise AssertionError("not reached")
"""


def run(folder: Path, *words: str, tests: str = TESTS, conftest: str = STUB) -> str:
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "harness.pytest_plugin", *words, folder]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=300)
    return done.stdout + done.stderr


def test_a_verdict_passes_or_fails_a_test_with_its_sentence(tmp_path: Path) -> None:
    told = run(tmp_path, "-q", "--strict-markers")
    assert "2 passed, 5 errors" in told, told
    assert "fix: harness parity vllm brief --steps 8 --rollout-only   # or more\n" in told
    assert "DIVERGENT (exit code 1): they differ" in told and "cause: STOP(</s>), in the candidate" in told
    assert "report: /runs/report.html" in told
    assert "INCONCLUSIVE (exit code 3): nothing was compared" in told
    assert "harness: there is no engine 'absent'" in told and "fix: harness env create absent" in told
    assert "two engines are compared" in told and "Traceback" not in told and "not reached" not in told
    assert told.count("('vllm', 'sglang', {'rollout_only': True})") == 1  # two tests, one comparison


def test_the_option_compares_other_engines(tmp_path: Path) -> None:
    told = run(tmp_path, "-q", "-k", "equal or other", "--harness-parity", "vllm@0.31, vllm@0.32")
    assert "('vllm@0.31', 'vllm@0.32', {})" in told and "('vllm@0.31', 'vllm@0.32', {'rollout_only': True})" in told
    told = run(tmp_path, "-q", "-k", "equal", "--harness-parity", "vllm")
    assert "two engines are compared: --harness-parity vllm,sglang" in told


def test_recorded_runs_are_judged(tmp_path: Path) -> None:
    for side in ("baseline", "candidate"):
        make(side).write(tmp_path / side)
    tests = "def test_it(harness_diff):\n    assert harness_diff('baseline', 'candidate').verdict == 'EQUIVALENT'\n"
    tests += "def test_pair(harness_diff):\n    harness_diff('.')\n"
    tests += "def test_none(harness_diff):\n    harness_diff('baseline', 'absent')\n"
    told = run(tmp_path, "-q", tests=tests, conftest="")
    assert "1 failed, 2 passed" in told and "absent does not exist" in told, told
    told = run(tmp_path, "-q", "--harness-strict", "-k", "pair", tests=tests, conftest="")
    assert "1 failed" in told and "EQUIVALENT, but" in told and "(exit code 3)" in told, told


def test_a_run_that_does_not_use_it_imports_nothing_of_it(tmp_path: Path) -> None:
    conftest = """
import sys

def pytest_unconfigure():
    mine = {name for name in sys.modules if name.partition(".")[0] in ("harness", "reports", "probes", "scenarios")}
    print("imported:", sorted(mine), sorted({"numpy", "pydantic", "typer", "rich", "msgspec"} & set(sys.modules)))
"""
    told = run(tmp_path, "-q", tests="def test_it():\n    pass\n", conftest=conftest)
    assert "imported: ['harness', 'harness.pytest_plugin'] []" in told, told


def test_pytest_finds_it_by_itself() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert points == {"harness.pytest_plugin": "harness.pytest_plugin"}
    assert pytest.importorskip("harness.pytest_plugin").OPTION == "--harness-parity"

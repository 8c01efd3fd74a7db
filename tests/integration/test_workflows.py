"""The steps of a generated GitHub workflow, run in order as a runner does, in a clone of somebody's project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from recordings import pair

from harness import cli

ROOT = Path(__file__).parents[2]
MATRIX = 'name = "mine"\n[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["rollout-tiny"]\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a matrix and a wheel of this checkout."""
    source = tmp_path / "source"
    for name in ("harness", "probes", "reports", "scenarios"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    project = tmp_path / "project"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", project / "wheels", source], check=True)
    (project / "matrix.toml").write_text(MATRIX)
    monkeypatch.chdir(project)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return project


class Runner:
    """Runs `run:` steps as GitHub does, with `bash -e`; of `uses:` it has Python, and a checkout is where it stands."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.summary = project / "summary.md"
        subprocess.run([sys.executable, "-m", "venv", project.parent / "python"], check=True)
        path = f"{project.parent / 'python' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_RUN_ID": "1"}
        self.environ.pop("VIRTUAL_ENV", None)

    def run(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=self.project, env=self.environ, capture_output=True, text=True, timeout=580,
        )  # fmt: skip


def steps(file: Path, job: str) -> dict[str, dict[str, Any]]:
    workflow = yaml.safe_load(file.read_text())
    return {step["name"]: step for step in workflow["jobs"][job]["steps"] if "run" in step}


@pytest.mark.night
def test_the_gate_installs_the_harness_from_a_wheel_and_knows_every_option(project: Path) -> None:
    [wheel] = (project / "wheels").glob("*.whl")
    gate = "harness diff baseline candidate --format github"
    words = ["render", "github", "matrix.toml", "--source", str(wheel.relative_to(project)), "--on-push", gate]
    assert cli.main(words) == 0
    of, runner = steps(project / ".github/workflows/harness-push.yml", "gate"), Runner(project)
    installed = runner.run({"run": of["Install the harness"]["run"].replace("[nightly,parity]", "[diff]")})
    assert installed.returncode == 0, installed.stderr
    for name, recording in zip(("baseline", "candidate"), pair(), strict=True):
        recording.write(project / name)
    gated = runner.run(of["Gate"])
    assert gated.returncode == 0 and gated.stdout.startswith("::notice title=EQUIVALENT"), gated.stderr


@pytest.mark.night
@pytest.mark.engines
def test_every_step_of_the_written_gate_and_of_a_cell_succeeds(project: Path) -> None:
    [wheel] = (project / "wheels").glob("*.whl")
    assert cli.main(["render", "github", "matrix.toml", "--source", str(wheel.relative_to(project))]) == 0
    folder, runner = project / ".github/workflows", Runner(project)
    # the interpreter that runs the tests has what the extras bring, and takes an hour less than a download
    runner.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    runner.environ["PYTHONPATH"] = str(ROOT)
    gate = steps(folder / "harness-push.yml", "gate")
    gated = runner.run(gate["Gate"])
    assert gated.returncode == 0 and "::notice title=EQUIVALENT" in gated.stdout, gated.stdout + gated.stderr
    assert runner.run(gate["Summary"]).returncode == 0 and "EQUIVALENT" in runner.summary.read_text()
    cell = steps(folder / "harness-nightly.yml", "cell")
    runner.environ["CELL"] = "hf-hf/rollout-tiny"
    night = runner.run(cell["Cell"])
    assert night.returncode == 0, night.stdout + night.stderr
    assert runner.run(cell["Summary"]).returncode == 0 and (project / "runs/nightly/history.db").exists()

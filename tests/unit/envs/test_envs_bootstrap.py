"""Making the project's own environment, before anything is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_environments import FakeUv, venv

from harness.envs import bootstrap

PINNED = "ray==1\ntorch==2.13.0\n"


def test_without_a_gpu_the_cpu_build_of_torch_is_asked_for() -> None:
    assert bootstrap.torch_override(PINNED, gpu=False, platform="linux") == ["torch==2.13.0+cpu"]


def test_with_a_gpu_or_off_linux_plain_torch_is_right() -> None:
    assert bootstrap.torch_override(PINNED, gpu=True, platform="linux") == []
    assert bootstrap.torch_override(PINNED, gpu=False, platform="darwin") == []


def test_the_project_pins_torch() -> None:
    assert bootstrap.torch_override(bootstrap.CONSTRAINTS.read_text(), gpu=False, platform="linux")
    with pytest.raises(LookupError):
        bootstrap.torch_override("torch>=2\n", gpu=False)


@pytest.mark.slow
def test_it_runs_before_anything_is_installed() -> None:
    """-S: without site-packages, as on a machine with nothing but Python."""
    command = [sys.executable, "-S", "-m", "harness.envs.bootstrap", "--help"]
    answer = subprocess.run(command, cwd=bootstrap.ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "DIRECTORY" in answer.stdout.upper()


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    """An environment that already has its uv."""
    venv(tmp_path / "env")
    fake = FakeUv(tmp_path)
    (tmp_path / "env" / "bin" / "uv").symlink_to(fake.binary)
    monkeypatch.setattr(bootstrap, "nvidia_gpu", lambda: False)
    monkeypatch.setattr(bootstrap.indexes, "pip_configuration", lambda python: {})
    return fake


def test_the_project_is_installed_with_its_tools(ready: FakeUv, tmp_path: Path) -> None:
    assert bootstrap.main([str(tmp_path / "env")]) == 0
    assert [word for word in ready.calls[-1] if word.startswith(("--editable", "--constr", str(bootstrap.ROOT)))] == [
        "--constraints", str(bootstrap.CONSTRAINTS), "--editable", f"{bootstrap.ROOT}[dev]",
    ]  # fmt: skip


def test_a_failure_is_one_sentence(
    ready: FakeUv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_UV_INSTALL", "fails")
    assert bootstrap.main([str(tmp_path / "env")]) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    assert bootstrap.main(["somewhere"]) == 2
    assert "Python 3.11 or 3.12 is needed" in capsys.readouterr().err

"""The registry of frameworks: the folders, and another package's framework by its entry point, recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.frameworks.detection import detect
from harness.frameworks.record import record
from harness.frameworks.spec import frameworks
from probes.format import Run

SPEC = """
from harness.frameworks.spec import Framework
FRAMEWORK = Framework(
    name="little", module="little_rlhf_harness.adapter", commands=(r"^import little_rlhf\\b",), starts=r"\\.py( |$)",
    engines=("vllm",),
)
"""
ADAPTER = """
from probes.adapters.table import Adapter, Hook
ADAPTER = Adapter(
    framework="little", distribution="little-rlhf", versions=("1", "2"), packages=("little_rlhf",),
    hooks=(Hook("little_rlhf.trainer:step", span="train"),),
)
"""
ENTRY = "[rlhf_harness.frameworks]\nlittle = little_rlhf_harness.spec:FRAMEWORK\n"


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with a framework; the package that describes it lies elsewhere, where only the harness looks."""
    for name, text in {
        "theirs/little_rlhf_harness/__init__.py": "", "theirs/little_rlhf_harness/spec.py": SPEC,
        "theirs/little_rlhf_harness/adapter.py": ADAPTER, "theirs/little-1.dist-info/entry_points.txt": ENTRY,
        "theirs/little-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: little\nVersion: 1\n",
        "site/little_rlhf/__init__.py": "", "site/little_rlhf/trainer.py": "def step():\n    return 7\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "theirs"))
    frameworks.cache_clear()
    yield tmp_path / "site"
    frameworks.cache_clear()
    for name in [name for name in sys.modules if name.startswith("little_rlhf_harness")]:
        del sys.modules[name]


def test_every_folder_is_a_framework_with_an_adapter_of_its_name() -> None:
    assert {"openrlhf", "trl", "verl"} <= set(frameworks())
    for name, framework in frameworks().items():
        assert framework.name == name == framework.adapter.framework
        assert all(trap.check.startswith(f"{name}-") and trap.read_in for trap in framework.traps)


def test_another_packages_framework_is_recorded_where_it_is_not_installed(
    little: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import little_rlhf.trainer\nprint(little_rlhf.trainer.step())\n")
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    said: list[str] = []
    environ = {**bare, "PYTHONPATH": str(little)}
    command = [sys.executable, str(script)]
    assert detect(command, environ=environ).framework.name == "little"
    assert record(command, out=tmp_path / "run", say=said.append, environ=environ).exit_code == 0
    assert capfd.readouterr().out == "7\n"
    manifest = Run(tmp_path / "run").manifest
    assert manifest["framework"] == "little" and manifest["hooks"]["fired"] == {"little_rlhf.trainer:step": 1}, said


def test_a_framework_that_cannot_be_loaded_leaves_the_others(
    little: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs" / "little_rlhf_harness" / "spec.py").write_text("raise RuntimeError('broken')\n")
    with pytest.warns(UserWarning, match="'little' cannot be loaded: broken"):
        assert "verl" in frameworks()
    assert "little" not in frameworks()

"""The registry of frameworks: the folders, and another package's framework by its entry point, recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.frameworks import spec
from harness.frameworks.configured import _of as of_process
from harness.frameworks.detection import detect
from harness.frameworks.examine import look
from harness.frameworks.record import record
from harness.frameworks.spec import frameworks, refused
from probes.format import Run
from reports.doctor_model import Unchecked

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
    spec._loaded.cache_clear()
    yield tmp_path / "site"
    spec._loaded.cache_clear()
    for name in [name for name in sys.modules if name.startswith("little_rlhf_harness")]:
        del sys.modules[name]


def test_every_folder_is_a_framework_with_an_adapter_of_its_name() -> None:
    assert {"openrlhf", "trl", "verl"} <= set(frameworks())
    for name, framework in frameworks().items():
        assert framework.name == name == framework.adapter.framework
        assert all(trap.check.startswith(f"{name}-") and trap.read_in for trap in framework.traps)


@pytest.mark.slow
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
    assert "verl" in frameworks() and "little" not in frameworks()
    [error] = map(str, refused())
    named = "the framework plug-in 'little' of little 1 (little_rlhf_harness.spec:FRAMEWORK)"
    assert error == f"{named} cannot be loaded: RuntimeError: broken"
    for framework in ("little", "auto"):
        with pytest.raises(BadInput, match="RuntimeError: broken"):
            detect(["true"], framework)


BROKEN = """
from harness.frameworks.spec import Framework, Trap

def raises(*arguments):
    raise SystemExit(0)

FRAMEWORK = Framework(
    name="little", module="little_rlhf_harness.adapter", commands=(r"^import little_rlhf\\b",), starts=r"\\.py( |$)",
    engines=("vllm",), examine=raises, configured=raises, traps=(Trap("little-trap", raises, "1"),),
)
"""


@pytest.mark.slow
def test_a_framework_that_misbehaves_is_not_checked(little: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs" / "little_rlhf_harness" / "spec.py").write_text(BROKEN)
    script = tmp_path / "train.py"
    script.write_text("import little_rlhf.trainer\n")
    items = look([sys.executable, str(script)])
    said = "the framework plug-in 'little' of little 1 (little_rlhf_harness.spec:FRAMEWORK) raised SystemExit: 0"
    assert [one.check for one in items if isinstance(one, Unchecked) and one.reason == said] == ["little-trap"]
    assert [one.reason for one in of_process(frameworks()["little"], {"configuration": {}})] == [said]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("name", "verl", "cannot be used: the name 'verl' is taken by the harness (harness.frameworks.verl)"),
        ("name", "li|ttle", "cannot be used: 'li|ttle' cannot be the name of a framework: letters, digits, - and _"),
        ("commands", "import little", "cannot be loaded: TypeError: `commands` is a tuple of patterns"),
        ("commands", ("(",), "cannot be loaded: error: missing ), unterminated subpattern at position 0"),
        ("module", "little_rlhf_harness.absent", "cannot be used: ModuleNotFoundError: No module named "
         "'little_rlhf_harness.absent'"),
    ],
)  # fmt: skip
def test_a_framework_that_would_break_others_is_refused(
    little: Path, tmp_path: Path, field: str, value: object, why: str
) -> None:
    changed = f"from dataclasses import replace\n{SPEC}\nFRAMEWORK = replace(FRAMEWORK, {field}={value!r})\n"
    (tmp_path / "theirs" / "little_rlhf_harness" / "spec.py").write_text(changed)
    assert [str(error).partition(") ")[2] for error in refused()] == [why]
    assert frameworks()["verl"].module.startswith("probes.")

"""What an engine's interpreter is shown of ours, and what not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import envs
from harness.envs import bundles

_QUESTION = """
import importlib.util, json, sys
from importlib import metadata
print(json.dumps({
    "packages": [name for name in ("probes", "scenarios", "harness", "typer") if importlib.util.find_spec(name)],
    "entry_points": [point.value for point in metadata.entry_points(group="sglang.srt.plugins")],
}))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))


def seen(bundle: Path) -> dict[str, list[str]]:
    """What a bare interpreter finds with only this on its path."""
    command = [sys.executable, "-S", "-c", _QUESTION]
    environ = {"PYTHONPATH": str(bundle)}
    return dict(json.loads(subprocess.check_output(command, env=environ, cwd="/", text=True)))


def test_an_engine_sees_probes_scenarios_and_the_plugin_and_nothing_else() -> None:
    assert seen(envs.bundle()) == {
        "packages": ["probes", "scenarios"],
        "entry_points": ["scenarios.engines.sglang.plugin:register"],
    }


def test_without_plugins_no_entry_point_is_declared() -> None:
    assert seen(envs.bundle(plugins=False)) == {"packages": ["probes", "scenarios"], "entry_points": []}


def test_the_declared_plugin_exists() -> None:
    from scenarios.engines.sglang import plugin as sglang_plugin

    assert callable(sglang_plugin.register)


def test_a_bundle_is_made_once_and_leaves_nothing_beside_it() -> None:
    first, without = envs.bundle(), envs.bundle(plugins=False)
    assert envs.bundle() == first != without
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, without.name])


def test_two_checkouts_have_two_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = envs.bundle()
    monkeypatch.setattr(bundles, "_source", lambda name: tmp_path / "other" / name)
    assert envs.bundle() != first


def test_a_bundle_that_another_process_made_meanwhile_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    path = envs.bundle()
    usual = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda self: self != path and usual(self))  # it came between look and rename
    assert envs.bundle() == path
    assert [item.name for item in path.parent.iterdir()] == [path.name]

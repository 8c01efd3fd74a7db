"""The commands as functions, without a cluster: the command line that does it again, what is refused before anything
starts, what an ended run leaves behind."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import cli
from harness.experiment import Experiment, RunCut
from harness.launch import Cluster
from harness.parity import run

CUT = "baseline (hf), step 0: a process of the run died"
PARITY: dict[str, Any] = {
    "scenario": "rollout-tiny", "overrides": ["engine.seed=3", 'model.path="builtin:tiny"'],
    "candidate_overrides": ["sampling.temperature=0.9"], "mode": "greedy", "seed": 0, "steps": 3, "rollout_only": True,
    "free": True, "native": False, "fault": "engine-seed", "cap": 1e-05, "address": "10.0.0.1:6379", "device": "cpu",
    "stall_s": 90.5,
}  # fmt: skip
RUN: dict[str, Any] = {
    "backend": "hf", "overrides": ["ppo.epochs=2"], "mode": "coupled", "seed": 7, "steps": 9, "rollout_only": True,
    "resume": None, "address": "10.0.0.1:6379", "device": "cpu", "stall_s": 0.0,
}  # fmt: skip
DEFAULTS = {name: getattr(run, name).__kwdefaults__ for name in ("run_parity", "run_scenario")}


def complete(function: str, options: dict[str, Any]) -> dict[str, Any]:
    """Every option that a command line carries, as the command passes it on."""
    known = {**DEFAULTS[function], **options}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in known.items()
        if key not in ("progress", "out")
    }


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that never starts, under runs whose begin writes the manifests and whose first step is cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))

    @contextlib.contextmanager
    def nothing(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield None

    def begin(self: Experiment, spare: int = 0) -> None:
        for side in self._sides:
            self._manifest(side)

    def record(self: Experiment, side: Any, **options: Any) -> str:
        raise RunCut(CUT)

    monkeypatch.setattr(Cluster, "__init__", lambda self, address=None: None)
    monkeypatch.setattr(Cluster, "__enter__", lambda self: self)
    monkeypatch.setattr(Cluster, "__exit__", lambda self, *exc: None)
    monkeypatch.setattr(Cluster, "gpus", lambda self: 0.0)
    monkeypatch.setattr(run, "_guarded", nothing)
    monkeypatch.setattr(Experiment, "begin", begin)
    monkeypatch.setattr(Experiment, "record", record)


def asked(command: str, function: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command line passes to the function."""
    caught: dict[str, Any] = {}

    def catch(*positional: Any, **options: Any) -> Any:
        caught.update(options, positional=positional)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, function, catch)
    program, *arguments = shlex.split(command)
    assert program == "harness"
    assert cli.main(arguments) == 130
    return {key: value for key, value in caught.items() if key not in ("progress", "out")}


@pytest.mark.parametrize("options", [{}, PARITY, {"stall_s": 0.0, "overrides": ["engine.seed=1"]}])
def test_a_verdict_names_the_command_that_asks_for_the_same_again(
    options: dict[str, Any], no_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = {**options, "overrides": iter(options.get("overrides", []))}  # any iterable is welcome
    verdict = harness.run_parity("hf", "hf", **once, out="it")
    assert (verdict.verdict, verdict.reason) == ("INCONCLUSIVE", f"cut short: {CUT}")
    assert "--out" not in verdict.reproduce
    for side in ("baseline", "candidate"):
        assert json.loads((tmp_path / "it" / side / "run.json").read_text())["command"] == verdict.reproduce
    again = asked(verdict.reproduce, "run_parity", monkeypatch)
    assert again == complete("run_parity", options) | {"positional": ("hf", "hf")}


@pytest.mark.parametrize("options", [{}, RUN])
def test_a_run_records_the_command_that_makes_it_again(
    options: dict[str, Any], no_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunCut):
        harness.run_scenario("ppo-tiny", **options, out=tmp_path / "it")
    command = json.loads((tmp_path / "it" / "run.json").read_text())["command"]
    again = asked(command, "run_scenario", monkeypatch)
    assert again == complete("run_scenario", options) | {"positional": ("ppo-tiny",)}

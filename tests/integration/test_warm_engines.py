"""Engines that are kept up: the same verdict and figures as cold, leftovers found, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ppo_support import random_models
from waiting import until

from harness import cli, envs
from harness.cluster.launch import Cluster
from harness.cluster.side import Side
from harness.cluster.waiting import Waiting
from harness.parity.runs.replay import run_replay
from harness.parity.runs.run import run_parity, run_scenario
from harness.parity.runs.run_options import LaunchOptions, ParityOptions, RunOptions
from harness.planted.differences import files
from harness.planted.differences.fault_runs import outcomes
from harness.warm import pool, state, up
from scenarios.planted import leftovers
from scenarios.settings import Scenario

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ParityOptions:
    models = random_models(tmp_path_factory.mktemp("models"))
    settings = {
        "model.path": models["policy"], "model.reward": models["reward"], "native.samples": 32,
        "rollout.prompts_per_step": 4, "sampling.max_tokens": 8, "ppo.train_batch_size": 8,
    }  # fmt: skip
    return ParityOptions(overrides=[f"{key}={json.dumps(value)}" for key, value in settings.items()], steps=2)


@pytest.fixture(scope="module")
def scenario(options: ParityOptions) -> Scenario:
    return options.settings("ppo-tiny")


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("home")
        patch.setenv("HARNESS_HOME", str(path))
        yield path
        up.down(print)


def test_a_comparison_uses_engines_that_are_up_and_down_leaves_nothing(
    options: ParityOptions, scenario: Scenario, tmp_path: Path
) -> None:
    kept = up.up(["hf", "hf"], scenario, idle_s=3600, say=print)
    try:
        told: list[str] = []
        warm = run_parity("hf", "hf", options, out=tmp_path / "warm", progress=lambda event: told.append(event.message))
        assert warm.verdict == "EQUIVALENT"
        assert [line for line in told if line] == [f"warm: hf, hf, up since {kept.since}"]
        assert warm.figures["warm"] is True
        manifest = json.loads((tmp_path / "warm" / "candidate" / "run.json").read_text())
        assert manifest["warm"] == {"since": kept.since, "started_anew": {}}
        assert [row.stage for row in up.listed(pytest.fail)] == ["coupled", "coupled", "native", "native"]
    finally:
        there = state.below(kept.keeper.pid)
        up.down(print)
    assert len(there) > 4 and not [one for one in there if one.alive]
    assert up.listed(pytest.fail) == []


@pytest.mark.night
def test_warm_and_cold_say_the_same(options: ParityOptions, scenario: Scenario, tmp_path: Path) -> None:
    cold = run_parity("hf", "hf", options, out=tmp_path / "cold", cold=True)
    up.up(["hf", "hf"], scenario, idle_s=3600, say=print)
    try:
        warm = run_parity("hf", "hf", options, out=tmp_path / "warm")
    finally:
        up.down(print)
    assert warm.verdict == cold.verdict == "EQUIVALENT"
    assert (warm.figures["warm"], cold.figures["warm"]) == (True, False)
    assert warm.parity is not None and cold.parity is not None
    assert warm.parity.metrics == cold.parity.metrics and warm.parity.floor == cold.parity.floor


@pytest.mark.night
def test_one_comparison_after_another_a_run_and_a_replay_use_them(
    options: ParityOptions, scenario: Scenario, tmp_path: Path
) -> None:
    own = RunOptions(overrides=options.overrides, steps=options.steps)
    kept = up.up(["hf", "hf"], scenario, idle_s=3600, say=print)
    told: list[str] = []
    tell = lambda event: told.append(event.message)  # noqa: E731
    try:
        pairs = [run_parity("hf", "hf", options, out=tmp_path / str(number), progress=tell) for number in range(2)]
        assert [one.verdict for one in pairs] == ["EQUIVALENT", "EQUIVALENT"]
        assert pairs[0].parity is not None and pairs[1].parity is not None
        assert pairs[0].parity.metrics == pairs[1].parity.metrics
        assert [line for line in told if line] == [f"warm: hf, hf, up since {kept.since}"] * 2
        told.clear()
        recorded = run_scenario("ppo-tiny", own, out=tmp_path / "run", progress=tell)
        assert [line for line in told if line] == [f"warm: hf, up since {kept.since}"]
        told.clear()
        replayed = run_replay(recorded, out=tmp_path / "replay", progress=tell)
        assert f"warm: hf, up since {kept.since}" in told and replayed.figures["warm"] is True
        assert replayed.verdict == "EQUIVALENT"
    finally:
        up.down(print)


@pytest.mark.night
def test_a_bisection_over_settings_uses_them(options: ParityOptions, scenario: Scenario, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text((ROOT / "scenarios/catalog/ppo-tiny.toml").read_text())
    bad.write_text(good.read_text().replace("temperature = 1.0", "temperature = 0.5"))
    words = [word for one in options.overrides for word in ("--set", one)]
    ends = ["--good", str(good), "--bad", str(bad), "--out", str(tmp_path / "out")]
    up.up(["hf"], scenario, native=False, idle_s=3600, say=print)
    try:
        assert cli.main(["bisect", "hf", *ends, "--", *words, "--steps", "2"]) == 0
    finally:
        up.down(print)
    found = json.loads((tmp_path / "out" / "bisect.json").read_text())
    assert found["results"] == [["sampling.temperature: 1 → 0.5"]]
    assert all(" (engines that were up): " in step["why"] for step in found["steps"]), found


@pytest.mark.night
def test_faults_that_leave_engines_alone_use_them(scenario: Scenario, tmp_path: Path) -> None:
    faults = files.chosen(files.faults(), ["top-p-leaked", "trainer-mask-shifted"])
    kept = up.up(["hf", "hf"], scenario, native=False, idle_s=3600, say=print)
    try:
        for number in range(2):  # the second suite finds what the first one left
            told: list[str] = []
            say = lambda event: told.append(event.message)  # noqa: E731, B023
            options = LaunchOptions(progress=say)
            rows = list(outcomes("hf", "hf", faults, scenario=scenario, out=tmp_path / str(number), options=options))
            assert all(row.named and row.party_right for row in rows) and len(rows) == 2
            assert [line for line in told if line] == [f"warm: hf, hf, up since {kept.since}"]
    finally:
        up.down(print)


@pytest.mark.night
def test_leftovers_are_found_and_the_engine_started_anew(scenario: Scenario, tmp_path: Path) -> None:
    side = Side("run", "hf", envs.resolve("hf"), scenario, tmp_path)
    up.up(["hf"], scenario, native=False, idle_s=3600, say=print)
    told: list[str] = []
    with pool.claim([side], device="auto", native=False, say=told.append) as taken:
        assert taken is not None
        with Cluster(taken.address, ours=True) as cluster:
            waiting = Waiting(None, lambda side, phase, step: None)

            def after(plant: Callable[[Any], None]) -> list[str]:
                """What is told of an engine in which this was planted."""
                told.clear()
                actor = Cluster.named(state.current(pytest.fail).engines[0].actor)  # type: ignore[union-attr]
                import ray

                with contextlib.suppress(ray.exceptions.ActorDiedError):  # the plant that ends the process
                    ray.get(actor.handle.__ray_call__.remote(plant))
                adopted = taken.adopt(cluster, side, "coupled", taken.look(side, "coupled"), waiting)
                assert adopted.submit("adopt", scenario.to_json()).result() == []  # sound again, whatever it was
                return told.copy()

            for control in leftovers.CONTROLS:
                assert after(control) == []
            for name, words in leftovers.LEFT.items():
                lines = after(getattr(leftovers, name))
                assert len(lines) == 1, name
                [line] = lines
                assert line.startswith("hf is up but not used, and started anew: ") and words in line
    up.down(print)


@pytest.mark.night
def test_engines_that_nobody_uses_end_by_themselves(scenario: Scenario) -> None:
    kept = up.up(["hf"], scenario, native=False, idle_s=1.0, say=print)
    there = state.below(kept.keeper.pid)
    until(lambda: not any(one.alive for one in there))
    assert state.current(pytest.fail) is None


@pytest.mark.night
def test_a_keeper_that_was_killed_leaves_nothing_after_the_next_look(scenario: Scenario) -> None:
    kept = up.up(["hf"], scenario, native=False, idle_s=3600, say=print)
    there = state.below(kept.keeper.pid)
    os.kill(kept.keeper.pid, signal.SIGKILL)
    said: list[str] = []
    until(lambda: not kept.keeper.alive)
    assert state.current(said.append) is None and len(said) == 1 and "keeper" in said[0]
    until(lambda: not any(one.alive for one in there))


@pytest.mark.night
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_up_that_is_interrupted_leaves_nothing(how: signal.Signals, options: ParityOptions) -> None:
    words = [word for setting in options.overrides for word in ("--set", setting)]
    starting = subprocess.Popen(
        [sys.executable, "-m", "harness.entry", "up", "hf", *words], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert starting.stderr is not None and "preparing" in starting.stderr.readline()
    there = [one for one in state.below(starting.pid) if one.pid != starting.pid]
    assert there
    starting.send_signal(how)
    starting.wait(600)
    until(lambda: not any(one.alive for one in there))
    assert starting.returncode in (130, -signal.SIGKILL) and up.listed(pytest.fail) == []
    starting.stderr.close()

"""Engines that are kept up: what fits, who holds them, and what is cleaned up when their keeper has gone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import envs
from harness.cluster.side import Side
from harness.errors import BadInput
from harness.quantities import seconds
from harness.schemas import schemas
from harness.warm import pool, state, up
from harness.warm.fit import difference, facts
from scenarios.settings import Engine, Model, Scenario


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def side(name: str = "run", **sections: object) -> Side:
    return Side(name, "hf", envs.resolve("hf"), dataclasses.replace(Scenario(), **sections), Path("/nowhere"))  # type: ignore[arg-type]


def kept(keeper: state.Process, *engines: state.KeptEngine, **changed: object) -> state.Kept:
    own = state.Process.of(os.getpid())
    one = state.Kept(
        state.boot(), "127.0.0.1:1", "2026-01-01T00:00:00+00:00", 60.0, "cpu", keeper, own, (keeper,), engines
    )
    return dataclasses.replace(one, **changed)  # type: ignore[arg-type]


def engine(stage: state.Stage = "coupled", actor: str = "hf-coupled-0") -> state.KeptEngine:
    own = state.Process.of(os.getpid())
    return state.KeptEngine("hf", "5.0", "hf", stage, actor, own, "/model", facts(side(), "auto"))


@contextlib.contextmanager
def sleeper() -> Iterator[state.Process]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        yield state.Process.of(child.pid)
    finally:
        child.kill()
        child.wait()


def test_the_state_is_the_users_alone_and_is_read_back() -> None:
    own = state.Process.of(os.getpid())
    state.write(kept(own, engine()))
    assert stat.S_IMODE(state.folder().stat().st_mode) == 0o700
    assert stat.S_IMODE((state.folder() / state.STATE).stat().st_mode) == 0o600
    assert state.current(pytest.fail) == kept(own, engine())


def test_without_a_state_nothing_is_said_and_nothing_is_made(home: Path) -> None:
    assert state.current(pytest.fail) is None
    with pool.claim([side()], device="auto", native=False, say=pytest.fail) as none:
        assert none is None
    assert not (home / "warm").exists()


@pytest.mark.parametrize("how", ["dead", "reused", "rebooted"])
def test_what_a_dead_keeper_left_is_ended_and_told(how: str) -> None:
    said: list[str] = []
    with sleeper() as left:
        own = state.Process.of(os.getpid())
        gone = {"dead": state.Process(2**22 + 1, 1), "reused": state.Process(own.pid, own.started - 1)}
        stale = kept(gone.get(how, own), engine(), processes=(left,))
        state.write(dataclasses.replace(stale, boot="another") if how == "rebooted" else stale)
        assert state.current(said.append) is None
        assert left.alive == (how == "rebooted")  # of another boot: that number is somebody else's now
    assert not (state.folder() / state.STATE).exists() and len(said) == 1
    assert ("started anew" if how == "rebooted" else "keeper") in said[0] and "(hf)" in said[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}'])
def test_a_state_that_cannot_be_read_is_removed_in_one_sentence(text: str) -> None:
    (state.folder() / state.STATE).write_text(text)
    said: list[str] = []
    assert state.current(said.append) is None and state.current(said.append) is None
    assert len(said) == 1 and "could not be read" in said[0]


@pytest.mark.slow
def test_one_run_at_a_time_holds_the_engines_and_is_named() -> None:
    state.write(kept(state.Process.of(os.getpid()), engine()))
    assert state.holder() == 0
    with state.claimed() as first:
        assert first and state.holder() == os.getpid()
        said: list[str] = []
        with pool.claim([side()], device="auto", native=False, say=said.append) as none:
            assert none is None
    assert said == [f"the engines that are up are not used: a run (pid {os.getpid()}) uses them"]
    assert state.holder() == 0 and abs(state.last_use() - time.time()) < 60


def test_a_run_takes_what_fits() -> None:
    state.write(kept(state.Process.of(os.getpid()), engine(), engine("native", "hf-native-0")))
    said: list[str] = []
    with pool.claim([side()], device="auto", native=True, say=said.append) as taken:
        assert taken is not None and taken.has(side(), "coupled") and taken.has(side(), "native")
    assert said == ["warm: hf, up since 2026-01-01T00:00:00+00:00"]


@pytest.mark.parametrize(
    "sides, native, refused, why",
    [
        ([side("a"), side("b")], False, "", "there is one hf, and two are needed"),
        ([side()], True, "", "there is no native hf"),
        ([side(engine=Engine(max_num_seqs=3))], False, "", "hf: engine.max_num_seqs is 3 here and "),
        ([side(model=Model(dtype="bfloat16"))], False, "", 'hf: model.dtype is "bfloat16" here and "float32" there'),
        ([side(seed=5)], False, "", "hf: seed is 5 here and 0 there"),
        ([side()], False, "a fault", "a fault"),
    ],
)
def test_a_run_that_nothing_fits_says_why(sides: list[Side], native: bool, refused: str, why: str) -> None:
    state.write(kept(state.Process.of(os.getpid()), engine()))
    said: list[str] = []
    with pool.claim(sides, device="auto", native=native, refused=refused, say=said.append) as none:
        assert none is None
        with state.claimed() as free:
            assert free  # for a run that they fit
    assert len(said) == 1 and said[0].startswith(f"the engines that are up are not used: {why}")


def test_variables_packages_and_settings_of_an_engine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(side(), "auto")
    assert difference(before, facts(side(steps=3), "auto")) == ""  # a live engine takes those
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "secret-value")
    now = facts(side(), "auto")
    assert difference(before, now) == "the variable VLLM_ATTENTION_BACKEND changed"
    assert difference(now, before) == "the variable VLLM_ATTENTION_BACKEND changed"
    assert "secret-value" not in str(now)
    monkeypatch.delenv("VLLM_ATTENTION_BACKEND")
    assert difference(before, facts(side(), "cpu")) == "the device changed"


def test_engines_that_are_up_are_listed_and_not_started_twice() -> None:
    assert up.listed(pytest.fail) == []
    state.write(kept(state.Process.of(os.getpid()), engine()))
    [row] = up.listed(pytest.fail)
    assert row.backend == "hf" and row.pid == os.getpid() and row.memory_bytes > 0 and 0 <= row.ends_in_s <= 60
    with pytest.raises(BadInput, match="engines are up already"):
        up.up(["hf"], Scenario(), idle_s=60, say=pytest.fail)
    with pytest.raises(BadInput, match="there is no backend 'vlm'"):  # to end those that are up would not mend it
        up.up(["vlm"], Scenario(), idle_s=60, say=pytest.fail)
    assert next(one for one in schemas() if one.name == "kept-engines").commands == ("ps",)


def test_engines_are_started_by_one_process_at_a_time() -> None:
    """Of two that start engines at once, the keeper of one would be forgotten, and stay after `harness down`."""
    with state.starting():
        for attempt in (lambda: up.up(["hf"], Scenario(), idle_s=60, say=pytest.fail), lambda: up.down(pytest.fail)):
            with pytest.raises(BadInput, match=rf"harness up \(pid {os.getpid()}\) is starting engines"):
                attempt()
    assert up.down(pytest.fail) is None


def test_bad_input_is_refused_before_anything_starts() -> None:
    for backends, scenario, words in (
        (["nope"], Scenario(), "nope"),
        (["hf"], dataclasses.replace(Scenario(), model=Model(path="/no/such")), "no such directory"),
        (["hf"], dataclasses.replace(Scenario(), rollout=dataclasses.replace(Scenario().rollout, mode="native")),
         "are not kept up"),
        (["hf"], dataclasses.replace(Scenario(), engine=Engine(engines=2)), "only one engine a side is kept up"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=words):
            up.up(backends, scenario, idle_s=60, say=pytest.fail)
    with pytest.raises(BadInput, match="--idle 'soon'"):
        seconds("soon", "--idle")
    assert up.down(pytest.fail) is None


def test_engines_on_a_gpu_are_not_kept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor without a share of a GPU sees none."""
    on_gpu = dataclasses.replace(envs.resolve("hf"), name="vllm", device="cuda")
    monkeypatch.setattr(up, "environment_for", lambda backend, scenario, say: on_gpu)
    with pytest.raises(BadInput, match="vllm"):
        up.up(["hf"], Scenario(), idle_s=60, say=pytest.fail)

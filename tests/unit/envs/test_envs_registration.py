"""Registering the user's own interpreter: refused with a reason, or accepted without touching it."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest
from fake_environments import RAY, snapshot, venv

from harness import extras
from harness.envs import environment, interpreter, registration
from harness.envs.interpreter import Driver, Interpreter
from harness.errors import BadInput, EnvironmentUnusable


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.slow
def test_an_interpreter_is_registered_and_nothing_is_written_into_its_environment(tmp_path: Path) -> None:
    python = venv(tmp_path / "mine")
    before = snapshot(tmp_path / "mine")
    made = registration.add("mine", "vllm", str(python))
    assert snapshot(tmp_path / "mine") == before
    assert (made.name, made.engine, made.version, made.ray) == ("mine", "vllm", "0.32.0", RAY)
    assert (made.python, made.device, made.owned) == (str(python), "cpu", False)
    assert environment.all_environments() == [made]


@pytest.mark.slow
def test_the_directory_of_an_environment_will_do(tmp_path: Path) -> None:
    venv(tmp_path / "mine")
    assert registration.add("mine", "vllm", str(tmp_path / "mine")).python == str(tmp_path / "mine" / "bin" / "python")


@pytest.mark.slow
def test_the_device_is_that_of_its_torch(tmp_path: Path) -> None:
    made = registration.add("mine", "vllm", str(venv(tmp_path / "mine", cuda="13.0")))
    assert (made.device, made.env) == ("cuda", {})


@pytest.mark.slow
def test_registering_again_reads_again_and_removing_forgets(tmp_path: Path) -> None:
    registration.add("mine", "vllm", str(venv(tmp_path / "one")))
    shutil.rmtree(tmp_path / "one")
    made = registration.add("mine", "vllm", str(venv(tmp_path / "one", cuda="13.0")))
    assert environment.all_environments() == [made] and made.device == "cuda"
    registration.remove("mine")
    assert environment.all_environments() == [] and (tmp_path / "one" / "bin" / "python").exists()


@pytest.mark.slow
def test_a_name_that_another_interpreter_has_is_not_taken(tmp_path: Path) -> None:
    made = registration.add("mine", "vllm", str(venv(tmp_path / "one")))
    with pytest.raises(BadInput, match=f"environment 'mine' is vllm of {made.python}") as refused:
        registration.add("mine", "vllm", str(venv(tmp_path / "two")))
    assert refused.value.fix == "harness env remove mine"
    assert environment.all_environments() == [made]


def test_removing_what_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="no environment named 'x'"):
        registration.remove("x")


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match="there is no interpreter at"):
        registration.add("mine", "vllm", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", ["#!/bin/sh\necho hello\n", "#!/bin/sh\nexit 3\n", "no program at all"])
def test_what_is_not_python_is_not_taken_for_one(tmp_path: Path, text: str) -> None:
    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(0o755)
    with pytest.raises(EnvironmentUnusable, match="is not a Python interpreter"):
        registration.add("mine", "vllm", str(program))


def test_a_file_that_cannot_be_run_is_not_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentUnusable, match="Permission denied"):
        registration.add("mine", "vllm", str(tmp_path / "file"))


@pytest.mark.slow
def test_an_environment_of_the_other_engine_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match="it has vllm"):
        registration.add("mine", "sglang", str(venv(tmp_path / "mine")))


@pytest.mark.slow
def test_another_ray_is_refused_with_the_command_that_fixes_it(tmp_path: Path) -> None:
    python = venv(tmp_path / "mine", ray="2.1.0")
    with pytest.raises(EnvironmentUnusable, match=r"has ray 2\.1\.0, the driver has ray") as caught:
        registration.add("mine", "vllm", str(python))
    assert caught.value.fix == extras.install_into(str(python), f"ray=={RAY}")
    assert environment.all_environments() == []


@pytest.mark.slow
def test_an_engine_that_cannot_be_imported_is_refused_with_its_error(tmp_path: Path) -> None:
    python = venv(tmp_path / "mine")
    (module,) = (tmp_path / "mine").glob("lib/*/site-packages/vllm/__init__.py")
    module.write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    with pytest.raises(EnvironmentUnusable, match=r"vllm cannot be imported by .*libcudart"):
        registration.add("mine", "vllm", str(python))


def test_the_drivers_own_packages_are_not_shown_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "path" / "sglang").mkdir(parents=True)
    (tmp_path / "path" / "sglang" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    assert not interpreter.inspect(venv(tmp_path / "mine")).present["sglang"]


def found(
    python: str = "3.11.9", ray: str = "2.60.0", engine: bool = True, implementation: str = "CPython"
) -> Interpreter:
    versions = {"vllm": "0.32.0" if engine else "", "sglang": "", "ray": ray, "torch": "2"}
    present = {name: bool(version) for name, version in versions.items()}
    return Interpreter("/x/bin/python", python, implementation, versions, present, "", ())


DRIVER = Driver(python="3.11.7", ray="2.60.0")


def test_another_patch_version_of_python_fits() -> None:
    assert interpreter.misfit(found(), "vllm", DRIVER) is None


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (found(python="3.12.1"), r"is CPython 3\.12\.1, the driver is CPython 3\.11\.7"),
        (found(implementation="PyPy"), "is PyPy"),
        (found(engine=False), "has no vllm$"),
        (found(ray=""), "has no ray, the driver has ray"),
    ],
)
def test_each_misfit_has_its_sentence(facts: Interpreter, message: str) -> None:
    reason = interpreter.misfit(facts, "vllm", DRIVER)
    assert reason is not None and reason.fix
    with pytest.raises(EnvironmentUnusable, match=message):
        raise reason


def test_no_engine_is_added_to_the_harness_s_own_environment() -> None:
    own = dataclasses.replace(found(engine=False), path=sys.executable)
    reason = interpreter.misfit(own, "vllm", DRIVER)
    assert reason is not None and reason.fix == "harness env create vllm"


def test_an_interpreter_keeps_its_link(tmp_path: Path) -> None:
    """A venv's bin/python is a link to the base interpreter: followed, it would lose the venv."""
    (tmp_path / "python").symlink_to(sys.executable)
    assert interpreter.absolute(tmp_path / "python") == tmp_path / "python"


@pytest.mark.parametrize(("name", "fix"), [("9x", "mine"), ("sglang", "vllm-mine")])
def test_a_wrong_name_has_another_in_its_place(name: str, fix: str) -> None:
    with pytest.raises(BadInput) as refused:
        registration.add(name, "vllm", "python")
    assert (refused.value.fix, refused.value.instead) == (fix, name)


@pytest.mark.parametrize("variable", ["HARNESS_HOME", "XDG_DATA_HOME"])
def test_a_home_that_is_a_file_is_refused_and_not_taken_for_an_empty_one(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("HARNESS_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    with pytest.raises(EnvironmentUnusable, match="is no directory") as refusal:
        environment.all_environments()
    assert (refusal.value.fix or "").startswith(f"unset {variable} ")

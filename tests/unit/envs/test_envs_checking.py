"""`env check`: each fault of an environment is found by the check of its name, and a sound one passes them all."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from fake_environments import RAY, venv
from rich.console import Console

from harness import envs, extras
from harness.commands import env_tables
from harness.envs import Environment, checking, registration
from harness.envs.progress import Downloads, Plain, console

SMOKE = """
import json, sys
print("the engine talks")
print(json.dumps({"smoke": "vllm", **ANSWER}))
sys.exit(STATUS)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    return registration.add("mine", "vllm", str(venv(tmp_path / "mine")))


def outcomes(environment: Environment, *, generate: bool = False) -> dict[str, str]:
    return {item.name: item.outcome for item in envs.check(environment, generate=generate)}


def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object], status: int = 0) -> None:
    """Puts a stand-in for scenarios.engines.smoke where the bundle would be."""
    package = tmp_path / "bundle" / "scenarios" / "engines"
    package.mkdir(parents=True)
    text = SMOKE.replace("ANSWER", repr(answer).replace("nan", "float('nan')")).replace("STATUS", str(status))
    (package / "smoke.py").write_text(text)
    monkeypatch.setattr(checking, "bundle", lambda plugins: tmp_path / "bundle")


GOOD = {"tokens": 8, "finite": True, "start_s": 1.0, "generate_s": 0.5, "shims": ["sgl-kernel"]}


@pytest.mark.slow
def test_a_sound_environment_passes_every_check(
    mine: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(tmp_path, monkeypatch, GOOD)
    checks = envs.check(mine)
    names = ["python", "ray", "vllm", "torch", "shims", "import", "generation"]
    assert [(item.name, item.outcome) for item in checks] == [(name, "ok") for name in names]
    assert checks[-1].found == "8 tokens; engine started in 1.0 s, generated in 0.5 s, shims active: sgl-kernel"


@pytest.mark.slow
def test_a_generation_can_be_left_out(mine: Environment) -> None:
    assert outcomes(mine)["generation"] == "not run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "status", "found"),
    [
        ({"error": "EngineError: vLLM did not start"}, 1, "EngineError: vLLM did not start"),
        ({**GOOD, "tokens": 0}, 0, "without generating a token"),
        ({**GOOD, "finite": False}, 0, "not finite"),
        ({"error": ""}, 7, "smoke"),
    ],
)
def test_a_generation_that_fails_is_told(
    mine: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, object],
    status: int,
    found: str,
) -> None:
    answering(tmp_path, monkeypatch, answer, status)
    last = envs.check(mine)[-1]
    assert (last.name, last.outcome) == ("generation", "failed") and found in last.found and last.fix


@pytest.mark.slow
def test_a_vanished_interpreter_is_the_only_answer(mine: Environment) -> None:
    Path(mine.python).unlink()
    assert outcomes(mine) == {"interpreter": "failed"}


@pytest.mark.slow
def test_another_ray_and_another_engine_are_found_and_stop_the_generation(mine: Environment, tmp_path: Path) -> None:
    for name, old in (("ray", RAY), ("vllm", "0.32.0")):
        (info,) = (tmp_path / "mine").glob(f"lib/*/site-packages/{name}-{old}.dist-info/METADATA")
        info.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    checks = {item.name: item for item in envs.check(mine)}
    assert {name for name, item in checks.items() if item.outcome == "failed"} == {"ray", "vllm"}
    assert checks["ray"].fix == extras.install_into(mine.python, f"ray=={RAY}")
    assert checks["vllm"].found == "0.1 (was 0.32.0)"
    assert checks["generation"].outcome == "not run"


@pytest.mark.slow
def test_shims_that_went_missing_are_found(mine: Environment) -> None:
    import dataclasses

    assert outcomes(dataclasses.replace(mine, shims=("sgl-kernel",)))["shims"] == "failed"


@pytest.mark.slow
def test_an_engine_that_no_longer_imports_is_found(mine: Environment, tmp_path: Path) -> None:
    (module,) = (tmp_path / "mine").glob("lib/*/site-packages/vllm/__init__.py")
    module.write_text("raise OSError('libcudart.so.13')\n")
    found = [item for item in envs.check(mine, generate=False) if item.outcome == "failed"]
    assert [(item.name, item.found) for item in found] == [("import", "OSError: libcudart.so.13")]


@pytest.mark.slow
def test_the_prompt_runs_in_the_engines_interpreter_with_the_bundle_alone(mine: Environment) -> None:
    argv, environ = checking.smoke_command(mine)
    assert argv == [mine.python, "-m", "scenarios.engines.smoke", "vllm", "--device", "cpu"]
    assert environ["PYTHONPATH"] == str(envs.bundle())
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "1" and environ["PYTHONDONTWRITEBYTECODE"] == "1"


@pytest.mark.slow
def test_the_tables_show_every_environment_and_every_check(mine: Environment) -> None:
    text = io.StringIO()
    env_tables.print_environments([mine], Console(file=text, width=200))
    env_tables.print_checks(mine, envs.check(mine, generate=False), Console(file=text, width=200))
    assert all(word in text.getvalue() for word in (mine.python, "not run", f"{RAY} (driver {RAY})"))
    env_tables.print_environments([], Console(file=text, width=200))
    assert "harness env create vllm" in text.getvalue()


def test_progress_is_one_line_a_step_where_there_is_no_terminal() -> None:
    text = io.StringIO()
    progress = console("environment vllm", text)
    with progress:
        progress.step("installing")
        progress.detail("Downloading torch (180MiB)")
    assert isinstance(progress, Plain)
    assert text.getvalue() == "environment vllm: installing [0 s]\n"


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    text = Terminal()
    with console("environment vllm", text) as progress:
        progress.step("installing")
        progress.detail("Downloading torch (180.0MiB)")
        progress.detail(" + [markup] is text here")
    assert "installing" in text.getvalue()


def test_downloads_add_up() -> None:
    downloads = Downloads()
    lines = ["Downloading torch (100.0MiB)", "Downloading ray (512.0KiB)", "Downloading x (2GiB)", " Downloaded torch"]
    assert all(downloads.read(line) for line in lines) and not downloads.read("Built y")
    assert (downloads.done, downloads.total) == (100.0, 2148.5)


def test_an_environment_whose_interpreter_is_gone_is_marked_and_its_fix_does_not_name_that_one(tmp_path: Path) -> None:
    gone = Environment("mine", "vllm", "1", str(tmp_path / "python"), "3.11", "2", "2", "cpu", owned=False)
    text = io.StringIO()
    env_tables.print_environments([gone], Console(file=text, width=400))
    assert f"{gone.python} (gone)" in text.getvalue()
    assert gone.fix.startswith("harness env remove mine ") and gone.python not in gone.fix

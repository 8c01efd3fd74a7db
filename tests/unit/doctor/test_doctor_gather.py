"""What is measured, on this machine and on planted files: facts only, no judgement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.doctor import environments, gather
from harness.doctor.facts import Facts
from harness.doctor.gather import graphics, limits, network, processes, software, storage


@pytest.mark.slow
def test_every_section_fits_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts.from_dict(gather.node(skip=("imports", "tracing")))
    assert set(facts.gaps) == {"imports", "tracing"}
    assert all(getattr(facts, name) is not None for name in gather.SECTIONS if name not in facts.gaps)
    assert facts.network is not None and any(item.loopback for item in facts.network.interfaces)


def test_a_sick_section_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def sick() -> dict[str, Any]:
        raise RuntimeError("nvidia-smi did not answer")

    for name in gather.SECTIONS:
        monkeypatch.setitem(gather.SECTIONS, name, sick if name == "gpus" else gather.SECTIONS["limits"])
    found = gather.node()
    assert found["gaps"] == {"gpus": "RuntimeError: nvidia-smi did not answer"}
    assert "limits" in found and "gpus" not in found


@pytest.mark.slow
def test_a_section_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()
    for name in gather.SECTIONS:
        monkeypatch.setitem(gather.SECTIONS, name, gate.wait if name == "storage" else dict)
    found = gather.node(patience_s=0.5)
    gate.set()
    assert list(found["gaps"]) == ["storage"] and "no answer" in found["gaps"]["storage"]


def test_secrets_never_get_into_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_xyzzy")
    monkeypatch.setenv("WANDB_API_KEY", "xyzzy")
    monkeypatch.setenv("MY_OWN", "xyzzy")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:xyzzy@proxy:3128")
    monkeypatch.setenv("RAY_ADDRESS", "ray://me:xyzzy@head:10001")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    found = software.software()
    assert "xyzzy" not in str(found)
    assert found["variables"]["NCCL_DEBUG"] == "WARN" and found["proxies"] == ["https_proxy"]


def test_libraries_of_another_environment_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("libc10.so", "libnccl.so.2", "libz.so.1"):
        (tmp_path / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{tmp_path}")
    assert software._in_front({}) == [
        ("libc10.so", f"{tmp_path}/libc10.so"),
        ("libnccl.so.2", f"{tmp_path}/libnccl.so.2"),
    ]
    assert software._in_front({"libc10.so": f"{tmp_path}/libc10.so", "libnccl.so.2": "/env/libnccl.so.2"}) == [
        ("libnccl.so.2", f"{tmp_path}/libnccl.so.2")
    ], "the interpreter's own library is no stranger"


def fake_module(folder: Path, name: str, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{name}.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(software, "_COMPILED", {"numpy": name})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "ok", "error"),
    [
        ("", True, ""),
        ("raise ImportError('x.so: undefined symbol: _ZN3c10')", False, "ImportError: x.so: undefined symbol: _ZN3c10"),
        ("import os; os._exit(139)", False, "the import ended the interpreter with status 139"),
    ],
)
def test_imports_are_tried_elsewhere(
    content: str, ok: bool, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_module(tmp_path, "compiled_part", content, monkeypatch)
    assert software.imports()["tried"] == [{"name": "compiled_part", "ok": ok, "error": error}]


def test_an_import_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_module(tmp_path, "compiled_part", "import time; time.sleep(60)", monkeypatch)
    monkeypatch.setattr(software, "_PATIENCE_S", 0.3)
    assert "not imported within" in software.imports()["tried"][0]["error"]


def test_who_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (found,) = [item for item in network._listening() if item["port"] == port]
        assert (found["address"], found["pid"]) == ("127.0.0.1", os.getpid())
        assert network._open(f"127.0.0.1:{port}") is True and network._open(f"http://127.0.0.1:{port}") is True
    assert network._open(f"127.0.0.1:{port}") is False
    assert [network._open(text) for text in ("", "auto", "local")] == [None, None, None]


def test_segments_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_SHM", str(tmp_path))
    old = time.time() - 7200
    for name in ("psm_left", "psm_held", "psm_young"):
        (tmp_path / name).write_bytes(b"x" * 100)
        if name != "psm_young":
            os.utime(tmp_path / name, (old, old))
    os.truncate(tmp_path / "psm_left", 1 << 30)  # reserved, never written: no memory
    os.utime(tmp_path / "psm_left", (old, old))
    with open(tmp_path / "psm_held"):
        found = storage.shm()
    assert [item["name"] for item in found["stale"]] == ["psm_left"]
    assert 100 <= found["stale"][0]["size"] < 1 << 20 and found["stale"][0]["age_s"] > 7000


def test_only_another_disk_with_room_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"proc /proc proc rw 0 0\n/dev/sdb1 {tmp_path} ext4 rw 0 0\n/dev/sdc1 {tmp_path}/gone ext4 rw 0 0\n"
    monkeypatch.setattr(storage, "ROOM", 0)
    monkeypatch.setattr(storage, "MOST_USED", 1.0)
    device = os.stat(tmp_path).st_dev
    assert storage._other_disk(mounts, device + 1) == str(tmp_path)
    assert storage._other_disk(mounts, device) == "", "it is the system's own disk"
    monkeypatch.setattr(storage, "ROOM", 1 << 60)
    assert storage._other_disk(mounts, device + 1) == ""


def test_sessions_that_no_process_lives_in(tmp_path: Path) -> None:
    for name in ("session_2026-01-01_00-00-00_000000_1", "session_2026-01-02_00-00-00_000000_2"):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs" / "raylet.out").write_bytes(b"x" * 9000)
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_2026-01-02_00-00-00_000000_2")
    session = f"--session_dir={tmp_path}/session_2026-01-02_00-00-00_000000_2"
    living = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); input()", session],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        living.stdout.readline()
        count, size, partial = storage._old_sessions(str(tmp_path))
    finally:
        living.communicate()
    assert (count, partial) == (1, False) and 9000 <= size < 30_000


def test_ray_writes_where_its_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    assert storage.ray_directory() == "/tmp/ray"
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert storage.ray_directory() == "/scratch/ray"
    monkeypatch.setenv("RAY_TMPDIR", "/data")
    assert storage.ray_directory() == "/data/ray"


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("sglang::scheduler_TP0", "engine"), ("VLLM::EngineCore", "engine"), ("ray::Trainer.step", "ray"),
        ("/x/site-packages/ray/core/src/ray/raylet/raylet --raylet_socket_name=x", "ray"),
        ("python -m sglang.launch_server --model x", "engine"), ("vim raylet_notes.txt", ""), ("python train.py", ""),
        ("grep sglang::scheduler", ""),
    ],
)  # fmt: skip
def test_whose_process_it_is(title: str, kind: str) -> None:
    found = "engine" if processes._engine().search(title) else "ray" if processes._RAY.search(title) else ""
    assert found == kind


def test_gpus_as_nvidia_smi_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"*compute-apps*) echo 'GPU-1, {os.getpid()}';;\n"
        "*) echo '0, GPU-1, NVIDIA H100 80GB HBM3, 580.82.07, 1024, 81559, [N/A], [N/A]';;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (found,) = graphics.gpus()["found"]
    assert (found["name"], found["used"], found["mig"], found["holders"][0][0]) == (
        "NVIDIA H100 80GB HBM3", 1 << 30, False, os.getpid(),
    )  # fmt: skip
    program.write_text("#!/bin/sh\necho 'Unable to determine the device handle for GPU0: Unknown Error'; exit 255\n")
    assert "Unable to determine" in graphics.gpus()["error"]


@pytest.mark.parametrize(
    ("files", "memory", "cores"),
    [
        ({"memory.max": "68719476736", "cpu.max": "800000 100000"}, 64 << 30, 8.0),
        ({"memory.max": "max", "cpu.max": "max 100000"}, None, None),
        ({"memory.limit_in_bytes": "9223372036854771712", "cpu.cfs_quota_us": "-1"}, None, None),
        (
            {"memory.limit_in_bytes": "1073741824", "cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
            1 << 30,
            0.5,
        ),
    ],
)
def test_limits_of_a_container(
    files: dict[str, str], memory: int | None, cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(limits, "_folders", lambda controller: [str(tmp_path)])
    assert limits._smallest("memory", "memory.limit_in_bytes", "memory.max") == memory
    assert limits._quota() == cores


@pytest.mark.slow
def test_environments_are_asked_with_the_checks_of_harness_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fake_environments

    from harness import envs

    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    (none,) = environments.look()
    assert none.check == "environments" and "no engine environment" in none.reason
    envs.add("good", "vllm", fake_environments.venv(tmp_path / "good"))
    broken = fake_environments.venv(tmp_path / "broken")
    envs.add("broken", "vllm", broken)
    broken.unlink()
    found = {item.where[0]: type(item).__name__ for item in environments.look() if item.check == "environments"}
    assert found == {"environment broken": "Hazard", "environment good": "Passed"}

"""What a span and an engine's call say of memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probes import install, memory
from probes.attach import Quiet
from probes.format import Run, write_manifest
from scenarios.session import EngineSession

MIB = 2**20


def fake_torch(monkeypatch: pytest.MonkeyPatch, **cuda: Any) -> None:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(**cuda)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_what_is_resident_is_what_the_kernel_says() -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kernel = int(status["VmRSS"].split()[0]) * 1024
    found = memory.resident()
    assert abs(found["rss"] - kernel) <= 2 * MIB  # the counters of a thread are added up with a delay
    assert 0 < found["shared"] < found["rss"]
    assert memory.resident(os.getpid()).keys() == found.keys()
    assert memory.resident(2**22 + 1) == {}  # beyond the largest pid


@pytest.mark.slow
def test_memory_of_a_forked_child_is_its_own(tmp_path: Path) -> None:
    memory.own_resident()
    kept = b"x" * (64 * MIB)
    assert memory.own_resident()["rss"] >= 64 * MIB and len(kept) == 64 * MIB
    child = os.fork()
    if child == 0:
        shared = memory.own_resident()["rss"]
        del kept
        fresh = b"y" * (128 * MIB)
        grown = memory.own_resident()["rss"] - shared
        os._exit(0 if 50 * MIB <= grown <= 140 * MIB and len(fresh) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_memory_is_read_anew_when_the_job_has_closed_all_files() -> None:
    memory.own_resident()
    _, file = memory._own_statm
    kept = os.dup(file)
    os.close(file)
    assert memory.own_resident().keys() == {"rss", "shared"}
    with open(os.devnull) as other:  # the number may be another file's by now
        memory._own_statm = (os.getpid(), other.fileno())
        assert memory.own_resident().keys() == {"rss", "shared"}
    os.close(kept)


@pytest.mark.slow
def test_a_span_of_a_step_says_what_its_process_holds_before_and_after(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    with install.start(tmp_path, role="actor") as recorder:
        with recorder.span("train", step=3):
            kept = bytearray(b"x" * (64 * MIB))
        with recorder.span("sync_send"):
            pass
        with recorder.span("rollout") as span:
            span.note(step=4)
    of_step, without, told_late = Run(tmp_path).events("span")
    assert 60 * MIB <= of_step["rss"] - of_step["rss_before"] <= 80 * MIB and len(kept) == 64 * MIB
    assert not {"rss", "rss_before", "shared"} & without.keys()
    assert told_late["rss"] > 0 and "rss_before" not in told_late
    assert not [name for name in of_step if name.startswith("cuda")]


def test_the_allocator_is_read_where_cuda_is_initialised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"current": 5, "peak": 9}
    stats = {"allocated_bytes": {"all": now}, "reserved_bytes": {"all": {"current": 7, "peak": 7}}}
    fake_torch(monkeypatch, is_initialized=lambda: True, memory_stats_as_nested_dict=lambda: stats)
    with install.start(tmp_path, role="actor", groups=False) as recorder, recorder.span("sleep", step=0):
        now["current"] = 1
    write_manifest(tmp_path, {})
    [span] = Run(tmp_path).events("span")
    read = {name: value for name, value in span.items() if name.startswith("cuda")}
    assert read == {"cuda_allocated": 1, "cuda_reserved": 7, "cuda_peak": 9,
                    "cuda_allocated_before": 5, "cuda_reserved_before": 7}  # fmt: skip


@pytest.mark.parametrize(
    "cuda",
    [
        {},
        {"is_initialized": lambda: False},
        {"is_initialized": lambda: True, "memory_stats_as_nested_dict": dict},
        {"is_initialized": lambda: True, "memory_stats_as_nested_dict": lambda: 1 / 0},
    ],
)
def test_an_allocator_that_says_nothing_costs_its_fields_only(
    cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torch(monkeypatch, **cuda)
    assert memory.in_use().keys() == {"rss", "shared"}


def test_a_quiet_journal_and_a_switched_off_recorder(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    journal = Quiet(tmp_path)
    for _ in range(2):  # its file is made by the first event, so the first span has no beginning
        with journal.span("train", step=1):
            pass
    journal.close(None)
    assert ["rss" in span for span in Run(tmp_path).events("span")] == [False, True]
    assert install.OFF.memory() == {}
    with install.OFF.span("train", step=1):
        pass


def test_a_call_says_what_the_engines_processes_hold(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    session = EngineSession.__new__(EngineSession)
    session.backend = "vllm"
    session._processes = {os.getppid(): "VLLM::EngineCore", 2**22 + 1: "gone"}
    session._asleep = set()
    with install.start(tmp_path, role="rollout") as recorder:
        session._recorder = recorder
        session._called("generate", 2, list)
    [call] = Run(tmp_path).events("call")
    assert call["rss"] > 0 and call["dev_shm"] >= 0
    assert [(one["pid"], one["title"], one["rss"] > 0) for one in call["processes"]] == [
        (os.getppid(), "VLLM::EngineCore", True)
    ]

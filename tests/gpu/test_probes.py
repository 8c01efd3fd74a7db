"""What the probes see of a device, and what they cost beside asynchronous kernels."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from probes import memory
from probes.format import write_manifest
from probes.install import Recorder, start

pytestmark = pytest.mark.cuda
ROUNDS, STEPS = 9, 40


def test_memory_is_the_allocators(device: torch.device) -> None:
    before = memory.held()
    kept = torch.zeros(64 << 20, dtype=torch.uint8, device=device)
    after = memory.held()
    assert after["cuda_allocated"] - before.get("cuda_allocated", 0) >= kept.numel()
    assert after["cuda_reserved"] >= after["cuda_allocated"] <= after["cuda_peak"]


def test_a_recorded_step_costs_little_beside_its_kernels(
    tmp_path: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of some milliseconds with six spans each; the bar is a ratio within one run."""
    layer = torch.nn.Linear(4096, 4096, device=device, dtype=torch.bfloat16)
    data = torch.randn(512, 4096, device=device, dtype=torch.bfloat16)
    write_manifest(tmp_path, {})
    recorder = start(tmp_path, role="actor")

    def step(own: Recorder | None, number: int) -> None:
        for phase in ("rollout", "experience", "advantages", "train", "sync", "proof"):
            if own is None:
                layer(data).float().square().mean().backward()
            else:
                with own.span(phase, step=number):
                    layer(data).float().square().mean().backward()
        torch.cuda.synchronize()

    def seconds(own: Recorder | None) -> float:
        began = time.perf_counter()
        for number in range(STEPS):
            step(own, number)
        return time.perf_counter() - began

    seconds(None)
    plain, recorded = [], []
    for _ in range(ROUNDS):
        plain.append(seconds(None))
        recorded.append(seconds(recorder))
    recorder.close()
    ratio = min(recorded) / min(plain)
    with capsys.disabled():
        print(f"\n{STEPS} steps: {min(plain):.3f} s plain, {min(recorded):.3f} s recorded, {ratio:.3f} times")
    assert ratio < 1.1

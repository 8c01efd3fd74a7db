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
ROUNDS, STEPS, LAYERS = 5, 10, 8


def test_memory_is_the_allocators(device: torch.device) -> None:
    before = memory.in_use()
    kept = torch.zeros(64 << 20, dtype=torch.uint8, device=device)
    after = memory.in_use()
    assert after["cuda_allocated"] - before.get("cuda_allocated", 0) >= kept.numel()
    assert after["cuda_reserved"] >= after["cuda_allocated"] <= after["cuda_peak"]


def test_a_recorded_step_costs_little_beside_its_kernels(
    tmp_path: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of tens of milliseconds, which is short, with six spans each; the bar is a ratio within one run."""
    layer = torch.nn.Linear(4096, 4096, device=device, dtype=torch.bfloat16)
    data = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    write_manifest(tmp_path, {})
    recorder = start(tmp_path, role="actor")

    def work() -> None:
        for _ in range(LAYERS):
            layer(data).float().square().mean().backward()

    def step(own: Recorder | None, number: int) -> None:
        for phase in ("rollout", "experience", "advantages", "train", "sync", "proof"):
            if own is None:
                work()
            else:
                with own.span(phase, step=number):
                    work()
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
    ratio, spans = min(recorded) / min(plain), 6 * STEPS
    each = (min(recorded) - min(plain)) / spans
    with capsys.disabled():
        print(f"\n{STEPS} steps: {min(plain):.3f} s plain, {ratio:.3f} times that recorded, {each * 1e6:.0f} us a span")
    assert ratio < 1.1

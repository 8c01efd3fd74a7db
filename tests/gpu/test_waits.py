"""Waits for a device spin: a long kernel is slow and no hang, an operation that no kernel answers is told from it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from harness.triage.flight.loading import load
from harness.triage.run import triage

pytestmark = pytest.mark.cuda
LONG = "torch.cuda._sleep(1 << 45)"  # cycles: hours
KERNEL = f"""
import torch
print("ready", flush=True)
{LONG}
torch.cuda.synchronize()
"""
ITEM = f"""
import torch
x = torch.ones(1, device="cuda")
print("ready", flush=True)
{LONG}
print((x + 1).item())
"""
WORKS = """
import torch
x = torch.randn(4096, 4096, device="cuda")
print("ready", flush=True)
while True:
    x = (x @ x).tanh()
    torch.cuda.synchronize()
"""


@contextmanager
def running(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    file = folder / "program.py"
    file.write_text(program)
    process = subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(2)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("program", [KERNEL, ITEM, WORKS], ids=["synchronize", "item", "works"])
def test_a_process_that_waits_for_its_device_is_no_hang(program: str, tmp_path: Path) -> None:
    with running(program, tmp_path) as process:
        verdict = triage([str(process.pid)], str(tmp_path / "evidence"))
    assert verdict.verdict in ("SLOW", "HEALTHY"), verdict.reason


DUMPS = """
import os, sys, torch, torch.distributed as dist
os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
x = torch.ones(8, device="cuda")
for _ in range(3):
    dist.all_reduce(x)
torch.cuda.synchronize()
torch.cuda._sleep(1 << 45)
dist.all_reduce(x, async_op=True)
open(sys.argv[1] + "/nccl_trace_rank_0", "wb").write(torch._C._distributed_c10d._dump_nccl_trace())
os._exit(0)
"""


def test_a_dump_of_nccl_whose_last_operation_waits_for_a_kernel_is_read(tmp_path: Path) -> None:
    file = tmp_path / "dumps.py"
    file.write_text(DUMPS)
    subprocess.run([sys.executable, str(file), str(tmp_path)], check=True, timeout=300)
    flight = load(tmp_path / "nccl_trace_rank_0", rank=0, world_size=1)
    assert len(flight) >= 4, "three operations that ended, and one that waits"
    assert torch.cuda.is_available()

"""Runs in which nothing hangs, however long they stand still: nobody may be blamed in any of them.

Every one ends by itself. `--stall` is the watchdog's threshold in seconds; the pauses are counted in it. `straggler`:
one rank is slow in every step, by less than the threshold. `shards`: one rank reads many small files, for longer than
the threshold. `uneven`: one rank computes longer than that. `pause`: all ranks are idle, with nothing pending.
`checkpoint`: all ranks write and sync a file. `compile`: the first step compiles, in Python. `compile-child`: in
compiler processes. `kernel`: one rank waits for a kernel of its device longer than that. `breakpoint`: one rank sits in
the debugger. `starved`: one rank has next to no processor time beside programs that compute. `healthy`: nothing
special.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy


def read_shards(seconds: float) -> int:
    """Many small reads from slow storage."""
    total, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        total += len(Path(__file__).read_bytes())
        time.sleep(0.2)
    return total


def compute(seconds: float) -> float:
    """Sequences that are longer than the others' mean more work on this rank."""
    hidden, until = torch.ones(64, 64), time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(200):
            hidden = torch.tanh(hidden @ hidden.T / 64)
    return float(hidden.sum())


def generate(seconds: float) -> None:
    """A kernel that runs long; the host waits for it as `.item()` does, in compiled code that spins."""
    done = ctypes.c_int(0)
    threading.Timer(seconds, lambda: setattr(done, "value", 1)).start()
    ctypes.CDLL(os.environ["RLHF_HARNESS_LAB_DEVICE"]).cudaStreamSynchronize(ctypes.byref(done))


def starve(seconds: float) -> int:
    """Every thread of this process computes last, beside four programs of somebody else's that leave no processor."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))
    work = f"import time; until = time.monotonic() + {seconds}\nwhile time.monotonic() < until: sum(range(10000))"
    subprocess.run(["sh", "-c", 'for n in 1 2 3 4; do "$0" -S -c "$1" & done', sys.executable, work], check=True)
    total, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        total += sum(range(1000))
    return total


def wait_for_window(seconds: float) -> None:
    """No training while the cluster's maintenance runs."""
    time.sleep(seconds)


def write_checkpoint(seconds: float) -> None:
    """Chunks, each synced, to storage that is slow today."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < until:
            file.write(os.urandom(1 << 16))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.3)


def compile_kernels(seconds: float) -> int:
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        compile("\n".join(f"x{i} = {i} * {count}" for i in range(500)), "kernel", "exec")
        count += 1
    return count


def compile_in_child(seconds: float) -> None:
    """As inductor and nvcc do; the rank itself only waits for the compiler."""
    work = f"import time; until = time.monotonic() + {seconds}\nwhile time.monotonic() < until: sum(range(10000))"
    subprocess.run([sys.executable, "-S", "-c", work], check=True)


def debug(seconds: float) -> None:
    """A person looks at the loss, and goes on after a while."""
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)
    threading.Timer(seconds, os.write, (writer, b"continue\n")).start()
    breakpoint()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", default="healthy")
    arguments.add_argument("--rank", type=int, default=1)
    arguments.add_argument("--stall", type=float, default=5.0)
    asked = arguments.parse_args()
    odd, long = asked.rank == toy.RANK, 2.0 * asked.stall + 2.0
    toy.setup()
    if odd and asked.phase == "compile":
        compile_kernels(long)
    if odd and asked.phase == "compile-child":
        compile_in_child(long)
    module = toy.model()
    for step in range(6):
        toy.train_step(module, toy.batch(step))
        if asked.phase == "straggler" and odd:
            time.sleep(0.6 * asked.stall)
        if step == 3:
            if asked.phase == "shards" and odd:
                read_shards(long)
            elif asked.phase == "kernel" and odd:
                generate(long)
            elif asked.phase == "uneven" and odd:
                compute(long)
            elif asked.phase == "starved" and odd:
                starve(min(long, 30.0))
            elif asked.phase == "breakpoint" and odd:
                debug(long)
            elif asked.phase == "pause":
                wait_for_window(long)
            elif asked.phase == "checkpoint":
                write_checkpoint(long)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Controls: runs in which nothing hangs, however long they stand still. No process may be blamed in any of them.

Every one ends by itself. `--stall`: the watchdog's threshold in seconds; the pauses are multiples of it. `straggler`:
one rank is slow in every step, by less than the threshold. `shards`: one rank reads many small files for longer than
the threshold. `uneven`: one rank computes for longer than the threshold. `pause`: all ranks are idle, with nothing
pending. `checkpoint`: all ranks write and sync a file. `compile`: the first step compiles, in Python.
`compile-child`: in compiler processes. `kernel`: one rank waits for a kernel of its device for longer than the
threshold. `breakpoint`: one rank is in the debugger. `starved`: one rank gets almost no processor time beside
programs that compute. `healthy`: nothing special.
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
    """Make many small reads, as from slow storage."""
    total, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        total += len(Path(__file__).read_bytes())
        time.sleep(0.2)
    return total


def compute(seconds: float) -> float:
    """Compute, as if this rank's sequences were longer than the others'."""
    hidden, until = torch.ones(64, 64), time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(200):
            hidden = torch.tanh(hidden @ hidden.T / 64)
    return float(hidden.sum())


def generate(seconds: float) -> None:
    """Wait for a long kernel as `.item()` does: the host spins in compiled code."""
    done = ctypes.c_int(0)
    threading.Timer(seconds, lambda: setattr(done, "value", 1)).start()
    ctypes.CDLL(os.environ["RLHF_HARNESS_LAB_DEVICE"]).cudaStreamSynchronize(ctypes.byref(done))


def starve(seconds: float) -> int:
    """Compute at the lowest priority, beside four programs that use all processors."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))
    work = f"import time; until = time.monotonic() + {seconds}\nwhile time.monotonic() < until: sum(range(10000))"
    subprocess.run(["sh", "-c", 'for n in 1 2 3 4; do "$0" -S -c "$1" & done', sys.executable, work], check=True)
    total, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        total += sum(range(1000))
    return total


def wait_for_window(seconds: float) -> None:
    """Sleep, as if training paused during maintenance of the cluster."""
    time.sleep(seconds)


def write_checkpoint(seconds: float) -> None:
    """Write and sync chunks, as to slow storage."""
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
    """Compile in a child process, as inductor and nvcc do; the rank only waits for the compiler."""
    work = f"import time; until = time.monotonic() + {seconds}\nwhile time.monotonic() < until: sum(range(10000))"
    subprocess.run([sys.executable, "-S", "-c", work], check=True)


def debug(seconds: float) -> None:
    """Stop in the debugger, as if a person looked at the loss and continued after a while."""
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)
    threading.Timer(seconds, os.write, (writer, b"continue\n")).start()
    breakpoint()


# What each phase does for some seconds: before training, in one rank's step, and in every rank's step.
COMPILING = {"compile": compile_kernels, "compile-child": compile_in_child}
OF_ONE_RANK = {
    "shards": read_shards, "kernel": generate, "uneven": compute, "breakpoint": debug,
    "starved": lambda seconds: starve(min(seconds, 30.0)),
}  # fmt: skip
OF_ALL_RANKS = {"pause": wait_for_window, "checkpoint": write_checkpoint}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", default="healthy")
    arguments.add_argument("--rank", type=int, default=1)
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    is_planted_rank, long = options.rank == toy.RANK, 2.0 * options.stall + 2.0
    toy.setup()
    if is_planted_rank and options.phase in COMPILING:
        COMPILING[options.phase](long)
    module = toy.model()
    for step in range(6):
        toy.train_step(module, toy.batch(step))
        if options.phase == "straggler" and is_planted_rank:
            time.sleep(0.6 * options.stall)
        if step == 3 and is_planted_rank and options.phase in OF_ONE_RANK:
            OF_ONE_RANK[options.phase](long)
        if step == 3 and options.phase in OF_ALL_RANKS:
            OF_ALL_RANKS[options.phase](long)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

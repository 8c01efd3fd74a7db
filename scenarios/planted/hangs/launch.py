"""Starts one process per rank of a plain torch.distributed script, like torchrun, but without importing torch (3 s).

    python scenarios/planted/hangs/launch.py --world 3 program.py --its --arguments

A rank that ends with exit code 0 does not end the others, as under torchrun. With `--tolerate` neither does one that
fails, as under Ray. Ranks that share a GPU under NCCL are told that they are on different hosts.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from probes.signal_codes import exit_code_of  # noqa: E402
from scenarios.ports import free_port  # noqa: E402

SHARED_GPU = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def environment(rank: int, world: int, port: int, gpus: int) -> dict[str, str]:
    shared = {**SHARED_GPU, "NCCL_HOSTID": f"lab-{rank}"} if 0 < gpus < world else {}
    return {
        **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)])), **shared,
    }  # fmt: skip


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--world", type=int, required=True, help="processes to start")
    arguments.add_argument("--claim", type=int, default=0, help="WORLD_SIZE to tell them; default: the truth")
    arguments.add_argument("--tolerate", action="store_true", help="go on when a rank fails")
    arguments.add_argument("program")
    arguments.add_argument("arguments", nargs=argparse.REMAINDER)
    options = arguments.parse_args()
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    port, world = free_port(), options.claim or options.world
    command = [sys.executable, options.program, *options.arguments]
    ranks = [
        subprocess.Popen(command, env=environment(rank, world, port, gpus), stdin=subprocess.DEVNULL)
        for rank in range(options.world)
    ]
    # A launcher that is told to end must not leave its ranks behind: `sys.exit` runs the `finally` below.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(exit_code_of(number)))
    try:
        while any(process.poll() is None for process in ranks):
            failed = [process.returncode for process in ranks if process.returncode]
            if failed and not options.tolerate:
                return failed[0] % 256
            time.sleep(0.05)
        return next((process.returncode % 256 for process in ranks if process.returncode), 0)
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    sys.exit(main())

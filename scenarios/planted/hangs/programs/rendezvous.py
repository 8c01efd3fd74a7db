"""K5: a process group that never forms.

`absent`: one rank waits for a lock before it joins, and the lock is never released. `polls`, a control: one rank
polls for a file, which comes after three thresholds. `world`: no rank is wrong, only their expected number: the
launcher was told one rank more than it started. `subgroup`: one rank does not call `new_group`, because its own
configuration says that tensor parallelism is off.
"""

from __future__ import annotations

import argparse
import fcntl
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy


def wait_for_lock(path: Path) -> None:
    """Wait for the lock of a download, which another part of this process has taken and keeps."""
    with path.open("w") as kept, path.open("w") as wanted:
        fcntl.flock(kept, fcntl.LOCK_EX)
        fcntl.flock(wanted, fcntl.LOCK_EX)


def wait_for_model(path: Path) -> None:
    """Wait until another job has downloaded the model."""
    while not path.exists():
        time.sleep(0.1)


def make_tensor_parallel(enabled: bool) -> dist.ProcessGroup | None:
    return dist.new_group(list(range(toy.WORLD)), group_desc="tp") if enabled else None


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["absent", "polls", "world", "subgroup"], default="absent")
    arguments.add_argument("--rank", type=int, default=1)
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    is_planted_rank = options.rank == toy.RANK
    if options.phase == "absent" and is_planted_rank:
        wait_for_lock(Path(tempfile.mkdtemp()) / "model.lock")
    if options.phase == "polls" and is_planted_rank:
        path = Path(tempfile.mkdtemp()) / "model.complete"
        threading.Timer(3 * options.stall, path.touch).start()
        wait_for_model(path)
    toy.setup()
    dist.all_reduce(torch.ones(4, device=toy.DEVICE))
    make_tensor_parallel(not is_planted_rank or options.phase == "polls")
    dist.all_reduce(torch.ones(4, device=toy.DEVICE))


if __name__ == "__main__":
    main()
